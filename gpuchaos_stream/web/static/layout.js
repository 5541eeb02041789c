// Where everything of the map is drawn: pure arithmetic, in CSS pixels.

/** Height of a cell's label and of a rack's, pixels. */
export const LABEL = 11;
const GAP = 5;
const PAD = 3;
/** Largest and smallest distance from node to node, pixels. */
const PITCHES = { largest: 30, smallest: 5 };
/** The same of rows of the view by rail. */
const ROWS = { largest: 20, smallest: 9 };

/**
 * Numbers of columns that a cell of at most `nodes` nodes may have, the best first: a block somewhat wider than high
 * with no place empty; then blocks that are higher, which fit where names take most of the room.
 */
function columnsFor(nodes) {
  const found = [];
  for (let columns = Math.ceil(Math.sqrt(nodes * 0.6)); columns <= Math.ceil(Math.sqrt(nodes * 2.6)); columns += 1) {
    const empty = Math.ceil(nodes / columns) * columns - nodes;
    const odd = columns % 4 ? 0.5 : 0;
    found.push([empty / nodes + Math.abs(Math.log(columns / Math.sqrt(nodes * 1.6))) + odd, columns]);
  }
  return found.sort((one, other) => one[0] - other[0]).map(([, columns]) => columns);
}

/** Cells in racks: `[{rack, cells: [index, …]}]`, in the order in which a rack is first named. */
export function racksOf(cells) {
  const racks = new Map();
  cells.forEach((cell, index) => {
    const key = cell.rack ?? `\0${cell.name}`;
    if (!racks.has(key)) racks.set(key, { rack: cell.rack ?? null, cells: [] });
    racks.get(key).cells.push(index);
  });
  return [...racks.values()];
}

/**
 * The map by cell: the largest nodes with which everything fits into `width` × `height`, else the smallest, and
 * then it is higher than asked for.
 *
 * Returns `{kind, pitch, width, height, boxes: [{cell, x, y, w, h, columns}] by cell, racks: [{name, x, y, w, h}]}`;
 * a box is the nodes' block, its label stands in the `LABEL` pixels above it.
 */
export function byCell(cells, width, height) {
  const racks = racksOf(cells);
  const largest = Math.max(1, ...cells.map((cell) => cell.end - cell.start));
  const most = Math.max(1, ...racks.map((rack) => rack.cells.length));
  const choices = columnsFor(largest).flatMap((columns) => (most > 2 ? [[columns, 1], [columns, 2]] : [[columns, 1]]));
  const nodes = cells.reduce((sum, cell) => sum + cell.end - cell.start, 0);
  const bound = Math.floor(Math.sqrt((width * height) / Math.max(1, nodes)));
  for (let pitch = Math.max(PITCHES.smallest, Math.min(PITCHES.largest, bound)); pitch >= PITCHES.smallest; pitch -= 1) {
    for (const [columns, rows] of choices) {
      const laid = flow(cells, racks, most > 1 ? LABEL : null, pitch, width, columns, rows);
      if (laid.height <= height) return laid;
    }
  }
  // Where room is short a rack is a frame without its name, which stands in the words of each of its cells.
  const short = choices.map(([columns, rows]) => flow(cells, racks, most > 1 ? 0 : null, PITCHES.smallest, width, columns, rows));
  return short.reduce((least, laid) => (laid.height < least.height ? laid : least));
}

/**
 * Racks one after the other, as words are: `columns` of nodes in each cell, the cells of a rack in `rows`. `head` is the
 * height of a rack's name; null: racks are not drawn, for each is one cell.
 */
function flow(cells, racks, head, pitch, width, columns, rows) {
  const boxes = new Array(cells.length);
  const frames = [];
  const grouped = head !== null;
  const edge = grouped ? PAD : 0;
  let x = 0;
  let y = 0;
  let row = 0;
  for (const { rack, cells: members } of racks) {
    const sizes = members.map((index) => sizeOf(cells[index], columns, pitch));
    const inner = Math.max(...sizes.map((size) => size.w)) + GAP;
    const outer = Math.max(...sizes.map((size) => size.h)) + LABEL + PAD;
    const fit = Math.max(1, Math.floor((width - 2 * edge + GAP) / inner));
    const wide = members.length <= 4 ? members.length : Math.ceil(Math.sqrt(members.length * 1.5));
    const across = Math.min(fit, Math.max(1, Math.ceil(wide / rows)));
    const w = across * inner - GAP + 2 * edge;
    const h = Math.ceil(members.length / across) * outer - PAD + (head ?? 0) + 2 * edge;
    if (x > 0 && x + w > width) {
      x = 0;
      y += row + GAP;
      row = 0;
    }
    members.forEach((index, place) => {
      const left = x + edge + (place % across) * inner;
      const top = y + edge + (head ?? 0) + Math.floor(place / across) * outer + LABEL;
      boxes[index] = { cell: index, x: left, y: top, columns, ...sizes[place] };
    });
    if (grouped) frames.push({ name: head ? rack ?? 'no rack' : '', x, y, w, h });
    x += w + GAP;
    row = Math.max(row, h);
  }
  return { kind: 'cells', pitch, columns, width, height: y + row, boxes, racks: frames };
}

function sizeOf(cell, columns, pitch) {
  const nodes = cell.end - cell.start;
  return { w: Math.min(columns, Math.max(4, nodes)) * pitch - 1, h: Math.max(1, Math.ceil(nodes / columns)) * pitch - 1 };
}

/**
 * The map by rail: a row for each of `rows` cells or nodes, a column for each rail, the rows in as many blocks
 * beside each other as are needed to fit. `label` is the width that a row's name needs.
 *
 * Returns `{kind, width, height, pitch, column, label, blocks: [{x, first, last}], perBlock, rails}`.
 */
export function byRail(rows, rails, width, height, label) {
  const columns = Math.max(1, rails);
  for (let pitch = ROWS.largest; ; pitch -= 1) {
    const column = Math.min(28, Math.max(12, Math.round(pitch * 1.3)));
    const block = label + columns * column + 3 * GAP;
    const most = Math.max(1, Math.floor((width + 3 * GAP) / block));
    const fits = Math.max(1, Math.floor((height - LABEL - 2) / pitch));
    const needed = Math.ceil(rows / fits);
    if (needed > most && pitch > ROWS.smallest) continue;
    const across = Math.min(most, Math.max(1, needed));
    const perBlock = Math.max(1, Math.ceil(rows / across));
    const blocks = [];
    for (let first = 0; first < rows; first += perBlock) {
      blocks.push({ x: blocks.length * block, first, last: Math.min(rows, first + perBlock) });
    }
    return {
      kind: 'rails', pitch, column, label, blocks, perBlock, rails, width, height: LABEL + 2 + perBlock * pitch,
    };
  }
}

/** The box of one row and rail (`rail` null: of the row's name) in a layout by rail. */
export function railBox(layout, row, rail) {
  const block = layout.blocks[Math.floor(row / layout.perBlock)];
  const y = LABEL + 2 + (row - block.first) * layout.pitch;
  if (rail === null) return { x: block.x, y, w: layout.label - 4, h: layout.pitch - 1 };
  return { x: block.x + layout.label + rail * layout.column, y, w: layout.column - 1, h: layout.pitch - 1 };
}

/** The box of node `index` in a layout by cell. */
export function nodeBox(layout, cell, index) {
  const box = layout.boxes[cell.index];
  const place = index - cell.start;
  return {
    x: box.x + (place % box.columns) * layout.pitch,
    y: box.y + Math.floor(place / box.columns) * layout.pitch,
    w: layout.pitch - 1,
    h: layout.pitch - 1,
  };
}

/** What lies at a point: `{cell, node}` in a layout by cell, `{row, rail}` in one by rail; null where nothing is. */
export function hit(layout, cells, x, y) {
  if (layout.kind === 'rails') {
    const block = layout.blocks.findLast((each) => x >= each.x);
    const row = block && block.first + Math.floor((y - LABEL - 2) / layout.pitch);
    const column = block && Math.floor((x - block.x - layout.label) / layout.column);
    if (!block || row < block.first || row >= block.last || column >= layout.rails) return null;
    return { row, rail: column < 0 ? null : column };
  }
  for (const box of layout.boxes) {
    if (x < box.x || x > box.x + box.w || y < box.y - LABEL || y > box.y + box.h) continue;
    if (y < box.y) return { cell: box.cell, node: null };
    const cell = cells[box.cell];
    const node = cell.start + Math.floor((y - box.y) / layout.pitch) * box.columns + Math.floor((x - box.x) / layout.pitch);
    return { cell: box.cell, node: node < cell.end ? node : null };
  }
  return null;
}
