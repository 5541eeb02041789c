"""Metrics of `gpuchaos serve`. Labels are templates of routes and fixed words: nothing a caller sends becomes one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge, Histogram, Metric

REQUESTS: Final = Counter("gpuchaos_serve_requests_total", "Requests answered, by route and status.", ["route", "code"])
STREAMS: Final = Gauge("gpuchaos_serve_streams_open", "Event streams that are open.")
EVENTS: Final = Counter("gpuchaos_serve_events_total", "Events published to streams, by name.", ["event"])
DROPPED: Final = Counter("gpuchaos_serve_streams_dropped_total", "Streams ended because their reader was too slow.")
REFUSED: Final = Counter("gpuchaos_serve_refused_total", "Actions refused, by reason.", ["reason"])
ACTIONS: Final = Counter("gpuchaos_serve_actions_total", "Actions sent to Kafka, by kind.", ["action"])
FLUSH: Final = Histogram(
    "gpuchaos_serve_flush_seconds",
    "Work to publish what changed in a quarter of a second.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1),
)
#: What else of this process is told: a worker's metrics, which come with its code, would all be 0.
_TOLD: Final = ("gpuchaos_serve_", "gpuchaos_records", "process_", "python_")


class _Told(CollectorRegistry):
    """Of everything that is registered, what this process counts."""

    def collect(self) -> Iterable[Metric]:
        """The metrics with their samples."""
        return (metric for metric in REGISTRY.collect() if metric.name.startswith(_TOLD))


TOLD: Final = _Told(auto_describe=False)
