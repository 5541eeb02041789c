// The panel of one cell or one node, beside the map.

import { get, path } from './api.js';
import { el, keyed, svg } from './dom.js';
import { clock, count, short, stamp, stateWord } from './words.js';

const SHAPES = {
  ok: () => svg('rect', { x: 2, y: 2, width: 8, height: 8 }),
  target: () => svg('path', { d: 'M6 0L12 6L6 12L0 6Z' }),
  hurt: () => svg('rect', { x: 1, y: 1, width: 10, height: 10 }),
  unexplained: () => svg('rect', { x: 2, y: 2, width: 8, height: 8, class: 'hollow' }),
  silent: () => svg('path', { d: 'M2 2L10 10M10 2L2 10', class: 'hollow' }),
};

/** The mark of a state, as the map draws it. */
export function sign(state) {
  return svg('svg', { class: `sign ${state}`, viewBox: '0 0 12 12', 'aria-hidden': 'true' }, (SHAPES[state] ?? SHAPES.unexplained)());
}

export class Panel {
  /** `host`: the element; `links()`: where Grafana is; `go`: `{node(name), cell(index), experiment(id), back()}`. */
  constructor(board, host, links, go) {
    Object.assign(this, { board, host, links, go });
    this.shown = null;
    this.asked = 0;
    this.old = false;
    this.parts = [];
    host.addEventListener('keydown', (event) => { if (event.key === 'Escape') this.close(); });
  }

  get node() {
    return this.shown?.node ?? null;
  }

  close() {
    if (!this.shown) return;
    this.shown = null;
    this.host.hidden = true;
    this.go.back();
  }

  open(what, focus = true) {
    const fresh = JSON.stringify(what) !== JSON.stringify(this.shown);
    this.shown = what;
    this.host.hidden = false;
    if (fresh) {
      this.parts = [['asking', '', () => el('p', { class: 'dim' }, 'asking…')]];
      this.show(this.parts);
    }
    const done = what.node === undefined ? this.cell() : this.ask();
    if (focus) Promise.resolve(done).then(() => this.host.querySelector('h2')?.focus());
    return done;
  }

  /** Shows again what is shown, if one of these nodes (indices; null: all) concerns it. */
  changed(nodes) {
    if (!this.shown) return;
    const { board } = this;
    if (this.shown.node === undefined) {
      const cell = this.find();
      if (!cell || !nodes || nodes.some((node) => board.cellOf[node] === cell.index)) this.cell();
    } else if (!nodes || nodes.includes(board.indexOf.get(this.shown.node))) this.ask();
  }

  /** Whether what is shown may be believed. */
  setOld(old) {
    if (old === this.old) return;
    this.old = old;
    if (!this.shown) return;
    if (old) this.show(this.parts);
    else this.changed(null);
  }

  find() {
    return this.board.cells.find((each) => each.name === this.shown.cell);
  }

  head(title, under) {
    return el(
      'header',
      {},
      el('h2', { tabindex: -1, 'data-focus': 'panel-head' }, title),
      el('button', { type: 'button', class: 'close', 'data-focus': 'panel-close', onclick: () => this.close() }, 'Close', el('span', { class: 'sr' }, ' the panel')),
      under && el('p', { class: 'dim' }, under),
    );
  }

  show(parts) {
    for (const child of [...this.host.children]) if (!child.dataset.key) child.remove();
    this.parts = parts;
    const [head, ...rest] = parts.filter(Boolean);
    const old = this.old && ['old', '', () => el('p', { class: 'warn' }, 'As last heard of: it may be otherwise now.')];
    keyed(this.host, [head, old, ...rest].filter(Boolean).map(([key, signature, make]) => [key, JSON.stringify(signature), make]));
  }

  // ---- one cell: its nodes as buttons, large enough for a finger

  cell() {
    const { board } = this;
    const cell = this.find();
    if (!cell) return this.show([['gone', this.shown, () => this.head(`Cell ${this.shown.cell}`, 'it is no longer there')]]);
    const states = Array.from(board.state.slice(cell.start, cell.end));
    const said = board.counts(cell).filter(([, number]) => number).map(([name, number]) => `${number} ${stateWord(name)}`).join(', ');
    const values = Object.entries(cell.values).filter(([, value]) => value !== null);
    return this.show([
      ['head', cell.name, () => this.head(`Cell ${cell.name}`, [cell.rack && `rack ${cell.rack}`, count(cell.end - cell.start, 'node')].filter(Boolean).join(', '))],
      ['said', said, () => el('p', {}, said)],
      values.length && ['values', values, () => el('dl', { class: 'facts' }, values.map(([name, value]) => [el('dt', {}, board.valueNames[name] ?? name), el('dd', {}, short(value))]).flat())],
      ['nodes', [states, cell.start], () => el('ul', { class: 'nodes' }, states.map((_, place) => this.button(cell.start + place)))],
    ]);
  }

  button(index) {
    const { board, go } = this;
    const name = board.nodes[index];
    const state = board.stateOf(index);
    return el('li', {}, el('button', { type: 'button', class: `node ${state}`, 'data-focus': `node-${name}`, onclick: () => go.node(name) }, sign(state), el('span', {}, name), state !== 'ok' && el('span', { class: 'sr' }, `: ${stateWord(state)}`)));
  }

  // ---- one node

  async ask() {
    const { node } = this.shown;
    const asked = ++this.asked;
    try {
      const view = await get(path(this.board.cluster, 'nodes', node));
      if (asked === this.asked && this.shown?.node === node) this.whole(view);
    } catch (error) {
      if (asked === this.asked && this.shown?.node === node) {
        this.show([['head', node, () => this.head(node)], ['error', error.message, () => el('p', { class: 'warn' }, error.message)]]);
      }
    }
  }

  whole(view) {
    const { board, go } = this;
    const { info } = view;
    const link = this.links()?.node?.replace('{cell}', encodeURIComponent(info.cell)).replace('{node}', encodeURIComponent(view.node));
    const place = [['cell', info.cell], ['rack', info.rack], ['leaf', info.leaf], ['NVLink domain', info.nvlink_domain], ['jobs', info.jobs.join(', ')], ['agent', info.agent_version], ['last heard', stamp(view.heard)]];
    const cell = board.cells.findIndex((each) => each.name === info.cell);
    this.show([
      ['head', view.node, () => this.head(view.node)],
      ['why', [view.state, view.why], () => el('p', { class: 'state' }, sign(view.state), el('b', {}, stateWord(view.state)), view.state === 'ok' ? '' : `: ${view.why}`)],
      ['faults', view.faults, () => el('section', {}, el('h3', {}, 'Faults on it'), view.faults.length
        ? el('ul', {}, view.faults.map((fault) => el('li', {}, fault.entity, ', of ', el('button', { type: 'button', class: 'link', 'data-focus': `fault-${fault.fault_id}`, onclick: () => go.experiment(fault.experiment_id) }, board.experiments.get(fault.experiment_id)?.name ?? fault.experiment_id))))
        : el('p', { class: 'dim' }, 'No experiment has put a fault on it.'))],
      ['anomalies', view.anomalies, () => el('section', {}, el('h3', {}, 'Open anomalies'), view.anomalies.length
        ? el('ul', {}, view.anomalies.map((each) => this.anomaly(each)))
        : el('p', { class: 'dim' }, 'None.'))],
      ['place', place, () => el('section', {}, el('h3', {}, 'Place'), el('dl', { class: 'facts' }, place.filter(([, value]) => value).map(([name, value]) => [el('dt', {}, name), el('dd', {}, value)]).flat()))],
      ['devices', [info.gpus, info.ports, view.anomalies], () => this.devices(view)],
      ['links', [cell, link], () => el('footer', {}, cell >= 0 && el('button', { type: 'button', class: 'link', 'data-focus': 'to-cell', onclick: () => go.cell(cell) }, `Whole cell ${info.cell}`), link && el('a', { href: link, rel: 'noreferrer' }, 'Grafana', el('span', { class: 'sr' }, ` for ${view.node}`)))],
    ]);
  }

  anomaly(each) {
    const cause = each.experiment_id === null ? 'not explained' : `charged to ${this.board.experiments.get(each.experiment_id)?.name ?? each.experiment_id}`;
    return el('li', { class: each.experiment_id === null ? 'unexplained' : 'hurt' }, el('b', {}, `${each.metric} on ${each.entity}`), ` (${each.severity}), since ${clock(each.start, this.go.now())}: ${cause}`, each.sentence && el('span', { class: 'dim' }, ` ${each.sentence}`));
  }

  devices({ info, anomalies }) {
    const hurt = new Set(anomalies.map((each) => each.entity));
    const rows = [
      ...info.gpus.map((gpu) => [`GPU ${gpu.index}`, gpu.job ?? '', gpu.numa_node, hurt.has(`gpu/${info.node}/${gpu.index}`)]),
      ...info.ports.map((port) => [port.name, port.rail ?? '', port.numa_node, hurt.has(`port/${info.node}/${port.name}`)]),
    ];
    if (!rows.length) return el('section', {}, el('h3', {}, 'Devices'), el('p', { class: 'dim' }, 'Its agent names none.'));
    return el(
      'section',
      {},
      el('h3', {}, 'Devices'),
      el('div', { class: 'wide' }, el('table', {}, el('thead', {}, el('tr', {}, ['device', 'job or rail', 'NUMA'].map((name) => el('th', { scope: 'col' }, name)), el('th', { scope: 'col' }, el('span', { class: 'sr' }, 'state')))), el('tbody', {}, rows.map(([name, use, numa, open]) => el('tr', {}, el('th', { scope: 'row' }, name), el('td', {}, use), el('td', {}, numa ?? '-'), el('td', {}, open ? el('span', { class: 'warn' }, 'open anomaly') : '')))))),
    );
  }
}
