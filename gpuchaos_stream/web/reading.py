"""What is read: clusters, snapshots, the stream, experiments, nodes, incidents, the breaker."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Response

from gpuchaos_stream.errors import nearest
from gpuchaos_stream.events.experiment import BreakerState, Status
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.report import explain_text
from gpuchaos_stream.report.explain import explain
from gpuchaos_stream.report.story import Story
from gpuchaos_stream.web import states, views
from gpuchaos_stream.web.cards import experiment_card, incident_line
from gpuchaos_stream.web.cluster import ClusterBoard
from gpuchaos_stream.web.known import marks
from gpuchaos_stream.web.problems import ProblemError, answers
from gpuchaos_stream.web.site import Site, site

router = APIRouter(prefix="/api/v1/clusters", tags=["read"], responses=answers(404, 421, 422))
TheSite = Annotated[Site, Depends(site)]
Limit = Annotated[int, Query(ge=1, le=1000, description="the most that are answered")]


@router.get("", operation_id="listClusters")
async def clusters(at: TheSite) -> views.Clusters:
    """All clusters of which anything was heard."""
    now = at.clock()
    lines = (cluster.line(now) for _, cluster in sorted(at.board.clusters.items()))
    return views.Clusters(clusters=tuple(lines))


@router.get("/{cluster}", response_model=views.Snapshot, operation_id="getSnapshot")
async def snapshot(cluster: str, at: TheSite) -> Response:
    """All that the page shows of a cluster, columns packed for thousands of nodes."""
    return Response(at.board.snapshot(at.cluster(cluster), at.clock()), media_type="application/json")


@router.get(
    "/{cluster}/events",
    operation_id="followEvents",
    response_class=Response,
    responses={
        200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}, "description": "the stream"},
        **answers(503, _503="too many streams are open, or the server is stopping"),
    },
)
async def events(
    cluster: str, at: TheSite, last_event_id: Annotated[str | None, Header(max_length=100)] = None
) -> Response:
    """Changes as server-sent events, at most four times a second.

    First `snapshot`, or what came after `Last-Event-ID`; then `nodes` ({version, changes: [[index, state, marks]…]}),
    `cells` ({version, changes: [[index, values]…]}), `experiment`, `incident` (one that is attributed, superseded or
    closed leaves the list), `breaker`, `topology` (fetch the snapshot anew), and every two seconds `pulse` (Freshness).
    """
    return at.streams.open(at.cluster(cluster), last_event_id)


@router.get("/{cluster}/experiments", operation_id="listExperiments")
async def experiments(
    cluster: str,
    at: TheSite,
    status: Annotated[list[Status] | None, Query(description="only these; may be repeated")] = None,
    limit: Limit = 100,
) -> views.Experiments:
    """Experiments, running ones first, then those that finished last."""
    board = at.cluster(cluster)
    found = [*board.known.running(), *board.known.finished()]
    if status:
        found = [state for state in found if state.status in status]
    return views.Experiments(total=len(found), experiments=tuple(experiment_card(state) for state in found[:limit]))


@router.get("/{cluster}/experiments/{experiment_id}", operation_id="getExperiment")
async def experiment(cluster: str, experiment_id: str, at: TheSite) -> views.ExperimentDetail:
    """One experiment whole, and why its verdict is what it is."""
    board = at.cluster(cluster)
    state = at.experiment(board, experiment_id)
    explained = explain(state, _story(board, experiment_id))
    return views.ExperimentDetail(
        state=state, view=_card(board, experiment_id), explained=explained, text=explain_text.text(explained)
    )


@router.get("/{cluster}/experiments/{experiment_id}/timeline", operation_id="getTimeline")
async def timeline(cluster: str, experiment_id: str, at: TheSite) -> views.Timeline:
    """What happened in an experiment, and when."""
    board = at.cluster(cluster)
    card = _card(board, at.experiment(board, experiment_id).id)
    return views.Timeline(
        experiment_id=card.id, origin=card.origin, end_s=card.end_s, moments=card.timeline, bars=card.bars
    )


@router.get("/{cluster}/nodes/{node}", operation_id="getNode")
async def node(cluster: str, node: str, at: TheSite) -> views.NodeView:
    """One node: place, devices, state and why, open anomalies, faults on it."""
    board = at.cluster(cluster)
    known, index = board.known.nodes.get(node), board.layout.index.get(node)
    if known is None or index is None:
        names = board.known.nodes
        fix = nearest(node, names) if len(names) <= 2000 else ""
        raise ProblemError(404, f"no node {node!r} is known", field="node", fix=fix if "mean" in fix else None)
    state = states.STATES[states.state_of(known.facts)]
    rails, gpus = marks(known)
    harms = sorted(known.facts.harms.values(), key=lambda harm: (-harm.severity.rank, harm.start, harm.entity))
    return views.NodeView(
        node=node,
        index=index,
        version=board.layout.version,
        state=state.name,
        why=state.words,
        heard=known.heard,
        info=NodeInfo.model_validate_json(f'{{"id":"place","time":{known.order[0]},' + known.content[1:]),
        marks=views.Marks(rails=rails, gpus=gpus),
        anomalies=tuple(
            views.OpenAnomaly(
                entity=harm.entity,
                metric=harm.metric,
                start=harm.start,
                severity=harm.severity,
                experiment_id=harm.experiment,
                incident_id=harm.incident,
                sentence=harm.sentence,
            )
            for harm in harms
        ),
        faults=tuple(
            views.FaultOnNode(experiment_id=experiment, fault_id=fault, entity=entity)
            for (experiment, fault), entity in sorted(known.facts.faults.items())
        ),
    )


@router.get("/{cluster}/incidents", operation_id="listIncidents")
async def incidents(
    cluster: str,
    at: TheSite,
    is_open: Annotated[bool | None, Query(alias="open", description="only open, or only closed ones")] = None,
    attributed: Annotated[bool | None, Query(description="only those that an experiment explains, or the rest")] = None,
    limit: Limit = 100,
) -> views.Incidents:
    """Incidents, the newest first; superseded ones left out."""
    known = at.cluster(cluster).known.incidents.values()
    found = [
        each
        for each in known
        if not each.superseded and is_open in (None, each.closed is None) and attributed in (None, each.attributed)
    ]
    found.sort(key=lambda each: (each.opened, each.id), reverse=True)
    return views.Incidents(total=len(found), incidents=tuple(incident_line(each) for each in found[:limit]))


@router.get("/{cluster}/breaker", operation_id="getBreaker")
async def breaker(cluster: str, at: TheSite) -> views.BreakerView:
    """The breaker: whether new faults may begin, and why not."""
    board = at.cluster(cluster)
    state = board.known.breaker or BreakerState(id="breaker", time=0.0, cluster=cluster)
    return views.BreakerView(breaker=state, freshness=board.freshness(at.clock()))


def _card(board: ClusterBoard, experiment_id: str) -> views.ExperimentView:
    own = [i for i in board.known.incidents.values() if i.experiment_id == experiment_id and not i.superseded]
    return experiment_card(board.known.experiments[experiment_id], own, board.known.open_unexplained())


def _story(board: ClusterBoard, experiment_id: str) -> Story:
    """What this server has heard of one experiment."""
    story = Story(board.cluster)
    known = board.known
    for state in known.versions.get(experiment_id, {}).values():
        story.feed(state)
    for incident in known.incidents.values():
        if incident.experiment_id in (None, experiment_id):
            story.feed(incident)
    if known.breaker is not None:
        story.feed(known.breaker)
    return story
