// The strip at the top and the lists: everything of the page but the map, from what is on the board.

import * as cards from './cards.js';
import { byId, el, keyed, say } from './dom.js';
import { clock, count, seconds, stateWord } from './words.js';
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
  tone('fresh', state.old ? 'warn' : 'good');
  say(byId('fresh-words'), state.words);
  const { breaker } = board;
  const tripped = breaker?.tripped === true;
  tone('breaker', tripped ? 'bad' : 'plain');
  say(byId('breaker-words'), breakerWords(breaker, now));
  byId('trip').hidden = board.readOnly || tripped || !breaker;
  byId('reset').hidden = board.readOnly || !tripped;
  const running = board.running().length;
  tone('running', running ? 'fault' : 'plain');
  say(byId('running'), running ? `${count(running, 'experiment')} running` : 'no experiment running');
  tone('unexplained', board.incidentCount ? 'warn' : 'plain');
  say(byId('unexplained'), board.incidentCount ? `${board.incidentCount} not explained` : 'nothing unexplained');
  byId('unexplained').hidden = board.cluster === null;
  byId('read-only').hidden = !board.readOnly || board.cluster === null;
  byId('grafana').hidden = !board.links.loop;
  if (board.links.loop) byId('grafana').href = board.links.loop;
  byId('banner').hidden = !state.old || board.cluster === null;
  say(byId('banner'), state.old ? `Out of date: ${state.words}. The map is grey: what it shows was true, and may not be any more.` : '');
  document.title = `${state.old ? 'OUT OF DATE · ' : tripped ? 'TRIPPED · ' : running ? `${running} running · ` : ''}${board.cluster ?? ''} · GPUChaos`;
}

function tone(id, name) {
  const element = byId(id);
  const wanted = `pill ${name}`;
  if (element.className !== wanted) element.className = wanted;
}

function breakerWords(breaker, now) {
  if (!breaker) return 'breaker: not known yet';
  if (breaker.tripped) return `BREAKER TRIPPED since ${clock(breaker.since)}: ${breaker.cause || 'no cause was given'}`;
  if (breaker.frozen_until !== null && breaker.frozen_until > now) return `no new faults until ${clock(breaker.frozen_until)}`;
  return 'breaker closed';
}

/** The legend: what each mark means, how many there are, and a filter. `toggle(name)` is called. */
export function legend(board, wanted, toggle) {
  keyed(byId('legend'), board.counts().map(([name, number]) => [
    name,
    `${number}${wanted?.has(name) ?? 'all'}`,
    () => el(
      'button',
      { type: 'button', 'aria-pressed': String(wanted?.has(name) ?? false), title: board.stateWords[name], 'data-focus': `legend-${name}`, class: number ? '' : 'none', onclick: () => toggle(name) },
      sign(name),
      el('b', {}, number.toLocaleString('en')),
      ` ${stateWord(name)}`,
    ),
  ]));
}

/** The three lists at the side. `context` as of the cards, with `node(name)` and `experiment(id)`. */
export function lists(board, context) {
  const known = board.cluster !== null;
  const running = board.running();
  cards.running(byId('running-list'), running, context);
  none('running', running.length, known ? 'No experiment is running. Start one with "gpuchaos experiment run".' : 'Nothing is known yet.');
  const finished = board.finished();
  cards.finished(byId('finished-list'), finished, context);
  none('finished', finished.length, known ? 'None has finished as far as Kafka remembers.' : 'Nothing is known yet.');
  const incidents = [...board.incidents.values()].sort((one, other) => other.opened - one.opened);
  keyed(byId('incidents-list'), incidents.map((view) => [view.id, String(view.time), () => incident(view, context)]));
  none('incidents', incidents.length, known ? 'Nothing is broken that no experiment explains.' : 'Nothing is known yet.');
  const more = board.incidentCount - incidents.length;
  byId('incidents-more').hidden = more <= 0;
  say(byId('incidents-more'), more > 0 ? `and ${count(more, 'older one')}` : '');
}

function none(name, number, words) {
  byId(`${name}-none`).hidden = number > 0;
  say(byId(`${name}-none`), words);
}

function incident(view, { node }) {
  const more = view.node_count - Math.min(MOST_NODES, view.nodes.length);
  return el(
    'li',
    {},
    el('p', {}, el('span', { class: `badge ${view.severity === 'critical' || view.severity === 'error' ? 'bad' : 'warn'}` }, view.severity), ' ', el('b', {}, view.title)),
    el('p', { class: 'dim' }, `since ${clock(view.opened)}, ${count(view.anomaly_count, 'anomaly', 'anomalies')}${view.jobs.length ? `; jobs: ${view.jobs.slice(0, 4).join(', ')}${view.jobs.length > 4 ? '…' : ''}` : ''}`),
    view.nodes.length > 0 && el('p', { class: 'chips' }, view.nodes.slice(0, MOST_NODES).map((name) => el('button', { type: 'button', class: 'link', 'data-focus': `incident-${view.id}-${name}`, onclick: () => node(name) }, name)), more > 0 && el('span', { class: 'dim' }, `and ${more} more`)),
  );
}

/** What is worth a word aloud between two looks at the same cluster: halts, endings, the breaker, stale data. */
export function news(before, now) {
  const said = [];
  if (before.old !== now.old) said.push(now.old ? `Out of date: ${now.words}` : 'The data is live again');
  if (before.tripped !== null && before.tripped !== now.tripped) said.push(now.tripped ? 'The breaker has tripped: no new faults' : 'The breaker is closed again');
  for (const [id, each] of now.experiments) {
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
