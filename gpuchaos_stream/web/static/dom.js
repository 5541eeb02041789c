// Making elements. Text always goes in as text, never as markup: names in a cluster are other people's words.

const SVG = 'http://www.w3.org/2000/svg';

/** An HTML element: `el('p', {class: 'dim', onclick: f}, 'text', child, …)`. Null and false children are left out. */
export function el(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** An SVG element, likewise. */
export function svg(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (key.startsWith('on')) element.addEventListener(key.slice(2), value);
    else if (value === true) element.setAttribute(key, '');
    else element.setAttribute(key, value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** The element of the page with this id. */
export const byId = (id) => document.getElementById(id);

/** Sets an element's text if it is another: a screen reader repeats what is written again. */
export function say(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/**
 * Makes `parent` hold one child for each `[key, signature, make]`, in that order. A child whose signature is as
 * before stays as it is, and with it the focus within; one that is made anew gives the focus back to the control
 * of the same `data-focus`.
 */
export function keyed(parent, rows) {
  const old = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const active = parent.contains(document.activeElement) ? document.activeElement.dataset.focus : null;
  let at = parent.firstElementChild;
  for (const [key, signature, make] of rows) {
    let child = old.get(key);
    if (child === undefined || child.dataset.signature !== signature) {
      const fresh = make();
      fresh.dataset.key = key;
      fresh.dataset.signature = signature;
      if (child !== undefined) {
        if (child.localName === 'details') fresh.open = child.open;
        if (child === at) at = child.nextElementSibling;
        child.replaceWith(fresh);
      }
      child = fresh;
    }
    old.delete(key);
    if (child === at) at = at.nextElementSibling;
    else parent.insertBefore(child, at);
  }
  for (const child of old.values()) if (child.isConnected && child.parentElement === parent) child.remove();
  if (active && !parent.contains(document.activeElement)) {
    parent.querySelector(`[data-focus="${CSS.escape(active)}"]`)?.focus();
  }
}
