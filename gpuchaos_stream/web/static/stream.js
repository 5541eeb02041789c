// The stream of changes, read with fetch instead of EventSource: only so are the server's heartbeats seen, and a
// connection that died without a word is noticed.

/** No byte for so long is a dead connection, milliseconds; the server speaks every 2 s. */
const SILENCE_MS = 10_000;
/** Waits between attempts to connect, milliseconds. */
const WAITS_MS = [250, 500, 1000, 2000, 5000, 10_000];

export class Stream {
  /** `heard(event, data)` for each event, `changed(state)` with `connecting`, `open` or `lost` for the connection. */
  constructor(url, heard, changed) {
    this.url = url;
    this.heard = heard;
    this.changed = changed;
    this.last = null;
    this.attempts = 0;
    this.closed = false;
    this.stale = false; // it is to begin anew: what still comes counts no more
    this.run();
  }

  close() {
    this.closed = true;
    clearTimeout(this.timer);
    this.abort?.abort();
  }

  /** Forgets where the stream was, so that the next connection begins with a whole snapshot. */
  restart() {
    this.last = null;
    this.stale = true;
    this.abort?.abort();
  }

  async run() {
    while (!this.closed) {
      this.changed(this.attempts ? 'lost' : 'connecting');
      try {
        await this.connection();
      } catch (error) {
        if (!(error instanceof TypeError) && error.name !== 'AbortError') console.warn(`stream: ${error.message}`);
      }
      clearTimeout(this.timer);
      if (this.closed) return;
      this.attempts += 1;
      this.changed('lost');
      const wait = WAITS_MS[Math.min(this.attempts - 1, WAITS_MS.length - 1)];
      await new Promise((done) => setTimeout(done, wait * (0.8 + 0.4 * Math.random())));
    }
  }

  async connection() {
    this.abort = new AbortController();
    this.stale = false;
    this.watch();
    const headers = { Accept: 'text/event-stream' };
    if (this.last !== null) headers['Last-Event-ID'] = this.last;
    const answer = await fetch(this.url, { headers, signal: this.abort.signal, cache: 'no-store' });
    if (!answer.ok) {
      this.last = null;
      return;
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = '';
    let open = false;
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      this.watch();
      if (!open) this.opened();
      open = true;
      const blocks = (rest + value).replaceAll('\r\n', '\n').split('\n\n');
      rest = blocks.pop();
      blocks.forEach((block) => this.take(block));
    }
  }

  opened() {
    this.attempts = 0;
    this.changed('open');
  }

  watch() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.abort.abort(), SILENCE_MS);
  }

  take(block) {
    if (this.stale) return;
    let event = 'message';
    let id = null;
    const data = [];
    for (const line of block.split('\n')) {
      const colon = line.indexOf(':');
      if (colon === 0) continue;
      const name = colon < 0 ? line : line.slice(0, colon);
      const value = colon < 0 ? '' : line.slice(colon + 1).replace(/^ /, '');
      if (name === 'event') event = value;
      else if (name === 'data') data.push(value);
      else if (name === 'id') id = value;
    }
    // What could not be taken is not asked for again: the next connection begins with a whole snapshot.
    this.last = null;
    if (data.length) this.heard(event, JSON.parse(data.join('\n')));
    if (id !== null && !this.stale) this.last = id;
  }
}
