"""The numbers of all nodes whose frames have one shape: a row a node, a column a device's metric.

Beside the latest values lie, element by element, the baseline of the own past, the bounds outside which a
value deserves a look, and the last eight verdicts. A tick costs two comparisons per number; everything
dearer happens only where a value is out of bounds, or once in many ticks.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from gpuchaos_stream.detect.config import MEAN_DEVIATION_TO_SIGMA, SUMMARY, DetectConfig
from gpuchaos_stream.events.metrics import METRICS

if TYPE_CHECKING:
    from gpuchaos_stream.detect.layout import Block, Layout

F32 = NDArray[np.float32]
F64 = NDArray[np.float64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]

#: Arrays per element: name → (type, value of an element that nothing is known of).
_ELEMENTS: Final[dict[str, tuple[Any, Any]]] = {
    "x": (np.float32, np.nan),
    "lo": (np.float32, -np.inf),
    "hi": (np.float32, np.inf),
    "mean": (np.float32, 0.0),
    "dev": (np.float32, 0.0),
    "count": (np.uint16, 0),
    "hist": (np.uint8, 0),
    "opened": (np.bool_, False),
    "blocked": (np.bool_, False),
    "pair": (np.int32, -1),
    "born": (np.int64, 0),
}

#: Aggregates over the devices of a node; NaN (not read) is left out.
_AGGREGATES: Final = {"min": np.fmin.reduce, "max": np.fmax.reduce}


#: Values of an element from which on one that is far off is held back.
_FEW: Final = 10
#: As far as values are counted.
_COUNTED: Final = 60_000

_NONE: Final[Rows] = np.empty(0, np.int64)
_NO_PAIRS: Final = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Batch:
    """Frames of one table that were read at once: the row, event time, numbers and summary of each. What is out of
    bounds lies at frame `where[i]`, column `columns[i]`, in order.
    """

    rows: Rows
    times: F64
    x: F32
    summary: F64
    where: Rows
    columns: Rows


class Table:
    """See the module. Attributes named in `_ELEMENTS` are (capacity, width) arrays; `rows` are indexes."""

    x: F32
    lo: F32
    hi: F32
    mean: F32
    dev: F32
    count: NDArray[np.uint16]
    hist: NDArray[np.uint8]
    opened: Mask
    blocked: Mask
    pair: NDArray[np.int32]
    born: Rows

    def __init__(self, layout: Layout, config: DetectConfig) -> None:
        self.width = layout.width
        self._config = config
        self._capacity = 0
        self._used = 0
        self._free: list[int] = []
        self.nodes: list[str] = []
        self._floor = np.zeros(self.width, np.float32)
        self._event_hi = np.full(self.width, np.inf, np.float32)
        self._columns: list[tuple[int, str, int, int]] = []
        self.summary_names: tuple[str, ...] = ()
        self._lay_out(layout.blocks)
        self.tick = np.zeros(0, np.int64)
        self.times = np.zeros((0, 8))
        self.quarantine = np.zeros(0)
        self.young_until = np.zeros(0, np.int64)
        self.summary = np.zeros((0, len(self.summary_names)))
        for name, (kind, _) in _ELEMENTS.items():
            setattr(self, name, np.zeros((0, self.width), kind))

    def _lay_out(self, blocks: tuple[Block, ...]) -> None:
        names: list[str] = []
        read: list[int] = []
        for block in blocks:
            devices = len(block.ids)
            for index, name in enumerate(block.metrics):
                start = block.offset + index * devices
                metric = METRICS.get((block.kind, name))
                if metric is None or not devices:
                    continue
                self._floor[start : start + devices] = metric.floor
                if metric.event:
                    self._event_hi[start : start + devices] = metric.floor
                aggregates = SUMMARY.get((block.kind, name), ())
                if not aggregates or f"{block.kind}.{name}.{aggregates[0]}" in names:
                    continue
                for how in aggregates:
                    names.append(f"{block.kind}.{name}.{how}")
                    self._columns.append((len(names) - 1, how, len(read), len(read) + devices))
                read += range(start, start + devices)
        self.summary_names = tuple(names)
        self._read = np.array(read, np.int64)

    def add(self, node: str, tick: int) -> int:
        """A fresh row for `node`."""
        if not self._free and self._used == self._capacity:
            self._grow()
        row = self._free.pop() if self._free else self._used
        if row == self._used:
            self._used += 1
            self.nodes.append(node)
        self.nodes[row] = node
        for name, (_, empty) in _ELEMENTS.items():
            getattr(self, name)[row] = empty
        self.hi[row] = self._event_hi
        self.born[row] = tick
        self.tick[row] = -1
        self.times[row] = 0.0
        self.quarantine[row] = 0.0
        self.young_until[row] = tick + 2 * self._config.warmup
        return row

    def detach(self, row: int) -> None:
        """Takes the row out of every comparison; `release` gives it back later."""
        self.pair[row] = -1
        self.tick[row] = -1

    def release(self, row: int) -> None:
        """Gives the row of a node that moved or left back."""
        self._free.append(row)

    def _grow(self) -> None:
        bigger = max(16, self._capacity * 2)
        for name, (kind, empty) in _ELEMENTS.items():
            setattr(self, name, _grown(getattr(self, name), (bigger, self.width), kind, empty))
        self.tick = _grown(self.tick, (bigger,), np.int64, -1)
        self.times = _grown(self.times, (bigger, 8), np.float64, 0.0)
        self.quarantine = _grown(self.quarantine, (bigger,), np.float64, 0.0)
        self.young_until = _grown(self.young_until, (bigger,), np.int64, 0)
        self.summary = _grown(self.summary, (bigger, len(self.summary_names)), np.float64, np.nan)
        self._capacity = bigger

    def read(self, rows: Rows, times: F64, values: F64) -> Batch:
        """Frames of any number of ticks as `write` takes them; `values` are (frames, width), in the order of `rows`.

        What lies out of bounds is marked by the bounds of now, so that no refresh may come between the ticks.
        """
        with np.errstate(over="ignore", invalid="ignore"):
            x = values.astype(np.float32)
        out = x > self.hi.take(rows, axis=0)
        out |= x < self.lo.take(rows, axis=0)
        where, columns = np.nonzero(out) if out.any() else (_NONE, _NONE)
        return Batch(rows, times, x, self._summarise(values), where, columns)

    def write(self, batch: Batch, start: int, stop: int, tick: int) -> NDArray[np.int32]:
        """Makes the frames from `start` to `stop`, all of `tick`, the latest of their rows; returns the pairs (metric
        of a peer group) that deserve a look.
        """
        rows = batch.rows[start:stop]
        self.x[rows] = batch.x[start:stop]
        self.tick[rows] = tick
        self.times[rows, tick & 7] = batch.times[start:stop]
        self.summary[rows] = batch.summary[start:stop]
        first, last = np.searchsorted(batch.where, (start, stop)) if len(batch.where) else (0, 0)
        if first == last:
            return _NO_PAIRS
        pairs = np.unique(self.pair[batch.rows[batch.where[first:last]], batch.columns[first:last]])
        return pairs[pairs >= 0]

    def _summarise(self, values: F64) -> F64:
        result = np.empty((len(self._columns), len(values)))
        # Device by device side by side: a reduction over a long row is several times a reduction over a short one.
        turned = np.ascontiguousarray(values.T[self._read])
        for column, how, start, stop in self._columns:
            part = turned[start:stop]
            result[column] = _mean(part) if how == "mean" else _AGGREGATES[how](part, axis=0)
        return result.T

    def learn(self, rows: Rows, times: F64) -> None:
        """Takes the latest values of `rows` into their own past, but for what is suspect or quarantined.

        Mean and mean absolute deviation are exponentially weighted; a value further than three deviations
        pulls no harder than one at three, once ten are known.
        """
        config = self._config
        mean, dev, count = self.mean.take(rows, axis=0), self.dev.take(rows, axis=0), self.count.take(rows, axis=0)
        skip = self.hist.take(rows, axis=0) != 0
        skip |= self.blocked.take(rows, axis=0)
        skip |= (self.quarantine[rows] >= times)[:, None]
        with np.errstate(invalid="ignore", over="ignore"):
            off = self.x.take(rows, axis=0)
            off -= mean
            skip |= ~np.isfinite(off)
            limit = 3 * np.maximum(np.float32(MEAN_DEVIATION_TO_SIGMA) * dev, self._floor / config.deviations)
            limit[count < _FEW] = np.inf
            np.minimum(off, limit, out=off)
            np.maximum(off, np.negative(limit, out=limit), out=off)
            weight = np.maximum(1 / (count.astype(np.float32) + 1), np.float32(1 / config.horizon))
            weight[skip] = off[skip] = 0.0
            size = np.abs(off)
            size[count == 0] = 0.0
            off *= weight
            mean += off
            size -= dev
            size *= weight
            dev += size
        self.mean[rows] = mean
        self.dev[rows] = dev
        count += ~skip
        count[count > _COUNTED] = _COUNTED
        self.count[rows] = count

    def forget(self, row: int, column: int, tick: int) -> None:
        """Starts the own past of one element anew."""
        self.count[row, column] = 0
        self.mean[row, column] = self.dev[row, column] = 0.0
        self.hist[row, column] = 0
        self.blocked[row, column] = False
        self.lo[row, column] = -np.inf
        self.hi[row, column] = self._event_hi[column]
        self.born[row, column] = tick
        self.young_until[row] = tick + 2 * self._config.warmup

    def copy_past(self, row: int, columns: Rows, old: Table, old_row: int, old_columns: Rows) -> None:
        """Carries over what is known of devices that stayed while their node's layout changed."""
        for name in ("mean", "dev", "count", "hist", "opened", "blocked", "born", "lo", "hi"):
            getattr(self, name)[row, columns] = getattr(old, name)[old_row, old_columns]


def _mean(part: F64) -> F64:
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        mean: F64 = np.add.reduce(part, axis=0) / len(part)
        gaps = np.isnan(mean)
        if gaps.any():
            some = part[:, gaps]
            known = ~np.isnan(some)
            mean[gaps] = np.where(known, some, 0.0).sum(axis=0) / known.sum(axis=0)
    return mean


def _grown(old: NDArray[Any], shape: tuple[int, ...], kind: Any, empty: Any) -> NDArray[Any]:
    new = np.full(shape, empty, kind)
    new[: len(old)] = old
    return new
