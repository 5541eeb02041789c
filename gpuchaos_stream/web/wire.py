"""Records that come by the hundred a second, decoded no further than the board needs.

A cell speaks each second and a node every 30 s: 12,500 nodes are some eight hundred records a second, nearly all
without news. What is rare is read by the contract's own models.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Final

import msgspec

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.envelope import BadMessageError, from_value
from gpuchaos_stream.events.observation import CellSummary, Tick
from gpuchaos_stream.events.topics import NODES, OBSERVATIONS
from gpuchaos_stream.web.cells import VALUES, CellWord, mean


class WorkerWord(msgspec.Struct, frozen=True):
    """A worker is there, and has the cluster."""

    cluster: str


class SameNode(msgspec.Struct, frozen=True):
    """A node has said again what it said before, under another id and time."""

    cluster: str
    node: str
    time: float
    id: str


Heard = Event | WorkerWord | CellWord | SameNode


class _Seen(msgspec.Struct):
    stale: bool = False


class _Tick(msgspec.Struct, tag_field="type", tag="tick"):
    cluster: str


class _Probe(msgspec.Struct, tag_field="type", tag="probe_result"):
    cluster: str


class _Cell(msgspec.Struct, tag_field="type", tag="cell_summary"):
    cluster: str
    cell: str
    nodes: dict[str, _Seen]
    columns: dict[str, msgspec.Raw]


_OBSERVATION: Final = msgspec.json.Decoder(_Tick | _Probe | _Cell)
_SAME: Final = msgspec.json.Decoder(SameNode)
_COLUMN: Final = msgspec.json.Decoder(list[float | None])
#: Where a node's word begins to be the same each time: before it stand its id and time.
_CONTENT: Final = b'"cluster":'


class Reader:
    """Values of records → what the board takes. Remembers a digest of each node's last word."""

    def __init__(self) -> None:
        self._words: dict[tuple[str, str], bytes] = {}

    def read(self, topic: str, value: bytes) -> Heard | None:
        """What a record says; None for what the board has no use for.

        Raises:
            BadMessageError: it is not of the contract.
        """
        if topic == OBSERVATIONS.name:
            return self._observation(value)
        if topic == NODES.name:
            return self._node(value)
        event: Event = from_value(topic, value)
        return event

    def _observation(self, value: bytes) -> Heard | None:
        try:
            said = _OBSERVATION.decode(value)
            if isinstance(said, _Cell):
                means = {
                    name: mean(_COLUMN.decode(said.columns[column]))
                    for name, (column, _) in VALUES.items()
                    if column in said.columns
                }
                stale = frozenset(name for name, seen in said.nodes.items() if seen.stale)
                return CellWord(said.cluster, said.cell, frozenset(said.nodes), stale, means)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessageError(str(error)) from error
        return WorkerWord(said.cluster) if isinstance(said, _Tick) else None

    def _node(self, value: bytes) -> Heard:
        digest = hashlib.blake2b(value.partition(_CONTENT)[2], digest_size=16).digest()
        try:
            same = _SAME.decode(value)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise BadMessageError(str(error)) from error
        key = (same.cluster, same.node)
        if self._words.get(key) == digest:
            return same
        event: Event = from_value(NODES.name, value)
        self._words[key] = digest
        return event


def of_model(event: Event) -> Heard:
    """What an event of the contract's models says, as it would have come over the wire."""
    if isinstance(event, Tick):
        return WorkerWord(event.cluster)
    if isinstance(event, CellSummary):
        return of_summary(event)
    return event


def of_summary(summary: CellSummary) -> CellWord:
    """A cell's summary as the board takes it."""
    means: Mapping[str, float | None] = {
        name: mean(summary.columns[column]) for name, (column, _) in VALUES.items() if column in summary.columns
    }
    stale = frozenset(name for name, seen in summary.nodes.items() if seen.stale)
    return CellWord(summary.cluster, summary.cell, frozenset(summary.nodes), stale, means)
