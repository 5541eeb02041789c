// What the page knows of one cluster: the server's snapshot, and every change since. No drawing happens here.

/** Finished experiments that are kept, as many as the server sends. */
const MOST_FINISHED = 20;

export class Board {
  constructor() {
    this.clear();
  }

  clear() {
    this.cluster = null;
    this.time = 0;
    this.sequence = -1;
    this.readOnly = true;
    this.breaker = null;
    this.experiments = new Map();
    this.incidents = new Map();
    this.cells = [];
    this.nodes = [];
    this.indexOf = new Map();
    this.cellOf = new Uint16Array(0);
    this.state = new Uint8Array(0);
    this.states = ['ok'];
    this.stateWords = {};
    this.valueNames = {};
    this.version = -1;
    this.freshness = null;
    this.incidentCount = 0;
    this.links = {};
    this.rails = [];
    this.ports = [];
    this.marks = new Map();
    this.totals = [];
  }

  /** Takes a whole snapshot in place of everything before. */
  snapshot(view) {
    const { map } = view;
    this.cluster = view.cluster;
    this.time = view.time;
    this.sequence = view.sequence;
    this.readOnly = view.read_only;
    this.breaker = view.breaker;
    this.freshness = view.freshness;
    this.links = view.links ?? {};
    this.experiments = new Map(view.experiments.map((each) => [each.id, each]));
    this.incidents = new Map((view.incidents ?? []).map((each) => [each.id, each]));
    this.incidentCount = view.incident_count ?? this.incidents.size;
    this.version = map.version;
    this.valueNames = map.value_names ?? {};
    this.stateWords = Object.fromEntries(map.states.map((name, index) => [name, map.state_words?.[index] ?? '']));
    this.nodes = map.nodes;
    this.indexOf = new Map(map.nodes.map((name, index) => [name, index]));
    this.states = map.states;
    this.state = Uint8Array.from(map.state);
    this.rails = map.rails;
    this.ports = new Array(map.nodes.length).fill(new Set());
    for (const [start, end, rails] of map.ports) this.ports.fill(new Set(rails), start, end);
    this.marks = new Map(Object.entries(map.marks ?? {}).map(([index, marks]) => [Number(index), this.marked(marks)]));
    this.cellOf = new Uint16Array(map.nodes.length);
    this.totals = this.states.map(() => 0);
    this.cells = map.cells.map((cell, index) => {
      const [start, end] = cell.nodes;
      this.cellOf.fill(index, start, end);
      const counts = this.states.map(() => 0);
      for (let node = start; node < end; node += 1) counts[this.state[node]] += 1;
      counts.forEach((number, state) => { this.totals[state] += number; });
      return { index, name: cell.name, rack: cell.rack, values: cell.values ?? {}, start, end, counts };
    });
  }

  /** Takes changes of nodes, `[[index, state, marks], …]`; returns the indices of those that are another now. */
  changed(changes) {
    const found = [];
    for (const [index, state, marks] of changes) {
      if (index >= this.state.length) continue;
      const before = this.state[index];
      const cell = this.cells[this.cellOf[index]];
      if (before !== state) {
        cell.counts[before] -= 1;
        cell.counts[state] += 1;
        this.totals[before] -= 1;
        this.totals[state] += 1;
        this.state[index] = state;
      }
      if (marks && (marks.rails?.length || marks.gpus?.length)) this.marks.set(index, this.marked(marks));
      else this.marks.delete(index);
      found.push(index);
    }
    return found;
  }

  /** Marks with rails by index. */
  marked({ rails = [], gpus = [] }) {
    return { rails: rails.map((rail) => this.rails.indexOf(rail)), gpus };
  }

  /** Takes the values of cells, `[[index, values], …]`. */
  measured(changes) {
    for (const [index, values] of changes) if (this.cells[index]) this.cells[index].values = values;
  }

  /** Takes an experiment; the finished ones beyond the newest twenty are left out. */
  experiment(view) {
    this.experiments.set(view.id, view);
    this.finished().slice(MOST_FINISHED).forEach((each) => this.experiments.delete(each.id));
  }

  /** Takes an incident: the list holds those that are open and that nothing explains. */
  incident(view) {
    const open = view.closed === null && !view.attributed && !view.superseded;
    if (open === this.incidents.has(view.id)) {
      if (open) this.incidents.set(view.id, view);
      return;
    }
    this.incidentCount = Math.max(0, this.incidentCount + (open ? 1 : -1));
    if (open) this.incidents.set(view.id, view);
    else this.incidents.delete(view.id);
  }

  stateOf(node) {
    return this.states[this.state[node]];
  }

  /** Number of nodes in each state, by the state's name. */
  counts(cell = null) {
    const numbers = cell ? cell.counts : this.totals;
    return this.states.map((name, index) => [name, numbers[index] ?? 0]);
  }

  /** Whether node `node` has a port on rail `rail` (its index): where it has none, nothing can be well. */
  hasPort(node, rail) {
    return this.ports[node].has(rail);
  }

  /** Whether node `node` has an open mark on rail `rail`; a silent node has one on each on which it has a port. */
  onRail(node, rail) {
    return (this.stateOf(node) === 'silent' && this.hasPort(node, rail)) || Boolean(this.marks.get(node)?.rails?.includes(rail));
  }

  /** `[number of nodes with a mark, the worst of their states, whether any node has a port]` of a cell's or node's rail. */
  railState(first, last, rail) {
    let number = 0;
    let worst = 0;
    let there = false;
    for (let node = first; node < last; node += 1) {
      there ||= this.hasPort(node, rail);
      if (this.state[node] !== 0 && this.onRail(node, rail)) {
        number += 1;
        worst = Math.max(worst, this.state[node]);
      }
    }
    return [number, this.states[worst], there || number > 0];
  }

  /** Running experiments, the newest first. */
  running() {
    const found = [...this.experiments.values()].filter((each) => each.status !== 'finished');
    return found.sort((one, other) => other.started - one.started);
  }

  /** Finished experiments, the one that finished last first. */
  finished() {
    const found = [...this.experiments.values()].filter((each) => each.status === 'finished');
    return found.sort((one, other) => (other.finished ?? other.time) - (one.finished ?? one.time));
  }
}
