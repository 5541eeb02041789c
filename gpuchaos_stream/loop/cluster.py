"""The control loop of one cluster: all stages, in the order in which the data goes through them.

Pure: events and time in, commands and states out. What it knows is the stages' state, saved through `dirty`
and given back through `load`; between two calls of `settle` nothing leaves it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from gpuchaos_stream.act.enforce import Running, enforce
from gpuchaos_stream.correlate.report import lines
from gpuchaos_stream.errors import nearest
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Event, entity_node, stable_id
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.experiment import ExperimentState, Halt, Status
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.incident import Incident, RecoveryOutcome
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.events.observation import CellSummary, CheckState, ProbeResult, Tick
from gpuchaos_stream.events.signing import Refusal, RefusedError
from gpuchaos_stream.events.topics import Topic
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.experiments.run import agent_of
from gpuchaos_stream.experiments.triggers import View
from gpuchaos_stream.guard.decision import OPERATOR, Decision, operator_stop
from gpuchaos_stream.guard.rules import RuleSet
from gpuchaos_stream.loop import traces
from gpuchaos_stream.loop.contexts import STALE_S, cluster_context, experiment_context, target_jobs_of
from gpuchaos_stream.loop.stages import Stages

#: Seconds of event time for which the past is remembered: twice the slowest watchdog (torch's default of 30 min).
REMEMBER_S: Final = 3600.0
#: After a restart the detect stage reads its past back before it tells of the present, and after a pause of the broker
#: it has a backlog. For so many seconds, or until the first word of the present, that silence is not the nodes'.
RESUME_S: Final = 10.0
#: Ticks come four times a second, so a longer gap between records was the broker's or the worker's own, seconds.
GAP_S: Final = 3.0
#: How far behind time a word of the present may be: a tick of telemetry is judged within two seconds.
PRESENT_S: Final = 2.0
#: How often the past is cleared of what is older.
FORGET_EVERY_S: Final = 60.0


@dataclass
class Settled:
    """What must leave the loop, in order. Each with the trace context of its experiment."""

    commands: list[tuple[Command, str | None]] = field(default_factory=list)
    events: list[tuple[Topic, Event, str | None]] = field(default_factory=list)
    #: Decisions that stand for the first time: for logs, metrics and (a later stage) webhooks.
    decisions: list[Decision] = field(default_factory=list)
    finished: list[ExperimentState] = field(default_factory=list)


class ClusterLoop(Stages):
    """See the module. `now` is event time, epoch seconds on the broker's clock, and never goes back."""

    def __init__(self, cluster: str, rules: RuleSet, *, dry_run: bool = False) -> None:
        super().__init__(cluster, rules, dry_run=dry_run)
        self._now = 0.0
        self._forgotten = 0.0
        self._settled = 0.0
        self._resumed: float | None = None
        self._asked: list[Decision] = []

    @property
    def now(self) -> float:
        """The latest time that the loop was told, epoch seconds."""
        return self._now

    # -- in ------------------------------------------------------------------------------------------------

    def feed(self, event: Event) -> None:
        """Takes one event. A repeat changes nothing; a tick moves time, which `settle` is given."""
        if isinstance(event, NodeInfo):
            self.topology.apply(event)
        elif isinstance(event, Anomaly):
            self.correlator.feed(event)
        elif isinstance(event, FaultEvent):
            self.correlator.feed(event)
            self.recovery.feed(event)
            self.machine.feed(event)
            self.halts.feed(event)
        elif isinstance(event, CellSummary):
            self.freshness.feed(event)
            self.recovery.feed(event)
        elif isinstance(event, ProbeResult):
            self.recovery.feed(event)
        elif isinstance(event, Tick):
            self.gate.feed(event)

    def command(self, command: Command, *, now: float, traceparent: str | None = None) -> None:
        """Takes a command that is addressed to the control plane and was believed."""
        appended = now  # on the broker's clock: neither a person's clock nor a second delivery moves it
        self._now = now = max(now, self._now)
        if command.kind is CommandKind.START and now > command.expires:
            # It waited in Kafka while nobody read: its sender has long gone.
            raise RefusedError(Refusal.EXPIRED, f"read {now - command.expires:.0f} s after it expired")
        if command.kind is CommandKind.START:
            experiment_id = command.experiment_id or f"experiment-{stable_id(command.id)[:8]}"
            named = command.model_copy(update={"experiment_id": experiment_id})
            self.machine.start(named, now, traceparent=traceparent)
        elif command.kind is CommandKind.STOP and command.experiment_id:
            if self.machine.stop(command.experiment_id, reason=command.reason, by=command.issued_by):
                self._asked.append(
                    operator_stop(command.id, command.experiment_id, command.reason, command.issued_by, now)
                )
        elif command.kind is CommandKind.STOP_ALL:
            for experiment_id in self.machine.open():
                self.machine.stop(experiment_id, reason=command.reason, by=command.issued_by)
            stop = operator_stop(command.id, None, command.reason, command.issued_by, appended)
            self._asked.append(stop)
        elif command.kind is CommandKind.RESET and command.reason.strip():
            self.breaker.reset(by=command.issued_by, reason=command.reason, at=appended, now=now, command_id=command.id)

    # -- out -----------------------------------------------------------------------------------------------

    def settle(self, now: float) -> Settled:
        """Concludes from all that was fed: decides, acts, moves experiments on. Returns what must leave."""
        self._resume(now)
        self._now = now = max(now, self._now)
        out = Settled()
        running = self.machine.open()
        self.correlator.lapse(now, self.freshness)
        self._learn(running, now)
        decisions = self._decide(running, now)
        out.decisions = [decision for decision in decisions if decision.new]
        enforce(
            decisions,
            self._running(running),
            breaker=self.breaker,
            halts=self.halts,
            now=now,
            dry_run=self.dry_run,
        )
        commands = self.halts.settle(now, self._confirmed)
        self._note_halts()
        commands += self.machine.settle(now, self._view(running, now))
        self._finish(running, now, out)
        out.commands = [(command, traces.for_command(self._state(command), command)) for command in commands]
        out.events += ((topics.INCIDENTS, each, self._trace(each.experiment_id)) for each in self._incidents())
        out.events += ((topics.EXPERIMENTS, each, each.traceparent) for each in self.machine.changed(now))
        breaker = self.breaker.changed()
        if breaker is not None:
            out.events.append((topics.EXPERIMENTS, breaker, None))
        self._forget(now)
        return out

    def probes(self) -> list[tuple[str, Plan]]:
        """Running experiments and their plans, for whoever asks the outside what their checks need."""
        plans = ((experiment_id, self.machine.plan(experiment_id)) for experiment_id in self.machine.open())
        return [(experiment_id, plan) for experiment_id, plan in plans if plan is not None]

    # -- parts of settling -----------------------------------------------------------------------------------

    def _resume(self, now: float) -> None:
        """Whether time went on without a record of this cluster, and nothing was heard of the present since."""
        if self._settled and now > self._settled + GAP_S:
            self.resuming, self._resumed = True, now
        self._settled = max(now, self._settled)
        if self.resuming:
            self._resumed = now if self._resumed is None else self._resumed
            present = self.freshness.newest >= self._resumed - PRESENT_S
            self.resuming = not present and now < self._resumed + RESUME_S

    def _learn(self, running: Iterable[str], now: float) -> None:
        """Puts what correlate and recovery know into the experiments' states."""
        for experiment_id in running:
            state, plan = self.machine.state(experiment_id), self.machine.plan(experiment_id)
            if state is None or plan is None:
                continue
            # Each time, for it changes nothing: a kill may have kept the start and lost what belongs to it.
            self.correlator.declare(experiment_id, plan.targets.entities)
            self.recovery.begin(experiment_id, plan, state.started, target_jobs_of(self, plan))
            first = self.correlator.first_detection(experiment_id)
            steady = self.recovery.steady(experiment_id, now)
            record = self.recovery.record(experiment_id, now, first)
            charged, unexplained = (
                self.correlator.attributed(experiment_id),
                self.correlator.unattributed(state.started),
            )
            since = state.started if record.injected is None else record.injected
            self.machine.update(
                experiment_id,
                blast_radius=self.correlator.blast_radius(experiment_id, now),
                recovery=record,
                attributed=len(charged),
                unattributed=len(unexplained),
                charged=lines(charged, since),
                unexplained=lines(unexplained, since),
                steady={name: check.value for name, check in steady.items()},
            )

    def _decide(self, running: Iterable[str], now: float) -> list[Decision]:
        cluster = cluster_context(self, now)
        contexts = []
        for experiment_id in running:
            state, plan = self.machine.state(experiment_id), self.machine.plan(experiment_id)
            if state is not None and plan is not None:
                contexts.append(experiment_context(self, cluster, state, plan, now))
        asked, self._asked = self._asked, []
        return [*asked, *self.guard.evaluate(contexts, cluster, now)]

    def _running(self, running: Iterable[str]) -> dict[str, Running]:
        found, owing = {}, set(self.machine.owing())
        for experiment_id in running:
            plan, state = self.machine.plan(experiment_id), self.machine.state(experiment_id)
            # While it recovers its faults are gone: there is nothing left to halt.
            if plan is None or state is None or (state.status is Status.RECOVERING and experiment_id not in owing):
                continue
            found[experiment_id] = Running(
                nodes=tuple(sorted({fault.node for fault in state.faults})),
                exposed=state.status is not Status.PENDING,
                deadline_s=plan.undo.deadline,
                confirm_s=plan.recovery_deadline(0.0, 0.0),
            )
        return found

    def _view(self, running: Iterable[str], now: float) -> View:
        refusal = self.breaker.refusal(now)
        tripped = self.breaker.state.tripped
        return View(
            steady={experiment_id: self.recovery.steady(experiment_id, now) for experiment_id in running},
            halts={
                experiment_id: halt.reason
                for experiment_id in running
                if (halt := self.halts.halt(experiment_id)) is not None and not halt.cause.startswith(OPERATOR)
            },
            blind=frozenset(
                experiment_id
                for experiment_id in running
                if (plan := self.machine.plan(experiment_id)) is not None
                and self.freshness.stale(nodes_of(plan), now, STALE_S)
            ),
            unknown={
                experiment_id: sentence
                for experiment_id in running
                if (plan := self.machine.plan(experiment_id)) is not None and (sentence := self._unknown(plan))
            },
            unsafe={
                experiment_id: sentence
                for experiment_id in self.machine.pending()
                if (plan := self.machine.plan(experiment_id)) is not None
                and (sentence := self.gate.refusal(plan, self.machine.before(experiment_id), now))
            },
            tripped=refusal if tripped else "",
            frozen="" if tripped else refusal,
        )

    def _unknown(self, plan: Plan) -> str:
        """Which target sits on a node that nobody has heard of, in words; empty if none does."""
        for entity in plan.targets.entities:
            for node in (entity_node(entity), agent_of(plan, entity)):
                if node is not None and self.topology.info(node) is None:
                    hint = nearest(node, self.topology.nodes) if self.topology.nodes else "no node of it has reported"
                    return f"{entity}: cluster {self.cluster!r} knows no node {node!r}; {hint}"
        return ""

    def _confirmed(self, experiment_id: str) -> bool:
        """Telemetry shows the effects gone: recovered, and every check still in tolerance."""
        state = self.machine.state(experiment_id)
        if state is None or state.recovery.outcome is not RecoveryOutcome.RECOVERED:
            return False
        return all(check == CheckState.OK for check in state.steady.values())

    def _note_halts(self) -> None:
        for state in self.machine.states():
            halts: tuple[Halt, ...] = self.halts.halts(state.id)
            if halts:
                self.machine.update(state.id, halts=halts)

    def _finish(self, running: Iterable[str], now: float, out: Settled) -> None:
        for experiment_id in running:
            state = self.machine.state(experiment_id)
            if state is None or state.status is not Status.FINISHED:
                continue
            self.slo.feed(state)
            self.correlator.end(experiment_id, now)
            self.halts.close(experiment_id)
            self.recovery.forget(experiment_id)
            out.finished.append(state)

    def _incidents(self) -> list[Incident]:
        changed = self.correlator.changed()
        for incident in changed:
            state = self.machine.state(incident.experiment_id) if incident.experiment_id else None
            if state is not None:
                known = set(state.incidents)
                now = known - {incident.id} if incident.superseded else known | {incident.id}
                self.machine.update(state.id, incidents=tuple(sorted(now)))
        return [each.model_copy(update={"cluster": self.cluster}) for each in changed]

    def _forget(self, now: float) -> None:
        if now < self._forgotten + FORGET_EVERY_S:
            return
        self._forgotten = now
        before = now - REMEMBER_S
        self.correlator.forget(before)
        self.topology.forget(before)
        self.freshness.forget(before)
        self.halts.forget(before)
        self.heard.forget(now)

    def _state(self, command: Command) -> ExperimentState | None:
        return self.machine.state(command.experiment_id) if command.experiment_id else None

    def _trace(self, experiment_id: str | None) -> str | None:
        state = self.machine.state(experiment_id) if experiment_id else None
        return state.traceparent if state is not None else None


def nodes_of(plan: Plan) -> tuple[str, ...]:
    """Nodes on which the plan's targets are, sorted."""
    return tuple(sorted({node for entity in plan.targets.entities if (node := entity_node(entity)) is not None}))
