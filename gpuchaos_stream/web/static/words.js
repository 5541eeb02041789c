// How the page says numbers, times and states.

/** What each state of a node is called, and its letter on the map. */
const STATES = {
  ok: ['ok', ''],
  target: ['target', 'T'],
  hurt: ['hurt', 'H'],
  unexplained: ['not explained', 'U'],
  silent: ['silent', 'S'],
};

/** What a state is called; one that this page does not know keeps the server's word. */
export const stateWord = (name) => STATES[name]?.[0] ?? name;

/** The letter that stands for a state, none for `ok`. */
export const stateLetter = (name) => STATES[name]?.[1] ?? '?';

/** `1 node`, `12,500 nodes`. */
export function count(number, one, many = `${one}s`) {
  return `${number.toLocaleString('en')} ${number === 1 ? one : many}`;
}

/** A number as short as it is still true. */
export function short(number) {
  if (number === null || number === undefined || !Number.isFinite(number)) return '-';
  for (const [size, letter] of [[1e12, 'T'], [1e9, 'G'], [1e6, 'M']]) {
    if (Math.abs(number) >= size) return `${Number((number / size).toPrecision(3))} ${letter}`;
  }
  return Number.isInteger(number) ? number.toLocaleString('en') : String(Number(number.toPrecision(3)));
}

/** Seconds in words: `4.2 s`, `3 min 05 s`, `2 h 10 min`. A dash where there are none. */
export function seconds(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return '-';
  if (value < 0) return `-${seconds(-value)}`;
  if (value < 10) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600 && whole % 60 === 0) return `${whole / 60} min`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${String(whole % 60).padStart(2, '0')} s`;
  return `${Math.floor(whole / 3600)} h ${String(Math.floor((whole % 3600) / 60)).padStart(2, '0')} min`;
}

/** The day of an epoch second, UTC, as a number. */
export const day = (at) => Math.floor(at / 86_400);

/** The time of day of an epoch second, UTC, as everything else in the field says it; with its date unless `now` has it. */
export function clock(at, now) {
  if (at === null || at === undefined) return '-';
  return day(at) === day(now) ? `${new Date(at * 1000).toISOString().slice(11, 19)} UTC` : stamp(at);
}

/** `2026-11-30 19:10:42 UTC`. */
export function stamp(at) {
  if (at === null || at === undefined) return '-';
  return `${new Date(at * 1000).toISOString().slice(0, 19).replace('T', ' ')} UTC`;
}

/** `gpus` → `GPUs`. */
export function levelWord(name) {
  const known = { gpus: 'GPUs', nvlink_domains: 'NVLink domains', gpu_seconds: 'GPU-seconds' };
  return known[name] ?? name.replaceAll('_', ' ');
}
