// How a state looks on the canvas. Each has a shape of its own as well as a colour, and a letter where there is room,
// so that nobody needs the colours.

import { stateLetter } from './words.js';

/** From this size on, pixels, a letter is drawn. */
const LETTERS = 11;

const NAMES = ['bg', 'fg', 'dim', 'line', 'faint', 'ok', 'target', 'hurt', 'unexplained', 'silent', 'on-mark'];

/** The page's colours as the stylesheet has them now. */
export function palette(element) {
  const style = getComputedStyle(element);
  return Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()]));
}

/** State → shape. A state that this page does not know looks like an unexplained one: it is not ok. */
const SHAPES = { ok, target, hurt, unexplained, silent };
/** Shapes that are an outline: their letter has their own colour. */
const HOLLOW = new Set(['unexplained', 'silent']);

/**
 * Draws the marks of nodes of one state into their boxes: together, for setting a colour costs more than a rectangle.
 * `quiet`: not what is looked for. `old`: what is known is out of date, so nothing is drawn in the colour of a healthy
 * node. `fresh`: there is nothing below that must go first.
 */
export function marks(context, colours, boxes, state, { quiet = false, old = false, fresh = false } = {}) {
  if (!fresh) {
    context.fillStyle = colours.bg;
    for (const box of boxes) context.fillRect(box.x - 0.5, box.y - 0.5, box.w + 1, box.h + 1);
  }
  if (quiet) {
    context.fillStyle = colours.faint;
    for (const box of boxes) context.fillRect(box.x, box.y, box.w, box.h);
    return;
  }
  const name = state in SHAPES ? state : 'unexplained';
  const colour = old ? (name === 'ok' ? colours.faint : colours.dim) : colours[name];
  context.fillStyle = colour;
  context.strokeStyle = colour;
  SHAPES[name](context, boxes);
  const letter = stateLetter(name);
  for (const box of letter ? boxes : []) {
    if (Math.min(box.w, box.h) >= LETTERS) word(context, letter, box, HOLLOW.has(name) ? colour : colours['on-mark']);
  }
}

/** Where there is nothing that could be well or hurt: an empty box with a dash in it. */
export function none(context, colours, { x, y, w, h }) {
  context.fillStyle = colours.bg;
  context.fillRect(x - 0.5, y - 0.5, w + 1, h + 1);
  context.fillStyle = colours.line;
  context.fillRect(x + w / 2 - 2, y + Math.floor(h / 2), 4, 1);
}

/** A short word in the middle of a box. */
export function word(context, text, box, colour) {
  context.fillStyle = colour;
  context.font = `700 ${Math.min(14, Math.floor(box.h * 0.8))}px system-ui, sans-serif`;
  context.textAlign = 'center';
  context.textBaseline = 'middle';
  context.fillText(text, box.x + box.w / 2, box.y + box.h / 2 + 0.5);
}

function ok(context, boxes) {
  for (const { x, y, w, h } of boxes) {
    const inset = Math.min(w, h) >= 7 ? 1 : 0.5;
    context.fillRect(x + inset, y + inset, w - 2 * inset, h - 2 * inset);
  }
}

function target(context, boxes) {
  context.beginPath();
  for (const { x, y, w, h } of boxes) {
    const reach = Math.min(w, h) >= LETTERS ? 0 : 0.5;
    context.moveTo(x + w / 2, y - reach);
    context.lineTo(x + w + reach, y + h / 2);
    context.lineTo(x + w / 2, y + h + reach);
    context.lineTo(x - reach, y + h / 2);
    context.closePath();
  }
  context.fill();
}

function hurt(context, boxes) {
  for (const { x, y, w, h } of boxes) context.fillRect(x, y, w, h);
}

function unexplained(context, boxes) {
  for (const { x, y, w, h } of boxes) {
    const line = Math.min(w, h) >= 7 ? 2 : 1.5;
    context.lineWidth = line;
    context.strokeRect(x + line / 2, y + line / 2, w - line, h - line);
  }
}

function silent(context, boxes) {
  const small = boxes.filter(({ w, h }) => Math.min(w, h) < LETTERS);
  if (small.length) {
    context.lineWidth = Math.max(1.25, small[0].w / 5);
    context.beginPath();
    for (const { x, y, w, h } of small) {
      context.moveTo(x + 0.5, y + 0.5);
      context.lineTo(x + w - 0.5, y + h - 0.5);
      context.moveTo(x + w - 0.5, y + 0.5);
      context.lineTo(x + 0.5, y + h - 0.5);
    }
    context.stroke();
  }
  context.lineWidth = 1;
  context.setLineDash([2, 2]);
  for (const { x, y, w, h } of boxes) if (Math.min(w, h) >= LETTERS) context.strokeRect(x + 0.5, y + 0.5, w - 1, h - 1);
  context.setLineDash([]);
}
