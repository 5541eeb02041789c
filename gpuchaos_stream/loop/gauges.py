"""What a cluster's loop shows of itself in numbers: every gauge of `observe/metrics.py` that has the label `cluster`.

A series is there while what it tells of is: an experiment that is forgotten, a cell that is silent, a cluster that
became another worker's take theirs away, so that no alert stands on a number that nobody sets any more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final
from weakref import WeakKeyDictionary

from prometheus_client import Gauge

from gpuchaos_stream.events.base import entity_kind
from gpuchaos_stream.events.envelope import trace_id_of
from gpuchaos_stream.events.experiment import ExperimentState, HaltState, Status, Verdict
from gpuchaos_stream.events.incident import LEVELS
from gpuchaos_stream.events.observation import CellSummary
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.loop.contexts import GONE_S, STALE_S, heard
from gpuchaos_stream.observe import metrics
from gpuchaos_stream.recovery.slo import OBJECTIVES

#: Seconds of event time between two showings; Prometheus asks less often.
SHOW_S: Final = 1.0
#: The same for what goes over every node and anomaly, and for each cell.
FLEET_S: Final = 5.0
#: Experiments of a cluster that have series of their own: those that run first, then the newest finished ones.
MOST_EXPERIMENTS: Final = 100
#: The most cells and jobs a cluster shows: names come from telemetry, and no telemetry may fill the memory.
MOST_CELLS: Final = 2000
MOST_JOBS: Final = 2000

Row = tuple[Gauge, tuple[str, ...], float]

#: Column of a cell's summary → its gauge.
CELL_GAUGES: Final[dict[str, Gauge]] = {
    "gpu.utilization_ratio.mean": metrics.CELL_GPU_UTILIZATION,
    "gpu.power_watts.mean": metrics.CELL_GPU_POWER,
    "gpu.temperature_celsius.max": metrics.CELL_GPU_TEMPERATURE,
    "rdma.port_active.min": metrics.CELL_RDMA_ACTIVE,
    "rdma.rx_bytes_rate.mean": metrics.CELL_RDMA_RX,
    "numa.remote_rate.max": metrics.CELL_NUMA_REMOTE,
    "process.numa_misaligned_ratio.max": metrics.CELL_MISALIGNED,
}
#: Value of a job's summary → its gauge, and what follows the label `job`.
JOB_GAUGES: Final[dict[str, tuple[Gauge, tuple[str, ...]]]] = {
    "step_time_seconds": (metrics.JOB_STEP_TIME, ()),
    "steps_rate": (metrics.JOB_STEPS, ()),
    "progress_age_seconds": (metrics.JOB_PROGRESS_AGE, ()),
    "ranks": (metrics.JOB_PROCESSES, ("all",)),
    "ranks_running": (metrics.JOB_PROCESSES, ("running",)),
}


class Board:
    """The series that one part of a cluster shows now; what the next `put` does not name is taken away."""

    def __init__(self) -> None:
        self._shown: dict[tuple[Gauge, tuple[str, ...]], Gauge] = {}

    def put(self, rows: Iterable[Row]) -> None:
        """Sets the rows, and removes the series of the last call that are not among them."""
        before, self._shown = self._shown, {}
        for gauge, labels, value in rows:
            # Looking a series up costs more than setting it.
            key = gauge, labels
            series = self._shown[key] = before.pop(key) if key in before else gauge.labels(*labels)
            series.set(value)
        for gauge, labels in before:
            gauge.remove(*labels)


class _Panel:
    """What is shown of one loop, and when it was last."""

    def __init__(self) -> None:
        self.loop, self.fleet = Board(), Board()
        self.cells: dict[str, tuple[float, Board]] = {}
        self.jobs: dict[str, int] = {}
        self.shown = self.counted = float("-inf")


_panels: WeakKeyDictionary[ClusterLoop, _Panel] = WeakKeyDictionary()


def show(loop: ClusterLoop, *, at_once: bool = False) -> None:
    """Sets the gauges of a loop, at most once in `SHOW_S` of its time unless `at_once`."""
    panel = _panels.get(loop)
    if panel is None:
        panel = _panels[loop] = _Panel()
        _begin(loop)
    if at_once or loop.now >= panel.shown + SHOW_S:
        panel.shown = loop.now
        panel.loop.put(_rows(loop))
    if loop.now >= panel.counted + FLEET_S:
        panel.counted = loop.now
        panel.fleet.put(_fleet(loop))
        for cell in [cell for cell, (time, _) in panel.cells.items() if loop.now > time + GONE_S]:
            panel.cells.pop(cell)[1].put(())
            panel.jobs.pop(cell)


def show_cell(loop: ClusterLoop, summary: CellSummary) -> None:
    """Sets the gauges of a cell and of the jobs in it from what a detect worker says of it."""
    panel = _panels.get(loop)
    if panel is None or (summary.cell not in panel.cells and len(panel.cells) >= MOST_CELLS):
        return
    last, board = panel.cells.get(summary.cell, (0.0, Board()))
    if summary.time < last + FLEET_S:
        return
    room = max(0, MOST_JOBS - sum(panel.jobs.values()) + panel.jobs.get(summary.cell, 0))
    jobs = sorted(summary.jobs)[:room]
    panel.cells[summary.cell], panel.jobs[summary.cell] = (summary.time, board), len(jobs)
    board.put((*_cell(summary), *_jobs(summary, jobs)))


def hide(loop: ClusterLoop) -> None:
    """Takes away all that is shown of a loop: its cluster is another worker's now."""
    panel = _panels.pop(loop, None)
    if panel is not None:
        for board in (panel.loop, panel.fleet, *(board for _, board in panel.cells.values())):
            board.put(())


def target_kind(loop: ClusterLoop, experiment_id: str) -> str:
    """Kind of what an experiment is aimed at (`gpu`, `process`…), `mixed` or `unknown`."""
    plan = loop.machine.plan(experiment_id)
    kinds = {entity_kind(entity) for entity in plan.targets.entities} if plan is not None else set()
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "unknown"


def fault_of(loop: ClusterLoop, experiment_id: str) -> str:
    """The fault that its plan names; `unknown` where that could not be read."""
    plan = loop.machine.plan(experiment_id)
    return plan.fault.name if plan is not None else "unknown"


def _begin(loop: ClusterLoop) -> None:
    """Counters at 0: one that appears with its first increment shows no increase to `increase()`."""
    cluster = loop.cluster
    metrics.SETTLE_ERRORS.labels(cluster)
    for verdict in Verdict:
        metrics.VERDICTS.labels(cluster, verdict.value)
    for rule in loop.guard.names:
        metrics.HALTS.labels(cluster, rule)
    for fault in FAULTS.values():
        for objective in OBJECTIVES if fault.available else ():
            metrics.RECOVERY.labels(fault.name, objective)
            for kind in {kind for form in fault.forms for kind in form.targets}:
                metrics.OBJECTIVE_RUNS.labels(cluster, fault.name, kind, objective)
                metrics.OBJECTIVE_MISSES.labels(cluster, fault.name, kind, objective)


def _rows(loop: ClusterLoop) -> Iterator[Row]:
    cluster, states = loop.cluster, loop.machine.states()
    counts = Counter(state.status for state in states)
    yield from ((metrics.EXPERIMENTS, (cluster, status.value), counts[status]) for status in Status)
    total = loop.correlator.total(loop.now)
    yield from ((metrics.BLAST_RADIUS, (cluster, level), getattr(total, level)) for level in LEVELS)
    yield metrics.BREAKER, (cluster,), loop.breaker.state.tripped
    halts = (halt for state in states for halt in state.halts if halt.confirmed is None and not halt.dry_run)
    still_open = Counter(halt.state for halt in halts)
    for far in HaltState:
        if far is not HaltState.CONFIRMED:
            yield metrics.HALTS_OPEN, (cluster, far.value), still_open[far]
    yield from ((metrics.RULE_ERRORS, (cluster, rule), loop.guard.errors[rule]) for rule in loop.guard.names)
    for budget in loop.slo.budgets():
        yield metrics.BUDGET, (cluster, budget.fault, budget.objective), budget.remaining
        yield metrics.OBJECTIVE_RATIO, (cluster, budget.fault, budget.objective), budget.slo
    running_first = sorted(states, key=lambda state: (state.status is Status.FINISHED, -state.started, state.id))
    for state in running_first[:MOST_EXPERIMENTS]:
        yield from _experiment(loop, state)


def _experiment(loop: ClusterLoop, state: ExperimentState) -> Iterator[Row]:
    one = (loop.cluster, state.id)
    about = (state.name, state.owner, fault_of(loop, state.id), target_kind(loop, state.id))
    verdict = state.verdict.value if state.verdict else ""
    yield metrics.EXPERIMENT_INFO, (*one, *about, state.status.value, verdict, trace_id_of(state.traceparent) or ""), 1
    for event, time in _times(state):
        if time is not None:
            yield metrics.EXPERIMENT_TIME, (*one, event), time
    present = sum(fault.injected is not None and fault.undone is None for fault in state.faults)
    yield metrics.EXPERIMENT_FAULTS, one, present
    blast, limits = state.blast_radius, state.limits
    for level in LEVELS:
        yield metrics.EXPERIMENT_BLAST, (*one, level), getattr(blast, level)
        if level in limits:
            yield metrics.EXPERIMENT_LIMIT, (*one, level), limits[level]
    yield metrics.EXPERIMENT_LOST, one, blast.gpu_seconds
    if "gpu_seconds" in limits:
        yield metrics.EXPERIMENT_LOST_LIMIT, one, limits["gpu_seconds"]
    yield metrics.EXPERIMENT_UNKNOWN, one, blast.unknown_nodes
    record = state.recovery
    for phase in OBJECTIVES:
        value, met = getattr(record, phase), record.met.get(phase)
        if value is not None:
            yield metrics.EXPERIMENT_RECOVERY, (*one, phase), value
        if phase in record.objectives:
            yield metrics.EXPERIMENT_OBJECTIVE, (*one, phase), record.objectives[phase]
        if met is not None:
            yield metrics.EXPERIMENT_MISSED, (*one, phase), not met
    yield metrics.EXPERIMENT_ANOMALIES, (*one, "attributed"), state.attributed
    yield metrics.EXPERIMENT_ANOMALIES, (*one, "unattributed"), state.unattributed


def _times(state: ExperimentState) -> Iterator[tuple[str, float | None]]:
    yield "started", state.started
    yield "injected", state.recovery.injected
    yield "ends", state.ends
    for halt in state.halts:
        if not halt.dry_run:
            yield "halt_requested", halt.requested
            yield "halt_undone", halt.undone
    yield "finished", state.finished


def _fleet(loop: ClusterLoop) -> Iterator[Row]:
    cluster, now = loop.cluster, loop.now
    counts: Counter[tuple[str, str]] = Counter()
    oldest = 0.0
    for node in loop.topology.nodes:
        if heard(loop, node, now) >= GONE_S:
            continue
        age = 0.0 if loop.resuming else loop.freshness.age(node, now)
        # A node that only said where it sits has sent no frame: as old as an hour, which is all that is remembered.
        oldest = max(oldest, min(age, GONE_S))
        counts[loop.topology.cell(node) or "", "silent" if age > STALE_S else "fresh"] += 1
    cells = sorted({cell for cell, _ in counts})
    for state in ("fresh", "silent"):
        yield metrics.NODES, (cluster, state), sum(counts[cell, state] for cell in cells)
        yield from ((metrics.CELL_NODES, (cluster, cell, state), counts[cell, state]) for cell in cells[:MOST_CELLS])
    yield metrics.GPUS, (cluster,), loop.topology.gpu_count
    yield metrics.TELEMETRY_AGE, (cluster,), oldest
    charged = sum(len(loop.correlator.open_for(each, now)) for each in loop.machine.open())
    yield metrics.ANOMALIES_OPEN, (cluster, "attributed"), charged
    alone = sum(each.end is None or each.end > now for each in loop.correlator.unattributed(0.0))
    yield metrics.ANOMALIES_OPEN, (cluster, "unattributed"), alone


def _cell(summary: CellSummary) -> Iterator[Row]:
    for column, gauge in CELL_GAUGES.items():
        values = [value for value in summary.columns.get(column, ()) if value is not None]
        if values:
            where = (summary.cluster, summary.cell)
            yield gauge, (*where, "min"), min(values)
            yield gauge, (*where, "mean"), sum(values) / len(values)
            yield gauge, (*where, "max"), max(values)


def _jobs(summary: CellSummary, jobs: Iterable[str]) -> Iterator[Row]:
    for job in jobs:
        for name, (gauge, last) in JOB_GAUGES.items():
            value = summary.jobs[job].get(name)
            if value is not None:
                yield gauge, (summary.cluster, summary.cell, job, *last), value
