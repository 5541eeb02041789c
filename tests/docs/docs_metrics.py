"""Rows of the tables in docs/metrics.md: what each process exports, in which unit, and how many series at most."""

from __future__ import annotations

import math
from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Sequence
from types import ModuleType
from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from gpuchaos_agent import devices
from gpuchaos_stream.act.halts import HaltState
from gpuchaos_stream.events.anomaly import AnomalyKind
from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.incident import LEVELS
from gpuchaos_stream.events.metrics import METRICS
from gpuchaos_stream.events.signing import Refusal
from gpuchaos_stream.events.topics import TOPICS
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.gauges import MOST_EXPERIMENTS, MOST_JOBS
from gpuchaos_stream.observe.metrics import STAGES
from gpuchaos_stream.recovery.slo import OBJECTIVES

Metric = Counter | Gauge | Histogram
Rows = Iterable[Sequence[str]]

SERIES_HEAD: Final = ("who", "series", "times", "together")
HEAD: Final = ("metric", "type", "labels", "unit", "series", "meaning")
DEVICE_HEAD: Final = ("metric", "labels", "unit", "meaning")
DCGM_HEAD: Final = ("metric", "of", "unit")

#: The cluster that the bounds are stated for.
NODES: Final = 12_500
#: Nodes of a cell: a rack of two NVLink domains, or an SU.
NODES_OF_A_CELL: Final = 32
#: Partitions of a topic, of a cluster of that size.
PARTITIONS: Final = 64

_KINDS: Final = {kind for fault in FAULTS.values() for form in fault.forms for kind in form.targets}
#: Label → how many values it has in one cluster of `NODES` nodes.
BOUNDS: Final[dict[str, int]] = {
    "cluster": 1,
    "topic": len(TOPICS),
    "partition": PARTITIONS,
    "stage": len(STAGES),
    "status": len(Status),
    "verdict": len(Verdict),
    "level": len(LEVELS),
    "rule": len(load_rules([shipped_rules()]).rules),
    "state": 2,
    "reason": len(Refusal),
    "fault": len(FAULTS),
    "phase": len(OBJECTIVES),
    "objective": len(OBJECTIVES),
    "target_kind": len(_KINDS),
    "sloth_service": len(FAULTS),
    "sloth_slo": len(OBJECTIVES),
    "kind": len(AnomalyKind),
    "attribution": 2,
    "event": 6,
    "over": 3,
    "cell": math.ceil(NODES / NODES_OF_A_CELL),
    "experiment_id": MOST_EXPERIMENTS,
    # A job in a cell: so many together, in whatever cells.
    "training_job": MOST_JOBS,
    # Receivers of notifications, and how a request to one ended.
    "receiver": 10,
    "result": 4,
    # Routes of the page's server, and statuses that one of them can have.
    "route": 20,
    "code": 10,
    "action": 3,
    # Parts and collectors of an agent.
    "node": 1,
    "version": 1,
    "part": 10,
    "collector": 20,
}
#: Where a label has other values than elsewhere.
_OTHER_BOUNDS: Final = {
    ("gpuchaos_notify_messages", "kind"): 4,
    ("gpuchaos_serve_refused", "reason"): 6,
    ("gpuchaos_halts_open", "state"): len(HaltState) - 1,
    ("gpuchaos_agent_fault_events", "phase"): len(FaultPhase),
}
#: A node of that size, for what an agent shows of devices: how many of each kind (NVLink: by GPU).
DEVICES_OF_A_NODE: Final = {"node": 1, "gpu": 8, "rdma": 8, "numa": 2, "nvlink": 8, "process": 8}
#: What says more of one thing that another label names already.
_SAYS_MORE: Final = {
    "experiment_id": {"name", "owner", "fault", "target_kind", "status", "verdict", "trace_id"},
    "training_job": {"cell"},
}
#: End of a name → unit.
_UNITS: Final = {
    "_timestamp_seconds": "seconds since 1970",
    "_gpu_seconds": "GPU-seconds",
    "_gpu_limit_seconds": "GPU-seconds",
    "_bytes_per_second": "bytes/s",
    "_per_second": "1/s",
    "_seconds": "seconds",
    "_bytes": "bytes",
    "_ratio": "ratio, 0..1",
    "_celsius": "degrees Celsius",
    "_watts": "watts",
    "_hertz": "hertz",
}


def name_of(metric: Metric) -> str:
    """The name as it is exposed; of a histogram without `_bucket`, `_sum`, `_count`."""
    return metric._name + ("_total" if isinstance(metric, Counter) else "")


def metrics_of(page: ModuleType) -> Iterator[Metric]:
    """Every metric that a module defines, in its order."""
    yield from (each for each in vars(page).values() if isinstance(each, Counter | Gauge | Histogram))


def unit(name: str) -> str:
    """The unit that a name says, `1` where it counts things or is a flag."""
    return next((words for end, words in _UNITS.items() if name.endswith(end)), "1")


def most_series(metric: Metric) -> int:
    """How many series it has at most in a cluster of `NODES` nodes; of an agent's metric, on one node."""
    labels = set(metric._labelnames)
    for label in metric._labelnames:
        labels -= _SAYS_MORE.get(label, set())
    buckets = len(metric._upper_bounds) + 2 if isinstance(metric, Histogram) else 1
    return math.prod(_OTHER_BOUNDS.get((metric._name, label), BOUNDS[label]) for label in labels) * buckets


def exported(page: ModuleType) -> Rows:
    """The metrics of a module."""
    for each in metrics_of(page):
        name, labels = name_of(each), ", ".join(f"`{label}`" for label in each._labelnames)
        kind = type(each).__name__.lower()
        yield f"`{name}`", kind, labels, unit(name), f"{most_series(each):,}", each._documentation


def of_devices() -> Rows:
    """What the agent shows of devices."""
    for metric in METRICS.values():
        how = devices.shown(metric)
        labels = ", ".join(f"`{label}`" for label in how.labels)
        yield f"`{how.name}`", labels, unit(how.name), devices.meaning(metric)


def of_dcgm() -> Rows:
    """What it shows under the names of a DCGM exporter."""
    for name, (metric, _, words) in devices.DCGM.items():
        yield f"`{name}`", f"`{devices.shown(METRICS['gpu', metric]).name}`", words


def together(*pages: ModuleType) -> int:
    """The most series of all metrics of these modules."""
    return sum(most_series(each) for page in pages for each in metrics_of(page))


def series(worker: Iterable[ModuleType], agent: ModuleType) -> Rows:
    """How many series a cluster of `NODES` nodes makes at most."""
    of_worker, of_agent = together(*worker), together(agent)
    by_kind = Counts(metric.kind for metric in METRICS.values())
    measured = sum(DEVICES_OF_A_NODE[kind] * count for kind, count in by_kind.items())
    as_dcgm = DEVICES_OF_A_NODE["gpu"] * len(devices.DCGM)
    yield "the workers of a cluster", f"{of_worker:,}", "1", f"{of_worker:,}"
    for who, count in (
        ("an agent, of itself", of_agent),
        ("an agent, of devices", measured),
        ("an agent, under DCGM's names", as_dcgm),
    ):
        yield who, f"{count:,}", f"{NODES:,} nodes", f"{count * NODES:,}"
