// Stopping an experiment, tripping and resetting the breaker: the reason, the token, and then what became of it.

import { Refused, path, post, token } from './api.js';
import { byId, el, say } from './dom.js';
import { seconds } from './words.js';

/** A command that no worker has taken after so long is worth a word, seconds. */
const TAKEN_S = 10;
/** Answers after which another token is asked for: it is nobody's, or too many of those came from here. */
const NOT_TAKEN = new Set([401, 429]);
/** What tokens are made of; others cannot even be sent. */
const TOKEN = /^[\x21-\x7e]+$/;

/** What there is to ask, and how to see that it was done: `steps(board, id, answered)` → `[[done, words], …]`. */
const KINDS = {
  stop: {
    title: (name) => `Stop ${name}`,
    about: 'Its faults are undone at once, on every node. What it measured until now is kept; its verdict is "stopped".',
    reason: 'Why is it stopped? (it stands in the report)',
    go: 'Stop it',
    url: (cluster, id) => path(cluster, 'experiments', id, 'stop'),
    steps: stopSteps,
  },
  trip: {
    title: () => 'Trip the breaker',
    about: 'Every running experiment is halted and undone, and no new fault is injected in this cluster until a person resets it.',
    reason: 'Why is everything stopped?',
    go: 'Trip the breaker',
    url: (cluster) => path(cluster, 'breaker', 'trip'),
    steps: (board) => [[board.breaker?.tripped === true, 'tripped: nothing new is injected'], [board.running().every((each) => each.undo_confirmed), 'every fault is confirmed undone']],
  },
  reset: {
    title: () => 'Reset the breaker',
    about: 'Experiments may inject faults again. Nothing that was held back is started by itself.',
    reason: 'What was found, and why is it safe again?',
    go: 'Reset the breaker',
    url: (cluster) => path(cluster, 'breaker', 'reset'),
    steps: (board) => [[board.breaker?.tripped === false, 'closed: experiments may be started']],
  },
};

function stopSteps(board, id) {
  const view = board.experiments.get(id);
  if (!view) return [[false, 'the server no longer lists it']];
  const halts = view.halts.filter((halt) => !halt.dry_run);
  const taken = halts.length > 0 || ['halting', 'undoing', 'recovering', 'finished'].includes(view.status);
  const there = view.faults.filter((fault) => !['waiting', 'refused'].includes(fault.phase));
  const answered = taken && (view.undo_confirmed || there.every((fault) => ['acknowledged', 'undone'].includes(fault.phase)));
  const rows = [
    [taken, 'requested: the control plane has taken it'],
    [answered, 'acknowledged by every node'],
    [taken && view.undo_confirmed, 'undone: the agents verified that no fault is there'],
    [halts.some((halt) => halt.confirmed !== null) || view.status === 'finished', 'confirmed: the experiment is over'],
  ];
  const failed = view.faults.filter((fault) => ['undo_failed', 'unanswered'].includes(fault.phase));
  if (halts.some((halt) => halt.escalated !== null) || failed.length) {
    rows.push([null, `escalated, a person is needed${failed.length ? `: ${failed.map((fault) => `${fault.entity} ${fault.phase} ${fault.reason}`).join('; ')}` : ''}`]);
  }
  return rows;
}

export class Commands {
  constructor(board) {
    this.board = board;
    this.dialog = byId('ask');
    this.form = byId('ask-form');
    this.form.addEventListener('submit', (event) => {
      event.preventDefault();
      this.send();
    });
    byId('ask-cancel').addEventListener('click', () => this.dialog.close());
    byId('ask-done').addEventListener('click', () => this.dialog.close());
    byId('ask-forget').addEventListener('click', () => {
      token.forget();
      this.needsToken();
      byId('ask-token').focus();
    });
    this.dialog.addEventListener('close', () => {
      this.now = null;
      // The button that it was opened with may be gone by what was done.
      const at = document.activeElement;
      if (at === document.body || this.dialog.contains(at)) byId('experiments').focus();
    });
  }

  /** Opens the dialog for `kind`; `id` and `name` are the experiment's. */
  open(kind, id = null, name = '') {
    const words = KINDS[kind];
    this.now = { kind, id, sent: null };
    byId('ask-title').textContent = words.title(name);
    byId('ask-about').textContent = words.about;
    byId('ask-why').textContent = words.reason;
    byId('ask-go').textContent = words.go;
    byId('ask-go').disabled = false;
    byId('ask-reason').value = '';
    byId('ask-followed').hidden = true;
    this.form.hidden = false;
    this.problem('');
    this.needsToken();
    this.dialog.showModal();
    byId('ask-reason').focus();
  }

  needsToken() {
    const known = token.get() !== null;
    byId('ask-token-row').hidden = known;
    byId('ask-token').required = !known;
    byId('ask-token').value = '';
    byId('ask-known').hidden = !known;
  }

  problem(words) {
    byId('ask-problem').hidden = !words;
    byId('ask-problem').textContent = words;
  }

  async send() {
    const { now } = this;
    const reason = byId('ask-reason').value.trim();
    if (!reason) {
      this.problem('A reason is needed: whoever reads the report will ask for it.');
      byId('ask-reason').focus();
      return;
    }
    if (token.get() === null) {
      const given = byId('ask-token').value.trim();
      if (!TOKEN.test(given)) {
        this.problem(given ? 'Nothing was sent: no token has spaces or such characters. Was it copied whole?' : 'A token is needed: who runs this server has it.');
        byId('ask-token').focus();
        return;
      }
      token.set(given);
    }
    byId('ask-go').disabled = true;
    this.problem('');
    try {
      const answer = await post(KINDS[now.kind].url(this.board.cluster, now.id), { reason });
      if (this.now !== now) return;
      now.sent = performance.now();
      now.answer = answer;
      this.form.hidden = true;
      byId('ask-followed').hidden = false;
      byId('ask-done').focus();
      this.follow();
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      if (NOT_TAKEN.has(error.status)) token.forget();
      if (this.now === now) this.refused(error);
    } finally {
      byId('ask-go').disabled = false;
    }
  }

  refused(error) {
    const asked = NOT_TAKEN.has(error.status);
    // No answer, or a server's own trouble, is no proof that nothing went out.
    const known = error.status >= 400 && error.status < 500;
    const words = asked ? 'The token was not accepted' : known ? 'Nothing was sent' : 'It is not known to be sent';
    this.problem(`${words}: ${error.message}.`);
    this.needsToken();
    byId(asked ? 'ask-token' : 'ask-reason').focus();
  }

  /** Called with every change and once a second: what became of the command that was sent. */
  follow() {
    const { now } = this;
    if (!now?.sent) return;
    const steps = [[true, now.answer.already ? 'it was so already: nothing had to be sent' : 'sent, signed, and kept by the broker'], ...KINDS[now.kind].steps(this.board, now.id)];
    const list = byId('ask-steps');
    while (list.children.length > steps.length) list.lastChild.remove();
    steps.forEach(([done, words], at) => {
      const row = list.children[at] ?? list.appendChild(el('li'));
      row.className = done === null ? 'bad' : done ? 'good' : 'dim';
      say(row, `${done === null ? '!' : done ? '✓' : '·'} ${words}`);
    });
    const waited = (performance.now() - now.sent) / 1000;
    const open = steps.some(([done]) => done === false);
    let said = 'Done. It can be closed.';
    if (open) {
      said = steps[1][0] === false && waited > TAKEN_S
        ? `No worker has taken it for ${seconds(Math.floor(waited))}: is one running? The nodes were told directly as well.`
        : 'Waiting for the next step; it goes on if this is closed.';
    }
    if (steps.some(([done]) => done === null)) said = 'A person is needed; it is not confirmed undone.';
    say(byId('ask-said'), said);
  }
}
