// The page: puts its parts together. Whatever comes is noted at once and drawn at the next frame, all of it together.

import { get, path } from './api.js';
import { Board } from './board.js';
import { Commands } from './commands.js';
import { byId, el, say } from './dom.js';
import { keyboard } from './keys.js';
import { ClusterMap } from './map.js';
import { Panel } from './panel.js';
import { Stream } from './stream.js';
import { glance, health, legend, lists, news, strip } from './strip.js';
import { tables } from './table.js';
import { count, stamp } from './words.js';

/** Measures of updates that are kept, for whoever looks. */
const MOST_MEASURES = 200;

const board = new Board();
const go = {
  now,
  node: (name) => openNode(name),
  cell: (index) => openCell(index),
  experiment: (id) => toExperiment(id),
  back: () => { remember(); back(); },
};
const map = new ClusterMap(
  board,
  { canvas: byId('map'), frame: byId('frame'), ring: byId('ring'), tip: byId('tip'), told: byId('told') },
  (node) => openNode(board.nodes[node]),
  (cell) => openCell(cell),
);
const panel = new Panel(board, byId('panel'), () => board.links, go);
const commands = new Commands(board);
keyboard(map);

let stream = null;
let link = 'connecting';
let heardAt = performance.now();
let skew = 0; // the server's clock minus this one's, seconds
let wanted = null;
let before = null;
let opener = null;
let picked = false; // whether somebody named the cluster that is shown
let wasOld = false;

const asked = fromAddress();

/** Parts to be drawn at the next frame; `since` is when the first of them was asked for. */
const due = { lay: false, nodes: [], lists: false, since: null };

function now() {
  return Date.now() / 1000 + skew;
}

// ---- what is heard

const HEARD = {
  snapshot(view) {
    const whole = board.cluster !== view.cluster || board.version !== view.map.version || board.nodes.length !== view.map.nodes.length;
    board.snapshot(view);
    skew = view.freshness.time - Date.now() / 1000;
    if (whole) before = before?.cluster === view.cluster ? before : null;
    due.lay = true;
    due.lists = true;
    if (asked.node) panel.open({ node: asked.node }, false);
    delete asked.node;
  },
  nodes({ version, changes }) {
    if (version !== board.version) return;
    for (const index of board.changed(changes)) due.nodes.push(index);
  },
  cells({ version, changes }) {
    if (version === board.version) board.measured(changes);
  },
  experiment(view) {
    board.experiment(view);
    due.lists = true;
  },
  incident(view) {
    board.incident(view);
    due.lists = true;
  },
  breaker(view) {
    board.breaker = view;
    due.lists = true;
  },
  topology({ version }) {
    if (version !== board.version) stream.restart();
  },
  pulse(view) {
    board.freshness = view;
    skew = view.time - Date.now() / 1000;
  },
};

function heard(event, data) {
  heardAt = performance.now();
  HEARD[event]?.(data);
  if (event === 'pulse') look();
  else ask();
}

function ask() {
  if (due.since !== null) return;
  due.since = performance.now();
  requestAnimationFrame(frame);
}

function frame() {
  const began = due.since;
  const nodes = due.nodes.length;
  const drawn = performance.now();
  if (due.lay) {
    byId('nothing').hidden = board.nodes.length > 0;
    say(byId('nothing'), board.nodes.length ? '' : 'No node has said where it sits. Is an agent or a simulation running for this cluster?');
    say(byId('map-title'), `${count(board.nodes.length, 'node')} in ${count(board.cells.length, 'cell')}`);
    map.lay();
    table();
    panel.changed(null);
  } else if (nodes) {
    map.update(due.nodes);
    map.flush();
    table();
    panel.changed(due.nodes);
  }
  if (nodes || due.lay) legend(board, wanted, toggle, aged());
  if (due.lists) lists(board, context());
  if (due.lists && asked.experiment) toExperiment(asked.experiment);
  delete asked.experiment;
  Object.assign(due, { lay: false, nodes: [], lists: false, since: null });
  look();
  commands.follow();
  const end = performance.now();
  // A page may stand open for weeks.
  if (performance.getEntriesByName('update').length > MOST_MEASURES) performance.clearMeasures();
  performance.measure('update', { start: began, end, detail: { nodes } });
  performance.measure('draw', { start: drawn, end, detail: { nodes } });
}

function context() {
  const { old } = health(board, link, silence());
  return { now: now(), readOnly: board.readOnly, old, links: board.links, stop, node: go.node };
}

const silence = () => (performance.now() - heardAt) / 1000;

/** The strip, and whether the map may be believed. */
function look() {
  const state = health(board, link, silence());
  strip(board, state, now());
  map.setOld(state.old);
  panel.setOld(state.old);
  byId('frame').classList.toggle('old', state.old);
  if (state.old !== wasOld) {
    wasOld = state.old;
    legend(board, wanted, toggle, aged());
    table();
  }
  const seen = glance(board, state);
  if (before && before.cluster === seen.cluster) {
    const said = news(before, seen);
    if (said.length) byId('live').textContent = `${said.slice(0, 4).join('. ')}.`;
    // What is said of old data is compared when it is live again: until then it is not news.
    if (seen.old) {
      Object.assign(before, { old: true, words: seen.words });
      return;
    }
  }
  if (board.cluster === null) before = null;
  else before = seen.old ? { ...seen, tripped: null, experiments: null } : seen;
}

// Time goes on without any news: time left, and how old everything is.
setInterval(() => {
  look();
  lists(board, context());
  commands.follow();
}, 1000);

// ---- what is shown

function follow(cluster) {
  stream?.close();
  board.clear();
  panel.close();
  before = null;
  heardAt = performance.now();
  stream = new Stream(path(cluster, 'events'), heard, (state) => {
    link = state;
    if (state === 'open') heardAt = performance.now();
    look();
  });
}

/** Why the server is not ready, null if it is. */
async function reason() {
  const answer = await fetch('/readyz', { cache: 'no-store' });
  return answer.ok ? null : (await answer.text()).trim();
}

async function clusters() {
  const select = byId('cluster');
  try {
    const { clusters: found } = await get('/api/v1/clusters');
    const names = found.map((each) => each.cluster);
    const labels = found.map(({ cluster, nodes }) => (nodes ? cluster : `${cluster} (no nodes)`));
    const current = select.value;
    if (JSON.stringify(labels) !== JSON.stringify([...select.options].map((option) => option.text))) {
      select.replaceChildren(...names.map((name, at) => el('option', { value: name }, labels[at])));
      if (names.includes(current)) select.value = current;
    }
    if (names.includes(asked.cluster)) picked = true;
    const largest = found.reduce((most, each) => (each.nodes > most.nodes ? each : most), found[0]);
    const empty = !found.find((each) => each.cluster === current)?.nodes;
    if (!stream && picked) select.value = asked.cluster;
    else if (!picked && empty && names.length) select.value = largest.cluster;
    if (!names.length) {
      byId('nothing').hidden = false;
      const waits = await reason();
      say(byId('nothing'), waits ? `Nothing is known yet: ${waits}.` : 'Nothing was heard of any cluster yet. Is a worker running, and is this the right Kafka?');
      say(byId('fresh-words'), 'no cluster is known yet');
    } else if (!stream || select.value !== current) {
      follow(select.value);
    }
  } catch {
    if (!stream) say(byId('fresh-words'), 'no connection to the server');
  }
  setTimeout(clusters, stream && board.nodes.length ? 15_000 : 1500);
}

byId('cluster').addEventListener('change', (event) => {
  picked = true;
  follow(event.target.value);
  remember();
});

const buttons = [...document.querySelectorAll('[data-view]')];
buttons.forEach((button) => button.addEventListener('click', () => {
  show(button.dataset.view);
  remember();
}));

function show(view) {
  buttons.forEach((button) => button.setAttribute('aria-pressed', String(button.dataset.view === view)));
  const list = view === 'table';
  byId('table').hidden = !list;
  for (const id of ['frame', 'told', 'map-help']) byId(id).hidden = list;
  if (list) table();
  else map.show(view);
}

function table() {
  if (!byId('table').hidden) tables(board, byId('table'), wanted, go, aged());
}

/** Whether there is something to be seen that is old. */
const aged = () => wasOld && board.cluster !== null;

function toggle(name) {
  const chosen = new Set(wanted ?? []);
  if (!chosen.delete(name)) chosen.add(name);
  wanted = chosen.size ? chosen : null;
  map.filter(wanted);
  legend(board, wanted, toggle, aged());
  table();
}

byId('find').addEventListener('submit', (event) => {
  event.preventDefault();
  const text = byId('find-name').value.trim().toLowerCase();
  if (!text) return;
  const exact = board.nodes.findIndex((name) => name.toLowerCase() === text);
  const cell = board.cells.findIndex((each) => each.name.toLowerCase() === text);
  const like = board.nodes.reduce((found, name, index) => (name.toLowerCase().includes(text) ? [...found, index] : found), []);
  const node = exact >= 0 ? exact : like[0];
  if (exact < 0 && cell >= 0) openCell(cell);
  else if (node !== undefined) openNode(board.nodes[node]);
  say(byId('find-said'), exact >= 0 || cell >= 0 ? '' : like.length ? `${count(like.length, 'node')}; this is the first` : 'no node or cell has this in its name');
});

// ---- panel, experiments, commands

function openNode(name) {
  keepOpener();
  const index = board.indexOf.get(name);
  if (index !== undefined) map.at = { cell: board.cellOf[index], node: map.view === 'rails' && map.inside === null ? null : index, rail: null };
  panel.open({ node: name });
  remember();
}

function openCell(index) {
  keepOpener();
  panel.open({ cell: board.cells[index].name });
  remember();
}

function keepOpener() {
  if (!byId('panel').contains(document.activeElement)) opener = document.activeElement;
}

/** The focus goes back to where the panel was opened from. */
function back() {
  if (opener?.isConnected) opener.focus();
  else map.canvas.focus();
}

function toExperiment(id) {
  const card = document.querySelector(`[data-key="${CSS.escape(id)}"]`);
  if (card?.localName === 'details') card.open = true;
  const head = card?.querySelector('h3, summary');
  card?.scrollIntoView({ block: 'nearest' });
  head?.focus();
}

function stop(id) {
  commands.open('stop', id, board.experiments.get(id)?.name ?? id);
}

// Paper does not say how old it is.
addEventListener('beforeprint', () => say(byId('printed'), `Printed ${stamp(now())}: ${byId('fresh-words').textContent}.`));

byId('trip').addEventListener('click', () => commands.open('trip'));
byId('reset').addEventListener('click', () => commands.open('reset'));

// ---- the address: what is shown can be sent to a colleague

function fromAddress() {
  return Object.fromEntries(new URLSearchParams(location.hash.slice(1)));
}

function remember() {
  const view = buttons.find((button) => button.getAttribute('aria-pressed') === 'true').dataset.view;
  const words = { cluster: board.cluster ?? byId('cluster').value, view: view === 'cells' ? '' : view, node: panel.node ?? '' };
  history.replaceState(null, '', `#${new URLSearchParams(Object.entries(words).filter(([, value]) => value))}`);
}

if (buttons.some((button) => button.dataset.view === asked.view)) show(asked.view);
clusters();
look();
legend(board, wanted, toggle, aged());
