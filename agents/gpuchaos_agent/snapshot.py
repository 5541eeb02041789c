"""One tick of a node: every collector asked once, each failure kept to itself, the answers made one frame."""

from __future__ import annotations

import time as _time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from gpuchaos_agent.collect import pci
from gpuchaos_agent.collect.base import Collector, Columns, Fact, Follower, Group, Places, Reading
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.frame import FrameLayout, TelemetryFrame

#: A collector slower than this is named in `absent`, seconds; a frame is due every second.
SLOW_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class Taken:
    """What all collectors said in one tick. `time` is the `now` that was given."""

    time: float
    layout: FrameLayout
    values: tuple[Columns, ...]
    absent: dict[str, str] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    places: Places = field(default_factory=Places)
    info: dict[str, dict[str, str | int | float]] = field(default_factory=dict)

    def frame(
        self,
        *,
        cluster: str,
        cell: str,
        node: str,
        boot: str,
        seq: int,
        clock_offset_s: float | None = None,
        dropped: int = 0,
    ) -> TelemetryFrame:
        """The frame of this tick, with the names that collectors do not know."""
        return TelemetryFrame(
            cluster=cluster,
            cell=cell,
            node=node,
            boot=boot,
            seq=seq,
            time=self.time,
            clock_offset_s=clock_offset_s,
            dropped=dropped,
            absent=self.absent,
            layout=self.layout,
            values=self.values,
        )


class Snapshot:
    """Runs collectors. An exception is an absence that is counted (`errors[name]`), never a stop.

    `monotonic` is the clock that slowness is measured with, seconds; it is never put into a frame.
    """

    def __init__(self, collectors: Iterable[Collector], *, monotonic: Callable[[], float] = _time.monotonic) -> None:
        self.collectors = tuple(collectors)
        self.errors: dict[str, int] = {}
        self._monotonic = monotonic
        self._index_of: dict[str, str] = {}
        self._layout: FrameLayout | None = None

    @property
    def followers(self) -> tuple[Follower, ...]:
        """The collectors that can be waited on between ticks."""
        return tuple(c for c in self.collectors if isinstance(c, Follower))

    def take(self, now: float) -> Taken:
        """Asks every collector once. `now` is the node's clock, seconds since the epoch."""
        groups: list[Group] = []
        absent: dict[str, str] = {}
        facts: list[Fact] = []
        places: list[Places] = []
        info: dict[str, dict[str, str | int | float]] = {}
        for collector in self.collectors:
            began = self._monotonic()
            reading = self._read(collector, now)
            took = self._monotonic() - began
            groups += reading.groups
            absent.update(reading.absent)
            facts += reading.facts
            places.append(reading.places)
            if reading.info:
                info[collector.name] = reading.info
            if took > SLOW_S:
                absent.setdefault(f"{collector.name}.slow", f"took {took:.1f} s")
        merged = _merge(places)
        self._index_of = {pci.normal(gpu.pci): gpu.index for gpu in merged.gpus if gpu.pci}
        return Taken(
            time=now,
            layout=self._same_layout(FrameLayout(groups=tuple(group.layout for group in groups))),
            values=tuple(group.columns for group in groups),
            absent=absent,
            facts=tuple(self.resolve(fact) for fact in facts),
            places=merged,
            info=info,
        )

    def drain(self, now: float) -> tuple[Fact, ...]:
        """What followers have found since the last tick; a follower that fails says so at the next tick."""
        facts: list[Fact] = []
        for follower in self.followers:
            try:
                facts += follower.drain(now)
            except Exception:  # noqa: BLE001  (a source that fails must not stop the others)
                self._count(follower)
        return tuple(self.resolve(fact) for fact in facts)

    def commit(self) -> None:
        """Tells followers that every fact handed out is safe: on the broker or in the outbox on disk."""
        for follower in self.followers:
            try:
                follower.commit()
            except OSError:
                self._count(follower)

    def resolve(self, fact: Fact) -> Fact:
        """The fact with a GPU's PCI address replaced by its index, where a collector has told which it is."""
        if fact.kind != "gpu" or not fact.local:
            return fact
        index = self._index_of.get(pci.normal(fact.local))
        return fact if index is None else replace(fact, local=index)

    def close(self) -> None:
        """Closes every collector."""
        for collector in self.collectors:
            try:
                collector.close()
            except Exception:  # noqa: BLE001  (closing is best effort, and the others must be closed as well)
                self._count(collector)

    def _read(self, collector: Collector, now: float) -> Reading:
        try:
            return collector.read(now)
        except Exception as error:  # noqa: BLE001  (a source that fails must not stop the others)
            self._count(collector)
            return Reading(absent={collector.name: f"collector failed: {type(error).__name__}: {error}"})

    def _count(self, collector: Collector | Follower) -> None:
        name = str(getattr(collector, "name", type(collector).__name__))
        self.errors[name] = self.errors.get(name, 0) + 1

    def _same_layout(self, layout: FrameLayout) -> FrameLayout:
        """The object of the last tick while nothing changed, so that its packed form can be kept."""
        if self._layout != layout:
            self._layout = layout
        return self._layout if self._layout is not None else layout


def fault_event(fact: Fact, *, cluster: str, node: str, clock_offset_s: float | None = None) -> FaultEvent:
    """The OBSERVED event of a fact. Its id depends on cluster, node and the fact's key alone."""
    local = fact.local.replace("/", "_").replace(" ", "_")
    return FaultEvent(
        id=stable_id("observed", cluster, node, fact.key),
        time=fact.time,
        cluster=cluster,
        phase=FaultPhase.OBSERVED,
        fault=fact.fault,
        node=node,
        entity=f"{fact.kind}/{node}/{local}" if local else f"node/{node}",
        severity=fact.severity,
        origin=fact.origin,
        injected_mark=fact.injected_mark,
        evidence=fact.evidence,
        clock_offset_s=clock_offset_s,
    )


def _merge(places: Iterable[Places]) -> Places:
    parts = list(places)
    return Places(
        gpus=tuple(gpu for part in parts for gpu in part.gpus),
        ports=tuple(port for part in parts for port in part.ports),
        jobs=tuple(dict.fromkeys(job for part in parts for job in part.jobs)),
        numa=tuple(node for part in parts for node in part.numa),
    )
