"""What the API answers with, as models: the OpenAPI document is made of them, and the tests read answers by them."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from gpuchaos_stream.events.base import Entity, Severity, Timestamp
from gpuchaos_stream.events.experiment import (
    AnomalyLine,
    BreakerState,
    ExperimentState,
    Halt,
    InjectedFault,
    Status,
    Verdict,
)
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.report.explain import Explained
from gpuchaos_stream.report.model import Bar, Goal, Level, Moment


class View(BaseModel):
    """Base of everything that is answered."""

    model_config = ConfigDict(frozen=True, ser_json_inf_nan="null", protected_namespaces=())


class Freshness(View):
    """How old what is shown is. While `stale` is true nothing of it may be believed: unknown is unsafe."""

    time: Timestamp = Field(description="now, by the server's clock")
    stale: bool
    stale_s: float | None = Field(
        description="seconds since a worker last spoke of this cluster; null: not since the server began to read"
    )
    words: str = Field(description="the same for a person; `live` when all is well")


class ExperimentView(View):
    """One experiment as a card shows it. Times are epoch seconds; those in `goals`, `timeline` and `bars` are seconds
    since `origin`, the first injection, or the start while there is none.
    """

    id: str
    name: str
    owner: str
    description: str = ""
    fault: str
    status: Status
    verdict: Verdict | None
    reason: str
    time: Timestamp = Field(description="of the last change")
    started: Timestamp
    ends: Timestamp | None = Field(description="the planned end of its faults")
    finished: Timestamp | None
    origin: Timestamp
    end_s: float = Field(description="the newest moment that is known, seconds since `origin`")
    faults: tuple[InjectedFault, ...]
    levels: tuple[Level, ...] = Field(description="blast radius level by level, each against its limit")
    unknown_nodes: int
    goals: tuple[Goal, ...] = Field(description="TTD, TTM and TTR against their objectives")
    halts: tuple[Halt, ...]
    attributed: int
    unattributed: int
    charged: tuple[AnomalyLine, ...]
    unexplained: tuple[AnomalyLine, ...]
    steady: dict[str, str]
    undo_confirmed: bool = Field(description="no fault of it can still be there, as the agents verified")
    timeline: tuple[Moment, ...]
    bars: tuple[Bar, ...]
    trace_id: str | None = None


class OpenAnomaly(View):
    """One anomaly that has not ended, with what it is charged to. `experiment_id` null: nothing explains it."""

    entity: Entity
    metric: str
    start: Timestamp
    severity: Severity
    experiment_id: str | None
    incident_id: str
    sentence: str


class IncidentView(View):
    """One incident: anomalies of one cause. At most 20 of its anomalies and nodes are listed, all are counted.

    `title` is one line for a list. `experiment_id` null: no experiment explains it.
    """

    id: str
    title: str
    experiment_id: str | None
    fault_id: str | None
    attributed: bool
    superseded: bool = Field(description="a late event moved its anomalies to another incident")
    severity: Severity
    opened: Timestamp
    closed: Timestamp | None
    time: Timestamp
    anomaly_count: int
    anomalies: tuple[OpenAnomaly, ...]
    node_count: int
    nodes: tuple[str, ...]
    jobs: tuple[str, ...]


Span = Annotated[tuple[int, int], Field(description="first node and the one after the last, as indexes into `nodes`")]


class CellView(View):
    """One cell of the map. `rack` is null where it spans several, which `racks` then lists as (name, start, end)."""

    name: str
    rack: str | None
    values: dict[str, float | None] = Field(description="means over its nodes, by name: see `value_names` of the map")
    nodes: Span
    racks: tuple[tuple[str, int, int], ...] = ()


class Marks(View):
    """What on a node has an open anomaly: columns of `rails`, and GPUs by their local id."""

    rails: tuple[str, ...] = ()
    gpus: tuple[str, ...] = ()


class MapView(View):
    """The cluster, column by column. `state[i]` is an index into `states` for the node `nodes[i]`."""

    version: int = Field(description="rises when nodes come, go or move; indexes are good for one version alone")
    states: tuple[str, ...]
    state_words: tuple[str, ...]
    value_names: dict[str, str] = Field(description="name of a cell's value → what it is, with unit")
    cells: tuple[CellView, ...]
    nodes: tuple[str, ...]
    state: tuple[int, ...]
    rails: tuple[str, ...] = Field(description="columns of rails; a rail named after its cell goes without it")
    ports: tuple[tuple[int, int, tuple[int, ...]], ...] = Field(
        description="of the nodes from the first to before the second index: the `rails` on which each has a port"
    )
    marks: dict[int, Marks] = Field(description="by node index; a node without marks is left out")


class Links(View):
    """Where the same is in Grafana; null without `--grafana-url`. Replace `{experiment_id}`, or `{cell}` and `{node}`,
    escaped.
    """

    loop: str | None = None
    fleet: str | None = None
    node: str | None = None
    experiment: str | None = None
    jobs: str | None = None
    slo: str | None = None


class Snapshot(View):
    """All that the page shows of a cluster, as of event `sequence`: the events after it lead to the next snapshot."""

    cluster: str
    time: Timestamp
    epoch: str = Field(description="of the server's run; `epoch-sequence` is the id of an event")
    sequence: int = Field(description="number of the newest event that is in it")
    read_only: bool
    freshness: Freshness
    stale_s: float | None
    breaker: BreakerState
    experiments: tuple[ExperimentView, ...] = Field(description="running ones, then those that finished last")
    map: MapView
    incidents: tuple[IncidentView, ...] = Field(description="open ones that no experiment explains, the newest 50")
    incident_count: int = Field(description="how many of those there are")
    links: Links


class ClusterLine(View):
    """One cluster in the list."""

    cluster: str
    nodes: int
    running: int
    tripped: bool
    unexplained: int = Field(description="open incidents that no experiment explains")
    freshness: Freshness


class Clusters(View):
    """All clusters of which anything was heard."""

    clusters: tuple[ClusterLine, ...]


class Experiments(View):
    """Experiments, the newest first. `total` counts all that match."""

    total: int
    experiments: tuple[ExperimentView, ...]


class ExperimentDetail(View):
    """One experiment whole: its state as it stands in Kafka, its card, and why its verdict is what it is."""

    state: ExperimentState
    view: ExperimentView
    explained: Explained
    text: str = Field(description="the explanation as plain text")


class Timeline(View):
    """What happened when, in seconds since `origin`."""

    experiment_id: str
    origin: Timestamp
    end_s: float
    moments: tuple[Moment, ...]
    bars: tuple[Bar, ...]


class FaultOnNode(View):
    """A fault that is, or may be, on a node."""

    experiment_id: str
    fault_id: str
    entity: Entity


class NodeView(View):
    """One node: its place and devices, its state and why, its open anomalies, the faults on it."""

    node: str
    index: int = Field(description="in the map of version `version`")
    version: int
    state: str
    why: str
    heard: Timestamp = Field(description="when the node's agent last told its place")
    info: NodeInfo
    marks: Marks
    anomalies: tuple[OpenAnomaly, ...]
    faults: tuple[FaultOnNode, ...]


class Incidents(View):
    """Incidents, the newest first. `total` counts all that match."""

    total: int
    incidents: tuple[IncidentView, ...]


class BreakerView(View):
    """The breaker of a cluster."""

    breaker: BreakerState
    freshness: Freshness


class Sent(View):
    """One signed command that the broker has. `node` null: it is for the control plane."""

    kind: str
    id: str
    node: str | None


class Accepted(View):
    """What was sent, and how to see whether it was done: an answer is no confirmation."""

    sent: tuple[Sent, ...]
    already: bool = Field(description="it was so before: nothing had to be sent")
    watch: str = Field(description="path of the resource that will tell")
    until: str = Field(description="what to see there, in words")


class Problem(View):
    """An error by RFC 9457: what is wrong, where, and what to do."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    field: str | None = None
    fix: str | None = None
