"""What the devices of this node measure now, for Prometheus: the last frame, one series a device and metric.

A metric of `events/metrics.py` becomes `gpuchaos_KIND_NAME` (`rdma.port_active` → `gpuchaos_rdma_port_active`), a rate
`…_per_second`. What a DCGM exporter would show of a GPU is shown under its names and units as well, so that dashboards
made for it work; not where such an exporter is there and read from (`dcgm_url`), for then it shows them itself. It is
all made when somebody asks: nothing is kept or counted for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from prometheus_client import REGISTRY
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.snapshot import Taken
from gpuchaos_stream.events.frame import GroupLayout, Kind
from gpuchaos_stream.events.metrics import METRICS, Metric

#: What a device of a kind is called in a label. The node itself needs none; links are shown as their GPU's together,
#: for a node may have 144 of them.
DEVICE: Final[dict[Kind, tuple[str, ...]]] = {
    "node": (),
    "gpu": ("gpu",),
    "rdma": ("port",),
    "numa": ("numa_node",),
    "nvlink": (),
    "process": ("pid",),
}
#: What of a group's own labels is shown: whom a device works for, and which rail it hangs on.
BELONGS: Final[dict[Kind, tuple[str, ...]]] = {
    "node": (),
    "gpu": ("job",),
    "rdma": ("rail",),
    "numa": (),
    "nvlink": ("gpu",),
    "process": ("job",),
}
#: A label under another name: Prometheus puts its own `job` on what it scrapes, and would rename ours.
LABEL: Final = {"job": "training_job"}
#: Names whose unit is not one of Prometheus' base units: the name instead, and what a value is multiplied by.
OTHER_UNIT: Final[dict[tuple[Kind, str], tuple[str, float]]] = {
    ("rdma", "rate_bits"): ("rate_bytes_per_second", 0.125),
}
#: Series of a DCGM exporter: metric of a GPU here, what one of ours is in its unit, its unit.
DCGM: Final[dict[str, tuple[str, float, str]]] = {
    "DCGM_FI_DEV_GPU_UTIL": ("utilization_ratio", 100.0, "%"),
    "DCGM_FI_DEV_MEM_COPY_UTIL": ("memory_busy_ratio", 100.0, "%"),
    "DCGM_FI_DEV_FB_USED": ("memory_used_bytes", 2.0**-20, "MiB"),
    "DCGM_FI_DEV_GPU_TEMP": ("temperature_celsius", 1.0, "C"),
    "DCGM_FI_DEV_MEMORY_TEMP": ("memory_temperature_celsius", 1.0, "C"),
    "DCGM_FI_DEV_POWER_USAGE": ("power_watts", 1.0, "W"),
    "DCGM_FI_DEV_SM_CLOCK": ("sm_clock_hertz", 1e-6, "MHz"),
    "DCGM_FI_DEV_MEM_CLOCK": ("memory_clock_hertz", 1e-6, "MHz"),
    "DCGM_FI_DEV_ROW_REMAP_PENDING": ("remapped_rows_pending", 1.0, "1"),
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": ("remapped_rows_failed", 1.0, "1"),
}
#: Labels of a DCGM exporter's series that dashboards ask for.
DCGM_LABELS: Final = ("gpu", "UUID", "Hostname")


@dataclass(frozen=True, slots=True)
class Shown:
    """How a metric is shown: its series' name, what a value is multiplied by, its labels after cluster, cell, node."""

    name: str
    factor: float
    labels: tuple[str, ...]


def shown(metric: Metric) -> Shown:
    """How a metric of a frame is shown."""
    name, factor = OTHER_UNIT.get((metric.kind, metric.name), (metric.name, 1.0))
    if name.endswith("_rate"):
        name = name.removesuffix("_rate") + "_per_second"
    belongs = tuple(LABEL.get(label, label) for label in BELONGS[metric.kind])
    return Shown(f"gpuchaos_{metric.kind}_{name}", factor, DEVICE[metric.kind] + belongs)


class Devices(Collector):
    """Yields the series of one node. `taken` gives its last tick, None before the first."""

    def __init__(self, *, cluster: str, cell: str, node: str, taken: Callable[[], Taken | None], dcgm: bool) -> None:
        self._place = (cluster, cell, node)
        self._taken = taken
        self._dcgm = dcgm

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Nothing: what there is, is known only once something was read."""
        return ()

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """One family a metric that was read; a value that was not is no series, which is never zero."""
        taken = self._taken()
        if taken is None:
            return
        families: dict[str, GaugeMetricFamily] = {}
        for group, columns in zip(taken.layout.groups, taken.values, strict=True):
            for name, column in zip(group.metrics, columns, strict=True):
                metric = METRICS.get((group.kind, name))
                if metric is not None:
                    self._add(families, group, metric, column)
            if group.kind == "gpu" and self._dcgm:
                self._add_dcgm(families, group, columns, {gpu.index: gpu.uuid for gpu in taken.places.gpus})
        yield from families.values()

    def _add(
        self,
        families: dict[str, GaugeMetricFamily],
        group: GroupLayout,
        metric: Metric,
        column: Iterable[float | None],
    ) -> None:
        how = shown(metric)
        family = families.get(how.name)
        if family is None:
            labels = ("cluster", "cell", "node", *how.labels)
            family = families[how.name] = GaugeMetricFamily(how.name, meaning(metric), labels=labels)
        if group.kind == "nvlink":
            self._add_links(family, group, column, together=min if metric.name == "link_active" else sum)
            return
        belongs = [group.labels.get(label, ("",) * len(group.ids)) for label in BELONGS[group.kind]]
        for place, (device, value) in enumerate(zip(group.ids, column, strict=True)):
            if value is not None:
                own = (device,) if DEVICE[group.kind] else ()
                family.add_metric((*self._place, *own, *(each[place] for each in belongs)), value * how.factor)

    def _add_links(
        self,
        family: GaugeMetricFamily,
        group: GroupLayout,
        column: Iterable[float | None],
        together: Callable[[Iterable[float]], float],
    ) -> None:
        of_gpu: dict[str, list[float]] = {}
        for gpu, value in zip(group.labels.get("gpu", ("",) * len(group.ids)), column, strict=True):
            if value is not None:
                of_gpu.setdefault(gpu, []).append(value)
        for gpu, values in of_gpu.items():
            family.add_metric((*self._place, gpu), together(values))

    def _add_dcgm(
        self,
        families: dict[str, GaugeMetricFamily],
        group: GroupLayout,
        columns: Iterable[Iterable[float | None]],
        uuids: dict[str, str],
    ) -> None:
        by_name = dict(zip(group.metrics, columns, strict=True))
        for name, (metric, factor, unit) in DCGM.items():
            if metric not in by_name:
                continue
            family = families.setdefault(
                name, GaugeMetricFamily(name, f"As a DCGM exporter shows it, in {unit}.", labels=DCGM_LABELS)
            )
            for index, value in zip(group.ids, by_name[metric], strict=True):
                if value is not None:
                    family.add_metric((index, uuids.get(index, ""), self._place[2]), value * factor)


def meaning(metric: Metric) -> str:
    """One line for people: what it is, or where it comes from."""
    words = metric.meaning or f"the frame's {metric.kind}.{metric.name}"
    return f"{words[0].upper()}{words[1:]}."


def show(settings: AgentSettings, taken: Callable[[], Taken | None]) -> None:
    """Shows them beside the agent's own metrics, in place of those of an agent that this process had before."""
    global _showing  # noqa: PLW0603  (the registry is one a process as well)
    if _showing is not None:
        REGISTRY.unregister(_showing)
    place = {"cluster": settings.cluster, "cell": settings.cell, "node": settings.node}
    _showing = Devices(**place, taken=taken, dcgm=settings.dcgm_url is None)
    REGISTRY.register(_showing)


_showing: Devices | None = None
