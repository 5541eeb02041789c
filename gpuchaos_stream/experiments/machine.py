"""The life of an experiment: one table of transitions.

`Machine.settle` looks, for each experiment, for the first trigger that holds and has a row for the present
status, goes there, and looks again until nothing moves. What must be sent follows from where that ended
(`orders.py`). No condition and no row holds back an undo: it is owed by the faults, not by the status.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pydantic import ValidationError

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.command import Command
from gpuchaos_stream.events.experiment import ExperimentState, Status
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.experiments.orders import INJECT_WAIT_S, orders
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.experiments.run import OPEN_QUESTION, Phase, Run, limits_of, planned_faults
from gpuchaos_stream.experiments.triggers import CONDITIONS, Trigger, View, sentence, steady_now, void_reason
from gpuchaos_stream.experiments.verdict import verdict

#: A finished experiment is kept so long, so that a repeated start or a late word is recognised, seconds.
KEEP_FINISHED_S: Final = 3600.0
#: Numbers that move all the time are published at most once in so many seconds.
PUBLISH_S: Final = 1.0

#: Statuses in which a fault of which nothing is known may still be injected.
_TO_COME: Final = frozenset({Status.PENDING, Status.INJECTING})

_PREFIX: Final = "experiments/"

#: The whole life of an experiment. Where there is no row, nothing happens.
TRANSITIONS: Final[dict[tuple[Status, Trigger], Status]] = {
    (Status.PENDING, Trigger.HALT): Status.FINISHED,
    (Status.PENDING, Trigger.STOP): Status.FINISHED,
    (Status.PENDING, Trigger.BLOCKED): Status.FINISHED,
    (Status.PENDING, Trigger.UNKNOWN_TARGET): Status.FINISHED,
    (Status.PENDING, Trigger.UNSAFE): Status.FINISHED,
    (Status.PENDING, Trigger.STEADY): Status.INJECTING,
    (Status.PENDING, Trigger.UNSTEADY): Status.FINISHED,
    (Status.INJECTING, Trigger.HALT): Status.HALTING,
    (Status.INJECTING, Trigger.STOP): Status.HALTING,
    (Status.INJECTING, Trigger.ENDED_EARLY): Status.UNDOING,
    (Status.INJECTING, Trigger.NOTHING_INJECTED): Status.UNDOING,
    (Status.INJECTING, Trigger.INJECTED): Status.ACTIVE,
    (Status.INJECTING, Trigger.DURATION_OVER): Status.UNDOING,
    (Status.ACTIVE, Trigger.HALT): Status.HALTING,
    (Status.ACTIVE, Trigger.STOP): Status.HALTING,
    (Status.ACTIVE, Trigger.ENDED_EARLY): Status.UNDOING,
    (Status.ACTIVE, Trigger.DURATION_OVER): Status.UNDOING,
    (Status.UNDOING, Trigger.HALT): Status.HALTING,
    (Status.UNDOING, Trigger.STOP): Status.HALTING,
    (Status.UNDOING, Trigger.GONE_UNTESTED): Status.FINISHED,
    (Status.UNDOING, Trigger.GONE): Status.RECOVERING,
    (Status.UNDOING, Trigger.UNDO_OVERDUE): Status.RECOVERING,
    (Status.HALTING, Trigger.GONE_UNTESTED): Status.FINISHED,
    (Status.HALTING, Trigger.GONE): Status.RECOVERING,
    (Status.HALTING, Trigger.UNDO_OVERDUE): Status.RECOVERING,
    (Status.RECOVERING, Trigger.HALT): Status.HALTING,
    (Status.RECOVERING, Trigger.RECOVERED): Status.FINISHED,
    (Status.RECOVERING, Trigger.RECOVERY_OVERDUE): Status.FINISHED,
}


class Machine:
    """All experiments of one cluster. Pure: time and every other stage's word are arguments. State: `experiments/<id>`.

    Per batch the pipeline calls `start`, `stop` and `feed`, then `update` with what the other stages know, then
    `settle`, then `changed`.
    """

    def __init__(self) -> None:
        self._runs: dict[str, Run] = {}
        self._dirty: set[str] = set()
        self._published: dict[str, tuple[float, ExperimentState]] = {}

    def start(self, command: Command, now: float, *, traceparent: str | None = None) -> Plan | None:
        """Takes a start command. Returns the plan to prepare for; None for a repeat, or one that is refused.

        A refused one is finished and void at once, with the reason, so that its sender sees why.
        """
        raw = command.plan or {}
        name = str(raw.get("name") or "unnamed")
        experiment_id = command.experiment_id or f"{name}-{stable_id(command.id)[:8]}"
        if experiment_id in self._runs:
            return None
        plan, reason = self._read(raw)
        state = ExperimentState(
            id=experiment_id,
            time=now,
            cluster=command.cluster,
            name=name,
            owner=str(raw.get("owner") or command.issued_by or "nobody"),
            status=Status.PENDING,
            plan=raw,
            started=now,
            faults=planned_faults(experiment_id, plan) if plan is not None else (),
            limits=limits_of(plan.limits) if plan is not None else {},
            traceparent=traceparent,
        )
        run = Run(state=state, plan=plan, since=now, void=reason)
        self._runs[experiment_id] = run
        self._dirty.add(experiment_id)
        if reason:
            self._finish(run, now)
            return None
        return plan

    def _read(self, raw: Mapping[str, object]) -> tuple[Plan | None, str]:
        try:
            plan = Plan.model_validate(raw)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            return None, f"the plan is refused: {'.'.join(map(str, first['loc']))}: {first['msg']}"
        errors = check(plan)
        if errors:
            return plan, f"the plan is refused: {errors[0]}"
        busy = {f.entity: run.id for run in self._runs.values() for f in run.state.faults if not _over(run)}
        for entity in plan.targets.entities:
            if entity in busy:
                return plan, f"refused: {entity} is a target of {busy[entity]}, which is not over"
        return plan, ""

    def stop(self, experiment_id: str, *, reason: str = "", by: str = "") -> bool:
        """A person stops it; False when there is no such experiment, or nothing of it is left to be stopped.

        While it recovers its faults are gone, and a stop would only keep a miss out of the books.
        """
        run = self._runs.get(experiment_id)
        if run is None or run.state.status in {Status.RECOVERING, Status.FINISHED}:
            return False
        if not run.stop:
            run.stop = f"stopped by {by or 'somebody'}" + (f": {reason}" if reason else "")
            run.to_stop = True
            self._dirty.add(experiment_id)
        return True

    def feed(self, event: FaultEvent) -> None:
        """Takes an agent's word; a repeat changes nothing, and other experiments' faults are passed by."""
        run = self._runs.get(event.experiment_id or "")
        if run is not None and run.feed(event):
            run.set(time=max(run.state.time, event.event_time))
            self._dirty.add(run.id)

    def update(self, experiment_id: str, **fields: object) -> None:
        """Puts what other stages know (`blast_radius`, `recovery`, `halts`, `attributed`, …) into the state."""
        run = self._runs.get(experiment_id)
        if run is None:
            return
        changed = {name: value for name, value in fields.items() if getattr(run.state, name) != value}
        if changed:
            run.set(**changed)
            self._dirty.add(experiment_id)

    def settle(self, now: float, view: View) -> list[Command]:
        """Moves every experiment on as far as it goes at `now`, and returns what must be sent."""
        out: list[Command] = []
        for run in list(self._runs.values()):
            before = run.model_copy(update={"sent": dict(run.sent), "renewed": dict(run.renewed)})
            self._notice(run, now, view)
            while (trigger := self._next(run, now, view)) is not None:
                self._go(run, trigger, now, view)
            out.extend(orders(run, now, may_inject=not (view.tripped or view.frozen)))
            if run != before:
                if run.state != before.state:
                    run.set(time=max(now, run.state.time))
                self._dirty.add(run.id)
            if _over(run) and now > (run.state.finished or now) + KEEP_FINISHED_S:
                del self._runs[run.id]
                self._published.pop(run.id, None)
                self._dirty.add(run.id)
        return out

    def _notice(self, run: Run, now: float, view: View) -> None:
        """What is learnt without moving: wishes, how long it has been steady, who has not answered."""
        if not run.halt and run.id in view.halts and not run.finished:
            run.halt, run.to_halt = view.halts[run.id] or "halted", True
        if run.state.status is Status.PENDING:
            run.steady_since = (
                (now if run.steady_since is None else run.steady_since) if steady_now(run, view) else None
            )
        if (
            run.state.status is Status.INJECTING
            and now > (run.asked if run.asked is not None else run.since) + INJECT_WAIT_S
        ):
            for fault in run.state.faults:
                if fault.phase in OPEN_QUESTION:
                    run.set_fault(fault.fault_id, phase=Phase.UNANSWERED, reason="the agent did not answer")

    @staticmethod
    def _next(run: Run, now: float, view: View) -> Trigger | None:
        if run.plan is None:
            return None
        for trigger, holds in CONDITIONS.items():
            if (run.state.status, trigger) in TRANSITIONS and holds(run, run.plan, now, view):
                return trigger
        return None

    def _go(self, run: Run, trigger: Trigger, now: float, view: View) -> None:
        """Takes one transition and writes down why."""
        target = TRANSITIONS[run.state.status, trigger]
        run.void = run.void or void_reason(run, trigger, view)
        run.note(sentence(run, trigger))
        run.to_halt = run.to_stop = False
        run.since = now
        if target is Status.FINISHED:
            self._finish(run, now, still_steady=trigger is Trigger.RECOVERED)
        else:
            run.set(status=target)

    @staticmethod
    def _finish(run: Run, now: float, *, still_steady: bool = False) -> None:
        found, reason = verdict(run, still_steady=still_steady)
        run.note(reason)
        run.set(status=Status.FINISHED, verdict=found, finished=now, time=max(now, run.state.time))

    def state(self, experiment_id: str) -> ExperimentState | None:
        """The published state of one experiment."""
        run = self._runs.get(experiment_id)
        return run.state if run is not None else None

    def states(self) -> list[ExperimentState]:
        """All states, oldest first."""
        return sorted((run.state for run in self._runs.values()), key=lambda state: (state.started, state.id))

    def plan(self, experiment_id: str) -> Plan | None:
        """The plan of one experiment; None when it is unknown or was never readable."""
        run = self._runs.get(experiment_id)
        return run.plan if run is not None else None

    def open(self) -> list[str]:
        """Experiments that are not finished, oldest first."""
        return [state.id for state in self.states() if state.status is not Status.FINISHED]

    def pending(self) -> list[str]:
        """Experiments that have not begun to inject, oldest first."""
        return [state.id for state in self.states() if state.status is Status.PENDING]

    def before(self, experiment_id: str) -> list[tuple[str, str]]:
        """Experiment and target of each fault that goes before those of `experiment_id`, a pending experiment.

        Those that may be on a node, and those that are to be: of the pending experiments, the older ones'.
        """
        mine = self._runs[experiment_id].state
        return [
            (run.id, fault.entity)
            for run in self._runs.values()
            if run.id != experiment_id
            and (run.state.status is not Status.PENDING or (run.state.started, run.id) < (mine.started, mine.id))
            for fault in (run.state.faults if run.state.status in _TO_COME else run.owed())
        ]

    def owing(self) -> list[str]:
        """Experiments of which a fault may be on a node, finished ones included."""
        return sorted(run.id for run in self._runs.values() if run.owed())

    def changed(self, now: float | None = None) -> list[ExperimentState]:
        """States to publish: a new status, fault or halt at once, moving numbers at most once a second of `now`."""
        out = []
        for state in self.states():
            last = self._published.get(state.id)
            if last is not None and (last[1] == state or not _worth(last, state, now)):
                continue
            self._published[state.id] = (state.time if now is None else now, state)
            out.append(state)
        return out

    def dirty(self) -> dict[str, bytes | None]:
        """See `stage.Stateful`."""
        out: dict[str, bytes | None] = {
            _PREFIX + key: self._runs[key].model_dump_json().encode() if key in self._runs else None
            for key in sorted(self._dirty)
        }
        self._dirty.clear()
        return out

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `stage.Stateful`. What was published before is not known any more, so it is published again."""
        self._dirty.clear()
        self._published.clear()
        self._runs = {
            key.removeprefix(_PREFIX): Run.model_validate_json(value)
            for key, value in items.items()
            if key.startswith(_PREFIX)
        }


def _over(run: Run) -> bool:
    """Finished, and nothing of it can be on a node."""
    return run.finished and not run.owed()


def _worth(last: tuple[float, ExperimentState], state: ExperimentState, now: float | None) -> bool:
    steps = ("status", "verdict", "faults", "halts", "incidents")
    return now is None or now >= last[0] + PUBLISH_S or any(getattr(last[1], f) != getattr(state, f) for f in steps)
