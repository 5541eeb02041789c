// Asking the server. The token lives in this tab alone: sessionStorage, gone when the tab is.

const TOKEN = 'gpuchaos-token';

/** What the server says is wrong: `status`, and its words as `message`. Status 0: it could not be reached. */
export class Refused extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (value) => sessionStorage.setItem(TOKEN, value),
  forget: () => sessionStorage.removeItem(TOKEN),
};

/** Path of a cluster's resource: `path('a', 'nodes', 'n/1')` → `/api/v1/clusters/a/nodes/n%2F1`. */
export function path(cluster, ...parts) {
  return ['/api/v1/clusters', cluster, ...parts].map((part, at) => (at ? encodeURIComponent(part) : part)).join('/');
}

/** The answer to a GET as an object. Raises `Refused`. */
export const get = (url) => ask(url, {});

/** The answer to a POST of `body`, with the tab's token. Raises `Refused`. */
export function post(url, body) {
  const headers = { 'Content-Type': 'application/json' };
  if (token.get()) headers.Authorization = `Bearer ${token.get()}`;
  return ask(url, { method: 'POST', headers, body: JSON.stringify(body) });
}

async function ask(url, options) {
  let answer;
  try {
    answer = await fetch(url, { ...options, cache: 'no-store' });
  } catch {
    throw new Refused(0, 'the server could not be reached');
  }
  const body = await answer.json().catch(() => null);
  if (!answer.ok) {
    const words = [body?.detail ?? body?.title ?? `the server answered ${answer.status}`, body?.fix].filter(Boolean);
    throw new Refused(answer.status, words.join('; '));
  }
  return body;
}
