// The map: the whole cluster on one canvas, by cell or by rail. Only what changed is drawn again.

import { say } from './dom.js';
import { LABEL, byCell, byRail, hit, nodeBox, railBox } from './layout.js';
import { marks, none, palette, word } from './paint.js';
import { count, short, stateLetter, stateWord } from './words.js';

const FONT = '9.5px system-ui, sans-serif';
const BOLD = '700 9.5px system-ui, sans-serif';

export class ClusterMap {
  /**
   * `parts`: the elements `canvas`, `frame` (around it), `ring` (the focus), `tip` (at the pointer) and `told` (the
   * focus in words, a live region). `chosen(node)` is called with a node's index, `entered(cell)` with a cell's.
   */
  constructor(board, parts, chosen, entered) {
    Object.assign(this, parts);
    this.board = board;
    this.chosen = chosen;
    this.entered = entered;
    this.context = this.canvas.getContext('2d', { alpha: false });
    this.view = 'cells';
    this.inside = null; // of the view by rail: the cell whose nodes are its rows
    this.wanted = null; // names of states that are looked for; null: all
    this.old = false;
    this.at = { cell: 0, node: null, rail: null };
    this.dirty = new Set();
    this.cuts = new Map();
    new ResizeObserver(() => this.lay()).observe(this.frame);
    matchMedia('(prefers-color-scheme: dark)').addEventListener('change', () => this.lay());
    this.canvas.addEventListener('pointermove', (event) => this.hover(event));
    this.canvas.addEventListener('pointerleave', () => { this.tip.hidden = true; });
    this.canvas.addEventListener('click', (event) => this.click(event));
    this.canvas.addEventListener('focus', () => this.tell());
    this.canvas.addEventListener('blur', () => { this.ring.hidden = true; });
  }

  show(view) {
    this.view = view;
    this.inside = null;
    this.at = { cell: this.at.cell, node: null, rail: null };
    this.lay();
  }

  filter(wanted) {
    this.wanted = wanted;
    this.draw();
  }

  setOld(old) {
    if (this.old === old) return;
    this.old = old;
    this.canvas.dataset.old = String(old);
    this.draw();
  }

  /** Rows of the view by rail: cells, or the nodes of the cell that was entered. */
  rows() {
    return this.inside === null ? this.board.cells.length : this.board.cells[this.inside].end - this.board.cells[this.inside].start;
  }

  /** Lays everything out anew for the room there is, and draws it. */
  lay() {
    const { board } = this;
    const width = Math.floor(this.frame.clientWidth);
    if (!width || this.canvas.hidden) return;
    if (this.inside !== null && this.inside >= board.cells.length) this.inside = null;
    const top = this.frame.getBoundingClientRect().top + scrollY;
    const height = Math.max(260, Math.floor(innerHeight - top - 58));
    this.colours = palette(this.canvas);
    this.cuts.clear();
    this.context.font = FONT;
    if (this.view === 'rails') {
      const names = this.inside === null ? board.cells.map((cell) => cell.name) : board.nodes.slice(board.cells[this.inside].start, board.cells[this.inside].end);
      const label = Math.min(110, 8 + Math.max(20, ...names.map((name) => this.context.measureText(name).width)));
      this.layout = byRail(names.length, board.rails.length, width, height, Math.ceil(label));
    } else this.layout = byCell(board.cells, width, height);
    const scale = devicePixelRatio || 1;
    this.canvas.width = Math.max(1, Math.round(this.layout.width * scale));
    this.canvas.height = Math.max(1, Math.round(this.layout.height * scale));
    this.canvas.style.height = `${this.layout.height}px`;
    this.context.setTransform(scale, 0, 0, scale, 0, 0);
    this.draw();
    this.place();
  }

  draw() {
    if (!this.layout) return;
    const { context, layout, board, colours } = this;
    this.dirty.clear();
    context.fillStyle = colours.bg;
    context.fillRect(0, 0, layout.width, layout.height);
    if (layout.kind === 'rails') {
      this.heads();
      for (let row = 0; row < this.rows(); row += 1) this.row(row);
      return;
    }
    for (const rack of layout.racks) {
      context.strokeStyle = colours.line;
      context.lineWidth = 1;
      context.strokeRect(rack.x + 0.5, rack.y + 0.5, rack.w - 1, rack.h - 1);
      if (rack.name) this.label(rack.name, rack.x + 4, rack.y + 2, rack.w - 8, colours.fg, FONT);
    }
    for (const cell of board.cells) {
      this.head(cell);
      this.nodes(cell, true);
    }
  }

  /** Notes that these nodes are to be drawn again, at the next `flush`. */
  update(nodes) {
    for (const node of nodes) this.dirty.add(node);
  }

  flush() {
    if (!this.layout || !this.dirty.size) return;
    const { board, dirty } = this;
    const cells = new Map();
    if (this.layout.kind === 'rails') {
      const rows = new Set();
      for (const node of dirty) {
        const cell = board.cellOf[node];
        if (this.inside === null) rows.add(cell);
        else if (cell === this.inside) rows.add(node - board.cells[cell].start);
      }
      for (const row of rows) this.row(row);
    } else {
      for (const node of dirty) {
        const cell = board.cells[board.cellOf[node]];
        if (cells.has(cell)) cells.get(cell).push(node);
        else cells.set(cell, [node]);
      }
      for (const [cell, nodes] of cells) {
        this.nodes(cell, false, nodes);
        this.head(cell);
      }
    }
    dirty.clear();
    if (document.activeElement === this.canvas) this.tell();
  }

  quiet(state) {
    return this.wanted !== null && !this.wanted.has(state);
  }

  /** Draws these nodes of a cell (null: all), those of one state together. */
  nodes(cell, fresh, nodes = null) {
    const groups = new Map();
    const last = nodes ? nodes.length : cell.end - cell.start;
    for (let at = 0; at < last; at += 1) {
      const node = nodes ? nodes[at] : cell.start + at;
      const state = this.board.state[node];
      if (!groups.has(state)) groups.set(state, []);
      groups.get(state).push(nodeBox(this.layout, cell, node));
    }
    for (const [state, boxes] of groups) this.marks(boxes, this.board.states[state], fresh);
  }

  marks(boxes, state, fresh) {
    marks(this.context, this.colours, boxes, state, { quiet: this.quiet(state), old: this.old, fresh });
  }

  /** A cell's label: bold where one of its nodes is not ok. */
  head(cell) {
    const box = this.layout.boxes[cell.index];
    const loud = cell.counts[0] !== cell.end - cell.start && !this.old;
    this.label(cell.name, box.x, box.y - LABEL, box.w + 2, loud ? this.colours.fg : this.colours.dim, loud ? BOLD : FONT);
  }

  heads() {
    for (const block of this.layout.blocks) {
      this.board.rails.forEach((name, rail) => {
        const x = block.x + this.layout.label + rail * this.layout.column;
        this.label(name, x, 0, this.layout.column - 1, this.colours.dim, FONT);
      });
    }
  }

  row(row) {
    const { layout, board } = this;
    const cell = board.cells[this.inside ?? row];
    const [first, last] = this.inside === null ? [cell.start, cell.end] : [cell.start + row, cell.start + row + 1];
    const name = railBox(layout, row, null);
    let loud = false;
    for (let rail = 0; rail < layout.rails; rail += 1) {
      const [number, state, there] = board.railState(first, last, rail);
      const box = railBox(layout, row, rail);
      loud ||= number > 0;
      if (!there) {
        none(this.context, this.colours, box);
        continue;
      }
      this.marks([box], state, false);
      if (number > 0 && this.inside === null && !this.quiet(state)) this.number(number, box, state);
    }
    const text = this.inside === null ? cell.name : board.nodes[first];
    this.label(text, name.x, name.y, name.w, loud ? this.colours.fg : this.colours.dim, loud ? BOLD : FONT, name.h);
  }

  /** How many nodes of a cell have a mark on a rail, with the letter of the worst of their states where it fits. */
  number(number, box, state) {
    const { context, colours } = this;
    const colour = this.old ? colours.dim : colours[state] ?? colours.unexplained;
    const hollow = state === 'unexplained';
    context.fillStyle = hollow ? colours.bg : colour;
    context.fillRect(box.x, box.y, box.w, box.h);
    context.strokeStyle = colour;
    context.lineWidth = 1;
    if (hollow) context.strokeRect(box.x + 0.5, box.y + 0.5, box.w - 1, box.h - 1);
    const letter = box.w >= 24 ? stateLetter(state) : '';
    const tall = Math.max(box.h, 11);
    const place = { ...box, h: tall, y: box.y - (tall - box.h) / 2 };
    word(context, `${number > 99 ? '99+' : number}${letter}`, place, hollow ? colour : colours['on-mark']);
  }

  /** Text on one line; too long a name loses its beginning, for names differ at the end. */
  label(text, x, y, width, colour, font, height = LABEL) {
    const { context } = this;
    context.fillStyle = this.colours.bg;
    context.fillRect(x, y, width, Math.min(height, LABEL));
    context.font = font;
    context.fillStyle = colour;
    context.textAlign = 'left';
    context.textBaseline = 'middle';
    const shown = this.cut(text, width);
    context.fillText(shown, x, y + height / 2);
  }

  /** `text` as far as it fits into `width` in the font that is set; found once for each layout. */
  cut(text, width) {
    const key = `${this.context.font}|${width}|${text}`;
    let shown = this.cuts.get(key);
    if (shown === undefined) {
      shown = text;
      for (let at = 1; at < text.length && this.context.measureText(shown).width > width; at += 1) shown = `…${text.slice(at)}`;
      this.cuts.set(key, shown);
    }
    return shown;
  }

  // ---- where the pointer or the focus is

  point(event) {
    const box = this.canvas.getBoundingClientRect();
    const found = this.layout && hit(this.layout, this.board.cells, event.clientX - box.left, event.clientY - box.top);
    if (!found || this.layout.kind === 'cells') return found;
    if (this.inside === null) return { cell: found.row, node: null, rail: found.rail };
    return { cell: this.inside, node: this.board.cells[this.inside].start + found.row, rail: found.rail };
  }

  hover(event) {
    const found = event.pointerType === 'touch' ? null : this.point(event);
    this.tip.hidden = !found;
    if (!found) return;
    this.tip.textContent = this.words(found);
    const frame = this.frame.getBoundingClientRect();
    const x = Math.min(event.clientX - frame.left + 14, frame.width - this.tip.offsetWidth - 4);
    this.tip.style.transform = `translate(${Math.max(0, x)}px, ${event.clientY - frame.top + 18}px)`;
  }

  click(event) {
    const found = this.point(event);
    if (!found) return;
    this.at = { rail: null, ...found };
    this.tell();
    // A finger is wider than a node: it opens the cell, where nodes are buttons.
    if (event.pointerType === 'touch' || found.node === null) this.entered(found.cell);
    else this.chosen(found.node);
  }

  /** A place in words: what the tip and the screen reader say. */
  words({ cell: index, node, rail = null }) {
    const { board } = this;
    const cell = board.cells[index];
    if (!cell) return 'no cell is known yet';
    const where = `cell ${cell.name}${cell.rack ? `, rack ${cell.rack}` : ''}`;
    if (node !== null) {
      const marks = board.marks.get(node) ?? {};
      const said = [`${board.nodes[node]}: ${stateWord(board.stateOf(node))}`];
      if (rail !== null) said.push(`rail ${board.rails[rail]} ${board.onRail(node, rail) ? 'is marked' : board.hasPort(node, rail) ? 'has no mark' : 'has no port here'}`);
      if (marks.gpus?.length) said.push(`GPU ${marks.gpus.join(', ')}`);
      if (marks.rails?.length) said.push(`rail ${marks.rails.map((each) => board.rails[each]).join(', ')}`);
      return `${said.join('; ')} (${where})`;
    }
    if (rail !== null) {
      const [number, state, there] = board.railState(cell.start, cell.end, rail);
      return `${where}, rail ${board.rails[rail]}: ${number ? `${count(number, 'node')} marked, worst ${stateWord(state)}` : there ? 'no mark' : 'no port'}`;
    }
    const states = board.counts(cell).filter(([, number]) => number).map(([name, number]) => `${number} ${stateWord(name)}`);
    const values = Object.entries(cell.values).filter(([, value]) => value !== null);
    const measured = values.map(([name, value]) => `${board.valueNames[name] ?? name}: ${short(value)}`);
    return [`${where}: ${count(cell.end - cell.start, 'node')}, ${states.join(', ')}`, ...measured].join('; ');
  }

  tell() {
    this.place();
    const text = this.words(this.at);
    say(this.told, this.old ? `out of date: ${text}` : text);
  }

  /** The box of what is focused, null where nothing is. */
  box() {
    const { layout, at, board } = this;
    if (!layout || !board.cells[at.cell]) return null;
    if (layout.kind === 'rails') {
      const row = this.inside === null ? at.cell : (at.node ?? board.cells[this.inside].start) - board.cells[this.inside].start;
      return row < this.rows() && row >= 0 ? railBox(layout, row, at.rail) : null;
    }
    if (at.node !== null) return nodeBox(layout, board.cells[at.cell], at.node);
    const box = layout.boxes[at.cell];
    return box && { x: box.x, y: box.y - LABEL, w: box.w, h: box.h + LABEL };
  }

  place() {
    const box = document.activeElement === this.canvas ? this.box() : null;
    this.ring.hidden = !box;
    if (!box) return;
    this.ring.style.transform = `translate(${box.x - 3}px, ${box.y - 3}px)`;
    this.ring.style.width = `${box.w + 6}px`;
    this.ring.style.height = `${box.h + 6}px`;
    this.ring.scrollIntoView({ block: 'nearest', inline: 'nearest' });
  }
}
