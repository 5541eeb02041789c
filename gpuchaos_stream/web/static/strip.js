// The strip at the top and the lists: everything of the page but the map, from what is on the board.

import * as cards from './cards.js';
import { byId, el, keyed, say } from './dom.js';
import { clock, count, day, seconds, stateWord } from './words.js';
import { sign } from './panel.js';

/** Nodes of an incident that are buttons; the rest is counted. */
const MOST_NODES = 6;

/** How the data is: `{old, words}`. `silence` in seconds since the server last spoke, `link` the stream's state. */
export function health(board, link, silence) {
  if (board.cluster === null) return { old: true, words: link === 'lost' ? 'no connection to the server' : 'connecting…' };
  if (link === 'lost' && silence > 2) return { old: true, words: `connection lost: no word from the server for ${seconds(Math.floor(silence))}` };
  if (silence > 6) return { old: true, words: `no word from the server for ${seconds(Math.floor(silence))}` };
  if (board.freshness?.stale) return { old: true, words: board.freshness.words };
  return { old: false, words: board.freshness?.words ?? 'live' };
}

/** The strip. `state`: `{old, words}` of `health`; `now` by the server's clock. */
export function strip(board, state, now) {
  const known = board.cluster !== null;
  const last = known && state.old ? ', as last heard of' : '';
  tone('fresh', state.old ? 'warn' : 'good');
  say(byId('fresh-words'), state.words);
  const { breaker } = board;
  const tripped = breaker?.tripped === true;
  tone('breaker', tripped ? 'bad' : 'plain');
  say(byId('breaker-words'), breakerWords(breaker, now) + (breaker ? last : ''));
  byId('trip').hidden = board.readOnly || tripped || !breaker;
  byId('reset').hidden = board.readOnly || !tripped;
  const running = board.running().length;
  tone('running', running ? 'fault' : 'plain');
  const runs = running ? `${count(running, 'experiment')} running` : 'no experiment running';
  say(byId('running'), known ? runs + last : 'experiments: not known yet');
  tone('unexplained', board.incidentCount ? 'warn' : 'plain');
  say(byId('unexplained'), (board.incidentCount ? `${board.incidentCount} not explained` : 'nothing unexplained') + last);
  byId('unexplained').hidden = !known;
  byId('read-only').hidden = !board.readOnly || !known;
  byId('grafana').hidden = !board.links.loop;
  if (board.links.loop) byId('grafana').href = board.links.loop;
  byId('banner').hidden = !state.old || !known;
  say(byId('banner'), state.old ? `Out of date: ${state.words}. The map is grey: what it shows was true, and may not be any more.` : '');
  const first = !known ? '' : state.old ? 'OUT OF DATE' : tripped ? 'TRIPPED' : running ? `${running} running` : '';
  document.title = [first, board.cluster, 'GPUChaos'].filter(Boolean).join(' · ');
}

function tone(id, name) {
  const element = byId(id);
  const wanted = `pill ${name}`;
  if (element.className !== wanted) element.className = wanted;
}

function breakerWords(breaker, now) {
  if (!breaker) return 'breaker: not known yet';
  if (breaker.tripped) return `BREAKER TRIPPED since ${clock(breaker.since, now)}: ${breaker.cause || 'no cause was given'}`;
  if (breaker.frozen_until !== null && breaker.frozen_until > now) return `no new faults until ${clock(breaker.frozen_until, now)}`;
  return 'breaker closed';
}

/** The legend: what each mark means, how many there are (`old`: or were), and a filter. `toggle(name)` is called. */
export function legend(board, wanted, toggle, old) {
  byId('legend').classList.toggle('old', old);
  const last = old ? [['', '', () => el('span', { class: 'warn' }, 'as last heard of:')]] : [];
  keyed(byId('legend'), last.concat(board.counts().map(([name, number]) => [
    name,
    `${number}${wanted?.has(name) ?? 'all'}`,
    () => el(
      'button',
      { type: 'button', 'aria-pressed': String(wanted?.has(name) ?? false), title: board.stateWords[name], 'data-focus': `legend-${name}`, class: number ? '' : 'none', onclick: () => toggle(name) },
      sign(name),
      el('b', {}, number.toLocaleString('en')),
      ` ${stateWord(name)}`,
    ),
  ])));
}

/** The three lists at the side. `context` as of the cards, with `node(name)` and `experiment(id)`. */
export function lists(board, context) {
  const known = board.cluster !== null;
  const last = context.old ? ' That is as last heard of: it may be otherwise now.' : '';
  const running = board.running();
  cards.running(byId('running-list'), running, context);
  none('running', running.length, known ? last ? `No experiment is running.${last}` : 'No experiment is running. Start one with "gpuchaos experiment run".' : 'Nothing is known yet.');
  const finished = board.finished();
  cards.finished(byId('finished-list'), finished, context);
  none('finished', finished.length, known ? 'None has finished as far as Kafka remembers.' : 'Nothing is known yet.');
  const incidents = [...board.incidents.values()].sort((one, other) => other.opened - one.opened);
  keyed(byId('incidents-list'), incidents.map((view) => [view.id, `${view.time} ${day(context.now)}`, () => incident(view, context)]));
  none('incidents', incidents.length, known ? `Nothing is broken that no experiment explains.${last}` : 'Nothing is known yet.');
  const more = board.incidentCount - incidents.length;
  byId('incidents-more').hidden = more <= 0;
  say(byId('incidents-more'), more > 0 ? `and ${count(more, 'older one')}` : '');
}

function none(name, number, words) {
  byId(`${name}-none`).hidden = number > 0;
  say(byId(`${name}-none`), words);
}

function incident(view, { node, now }) {
  const more = view.node_count - Math.min(MOST_NODES, view.nodes.length);
  return el(
    'li',
    {},
    el('p', {}, el('span', { class: `badge ${view.severity === 'critical' || view.severity === 'error' ? 'bad' : 'warn'}` }, view.severity), ' ', el('b', {}, view.title)),
    el('p', { class: 'dim' }, `since ${clock(view.opened, now)}, ${count(view.anomaly_count, 'anomaly', 'anomalies')}${view.jobs.length ? `; jobs: ${view.jobs.slice(0, 4).join(', ')}${view.jobs.length > 4 ? '…' : ''}` : ''}`),
    view.nodes.length > 0 && el('p', { class: 'chips' }, view.nodes.slice(0, MOST_NODES).map((name) => el('button', { type: 'button', class: 'link', 'data-focus': `incident-${view.id}-${name}`, onclick: () => node(name) }, name)), more > 0 && el('span', { class: 'dim' }, `and ${more} more`)),
  );
}

/** What is worth a word aloud between two looks at the same cluster: halts, endings, the breaker, stale data. */
export function news(before, now) {
  const said = [];
  if (before.old !== now.old) said.push(now.old ? `Out of date: ${now.words}` : 'The data is live again');
  if (now.old) return said;
  if (before.tripped !== null && before.tripped !== now.tripped) said.push(now.tripped ? 'The breaker has tripped: no new faults' : 'The breaker is closed again');
  for (const [id, each] of before.experiments ? now.experiments : []) {
    const was = before.experiments.get(id);
    if (!was) {
      if (each.status !== 'finished') said.push(`Experiment ${each.name} has begun`);
    } else if (was.status !== each.status) {
      if (each.status === 'halting') said.push(`Experiment ${each.name} is being stopped: ${each.reason || 'no reason yet'}`);
      if (each.status === 'finished') said.push(`Experiment ${each.name} is over: ${each.verdict ?? 'no verdict'}`);
    }
  }
  return said;
}

/** What `news` compares. */
export function glance(board, state) {
  return {
    cluster: board.cluster,
    old: state.old,
    words: state.words,
    tripped: board.breaker?.tripped ?? null,
    experiments: new Map([...board.experiments].map(([id, { name, status, verdict, reason }]) => [id, { name, status, verdict, reason }])),
  };
}
