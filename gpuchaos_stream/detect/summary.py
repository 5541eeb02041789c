"""What a cell looks like at one tick: node-level values, jobs, and when each node was last seen."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpuchaos_stream.detect.config import JOB_SUMMARY
from gpuchaos_stream.detect.peers import robust_center
from gpuchaos_stream.detect.table import F32, F64, Rows, Table
from gpuchaos_stream.detect.window import Cell, Ranks, Seen
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.observation import CellSummary

_ENCODER: Final = msgspec.json.Encoder()
_RUNNING: Final = list(JOB_SUMMARY).index("running")
_AGE: Final = list(JOB_SUMMARY).index("progress_age_seconds")
#: Over the ranks of each job, (jobs, ranks); NaN is no value.
_AGGREGATES: Final[dict[str, Callable[[F32], NDArray[Any]]]] = {
    "min": lambda values: np.fmin.reduce(values, axis=1),
    "max": lambda values: np.fmax.reduce(values, axis=1),
    "median": robust_center,
}


class Summary(msgspec.Struct, kw_only=True):
    """A `CellSummary` on its way to the wire, which defines it: field by field the same, but not validated, for all
    in it was checked or made here.
    """

    schema_version: int = 1
    id: str
    time: float
    cluster: str
    type: str = "cell_summary"
    cell: str
    nodes: dict[str, Seen]
    order: list[str]
    columns: dict[str, list[float | None]]
    jobs: dict[str, dict[str, float | None]]
    processes: msgspec.Raw
    not_running: dict[str, list[str]]

    def event(self) -> CellSummary:
        """The model."""
        # A string of JSON rather than Python's own: what tests and tools see is what a reader of the topic sees.
        return CellSummary.model_validate_json(self.encode())

    def encode(self) -> bytes:
        """The value of its Kafka record."""
        return _ENCODER.encode(self)


def summarise(cell: Cell, tick: int, time: float) -> Summary:
    """The summary of `cell` at `tick`, whose frames have just been put into their tables; what its ranks say (`jobs`,
    `not_running`) is left out.

    A node that did not report the tick has None in every column: its old values are not its present ones.
    """
    return Summary(
        id=stable_id("cell_summary", cell.cluster, cell.name, tick),
        time=time,
        cluster=cell.cluster,
        cell=cell.name,
        nodes=dict(cell.seen),
        order=[node.name for node in cell.order],
        columns=_columns(cell, tick),
        jobs={},
        processes=cell.processes,
        not_running={},
    )


def _columns(cell: Cell, tick: int) -> dict[str, list[float | None]]:
    if len(cell.places) == 1:
        table, _, rows = cell.places[0]
        part = table.summary[rows]
        part[table.tick[rows] != tick] = np.nan
        return dict(zip(table.summary_names, _plain(part.T), strict=True))
    values: dict[str, F64] = {}
    for table, positions, rows in cell.places:
        part = np.where((table.tick[rows] == tick)[:, None], table.summary[rows], np.nan)
        for name, column in zip(table.summary_names, part.T, strict=True):
            if name not in values:
                values[name] = np.full(len(cell.order), np.nan)
            values[name][positions] = column
    return {name: _plain(column) for name, column in values.items()}


def _plain(values: F64) -> list[Any]:
    """Lists of floats, nested like the array, None for what is not a finite number."""
    finite = np.isfinite(values)
    if not finite.all():
        objects: NDArray[Any] = values.astype(object)
        objects[~finite] = None
        mixed: list[Any] = objects.tolist()
        return mixed
    plain: list[Any] = values.tolist()
    return plain


@dataclass(frozen=True, slots=True)
class Ranked:
    """What the ranks of a cell's jobs said in one tick: the job's number and the values, (metrics, ranks) of those
    whose nodes reported it; and by node the pids of those that do not run.
    """

    jobs: tuple[str, ...]
    owner: Rows
    values: F32
    not_running: dict[str, list[str]]


def ranked(cell: Cell, tick: int) -> Ranked:
    """The ranks of `cell` at `tick`, whose frames have just been put into their tables."""
    owners, blocks = [], []
    not_running: dict[str, list[str]] = {}
    for place in cell.ranks:
        table = place.table
        values, owner = table.x.reshape(-1).take(place.flat), place.owner
        if place.gaps:
            values[place.flat < 0] = np.nan
        here = table.tick.take(place.rows) == tick
        for member in np.flatnonzero(here & (values[_RUNNING] == 0)).tolist():
            node, pid = place.names[member]
            not_running.setdefault(node, []).append(pid)
        if not here.all():
            values, owner = values[:, here], owner[here]
        owners.append(owner)
        blocks.append(values)
    if len(owners) == 1:
        return Ranked(tuple(cell.jobs), owners[0], blocks[0], not_running)
    if not owners:
        return Ranked((), np.empty(0, np.int64), np.empty((len(JOB_SUMMARY), 0), np.float32), not_running)
    return Ranked(tuple(cell.jobs), np.concatenate(owners), np.concatenate(blocks, axis=1), not_running)


def jobs_of(cells: Sequence[Ranked]) -> list[dict[str, dict[str, float | None]]]:
    """For each of `cells`, what its jobs' processes say: all at once, for a job alone is few numbers.

    Values are over the ranks whose nodes reported the tick; `ranks` counts those, `ranks_running` those that run.
    """
    names = [(at, job) for at, cell in enumerate(cells) for job in cell.jobs]
    result: list[dict[str, dict[str, float | None]]] = [{} for _ in cells]
    if not names:
        return result
    first = np.cumsum([0, *[len(cell.jobs) for cell in cells]]).tolist()
    owner = np.concatenate([cell.owner + first[at] for at, cell in enumerate(cells)])
    block = np.concatenate([cell.values for cell in cells], axis=1)
    block[~np.isfinite(block)] = np.nan
    running = block[_RUNNING] > 0
    block[_AGE, ~running] = np.nan
    by_name: dict[str, list[float | None]] = {
        name: _plain(of_job) for name, of_job in zip(JOB_SUMMARY, _per_job(owner, block, len(names)), strict=True)
    }
    by_name["ranks"] = np.bincount(owner, minlength=len(names)).astype(np.float64).tolist()
    by_name["ranks_running"] = np.bincount(owner[running], minlength=len(names)).astype(np.float64).tolist()
    for (at, job), row in zip(names, zip(*by_name.values(), strict=True), strict=True):
        result[at][job] = dict(zip(by_name, row, strict=True))
    return result


def _per_job(owner: Rows, block: F32, jobs: int) -> list[F64]:
    """For each row of `block`, the aggregate (as `JOB_SUMMARY` says) of each job's known values; NaN where none is
    known.
    """
    counts = np.bincount(owner, minlength=jobs)
    order = np.argsort(owner, kind="stable")
    owner = owner[order]
    padded = np.full((len(block), jobs, max(int(counts.max()), 1)), np.nan, np.float32)
    padded[:, owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]] = block[:, order]
    return [
        _AGGREGATES[how](values).astype(np.float64).round(6)
        for (_, how), values in zip(JOB_SUMMARY.values(), padded, strict=True)
    ]


def ranks_of(cell: Cell) -> list[Ranks]:
    """Where the numbers of the cell's jobs lie, a `Ranks` for each table; made when the groups change."""
    at = {(id(node.table), node.row): (node.name, node.layout) for node in cell.order if node.layout is not None}
    found: dict[Table, tuple[list[tuple[str, str]], list[Rows], list[Rows], list[Rows]]] = {}
    for number, groups in enumerate(cell.jobs.values()):
        for group in groups:
            metrics = [group.metrics.index(m) if m in group.metrics else None for m, _ in JOB_SUMMARY.values()]
            for piece in group.pieces:
                names, rows, owner, flat = found.setdefault(piece.table, ([], [], [], []))
                for name, layout in [at[id(piece.table), row] for row in piece.rows.tolist()]:
                    names += [(name, layout.blocks[piece.block].ids[device]) for device in piece.devices]
                rows.append(piece.of_row)
                owner.append(np.full(len(piece.of_row), number))
                absent = np.full(len(piece.of_row), -1)
                flat.append(np.array([absent if m is None else piece.flat[m] for m in metrics]))
    return [
        Ranks.of(names, table, np.concatenate(rows), np.concatenate(owner), np.concatenate(flat, axis=1))
        for table, (names, rows, owner, flat) in found.items()
    ]


def processes_of(cell: Cell) -> msgspec.Raw:
    """`CellSummary.processes` of the cell, encoded: made when layouts change, and told each second."""
    found: dict[str, dict[str, dict[str, str]]] = {}
    for node in cell.order:
        for block in node.layout.blocks if node.layout is not None else ():
            if block.kind == "process":
                for pid, job, gpu in zip(block.ids, block.jobs, block.gpus, strict=True):
                    if job:
                        found.setdefault(job, {}).setdefault(node.name, {})[pid] = gpu
    return msgspec.Raw(_ENCODER.encode(found))
