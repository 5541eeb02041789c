"""Peer groups: devices that should behave alike, and the test of each against the others and its own past."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuchaos_stream.detect.config import (
    MAD_TO_SIGMA,
    MEAN_DEVIATION_TO_SIGMA,
    NEEDS_ACTIVE,
    STATE_METRICS,
    DetectConfig,
)
from gpuchaos_stream.detect.table import F32, Mask, Rows, Table
from gpuchaos_stream.events.frame import Kind
from gpuchaos_stream.events.metrics import METRICS

#: What makes a group: kind, job, role, and the metrics its devices report.
GroupKey = tuple[Kind, str, str, tuple[str, ...]]
#: Where numbers of a group lie: tables, and in each the indexes (metrics, devices) of its arrays read as one row.
Places = list[tuple[Table, Rows]]

_BOTH: Final = {"high": (False, True), "low": (True, False), "both": (True, True), "none": (False, False)}


@dataclass(frozen=True, slots=True)
class Piece:
    """The devices of a group on nodes of one table.

    Member `n` is device `devices[n % len(devices)]` of block `block` in row `of_row[n]`; the number of its
    metric m lies at `flat[m, n]` of the table's arrays, read as one row.
    """

    table: Table
    rows: Rows
    devices: tuple[int, ...]
    block: int
    of_row: Rows
    flat: Rows

    @classmethod
    def make(cls, table: Table, rows: list[int], devices: tuple[int, ...], block: int, columns: Rows) -> Piece:
        """The piece of `devices` whose metrics lie in `columns` (metrics, devices) of `rows`."""
        at = np.array(rows, np.int64)
        flat = at[None, :, None] * table.width + columns[:, None, :]
        return cls(table, at, devices, block, np.repeat(at, len(devices)), flat.reshape(len(columns), -1))


@dataclass(slots=True)
class Verdict:
    """The judgement of `m` metrics over `n` devices: arrays (m, n), per metric (m, 1)."""

    x: F32
    peer_bad: Mask
    past_bad: Mask
    center: F32
    spread: F32
    mean: F32
    dev: F32


@dataclass(slots=True)
class _Measured:
    """Values beside what they are compared with, shaped as in `Verdict`. `grown` devices are old enough to be
    compared, `has_peers` those that have enough to be compared with.
    """

    x: F32
    center: F32
    spread: F32
    mean: F32
    dev: F32
    count: NDArray[np.uint16]
    grown: Mask
    has_peers: Mask


class Rules:
    """How each metric of a group is judged; arrays (metrics, 1)."""

    def __init__(self, kind: Kind, metrics: tuple[str, ...], config: DetectConfig) -> None:
        known = [METRICS.get((kind, name)) for name in metrics]
        self.floor = _column([m.floor if m else 0.0 for m in known], np.float32)
        self.low = _column([_BOTH[m.bad][0] if m else False for m in known], np.bool_)
        self.high = _column([_BOTH[m.bad][1] if m else False for m in known], np.bool_)
        self.event = _column([bool(m and m.event) for m in known], np.bool_)
        self.state = _column([(kind, name) in STATE_METRICS for name in metrics], np.bool_)
        self.number = (self.low | self.high) & ~self.event & ~self.state
        self.judged = np.flatnonzero(self.low | self.high)
        self.numbers, self.states = np.flatnonzero(self.number), np.flatnonzero(self.state)
        self.need = np.where(self.event, 1, np.where(self.state, config.persist_state, config.persist))
        needs = NEEDS_ACTIVE.get(kind)
        self.active = metrics.index(needs) if needs in metrics else None


@dataclass(slots=True)
class Group:
    """One peer group of one cell. `hist` and `mass_open` are of its anomalies as a whole, a value a metric.

    Several groups of one kind may stand in one (`joined`): `sizes` are then their members' counts, in order.
    """

    key: GroupKey
    rules: Rules
    base: int
    pieces: list[Piece] = field(default_factory=list)
    hist: NDArray[np.uint8] = field(default_factory=lambda: np.zeros(0, np.uint8))
    mass_open: Mask = field(default_factory=lambda: np.zeros(0, np.bool_))
    hot: set[int] = field(default_factory=set)
    sizes: tuple[int, ...] = ()

    @classmethod
    def joined(cls, groups: list[Group]) -> Group:
        """Groups of one kind and the same metrics as one, each still compared within itself."""
        if len(groups) == 1:
            return groups[0]
        pieces = [piece for group in groups for piece in group.pieces]
        sizes = tuple([sum([len(piece.of_row) for piece in group.pieces]) for group in groups])
        return cls(groups[0].key, groups[0].rules, -1, pieces, sizes=sizes)

    @property
    def metrics(self) -> tuple[str, ...]:
        """Names of the metrics, in the order of all arrays."""
        return self.key[3]

    def places(self, metrics: Rows) -> Places:
        """Where the values of `metrics` (indexes) over this group lie, for `gather` and `scatter`."""
        places: Places = []
        for table, pieces in groupby(self.pieces, lambda piece: piece.table):
            flats = [piece.flat[metrics] for piece in pieces]
            places.append((table, flats[0] if len(flats) == 1 else np.concatenate(flats, axis=1)))
        return places

    def gather(self, name: str, metrics: Rows) -> NDArray[Any]:
        """The table array `name` over this group: (metrics, devices)."""
        return gather(name, self.places(metrics))

    def present(self, tick: int) -> Mask:
        """Which devices' nodes reported `tick`: (devices,)."""
        parts = [piece.table.tick.take(piece.of_row) == tick for piece in self.pieces]
        return parts[0] if len(parts) == 1 else np.concatenate(parts)

    def locate(self, metric: int, device: int) -> tuple[Piece, int, int, int]:
        """Piece, row, column and device index in its block, of the `device`-th member."""
        for piece in self.pieces:
            if device < len(piece.of_row):
                row, column = divmod(int(piece.flat[metric, device]), piece.table.width)
                return piece, row, column, piece.devices[device % len(piece.devices)]
            device -= len(piece.of_row)
        raise IndexError(device)

    def judge(self, metrics: Rows, tick: int, config: DetectConfig) -> Verdict:
        """Tests the latest values of `metrics` (indexes) at `tick`; what is missing is neither bad nor good."""
        m = self._measure(metrics, self.places(metrics), tick, config)
        rules, floor = self.rules, self.rules.floor[metrics]
        with np.errstate(invalid="ignore"):
            peer_bad = self._off(metrics, m.x, m.center) > _limit(m.spread, floor, m.center, config)
            peer_bad &= m.has_peers
            past_limit = _limit(np.float32(MEAN_DEVIATION_TO_SIGMA) * m.dev, floor, m.mean, config)
            past_bad = self._off(metrics, m.x, m.mean) > past_limit
            past_bad &= rules.number[metrics] & m.grown & (m.count >= config.warmup)
            past_bad |= rules.event[metrics] & (m.x > floor)
            past_bad |= rules.state[metrics] & (m.x < 0.5) & (m.mean > 0.5) & (m.count >= config.state_warmup)
        return Verdict(m.x, peer_bad, past_bad, m.center, m.spread, m.mean, m.dev)

    def _measure(self, metrics: Rows, places: Places, tick: int, config: DetectConfig) -> _Measured:
        """What the latest values of `metrics` are to be compared with."""
        rules = self.rules
        x: F32 = gather("x", places)
        known = np.isfinite(x)
        known &= self.present(tick)
        if not known.all():
            x[~known] = np.nan
        number = rules.number[metrics]
        if rules.active is not None and number.any():
            active = self.gather("x", np.array([rules.active]))[0]
            x[number & (active < 0.5)] = np.nan
        grown = gather("born", places) <= tick - config.grace
        center, spread, members = robust_by(x if grown.all() else np.where(grown, x, np.float32(np.nan)), self.sizes)
        has_peers = grown & number & (members >= config.min_peers)
        count, mean, dev = (gather(name, places) for name in ("count", "mean", "dev"))
        return _Measured(x, center, spread, mean, dev, count, grown, has_peers)

    def _off(self, metrics: Rows, x: F32, expected: F32) -> F32:
        """How far `x` is from `expected` in the metric's bad direction; (metrics, devices)."""
        off = x - expected
        low, high = self.rules.low[metrics], self.rules.high[metrics]
        distance: F32 = np.where(low & high, np.abs(off), np.where(low, -off, off))
        return distance

    def refresh(self, tick: int, config: DetectConfig) -> None:
        """Sets the bounds within which a value needs no look until the next refresh. Those of events never change."""
        if len(self.rules.numbers):
            self._bound_numbers(self.rules.numbers, tick, config)
        if len(self.rules.states):
            places = self.places(self.rules.states)
            up = (gather("mean", places) > 0.5) & (gather("count", places) >= config.state_warmup)
            scatter("lo", places, np.where(up, np.float32(0.5), np.float32(-np.inf)))

    def _bound_numbers(self, metrics: Rows, tick: int, config: DetectConfig) -> None:
        floor, places = self.rules.floor[metrics], self.places(metrics)
        m = self._measure(metrics, places, tick, config)
        center = np.where(np.isnan(m.center), np.float32(0), m.center)
        peers = np.where(m.has_peers, _limit(m.spread, floor, center, config), np.float32(np.inf))
        past = _limit(np.float32(MEAN_DEVIATION_TO_SIGMA) * m.dev, floor, m.mean, config)
        past[~(m.grown & (m.count >= config.warmup))] = np.inf
        lo, hi = np.maximum(center - peers, m.mean - past), np.minimum(center + peers, m.mean + past)
        lo[~self.rules.low[metrics, 0]] = -np.inf
        hi[~self.rules.high[metrics, 0]] = np.inf
        scatter("lo", places, lo)
        scatter("hi", places, hi)


def gather(name: str, places: Places) -> NDArray[Any]:
    """The table array `name` at `places`: (metrics, devices)."""
    parts = [getattr(table, name).reshape(-1).take(flat) for table, flat in places]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def scatter(name: str, places: Places, values: NDArray[Any]) -> None:
    """Writes back what `gather` reads."""
    at = 0
    for table, flat in places:
        getattr(table, name).reshape(-1)[flat] = values[:, at : at + flat.shape[1]]
        at += flat.shape[1]


def robust_by(x: F32, sizes: tuple[int, ...]) -> tuple[F32, F32, NDArray[np.int64]]:
    """As `robust`, within each of the groups of `sizes` members that lie side by side in a row of `x`; where
    there are several, each member has its group's values: (rows, members).
    """
    if len(sizes) < 2:
        return robust(x)
    counts = np.array(sizes)
    owner = np.repeat(np.arange(len(counts)), counts)
    if (counts == counts[0]).all():
        padded = x
    else:
        position = np.arange(x.shape[1]) - np.repeat(np.cumsum(counts) - counts, counts)
        padded = np.full((len(x), len(counts), counts.max()), np.nan, np.float32)
        padded[:, owner, position] = x
    center, spread, known = robust(padded.reshape(-1, counts.max()))
    rows = len(x)
    return (
        center.reshape(rows, -1).take(owner, axis=1),
        spread.reshape(rows, -1).take(owner, axis=1),
        known.reshape(rows, -1).take(owner, axis=1),
    )


def robust(x: F32) -> tuple[F32, F32, NDArray[np.int64]]:
    """Median, 1.4826 × MAD and number of known values of each row of `x`, NaN left out; each (rows, 1)."""
    ordered = np.sort(x, axis=1)
    known = _known(ordered)
    center = _middle(ordered, known)
    off = np.abs(np.subtract(x, center, out=ordered), out=ordered)
    off.sort(axis=1)
    return center, _middle(off, known) * np.float32(MAD_TO_SIGMA), known


def robust_center(x: F32) -> F32:
    """Median of each row of `x`, NaN left out; (rows,)."""
    ordered = np.sort(x, axis=1)
    return _middle(ordered, _known(ordered))[:, 0]


def _known(ordered: F32) -> NDArray[np.int64]:
    """How many values of each sorted row are no NaN: those stand last; (rows, 1)."""
    if not np.isnan(ordered[:, -1:]).any():
        return np.full((len(ordered), 1), ordered.shape[1])
    known: NDArray[np.int64] = (~np.isnan(ordered)).sum(axis=1, keepdims=True)
    return known


def _middle(ordered: F32, known: NDArray[np.int64]) -> F32:
    """The median of each sorted row, of which the first `known` count; (rows, 1)."""
    width = ordered.shape[1]
    half = np.float32(0.5)
    if width and (known == width).all():
        return half * ordered[:, (width - 1) // 2, None] + half * ordered[:, width // 2, None]
    rows = np.arange(len(ordered))[:, None]
    below = ordered[rows, np.maximum((known - 1) // 2, 0)]
    above = ordered[rows, np.minimum(known // 2, width - 1)]
    middle: F32 = half * below + half * above
    middle[known == 0] = np.nan
    return middle


def _limit(sigma: F32, floor: F32, expected: F32, config: DetectConfig) -> F32:
    limit: F32 = np.maximum(np.maximum(config.deviations * sigma, floor), config.effect * np.abs(expected))
    return limit


def _column(values: list[Any], kind: Any) -> NDArray[Any]:
    return np.array(values, kind).reshape(-1, 1)
