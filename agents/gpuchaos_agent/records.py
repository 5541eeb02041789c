"""A tick of the node as records: the telemetry frame, and where the node sits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpuchaos_agent.collect.base import Places
from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.inject.base import FaultStrategy
from gpuchaos_agent.snapshot import Taken
from gpuchaos_stream import __version__
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.codec import CONTENT_TYPE, PackedLayout, pack
from gpuchaos_stream.events.envelope import Record, cloud_headers, to_record
from gpuchaos_stream.events.node import NodeInfo

#: Most of a reason that is told, characters: it is sent every half minute.
_REASON: Final = 300


def standing(strategies: Mapping[str, FaultStrategy]) -> dict[str, str | None]:
    """Each fault, and why this node cannot have it: None where it can."""
    found: dict[str, str | None] = {}
    for name, strategy in strategies.items():
        try:
            found[name] = strategy.unavailable()
        except Exception as error:  # noqa: BLE001  (one that cannot even say so must not silence the node's place)
            found[name] = f"{type(error).__name__}: {error}"
    return found


class Records:
    """Makes the records of one run of an agent. `boot` is the id of that run; frames are numbered from 0."""

    def __init__(self, settings: AgentSettings, boot: str) -> None:
        self._settings = settings
        self._boot = boot
        self._layout: PackedLayout | None = None
        self._seq = 0
        self._places = 0
        self.source = f"/agent/{settings.node}"

    def frame(self, taken: Taken, *, clock_offset_s: float | None, dropped: int) -> Record:
        """The next frame, packed."""
        settings = self._settings
        frame = taken.frame(
            cluster=settings.cluster,
            cell=settings.cell,
            node=settings.node,
            boot=self._boot,
            seq=self._seq,
            clock_offset_s=clock_offset_s,
            dropped=dropped,
        )
        if self._layout is None or self._layout.layout is not frame.layout:
            self._layout = PackedLayout(frame.layout)
        headers = cloud_headers(
            kind="telemetryframe",
            event_id=stable_id(settings.cluster, settings.node, self._boot, self._seq),
            source=self.source,
            time=taken.time,
            content_type=CONTENT_TYPE,
            traceparent=None,
        )
        self._seq += 1
        return Record(topics.TELEMETRY, settings.cell, settings.cell, pack(frame, self._layout), headers)

    def place(self, places: Places, *, event_time: float, strategies: Mapping[str, FaultStrategy]) -> Record:
        """Where the node sits, what it holds and can suffer, at `event_time` on the broker's clock."""
        settings, faults = self._settings, standing(strategies)
        self._places += 1
        info = NodeInfo(
            id=stable_id("place", settings.cluster, settings.node, self._boot, self._places),
            time=event_time,
            cluster=settings.cluster,
            node=settings.node,
            cell=settings.cell,
            rack=settings.rack or places.rack,
            leaf=settings.leaf or places.leaf,
            nvlink_domain=settings.domain or places.nvlink_domain,
            gpus=places.gpus,
            ports=places.ports,
            jobs=tuple(dict.fromkeys((*places.jobs, *(job.job for job in settings.jobs)))),
            labels=settings.labels,
            agent_version=__version__,
            faults_possible=tuple(name for name, reason in faults.items() if reason is None),
            faults_impossible={name: reason[:_REASON] for name, reason in faults.items() if reason is not None},
        )
        return to_record(info, topics.NODES, source=self.source)
