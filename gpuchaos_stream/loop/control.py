"""The control stage: batches of raw records in, one `ClusterLoop` per cluster, commands and states out.

The order that keeps exactly one halt over any crash: the changed state is written and acknowledged, then the
outputs are sent and acknowledged, then Faust commits the offsets. What a crash in between leaves unsent is sent
after the restart, for stages repeat a command until it is answered; what it leaves uncommitted is fed again,
which changes nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, MutableMapping, Sequence
from typing import Any, Protocol

from gpuchaos_stream.detect.signals import signal_of
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import SignedCommand
from gpuchaos_stream.events.envelope import (
    BadMessageError,
    Record,
    command_record,
    from_value,
    partition_for,
    to_record,
    traceparent_of,
)
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.observation import CellSummary
from gpuchaos_stream.events.signing import RefusedError, Signer, Verifier
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.loop import gauges, traces
from gpuchaos_stream.loop.cluster import ClusterLoop, Settled
from gpuchaos_stream.loop.deadletters import RawRecord, dead_letter
from gpuchaos_stream.loop.plausible import implausible
from gpuchaos_stream.loop.report import again, report
from gpuchaos_stream.observe import logs, metrics

log = logs.logger(__name__)

#: Separates the cluster from the stage's own key in the table; no cluster name holds it.
_SEPARATOR = "\x1f"
#: Event time between two looks within one batch, seconds; well below the guard's `MAX_GAP_S`.
LOOK_S = 1.0
#: The largest record taken in: what is made of it must fit into one of Kafka's default size (1 MiB).
MOST_BYTES = 256 * 1024
#: Clusters that may come about by an unsigned event; a signed command may always name one.
MOST_CLUSTERS = 64


class Raw(RawRecord, Protocol):
    """A consumed record with its headers."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]: ...


class Control:
    """Turns batches of raw records into loops' conclusions. Knows Kafka's records, but neither Faust nor sockets.

    `table` is the durable state (a Faust table, or a dict in tests), `make_loop` builds an empty loop of a
    cluster. With `partitions`, that of the control topics, a record in another partition than its cluster's is set
    aside: its cluster's state is another worker's. `clock` is the broker's, for spans alone. A batch is `take` (decide,
    nothing durable yet), `save`, then the caller's sending.
    """

    def __init__(
        self,
        *,
        table: MutableMapping[bytes, bytes],
        make_loop: Callable[[str], ClusterLoop],
        verifier: Verifier,
        signer: Signer,
        source: str,
        partitions: int | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        self._table = table
        self._clock = clock
        self._partitions = partitions
        self._make_loop = make_loop
        self._verifier = verifier
        self._signer = signer
        self._source = source
        self._loops: dict[str, ClusterLoop] = {}

    @property
    def clusters(self) -> tuple[str, ...]:
        """Clusters that this worker holds now."""
        return tuple(self._loops)

    def forget(self) -> None:
        """Drops what is in memory: after a rebalance the table is the truth."""
        for loop in self._loops.values():
            gauges.hide(loop)
        self._loops.clear()

    def restore(self, mine: Callable[[str], bool]) -> None:
        """Builds the loop of each cluster in the table that is `mine`: deadlines are kept though nothing arrives."""
        for cluster in {key.decode().partition(_SEPARATOR)[0] for key in self._table}:
            if mine(cluster):
                loop = self._loop(cluster)
                if self._clock is not None:
                    with self._survived(cluster):
                        again(loop, self._clock())

    def probes(self) -> list[tuple[str, str, Plan]]:
        """Cluster, experiment and plan of all that runs."""
        return [(cluster, *each) for cluster, loop in self._loops.items() for each in loop.probes()]

    def take(self, records: Iterable[Raw]) -> list[Record]:
        """Feeds a batch and settles each cluster it touched. Returns what must be sent, in order."""
        out: list[Record] = []
        touched: dict[str, float] = {}
        looked: dict[str, float] = {}
        for raw in records:
            metrics.RECORDS.labels(raw.topic).inc()
            now = raw.timestamp / 1000
            try:
                cluster = self._feed(raw, now, out)
            except (BadMessageError, RefusedError) as error:
                out.append(dead_letter(raw, stage="control", reason=str(error), source=self._source))
                continue
            except Exception as error:
                # A bug of ours must not stop the loop for everybody else: set the record aside, and say so.
                log.exception("record set aside", topic=raw.topic, partition=raw.partition, offset=raw.offset)
                reason = f"could not be processed: {type(error).__name__}: {error}"
                out.append(dead_letter(raw, stage="control", reason=reason, source=self._source))
                continue
            looked.setdefault(cluster, now)
            touched[cluster] = max(now, touched.get(cluster, 0.0))
            if raw.topic == topics.OBSERVATIONS.name and now >= looked[cluster] + LOOK_S:
                # A long batch is looked at as it would have been live: what breached in the middle of it did breach.
                looked[cluster] = now
                out += self._settle(cluster, now)
        for cluster, now in touched.items():
            out += self._settle(cluster, now)
        return out

    def save(self) -> None:
        """Writes what changed to the table; call it before the outputs of `take` are sent."""
        for cluster, loop in self._loops.items():
            for key, value in loop.dirty().items():
                full = f"{cluster}{_SEPARATOR}{key}".encode()
                if value is None:
                    self._table.pop(full, None)
                else:
                    self._table[full] = value

    def _settle(self, cluster: str, now: float) -> list[Record]:
        loop, out = self._loops[cluster], list[Record]()
        settled = Settled()
        with self._survived(cluster):
            settled = loop.settle(now)
        with self._survived(cluster):
            report(loop, settled, self._clock)
        for command, traceparent in settled.commands:
            out.append(command_record(command, self._signer, source=self._source, traceparent=traceparent))
        for topic, event, traceparent in settled.events:
            # One event that cannot be told must hold back neither the others nor, above all, a command.
            with self._survived(cluster):
                out.append(to_record(event, topic, source=self._source, traceparent=traceparent))
        return out

    @contextlib.contextmanager
    def _survived(self, cluster: str) -> Iterator[None]:
        """Whatever is wrong with one cluster must not silence the others; the alert is on this counter."""
        try:
            yield
        except Exception:
            metrics.SETTLE_ERRORS.labels(cluster).inc()
            log.exception("cluster could not be settled", cluster=cluster)

    def _feed(self, raw: Raw, now: float, out: list[Record]) -> str:
        if len(raw.value or b"") > MOST_BYTES and raw.topic != topics.OBSERVATIONS.name:
            raise BadMessageError(f"{len(raw.value or b'')} bytes; at most {MOST_BYTES} are taken")
        event: Any = from_value(raw.topic, raw.value)
        if isinstance(event, SignedCommand):
            with self._refusals(event):
                command = self._verifier.verify(event, now=now)
                self._check_partition(raw, command.cluster)
                loop = self._loop(command.cluster)
                if command.node is None:
                    loop.heard.hear(command, f"{raw.partition}/{raw.offset}")
                    loop.command(command, now=now, traceparent=traceparent_of(tuple(raw.headers)))
            return command.cluster
        reason = implausible(event, now)
        if reason:
            raise BadMessageError(reason)
        self._check_partition(raw, event.cluster)
        if event.cluster not in self._loops and len(self._loops) >= MOST_CLUSTERS:
            raise BadMessageError(f"cluster {event.cluster!r} is not known, and {MOST_CLUSTERS} are")
        loop = self._loop(event.cluster)
        loop.feed(event)
        if isinstance(event, CellSummary):
            gauges.show_cell(loop, event)
        elif isinstance(event, FaultEvent) and event.phase is FaultPhase.OBSERVED:
            signal = signal_of(event)
            if signal is not None:
                metrics.ANOMALIES.labels(signal.kind.value).inc()
                traces.anomaly(signal)
                out.append(to_record(signal, topics.ANOMALIES, source=self._source))
        return str(event.cluster)

    def _check_partition(self, raw: Raw, cluster: str) -> None:
        if self._partitions is None:
            return
        right = partition_for(cluster, self._partitions)
        if raw.partition != right:
            raise BadMessageError(
                f"in partition {raw.partition}, but cluster {cluster!r} belongs to {right}: the partition is "
                f"CRC-32 of the cluster, modulo {self._partitions}"
            )

    @contextlib.contextmanager
    def _refusals(self, signed: SignedCommand) -> Iterator[None]:
        """Counts and says a refusal, and puts its kind into words for the dead letter."""
        try:
            yield
        except RefusedError as error:
            metrics.COMMANDS_REFUSED.labels(error.refusal.value).inc()
            log.warning("command refused", refusal=error.refusal.value, key_id=signed.key_id, reason=str(error))
            raise RefusedError(error.refusal, f"refused ({error.refusal.value}): {error}") from error

    def _loop(self, cluster: str) -> ClusterLoop:
        loop = self._loops.get(cluster)
        if loop is None:
            loop = self._make_loop(cluster)
            loop.load(_items_of(self._table, cluster))
            self._loops[cluster] = loop
        return loop


def _items_of(table: Mapping[bytes, bytes], cluster: str) -> dict[str, bytes]:
    prefix = f"{cluster}{_SEPARATOR}".encode()
    return {key[len(prefix) :].decode(): value for key, value in table.items() if key.startswith(prefix)}
