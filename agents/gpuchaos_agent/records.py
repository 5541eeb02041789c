"""A tick of the node as records: the telemetry frame, and where the node sits."""

from __future__ import annotations

from gpuchaos_agent.collect.base import Places
from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.snapshot import Taken
from gpuchaos_stream import __version__
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.codec import CONTENT_TYPE, PackedLayout, pack
from gpuchaos_stream.events.envelope import Record, cloud_headers, to_record
from gpuchaos_stream.events.node import NodeInfo


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

    def place(self, places: Places, *, event_time: float, faults_possible: tuple[str, ...]) -> Record:
        """Where the node sits and what it holds, at `event_time` on the broker's clock."""
        settings = self._settings
        self._places += 1
        info = NodeInfo(
            id=stable_id("place", settings.cluster, settings.node, self._boot, self._places),
            time=event_time,
            cluster=settings.cluster,
            node=settings.node,
            cell=settings.cell,
            rack=settings.rack,
            nvlink_domain=settings.domain,
            gpus=places.gpus,
            ports=places.ports,
            jobs=tuple(dict.fromkeys((*places.jobs, *(job.job for job in settings.jobs)))),
            labels=settings.labels,
            agent_version=__version__,
            faults_possible=faults_possible,
        )
        return to_record(info, topics.NODES, source=self.source)
