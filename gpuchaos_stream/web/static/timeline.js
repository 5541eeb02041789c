// The timeline of one experiment: what lasted as bars, TTD, TTM and TTR as lines. Seconds since the first injection.

import { svg } from './dom.js';
import { seconds } from './words.js';

const LANE = 24;
const HEAD = 18;
const MOST_LANES = 7;
const GOALS = { ttd: 'detected', ttm: 'mitigated', ttr: 'recovered' };
const WORDS = { fault: 'fault', halt: 'halt', charged: 'anomaly charged to it', unexplained: 'anomaly not explained' };

/** Bars of many faults are one bar: of a fault on forty nodes the picture says when, and on how many. */
function lanesOf(bars) {
  const faults = bars.filter((bar) => bar.kind === 'fault');
  if (faults.length <= 2) return bars;
  const name = faults[0].lane.split(' on ')[0];
  const one = {
    kind: 'fault',
    lane: `${name} on ${faults.length} targets`,
    start_s: Math.min(...faults.map((bar) => bar.start_s)),
    end_s: faults.some((bar) => bar.end_s === null) ? null : Math.max(...faults.map((bar) => bar.end_s)),
  };
  return [one, ...bars.filter((bar) => bar.kind !== 'fault')];
}

/** A round step for an axis of `span` seconds with some five ticks. */
function stepOf(span) {
  return [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21600].find((step) => span / step <= 5) ?? 86400;
}

/** The picture, `width` pixels wide; `now` in seconds since the origin, null when it is over. */
export function timeline(view, width, now) {
  const every = lanesOf(view.bars);
  const lanes = every.slice(0, MOST_LANES);
  const planned = view.ends === null || now === null ? 0 : view.ends - view.origin;
  const start = Math.min(0, ...lanes.map((bar) => bar.start_s));
  const end = Math.max(view.end_s, now ?? 0, planned, 1) * 1.02;
  const x = (at) => 1 + ((Math.min(Math.max(at, start), end) - start) / (end - start)) * (width - 2);
  const foot = HEAD + lanes.length * LANE;
  const lines = view.goals.filter((goal) => goal.value !== null);
  const height = foot + (lines.length ? 16 : 4) + (every.length > lanes.length ? 16 : 0);
  const step = stepOf(end - start);
  const ticks = [];
  for (let at = Math.ceil(start / step) * step; at <= end; at += step) ticks.push(at);
  const said = lanes.map((bar) => `${WORDS[bar.kind]}, ${bar.lane}, from ${seconds(bar.start_s)} ${bar.end_s === null ? 'until now' : `to ${seconds(bar.end_s)}`}`);
  said.push(...lines.map((goal) => `${GOALS[goal.name]} after ${seconds(goal.value)}`));
  return svg(
    'svg',
    { class: 'timeline', viewBox: `0 0 ${width} ${height}`, width, height, role: 'img', 'aria-label': `Timeline: ${said.join('; ') || 'nothing yet'}` },
    planned > 0 && svg('rect', { class: 'planned', x: x(0), y: HEAD, width: Math.max(0, x(planned) - x(0)), height: foot - HEAD }),
    ticks.map((at) => [
      svg('line', { class: 'grid', x1: x(at), x2: x(at), y1: HEAD - 4, y2: foot }),
      svg('text', { class: 'tick', x: x(at), y: 11, 'text-anchor': x(at) < 14 ? 'start' : x(at) > width - 24 ? 'end' : 'middle' }, tick(at, step)),
    ]).flat(),
    lanes.map((bar, lane) => rect(bar, HEAD + lane * LANE, x, bar.end_s ?? now ?? view.end_s)),
    now !== null && svg('line', { class: 'now', x1: x(now), x2: x(now), y1: HEAD - 4, y2: foot }),
    marks(lines, x, foot, width),
    lanes.map((bar, lane) => name(bar, HEAD + lane * LANE, width)),
    every.length > lanes.length && svg('text', { class: 'tick', x: 0, y: height - 4 }, `and ${every.length - lanes.length} more lines`),
  );
}

function tick(at, step) {
  if (step < 60) return `${at} s`;
  return step < 3600 ? `${at / 60} min` : `${at / 3600} h`;
}

function rect(bar, top, x, end) {
  const left = x(bar.start_s);
  return svg('rect', { class: `bar ${bar.kind}`, x: left, y: top + 13, width: Math.max(3, x(end) - left), height: 7, rx: 1.5 });
}

function name(bar, top, width) {
  const text = bar.kind === 'unexplained' ? `not explained: ${bar.lane}` : bar.lane;
  const most = Math.floor(width / 6.2);
  return svg('text', { class: 'lane', x: 0, y: top + 10 }, text.length > most ? `${text.slice(0, most - 1)}…` : text);
}

function marks(lines, x, foot, width) {
  let free = -1;
  return lines.flatMap((goal) => {
    const at = x(goal.value);
    const text = GOALS[goal.name];
    const half = text.length * 3;
    const middle = Math.min(Math.max(at, half, free + half + 6), width - half);
    free = middle + half;
    return [
      svg('line', { class: 'moment', x1: at, x2: at, y1: HEAD - 4, y2: foot + 2 }),
      svg('text', { class: 'tick', x: middle, y: foot + 13, 'text-anchor': 'middle' }, text),
    ];
  });
}
