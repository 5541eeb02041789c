"""The trace of an experiment: spans made of the loop's own state, each with an id that is made of what it tells of.

An agent's spans hang below those of the fault or the halt whose command it got, though these are only told at the end:
their ids are known before (`for_command`). Told again, by this worker or the next, a span is the same span.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.experiment import ExperimentState, Halt, Verdict
from gpuchaos_stream.events.incident import AttributedAnomaly, RecoveryOutcome
from gpuchaos_stream.guard.decision import Decision
from gpuchaos_stream.observe import tracing

#: A worker that takes a cluster over tells again of the experiments that ended within so many seconds: its predecessor
#: may have been killed before they were exported.
AGAIN_S: Final = 60.0

#: Which stage speaks: the instrumentation scope of its spans.
_EXPERIMENTS, _DETECT, _CORRELATE, _RECOVERY, _GUARD, _ACT = (
    f"gpuchaos.{stage}" for stage in ("experiments", "detect", "correlate", "recovery", "guard", "act")
)
#: What an experiment ended as, where that is an error.
_BAD: Final = frozenset({Verdict.FAILED, Verdict.HALTED})


def for_command(state: ExperimentState | None, command: Command) -> str | None:
    """The `traceparent` that a command carries: that of its halt, or its fault, or of the experiment."""
    if state is None:
        return None
    if command.kind is CommandKind.HALT:
        return _halt(state, command.cause)
    return _fault(state, command.fault_id) if command.fault_id else _own(state)


def anomaly(event: Anomaly) -> None:
    """An anomaly that has just been found: a trace of its own, from its start until it was found."""
    if event.phase is not AnomalyPhase.OPENED or not tracing.enabled():
        return
    tracing.past(
        f"anomaly {event.metric}",
        event.start,
        event.time,
        own=_anomaly(event.cluster, event.anomaly_id),
        scope=_DETECT,
        node=event.node,
        gpuchaos={
            "cluster": event.cluster,
            "anomaly_id": event.anomaly_id,
            "metric": event.metric,
            "entity": event.entity,
            "cell": event.cell,
            "job": event.job,
            "kind": event.kind.value,
            "severity": event.severity.value,
            "score": event.score,
            "value": event.value,
            "expected": event.expected,
        },
    )


def decision(state: ExperimentState | None, made: Decision, cluster: str, *, read: float, now: float) -> None:
    """What the guard decided, from when the condition began to hold until it was decided.

    `read` is when the newest record that it knew was appended, `now` the time of the decision, both on the broker's
    clock: what lies between them is the loop's own latency.
    """
    if made.resolved or not tracing.enabled():
        return
    of_state: dict[str, Any] = {}
    if state is not None:
        radius = state.blast_radius.model_dump()
        for level, limit in state.limits.items():
            of_state |= {f"limit.{level}": limit, f"blast_radius.{level}": radius.get(level)}
    tracing.past(
        f"decide {made.cause.partition(':')[0]}",
        made.since if state is None else max(made.since, state.started),
        now,
        parent=_own(state) if state is not None else None,
        own=_decision(state, cluster, made.cause),
        events=(("fires", made.fired),),
        scope=_GUARD,
        experiment_id=None if state is None else state.id,
        gpuchaos={
            **of_state,
            "cluster": cluster,
            "rule": made.cause,
            "action": made.action.value,
            "reason": made.reason,
            "unsafe": made.unsafe,
            "latency_s": max(0.0, now - read),
        },
    )


def experiment(state: ExperimentState, charged: Sequence[AttributedAnomaly]) -> None:
    """The whole of a finished experiment, from its acceptance to its confirmed recovery.

    `charged` are the anomalies attributed to it, in order of their start.
    """
    if not tracing.enabled():
        return
    whole, end = _own(state), state.finished or state.time
    shared: dict[str, Any] = {"experiment_id": state.id, "gpuchaos.cluster": state.cluster}
    fault = state.faults[0].fault if state.faults else None
    tracing.past(
        f"experiment {state.name}",
        state.started,
        end,
        parent=state.traceparent,
        own=whole,
        error=state.reason if state.verdict in _BAD else None,
        scope=_EXPERIMENTS,
        **shared,
        gpuchaos={
            "fault": fault,
            "owner": state.owner,
            "verdict": state.verdict.value if state.verdict else None,
            "reason": state.reason,
        },
    )
    injected = state.recovery.injected
    tracing.past(
        "settle",
        state.started,
        end if injected is None else injected,
        parent=whole,
        own=tracing.of(whole, "settle"),
        scope=_EXPERIMENTS,
        **shared,
    )
    _faults(state, end, shared)
    _detection(state, charged, shared)
    for halt in state.halts:
        _halted(state, halt, end, shared)
    _recovery(state, end, shared)


def _faults(state: ExperimentState, end: float, shared: dict[str, Any]) -> None:
    for each in state.faults:
        if each.injected is not None:
            tracing.past(
                f"fault {each.fault}",
                each.injected,
                each.undone or end,
                parent=_own(state),
                own=_fault(state, each.fault_id),
                error=None if each.undone else each.reason or "it is not known to be undone",
                scope=_EXPERIMENTS,
                fault_id=each.fault_id,
                node=each.node,
                **shared,
                gpuchaos={"fault": each.fault, "entity": each.entity},
            )


def _detection(state: ExperimentState, charged: Sequence[AttributedAnomaly], shared: dict[str, Any]) -> None:
    record, whole = state.recovery, _own(state)
    links = [_anomaly(state.cluster, each.anomaly_id) for each in charged]
    if record.injected is not None and record.ttd is not None:
        tracing.past(
            "detection",
            record.injected,
            record.injected + record.ttd,
            parent=whole,
            own=tracing.of(whole, "detection"),
            links=links[:1],
            scope=_DETECT,
            **shared,
            gpuchaos={"ttd_s": record.ttd},
        )
    if charged:
        first = charged[0]
        tracing.past(
            "attribution",
            max(first.start, state.started),
            charged[-1].start,
            parent=whole,
            own=tracing.of(whole, "attribution"),
            links=links,
            scope=_CORRELATE,
            **shared,
            gpuchaos={
                "attributed": state.attributed,
                "unattributed": state.unattributed,
                "sentence": first.evidence.sentence,
            },
        )


def _halted(state: ExperimentState, halt: Halt, end: float, shared: dict[str, Any]) -> None:
    tracing.past(
        f"halt {halt.cause.partition(':')[0]}",
        halt.requested,
        halt.confirmed or halt.undone or end,
        parent=_own(state),
        own=_halt(state, halt.cause),
        links=(_decision(state, state.cluster, halt.cause),),
        events=(
            ("requested", halt.requested),
            ("acknowledged", halt.acknowledged),
            ("undone", halt.undone),
            ("confirmed", halt.confirmed),
            ("escalated", halt.escalated),
        ),
        error="escalated: a person is needed" if halt.escalated is not None and halt.confirmed is None else None,
        scope=_ACT,
        **shared,
        gpuchaos={
            "cause": halt.cause,
            "reason": halt.reason,
            "halt": halt.state.value,
            "dry_run": halt.dry_run,
        },
    )


def _recovery(state: ExperimentState, end: float, shared: dict[str, Any]) -> None:
    record, whole = state.recovery, _own(state)
    if record.injected is None:
        return
    missed = record.outcome is not RecoveryOutcome.RECOVERED
    over = end if record.confirm is None else record.injected + record.confirm
    objectives = {f"objective.{name}_s": limit for name, limit in record.objectives.items()}
    after = {name: None if s is None else record.injected + s for name, s in (("ttm", record.ttm), ("ttr", record.ttr))}
    tracing.past(
        "recovery",
        record.injected,
        over,
        parent=whole,
        own=tracing.of(whole, "recovery"),
        events=(("mitigated", after["ttm"]), ("recovered", after["ttr"])),
        error="not recovered" if missed else None,
        scope=_RECOVERY,
        **shared,
        gpuchaos={"ttd_s": record.ttd, "ttm_s": record.ttm, "ttr_s": record.ttr, **objectives},
    )


# The names of spans: what their ids are made of.


def _own(state: ExperimentState) -> str | None:
    return tracing.of(state.traceparent, "experiment", state.cluster, state.id)


def _fault(state: ExperimentState, fault_id: str) -> str | None:
    return tracing.of(state.traceparent, "fault", state.cluster, state.id, fault_id)


def _halt(state: ExperimentState, cause: str) -> str | None:
    return tracing.of(state.traceparent, "halt", state.cluster, state.id, cause)


def _decision(state: ExperimentState | None, cluster: str, cause: str) -> str | None:
    if state is None:
        return None
    return tracing.of(state.traceparent, "decision", cluster, state.id, cause)


def _anomaly(cluster: str, anomaly_id: str) -> str:
    return tracing.alone("anomaly", cluster, anomaly_id)
