// Experiments as cards. A card is made once and its parts are replaced one by one, so that a change elsewhere in it
// takes neither the focus nor a screen reader's place away.

import { el, keyed, svg } from './dom.js';
import { timeline } from './timeline.js';
import { clock, count, day, levelWord, seconds, short, stamp } from './words.js';

/** Statuses after which there is nothing left to be stopped. */
const PAST_STOPPING = ['undoing', 'halting', 'recovering', 'finished'];
const TONES = { passed: 'good', failed: 'bad', halted: 'warn', stopped: 'warn', void: 'bad' };
const BUSY = { pending: 'plain', injecting: 'fault', active: 'fault', undoing: 'plain', halting: 'bad', recovering: 'plain' };
const GOALS = { ttd: ['TTD', 'time to detect'], ttm: ['TTM', 'time to mitigate'], ttr: ['TTR', 'time to recover'] };

export const stoppable = (view) => !PAST_STOPPING.includes(view.status);

/** The cards of running experiments into `parent`. `context`: `{now, readOnly, old, links, stop(view)}`. */
export function running(parent, views, context) {
  keyed(parent, views.map((view) => [view.id, 'card', () => el('article', { class: 'card', 'aria-label': `Experiment ${view.name}` })]));
  for (const article of parent.children) parts(article, views.find((view) => view.id === article.dataset.key), context);
}

/** The finished ones: a line each, which opens to the whole card. */
export function finished(parent, views, context) {
  keyed(parent, views.map((view) => [view.id, `${view.time}${view.verdict}${day(context.now)}`, () => {
    const body = el('div', { class: 'card' });
    const details = el(
      'details',
      { class: 'done' },
      el(
        'summary',
        { 'data-focus': `done-${view.id}` },
        el('span', { class: `badge ${TONES[view.verdict] ?? 'plain'}` }, view.verdict ?? 'no verdict'),
        el('span', { class: 'name' }, view.name),
        el('time', { class: 'dim' }, clock(view.finished, context.now)),
        el('span', { class: 'id' }, view.id),
        view.reason && el('span', { class: 'why' }, view.reason),
      ),
      body,
    );
    details.addEventListener('toggle', () => { if (details.open) parts(body, view, { ...context, now: null, at: context.now }); });
    return details;
  }]));
}

function parts(parent, view, context) {
  const { links, readOnly, old } = context;
  const over = view.status === 'finished';
  const at = context.at ?? context.now;
  const now = over ? null : context.now - view.origin;
  const width = Math.max(240, Math.floor(parent.clientWidth || 340) - 26);
  const beat = over ? '' : Math.floor(now / Math.max(1, Math.floor(view.end_s / 120)));
  const left = over ? '' : remaining(view, context.now);
  const rows = [
    ['head', [view.status, view.verdict], () => head(view)],
    ['line', [view.started, view.owner, day(at)], () => el('p', { class: 'dim line' }, `${view.fault} on ${count(view.faults.length, 'target')} · ${view.owner} · ${clock(view.started, at)}`)],
    ['id', view.id, () => el('p', { class: 'id' }, view.id)],
    ['left', left, () => el('p', { class: 'left' }, left)],
    ['reason', view.reason, () => el('p', { class: 'reason' }, view.reason)],
    ['picture', [view.bars, view.goals, view.ends, beat, width], () => el('div', { class: 'picture' }, timeline(view, width, now))],
    ['levels', [view.levels, view.unknown_nodes], () => levels(view)],
    ['goals', [view.goals, over], () => goals(view)],
    ['undo', [view.halts, view.undo_confirmed, view.faults, day(at)], () => undoing(view, at)],
    ['count', [view.attributed, view.unattributed], () => anomalies(view)],
    ['more', view.timeline, () => moments(view)],
    ['actions', [readOnly, old, stoppable(view), links.experiment], () => actions(view, context)],
  ];
  const empty = { id: over, left: !left, reason: !view.reason, undo: !view.halts.length && !unsettled(view), more: !view.timeline.length, actions: !old && !links.experiment && (readOnly || !stoppable(view)) };
  keyed(parent, rows.filter(([key]) => !empty[key]).map(([key, signature, make]) => [key, JSON.stringify(signature), make]));
}

function head(view) {
  const badge = view.verdict ?? view.status;
  return el(
    'header',
    {},
    el('h3', { tabindex: -1 }, view.name),
    el('span', { class: `badge ${TONES[view.verdict] ?? BUSY[view.status] ?? 'plain'}` }, badge),
  );
}

function remaining(view, now) {
  if (view.status === 'active' && view.ends !== null) {
    const left = view.ends - now;
    return left > 0 ? `${seconds(Math.ceil(left))} left, then it is undone` : 'its time is over; the undo is due';
  }
  return {
    pending: 'waiting for a steady state; nothing is injected yet',
    injecting: 'being injected',
    active: 'injected; no end is set yet',
    undoing: 'at its planned end: being undone',
    halting: 'stopped before its end: being undone',
    recovering: 'faults gone; waiting for the steady state',
  }[view.status] ?? view.status;
}

/** Blast radius by level: a bar that is full at the limit, and the same in words; levels without a limit in one line. */
function levels(view) {
  const limited = view.levels.filter((level) => level.limit !== null);
  const others = view.levels.filter((level) => level.limit === null && level.hurt > 0);
  const said = others.map((level) => `${levelWord(level.level)} ${short(level.hurt)}`).join(', ');
  return el(
    'section',
    { class: 'levels' },
    el('h4', {}, 'Blast radius beyond the targets'),
    limited.length > 0 && el('ul', {}, limited.map(bar)),
    said && el('p', { class: 'dim' }, `without a limit: ${said}`),
    !limited.length && !said && el('p', { class: 'dim' }, 'nothing beyond the targets is hurt, and no limit is set'),
    view.unknown_nodes > 0 && el('p', { class: 'warn' }, `${count(view.unknown_nodes, 'node')} without telemetry: unknown counts as hurt`),
  );
}

function bar(level) {
  const name = levelWord(level.level);
  const said = `${short(level.hurt)} of ${short(level.limit)}`;
  const share = level.limit > 0 ? level.hurt / level.limit : level.hurt > 0 ? 2 : 0;
  const width = Math.min(share, 1) * 100;
  const tone = level.kept ? (share > 0.75 ? 'near' : 'in') : 'over';
  return el(
    'li',
    {},
    el('span', { class: 'what' }, name),
    svg(
      'svg',
      { class: 'share', viewBox: '0 0 100 8', preserveAspectRatio: 'none', 'aria-hidden': 'true' },
      svg('rect', { class: 'room', width: 100, height: 8 }),
      svg('rect', { class: tone, width, height: 8 }),
    ),
    el('span', { class: 'said' }, said),
    level.kept ? el('span', { class: 'dim' }, level.now === null || level.now === level.hurt ? '' : `${short(level.now)} now`) : el('strong', { class: 'bad' }, 'exceeded'),
  );
}

function goals(view) {
  return el('dl', { class: 'goals' }, view.goals.map((goal) => {
    const [name, meaning] = GOALS[goal.name] ?? [goal.name, goal.name];
    const tone = goal.met === null ? 'plain' : goal.met ? 'good' : 'bad';
    const word = goal.met === null ? (goal.objective === null ? 'no objective' : 'open') : goal.met ? 'met' : 'missed';
    return el(
      'div',
      { class: tone },
      el('dt', {}, el('abbr', { title: meaning }, name)),
      el('dd', {}, el('b', {}, seconds(goal.value)), goal.objective !== null && ` of ${seconds(goal.objective)}`, el('span', { class: `word ${tone}` }, word)),
      goal.note && el('dd', { class: 'dim' }, goal.note),
    );
  }));
}

const unsettled = (view) => PAST_STOPPING.includes(view.status) && !view.undo_confirmed;

/** How far each halt is, and what is not known to be undone. */
function undoing(view, now) {
  const rows = view.halts.map((halt) => {
    const after = (at) => (at === null ? null : `+${seconds(at - halt.requested)}`);
    const steps = [['requested', clock(halt.requested, now)], ['acknowledged', after(halt.acknowledged)], ['undone', after(halt.undone)], ['confirmed', after(halt.confirmed)]];
    if (halt.escalated !== null) steps.push(['escalated: a person is needed', after(halt.escalated)]);
    return el(
      'li',
      {},
      el('p', {}, el('b', {}, halt.dry_run ? 'Halt (dry run)' : 'Halt'), ` ${halt.cause}: ${halt.reason}`),
      el('ol', { class: 'steps' }, steps.map(([step, when]) => el('li', { class: step.startsWith('escalated') ? 'bad' : when ? 'good' : 'dim' }, `${when ? '✓' : '·'} ${step}${when ? ` ${when}` : ''}`))),
      halt.waiting_for.length > 0 && el('p', { class: 'warn' }, `waiting for ${halt.waiting_for.slice(0, 8).join(', ')}${halt.waiting_for.length > 8 ? ` and ${halt.waiting_for.length - 8} more` : ''}`),
    );
  });
  const open = unsettled(view) ? view.faults.filter((fault) => fault.undone === null && fault.phase !== 'refused' && fault.phase !== 'waiting') : [];
  if (open.length) rows.push(el('li', { class: 'bad' }, `not confirmed undone: ${open.slice(0, 6).map((fault) => `${fault.entity} (${fault.phase})`).join(', ')}${open.length > 6 ? ` and ${open.length - 6} more` : ''}`));
  return el('ul', { class: 'halts' }, rows);
}

function anomalies(view) {
  const none = !view.attributed && !view.unattributed;
  return el('p', { class: 'dim' }, none ? 'no anomaly so far' : `${count(view.attributed, 'anomaly', 'anomalies')} charged to it, ${view.unattributed} that no fault explains`);
}

function moments(view) {
  return el(
    'details',
    { class: 'moments' },
    el('summary', { 'data-focus': `moments-${view.id}` }, `All ${count(view.timeline.length, 'moment')}`),
    el('ol', {}, view.timeline.map((moment) => el('li', {}, el('b', {}, seconds(moment.after_s)), ` ${moment.text}`))),
    el('p', { class: 'dim' }, `Seconds since ${stamp(view.origin)}.`),
  );
}

function actions(view, { readOnly, old, links, stop }) {
  const link = links.experiment?.replace('{experiment_id}', encodeURIComponent(view.id));
  return el(
    'footer',
    {},
    !readOnly && stoppable(view) && el('button', { type: 'button', class: 'stop', 'data-focus': `stop-${view.id}`, onclick: () => stop(view.id) }, 'Stop', el('span', { class: 'sr' }, ` experiment ${view.name}`)),
    old && el('span', { class: 'warn' }, 'as last heard of'),
    link && el('a', { href: link, rel: 'noreferrer', 'data-focus': `grafana-${view.id}` }, 'Grafana', el('span', { class: 'sr' }, ` for ${view.name}`)),
  );
}
