"""Experiments and incidents as the page shows them, made of their events alone."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from gpuchaos_stream.events.envelope import trace_id_of
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.events.incident import AttributedAnomaly, Incident
from gpuchaos_stream.experiments.run import SETTLED
from gpuchaos_stream.report import facts, timeline
from gpuchaos_stream.report.spread import origin_of
from gpuchaos_stream.web.views import ExperimentView, IncidentView, OpenAnomaly

#: Anomalies, nodes and jobs of an incident that are listed; all are counted.
MOST_LISTED: Final = 20


def experiment_card(
    state: ExperimentState, own: Iterable[Incident] = (), others: Iterable[Incident] = ()
) -> ExperimentView:
    """The card of an experiment. `own` are its incidents, `others` those of none: they tell when anomalies ended."""
    return ExperimentView(
        id=state.id,
        name=state.name,
        owner=state.owner,
        description=str(state.plan.get("description") or ""),
        fault=facts.plan_fault(state)[0],
        status=state.status,
        verdict=state.verdict,
        reason=state.reason,
        time=state.time,
        started=state.started,
        ends=state.ends,
        finished=state.finished,
        origin=origin_of(state),
        end_s=facts.last_moment(state),
        faults=state.faults,
        levels=tuple(facts.levels(state)),
        unknown_nodes=state.blast_radius.unknown_nodes,
        goals=tuple(facts.goals(state)),
        halts=state.halts,
        attributed=state.attributed,
        unattributed=state.unattributed,
        charged=state.charged,
        unexplained=state.unexplained,
        steady=dict(sorted(state.steady.items())),
        undo_confirmed=all(fault.phase in SETTLED for fault in state.faults),
        timeline=timeline.moments(state),
        bars=timeline.bars(state, own, others),
        trace_id=trace_id_of(state.traceparent),
    )


def incident_line(incident: Incident) -> IncidentView:
    """An incident for a list."""
    listed = sorted(incident.anomalies, key=lambda each: (each.end is not None, each.start, each.anomaly_id))
    return IncidentView(
        id=incident.id,
        title=incident.summary or incident.cause,
        experiment_id=incident.experiment_id,
        fault_id=incident.fault_id,
        attributed=incident.attributed,
        superseded=incident.superseded,
        severity=incident.severity,
        opened=incident.opened,
        closed=incident.closed,
        time=incident.time,
        anomaly_count=len(incident.anomalies),
        anomalies=tuple(open_anomaly(incident, each) for each in listed[:MOST_LISTED]),
        node_count=len(incident.nodes),
        nodes=incident.nodes[:MOST_LISTED],
        jobs=incident.jobs[:MOST_LISTED],
    )


def open_anomaly(incident: Incident, anomaly: AttributedAnomaly) -> OpenAnomaly:
    """An anomaly of an incident, with the reason for what it is charged to."""
    return OpenAnomaly(
        entity=anomaly.entity,
        metric=anomaly.metric,
        start=anomaly.start,
        severity=anomaly.severity,
        experiment_id=incident.experiment_id,
        incident_id=incident.id,
        sentence=anomaly.evidence.sentence,
    )
