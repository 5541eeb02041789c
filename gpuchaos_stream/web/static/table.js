// The map as tables: for those who read rather than look, and for copying.

import { el, keyed } from './dom.js';
import { count, short, stateWord } from './words.js';
import { sign } from './panel.js';

/** Rows at most: with more, the filter is the better tool. */
const MOST = 500;

/**
 * Writes the tables of a board into `host`; rows that say the same stay as they are, with the focus and what is marked
 * in them. `wanted`: the set of states looked for, null for all; `go` as a panel's; `old`: it may not be so any more.
 */
export function tables(board, host, wanted, go, old) {
  const looked = (state) => (wanted === null ? state !== 'ok' : wanted.has(state));
  const found = [];
  let more = 0;
  for (let node = 0; node < board.nodes.length; node += 1) {
    if (!looked(board.stateOf(node))) continue;
    if (found.length < MOST) found.push(node);
    else more += 1;
  }
  const none = wanted === null ? 'Every node is ok.' : 'No node is in these states.';
  const title = wanted === null ? 'Nodes that are not ok' : 'Nodes of the states chosen above';
  const rest = more > 0 ? `and ${count(more, 'more node', 'more nodes')}; choose a state above, or look for a name` : '';
  const cellHeads = ['cell', 'rack', 'nodes', ...board.states.map(stateWord), ...Object.values(board.valueNames)];
  host.classList.toggle('old', old);
  const last = 'As last heard of: it may be otherwise now.';
  keyed(host, [
    ...(old ? [['old', '', () => el('p', { class: 'warn' }, last)]] : []),
    ['title', title, () => el('h3', {}, title)],
    ['nodes', String(found.length > 0), () => (found.length ? grid(['node', 'state', 'cell', 'rack', 'marks']) : el('p', { class: 'dim' }, none))],
    ['rest', rest, () => el('p', { class: 'dim' }, rest)],
    ['cells-title', '', () => el('h3', {}, 'Cells')],
    ['cells', `${board.cells.length > 0} ${cellHeads}`, () => (board.cells.length ? grid(cellHeads) : el('p', { class: 'dim' }, 'No cell is known yet.'))],
  ]);
  if (found.length) rows(host, 'nodes', found.map((node) => ofNode(board, node, go)));
  if (board.cells.length) rows(host, 'cells', board.cells.map((cell) => ofCell(board, cell, go)));
}

function grid(heads) {
  return el('div', { class: 'wide' }, el('table', {}, el('thead', {}, el('tr', {}, heads.map((name) => el('th', { scope: 'col' }, name)))), el('tbody', {})));
}

/** The rows `[name, cells, click, first]` of one table; `cells` are words, `first` is drawn before the second. */
function rows(host, key, all) {
  keyed(host.querySelector(`[data-key="${key}"] tbody`), all.map(([name, cells, click, first]) => [
    name,
    cells.join('|'),
    () => el(
      'tr',
      {},
      el('th', { scope: 'row' }, el('button', { type: 'button', class: 'link', 'data-focus': `${key}-${name}`, onclick: click }, name)),
      cells.map((words, at) => el('td', {}, at === 0 && first ? sign(first) : null, at === 0 && first ? ' ' : null, words)),
    ),
  ]));
}

function ofNode(board, node, go) {
  const name = board.nodes[node];
  const cell = board.cells[board.cellOf[node]];
  const state = board.stateOf(node);
  const marks = board.marks.get(node);
  const said = [
    marks?.gpus.length && `GPU ${marks.gpus.join(', ')}`,
    marks?.rails.length && `rail ${marks.rails.map((rail) => board.rails[rail]).join(', ')}`,
  ].filter(Boolean);
  return [name, [stateWord(state), cell.name, cell.rack ?? '-', said.join('; ') || '-'], () => go.node(name), state];
}

function ofCell(board, cell, go) {
  const counts = cell.counts.map((number) => (number ? String(number) : ''));
  const values = Object.keys(board.valueNames).map((name) => short(cell.values[name] ?? null));
  return [cell.name, [cell.rack ?? '-', String(cell.end - cell.start), ...counts, ...values], () => go.cell(cell.index), null];
}
