"""The detect stage: batches of raw telemetry records in, anomalies and cell summaries out.

One detector per partition, so that a rebalance takes away and brings whole cells. It holds no state that must
survive: windows fill again from Kafka, and an anomaly that is no longer updated is closed by the correlator.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager

from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.detect.summary import Summary
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyPhase
from gpuchaos_stream.events.codec import FrameError, PackedFrame, unpack
from gpuchaos_stream.events.envelope import Record, cloud_headers, to_record
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.loop import traces
from gpuchaos_stream.loop.deadletters import RawRecord, dead_letter
from gpuchaos_stream.loop.plausible import AHEAD_S
from gpuchaos_stream.observe import logs, metrics

log = logs.logger(__name__)

#: Seconds after an undo in which a node's numbers are still left out of baselines: it is recovering.
QUARANTINE_TAIL_S = 30.0


#: Frames that are judged in one go: larger batches fall out of the processor's cache.
BATCH = 500


class Detection:
    """Detectors by partition. Knows raw records, but neither Faust nor sockets."""

    def __init__(self, *, source: str) -> None:
        self._source = source
        self._detectors: dict[int, Detector] = {}
        self._quarantine: dict[str, float] = {}
        self._rebuilding = 0

    def keep(self, partitions: Collection[int]) -> None:
        """Drops the windows of all but `partitions`: the others are another worker's now."""
        for gone in self._detectors.keys() - set(partitions):
            metrics.FRAMES_LATE.remove(str(gone))
        self._detectors = {number: each for number, each in self._detectors.items() if number in partitions}

    def knows(self, partition: int) -> bool:
        """Whether windows of `partition` are held here; if not, `restore` it before `take`."""
        return partition in self._detectors

    def restore(self, partition: int, history: Iterable[RawRecord], still_open: Iterable[Anomaly]) -> list[Record]:
        """Fills the windows of a partition that has just come with its recent past.

        Its anomalies that were open go on under their ids; summaries of the past are not told again.
        """
        out: list[Record] = []
        try:
            detector = self._detector(partition)
            detector.adopt(still_open)
            batch: list[PackedFrame] = []
            at = 0.0
            for raw in history:
                at = max(at, raw.timestamp / 1000)
                try:
                    batch.append(_frame_of(raw))
                except FrameError:
                    continue  # it was set aside when it came
                if len(batch) == BATCH:
                    out += self._past(detector, batch, at)
                    batch = []
            out += self._past(detector, batch, at)
        except Exception:
            # What was survived when it came must not keep this worker from its start: the windows begin empty.
            log.exception("the past could not be judged", partition=partition)
            self._detectors.pop(partition, None)
            self._detector(partition)
        return out

    def _past(self, detector: Detector, batch: list[PackedFrame], at: float) -> list[Record]:
        if not batch:
            return []
        # A node whose clock is fast must not take the others with it into the future.
        events = detector.feed_packed(batch, min(at, max(frame.event_time for frame in batch)))
        detector.take_rejected()
        return self._records(event for event in events if isinstance(event, Anomaly))

    @contextmanager
    def rebuilding(self) -> Iterator[None]:
        """While the past of a partition is fetched: the frames of the others wait behind it, and are no silence."""
        self._rebuilding += 1
        try:
            yield
        finally:
            self._rebuilding -= 1

    @property
    def rewind(self) -> float:
        """Seconds of telemetry that `restore` needs."""
        return Detector().rewind

    def take(self, records: Iterable[RawRecord]) -> list[Record]:
        """Judges a batch; returns what must be sent."""
        by_partition: dict[int, list[RawRecord]] = {}
        for raw in records:
            by_partition.setdefault(raw.partition, []).append(raw)
        return [sent for partition, raws in by_partition.items() for sent in self._take(partition, raws)]

    def _take(self, partition: int, raws: list[RawRecord]) -> list[Record]:
        out: list[Record] = []
        frames: list[PackedFrame] = []
        sources: list[RawRecord] = []
        for raw in raws:
            try:
                frames.append(_frame_of(raw))
                sources.append(raw)
            except FrameError as error:
                out.append(dead_letter(raw, stage="detect", reason=str(error), source=self._source))
        if not frames:
            return out
        metrics.RECORDS.labels(topics.TELEMETRY.name).inc(len(frames))
        metrics.FRAMES.inc(len(frames))
        newest = max([raw.timestamp for raw in sources]) / 1000
        detector = self._detector(partition)
        try:
            for start in range(0, len(frames), BATCH):
                out += self._records(detector.feed_packed(frames[start : start + BATCH], newest))
        except Exception as error:
            # A bug of ours must not stop the other cells: set the batch aside, begin this partition anew.
            log.exception("frames set aside", partition=partition, frames=len(frames))
            reason = f"could not be judged: {type(error).__name__}: {error}"
            out += (dead_letter(raw, stage="detect", reason=reason, source=self._source) for raw in sources)
            del self._detectors[partition]
            return out
        metrics.FRAMES_LATE.labels(str(partition)).set(detector.counters.late)
        rejected = {id(frame): reason for frame, reason in detector.take_rejected()}
        if rejected:
            for frame, raw in zip(frames, sources, strict=True):
                if id(frame) in rejected:
                    reason = rejected[id(frame)]
                    out.append(dead_letter(raw, stage="detect", reason=reason, source=self._source))
        return out

    def tick(self, now: float) -> list[Record]:
        """Which telemetry has stopped at `now` (broker's clock, seconds); nothing while a past is fetched."""
        if self._rebuilding:
            return []
        return [record for detector in self._detectors.values() for record in self._records(detector.tick_packed(now))]

    def fault(self, event: FaultEvent) -> None:
        """Baselines do not learn from chaos: a node under a fault is left out of them until it has recovered."""
        if event.experiment_id is None:
            return
        if event.phase in {FaultPhase.INJECTED, FaultPhase.RENEWED} and event.lease_expires is not None:
            until = event.lease_expires + QUARANTINE_TAIL_S
        elif event.phase is FaultPhase.UNDONE:
            until = event.event_time + QUARANTINE_TAIL_S
        else:
            return
        self._quarantine[event.node] = until
        for detector in self._detectors.values():
            detector.quarantine((event.node,), until)

    def _detector(self, partition: int) -> Detector:
        detector = self._detectors.get(partition)
        if detector is None:
            detector = self._detectors[partition] = Detector()
            for node, until in self._quarantine.items():
                detector.quarantine((node,), until)
        return detector

    def _records(self, events: Iterable[Anomaly | Summary]) -> list[Record]:
        out = []
        for event in events:
            if isinstance(event, Anomaly):
                if event.phase is AnomalyPhase.OPENED:
                    metrics.ANOMALIES.labels(event.kind.value).inc()
                    traces.anomaly(event)
                out.append(to_record(event, topics.ANOMALIES, source=self._source))
            else:
                out.append(_summary_record(event, self._source))
        return out


def _summary_record(summary: Summary, source: str) -> Record:
    """As `to_record`, without making the model first: one for some tens of frames."""
    return Record(
        topic=topics.OBSERVATIONS,
        key=summary.cluster,
        partition_by=summary.cluster,
        value=summary.encode(),
        headers=cloud_headers(
            kind="cellsummary",
            event_id=summary.id,
            source=source,
            time=summary.time,
            content_type="application/json",
            traceparent=None,
        ),
    )


def _frame_of(raw: RawRecord) -> PackedFrame:
    """The frame in a record.

    Raises:
        FrameError: it is none, or its time cannot be.
    """
    try:
        frame = unpack(raw.value or b"")
    except RecursionError as error:
        raise FrameError("nested too deeply") from error
    ahead = frame.time + (frame.clock_offset_s or 0.0) - raw.timestamp / 1000
    if ahead > AHEAD_S:
        raise FrameError(f"time: {ahead:g} s ahead of the broker's clock")
    return frame
