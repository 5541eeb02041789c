"""One tick of a node: every collector asked once, each failure kept to itself, the answers made one frame."""

from __future__ import annotations

import re
import time as _time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Final

from gpuchaos_agent.aside import STALE_AFTER_S, Answer, Aside
from gpuchaos_agent.collect.base import Collector, Columns, Fact, Follower, Places, Reading
from gpuchaos_agent.crew import Crew
from gpuchaos_agent.kernelfs import pci
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.frame import FrameLayout, Kind, TelemetryFrame

#: How long a tick waits for its collectors together, seconds; a frame is due every second.
WAIT_S: Final = 0.5
#: How long closing waits for a collector, seconds.
CLOSE_S: Final = 1.0

#: What an `Entity` has in none of its parts.
_NOT_IN_A_NAME: Final = re.compile(r"[/\s]")


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
    """Runs collectors in turn, beside the tick (`crew.py`). An exception is an absence and counted (`errors[name]`).

    A collector that has not answered when the tick is due is absent from it, with the reason; its facts come
    with the next tick. `monotonic` is the clock that this is measured with, seconds; it is never put into a frame.
    """

    def __init__(self, collectors: Iterable[Collector], *, monotonic: Callable[[], float] = _time.monotonic) -> None:
        self.collectors = tuple(collectors)
        self.errors: dict[str, int] = {}
        self._monotonic = monotonic
        self._crew = Crew("collect")
        self._asides = tuple(Aside(c, failed=self._failed, monotonic=monotonic) for c in self.collectors)
        #: The collectors that can be waited on between ticks.
        self.followers = tuple(c for c in self.collectors if isinstance(c, Follower))
        self._following = tuple(aside for aside in self._asides if aside.collector in self.followers)
        self._last: dict[str, Answer] = {}
        self._index_of: dict[str, str] = {}
        self._layout: FrameLayout | None = None

    def take(self, now: float) -> Taken:
        """Asks every collector once. `now` is the node's clock, seconds since the epoch."""
        until = self._monotonic() + WAIT_S
        asked = [(aside, tuple(aside.read(now))) for aside in self._asides]
        self._crew.run([work for _, works in asked for work in works], WAIT_S)
        readings: dict[str, Reading] = {}
        facts: list[Fact] = []
        for aside, works in asked:
            name = aside.collector.name
            # One that is still at an earlier call was waited for then.
            for answer in aside.answers(until - self._monotonic() if works else 0.0):
                facts += answer.reading.facts
                if answer.whole:
                    self._last[name] = answer
            taken = {group.layout.kind for reading in readings.values() for group in reading.groups}
            readings[name] = _without_kinds(self._reading(aside), taken)
        merged = _merge(reading.places for reading in readings.values())
        self._index_of = {pci.normal(gpu.pci): gpu.index for gpu in merged.gpus if gpu.pci}
        groups = [group for reading in readings.values() for group in reading.groups]
        return Taken(
            time=now,
            layout=self._same_layout(FrameLayout(groups=tuple(group.layout for group in groups))),
            values=tuple(group.columns for group in groups),
            absent={what: why for reading in readings.values() for what, why in reading.absent.items()},
            facts=tuple(self.resolve(fact) for fact in facts),
            places=merged,
            info={name: reading.info for name, reading in readings.items() if reading.info},
        )

    def drain(self, now: float) -> tuple[Fact, ...]:
        """What followers have found since the last tick; a follower that fails says so at the next tick."""
        until = self._monotonic() + WAIT_S
        asked = [(aside, tuple(aside.drain(now))) for aside in self._following]
        self._crew.run([work for _, works in asked for work in works], WAIT_S)
        facts: list[Fact] = []
        for aside, works in asked:
            for answer in aside.answers(until - self._monotonic() if works else 0.0):
                facts += answer.reading.facts
                if answer.whole:  # a reading that came after its tick
                    self._last[aside.collector.name] = answer
        return tuple(self.resolve(fact) for fact in facts)

    def commit(self) -> None:
        """Tells followers that every fact handed out is safe: on the broker or in the outbox on disk."""
        for aside in self._following:
            aside.commit()

    def resolve(self, fact: Fact) -> Fact:
        """The fact with a GPU's PCI address replaced by its index, where a collector has told which it is."""
        if fact.kind != "gpu" or not fact.local:
            return fact
        index = self._index_of.get(pci.normal(fact.local))
        return fact if index is None else replace(fact, local=index)

    def close(self) -> None:
        """Closes every collector; one that hangs is left behind."""
        until = self._monotonic() + CLOSE_S
        self._crew.run([work for aside in self._asides for work in aside.close()], CLOSE_S)
        for aside in self._asides:
            aside.closed(until - self._monotonic())
        self._crew.close()

    def _reading(self, aside: Aside) -> Reading:
        """The collector's last reading while it is fresh, else what it is waiting for, in words."""
        name, waited = aside.collector.name, aside.waited
        last = self._last.get(name)
        said: dict[str, str] = {}
        if waited is not None:
            said[f"{name}.slow"] = f"has not answered for {waited:.1f} s"
        elif last is not None and last.took > WAIT_S:
            said[f"{name}.slow"] = f"took {last.took:.1f} s"
        if last is None or self._monotonic() - last.at > STALE_AFTER_S:
            kinds = aside.collector.kinds or (name,)
            return Reading(absent=said | {kind: said.get(f"{name}.slow", "no reading yet") for kind in kinds})
        return replace(last.reading, absent=last.reading.absent | said)

    def _failed(self, collector: Collector, error: Exception) -> None:  # noqa: ARG002  (its words are in `absent`)
        self.errors[collector.name] = self.errors.get(collector.name, 0) + 1

    def _same_layout(self, layout: FrameLayout) -> FrameLayout:
        """The object of the last tick while nothing changed, so that its packed form can be kept."""
        if self._layout != layout:
            self._layout = layout
        return self._layout if self._layout is not None else layout


def fault_event(fact: Fact, *, cluster: str, node: str, clock_offset_s: float | None = None) -> FaultEvent:
    """The OBSERVED event of a fact. Its id depends on cluster, node and the fact's key alone."""
    local = _NOT_IN_A_NAME.sub("_", fact.local)
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


def _without_kinds(reading: Reading, taken: set[Kind]) -> Reading:
    """The reading without groups of kinds that an earlier collector has filled (NVML before a DCGM page)."""
    twice = {group.layout.kind for group in reading.groups} & taken
    if not twice:
        return reading
    places = replace(reading.places, gpus=()) if "gpu" in twice else reading.places
    return replace(reading, groups=tuple(g for g in reading.groups if g.layout.kind not in twice), places=places)


def _merge(places: Iterable[Places]) -> Places:
    parts = list(places)
    return Places(
        gpus=tuple(gpu for part in parts for gpu in part.gpus),
        ports=tuple(port for part in parts for port in part.ports),
        jobs=tuple(dict.fromkeys(job for part in parts for job in part.jobs)),
        numa=tuple(node for part in parts for node in part.numa),
        rack=next((part.rack for part in parts if part.rack), None),
        leaf=next((part.leaf for part in parts if part.leaf), None),
        nvlink_domain=next((part.nvlink_domain for part in parts if part.nvlink_domain), None),
    )
