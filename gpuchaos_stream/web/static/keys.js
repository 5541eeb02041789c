// The map by keyboard: arrows go from cell to cell; Enter goes in, to nodes; Escape comes back; N and P go to the next
// and the previous node that is not ok.

const STEPS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };

/** Makes the map listen to keys. */
export function keyboard(map) {
  map.canvas.addEventListener('keydown', (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || !map.board.cells.length) return;
    if (!move(map, event)) return;
    event.preventDefault();
    map.tell();
  });
}

function move(map, event) {
  const step = STEPS[event.key];
  if (step) return (map.view === 'rails' ? onRails : map.at.node === null ? onCells : onNodes)(map, step);
  const { at, board } = map;
  const key = event.key.length === 1 ? event.key.toLowerCase() : event.key;
  switch (key) {
    case 'Enter':
    case ' ':
      return enter(map);
    case 'Escape':
      return leave(map);
    case 'Home':
    case 'End':
      return toEnd(map, event.key === 'Home');
    case 'n':
    case 'p':
      return toBroken(map, key === 'n' ? 1 : -1, at, board);
    default:
      return false;
  }
}

function onCells(map, [across, down]) {
  const { at, board, layout } = map;
  if (across) at.cell = Math.min(board.cells.length - 1, Math.max(0, at.cell + across));
  else {
    const from = layout.boxes[at.cell];
    const middle = from.x + from.w / 2;
    const others = layout.boxes.filter((box) => (down > 0 ? box.y > from.y : box.y < from.y));
    if (!others.length) return true;
    const row = others.reduce((best, box) => (Math.abs(box.y - from.y) < Math.abs(best - from.y) ? box.y : best), others[0].y);
    const near = others.filter((box) => box.y === row);
    at.cell = near.reduce((best, box) => (Math.abs(box.x + box.w / 2 - middle) < Math.abs(best.x + best.w / 2 - middle) ? box : best)).cell;
  }
  return true;
}

function onNodes(map, [across, down]) {
  const { at, board } = map;
  const cell = board.cells[at.cell];
  const next = at.node + across + down * map.layout.columns;
  if (next >= cell.start && next < cell.end) at.node = next;
  return true;
}

function onRails(map, [across, down]) {
  const { at, board } = map;
  if (across) {
    const rail = (at.rail ?? -1) + across;
    at.rail = rail < 0 ? null : Math.min(rail, board.rails.length - 1);
  } else if (map.inside === null) at.cell = Math.min(board.cells.length - 1, Math.max(0, at.cell + down));
  else {
    const cell = board.cells[map.inside];
    at.node = Math.min(cell.end - 1, Math.max(cell.start, (at.node ?? cell.start) + down));
  }
  return true;
}

function enter(map) {
  const { at, board } = map;
  if (at.node !== null) map.chosen(at.node);
  else {
    at.node = board.cells[at.cell].start;
    if (map.view === 'rails') {
      map.inside = at.cell;
      map.lay();
    }
  }
  return true;
}

function leave(map) {
  const { at } = map;
  if (at.node === null) return false;
  at.node = null;
  if (map.inside !== null) {
    map.inside = null;
    map.lay();
  }
  return true;
}

function toEnd(map, first) {
  const { at, board } = map;
  const cell = board.cells[at.cell];
  if (at.node !== null) at.node = first ? cell.start : cell.end - 1;
  else at.cell = first ? 0 : board.cells.length - 1;
  return true;
}

function toBroken(map, step, at, board) {
  const from = at.node ?? board.cells[at.cell].start - (step > 0 ? 1 : 0);
  for (let node = from + step; node >= 0 && node < board.state.length; node += step) {
    if (board.state[node] === 0 || map.quiet(board.stateOf(node))) continue;
    at.node = node;
    at.cell = board.cellOf[node];
    if (map.inside !== null && map.inside !== at.cell) {
      map.inside = at.cell;
      map.lay();
    } else if (map.view === 'rails' && map.inside === null) {
      map.inside = at.cell;
      map.lay();
    }
    return true;
  }
  map.tell();
  return true;
}
