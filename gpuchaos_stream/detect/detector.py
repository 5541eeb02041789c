"""The detect stage: frames of many nodes and cells in, anomalies and cell summaries out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

import msgspec
import numpy as np

from gpuchaos_stream.detect import silence
from gpuchaos_stream.detect.config import DetectConfig
from gpuchaos_stream.detect.layout import LayoutCache
from gpuchaos_stream.detect.lifecycle import Lifecycle
from gpuchaos_stream.detect.numbers import Look
from gpuchaos_stream.detect.peers import Group
from gpuchaos_stream.detect.rows import Rows
from gpuchaos_stream.detect.summary import Summary, jobs_of, ranked, summarise
from gpuchaos_stream.detect.table import Batch, Table
from gpuchaos_stream.detect.table import Rows as RowNumbers
from gpuchaos_stream.detect.verdicts import Verdicts
from gpuchaos_stream.detect.window import Cell, Entry, Node, Seen, replace
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.codec import FrameError, PackedFrame
from gpuchaos_stream.events.observation import CellSummary

#: How often silence is looked for, seconds of the caller's time.
_SILENCE_EVERY = 0.5
#: Quarantines kept before those that ended an hour ago are dropped.
_QUARANTINED = 10_000


@dataclass(slots=True)
class Counters:
    """What the stage counts, since it was made."""

    frames: int = 0
    late: int = 0
    duplicates: int = 0
    future: int = 0
    rejected: int = 0
    ticks: int = 0
    looks: int = 0


@dataclass(slots=True, eq=False)
class _Judged:
    """One cell's tick that is being judged. `time` is the latest of its frames; `parts` are where they lie in the
    batches that were read at once: (table, batch, from, to).
    """

    cell: Cell
    tick: int
    time: float
    entries: list[Entry]
    parts: list[tuple[Table, Batch, int, int]] = field(default_factory=list)


class Detector:
    """Finds what is far from its peers or its own past, what is a fact by itself, and who has fallen silent.

    Event time decides everything but silence, for which the caller's `now` counts too. State is a window of
    numbers that is rebuilt by reading telemetry again (`rewind`); nothing of it is saved.
    """

    def __init__(self, config: DetectConfig | None = None) -> None:
        self.config = config or DetectConfig()
        self.counters = Counters()
        self._life = Lifecycle(self.config.update_every)
        self._layouts = LayoutCache()
        self._rows = Rows(self.config, self._life)
        self._verdicts = Verdicts(self.config, self._life)
        self._cells: dict[tuple[str, str], Cell] = {}
        self._rejected: list[tuple[PackedFrame, str]] = []
        self._quarantine: dict[str, float] = {}
        self._silence_at = 0.0
        self._called = 0.0

    @property
    def rewind(self) -> float:
        """How much telemetry to read again after a restart or a rebalance, seconds: then every baseline is known.

        Where an anomaly was open, or a fault injected, read from before its start, or `quarantine` its nodes:
        a baseline that begins within a fault takes it for normal.
        """
        return 2.0 * self.config.warmup

    @property
    def open_anomalies(self) -> int:
        """How many anomalies are open."""
        return len(self._life)

    def feed(self, frames: Sequence[PackedFrame], now: float) -> list[Anomaly | CellSummary]:
        """Takes frames in, in the order in which they came, and judges every tick that is complete.

        `now` is the broker's time in epoch seconds (while replaying: the event time that has been reached).
        A tick is complete when all live nodes of the cell reported it, or `lateness` after its end. Frames of
        judged ticks are counted as late or repeated, those from the future are counted and set aside, those
        whose layout cannot be read are kept for `take_rejected`.
        """
        return [each if isinstance(each, Anomaly) else each.event() for each in self.feed_packed(frames, now)]

    def feed_packed(self, frames: Sequence[PackedFrame], now: float) -> list[Anomaly | Summary]:
        """As `feed`, with summaries that need only be encoded."""
        self._listen(now)
        touched = self._take(frames, now)
        self.counters.frames += len(frames)
        for cell in touched:
            cell.fed = now
        return self._settle(touched, now)

    def tick(self, now: float) -> list[Anomaly | CellSummary]:
        """Lets time pass without frames: judges ticks that wait in vain, and notices silence."""
        return [each if isinstance(each, Anomaly) else each.event() for each in self.tick_packed(now)]

    def tick_packed(self, now: float) -> list[Anomaly | Summary]:
        """As `tick`, with summaries that need only be encoded."""
        self._listen(now)
        return self._settle(self._cells.values(), now)

    def adopt(self, anomalies: Iterable[Anomaly]) -> None:
        """Takes over the open anomalies of cells that come to this worker: the latest event of each.

        What is found again within `rewind` seconds goes on under its id; the rest is closed with the reason.
        Hard facts (`signals.py`) are not this detector's and are left alone.
        """
        for anomaly in anomalies:
            if anomaly.fault_event_id is None:
                self._life.adopt(anomaly)

    def quarantine(self, nodes: Iterable[str], until: float) -> None:
        """Keeps baselines of `nodes` from learning up to event time `until`: they are under a fault."""
        names = set(nodes)
        for name in names:
            self._quarantine[name] = max(until, self._quarantine.get(name, 0.0))
        if len(self._quarantine) > _QUARANTINED:
            self._quarantine = {name: end for name, end in self._quarantine.items() if end > until - 3600}
        for cell in self._cells.values():
            for name in names & cell.nodes.keys():
                self._mark(cell.nodes[name])

    def take_rejected(self) -> list[tuple[PackedFrame, str]]:
        """Frames that could not be read, each with the reason, since the last call: for the dead letter topic."""
        rejected, self._rejected = self._rejected, []
        return rejected

    def forget(self, cells: Iterable[tuple[str, str]]) -> None:
        """Drops (cluster, cell) pairs whose partition another worker has now; says nothing about them."""
        for key in cells:
            cell = self._cells.pop(key, None)
            if cell is not None:
                self._rows.abandon(cell)

    def _mark(self, node: Node) -> None:
        until = self._quarantine.get(node.name)
        if until is not None and node.table is not None:
            node.table.quarantine[node.row] = max(until, float(node.table.quarantine[node.row]))

    def _take(self, frames: Sequence[PackedFrame], now: float) -> Iterable[Cell]:  # noqa: C901  (one hot loop)
        """Sorts frames into their cells' open ticks; returns the cells that got one. The hot loop: no calls in it
        that a healthy frame does not need.
        """
        touched: dict[int, Cell] = {}
        cells, latest = self._cells, now + self.config.future
        for frame in frames:
            time = frame.time + (frame.clock_offset_s or 0.0)
            if not 0.0 <= time <= latest:
                self.counters.future += 1
                continue
            cell = cells.get((frame.cluster, frame.cell))
            if cell is None:
                if not self._readable(frame):
                    continue
                cell = cells[frame.cluster, frame.cell] = Cell(frame.cluster, frame.cell)
            node = cell.nodes.get(frame.node)
            if node is None or frame.layout_id != node.layout_id or len(frame.values) != node.size:
                if not self._readable(frame):
                    continue
                node = node or cell.node(frame.node, now)
            tick = int(time)
            if tick <= cell.judged:
                self._too_late(node, tick, time)
                continue
            pending = cell.pending.get(tick)
            if pending is None:
                pending = cell.pending[tick] = {}
            if node.index not in pending:
                pending[node.index] = (node, time, frame)
            elif not replace(pending, node, time, frame):
                self.counters.duplicates += 1
                continue
            node.arrived = now
            if time > node.last:  # noqa: PLR1730  (`max` costs more than all else here)
                node.last = time
            touched[id(cell)] = cell
            if node.stale:
                silence.back(cell, node, time, self._life)
        return touched.values()

    def _readable(self, frame: PackedFrame) -> bool:
        try:
            self._layouts.of(frame)
        except FrameError as error:
            self.counters.rejected += 1
            self._rejected.append((frame, str(error)))
            return False
        return True

    def _too_late(self, node: Node, tick: int, time: float) -> None:
        """Counts a frame of a judged tick: a repeat of one that was judged, or one that came too late."""
        if node.table is not None and node.table.times[node.row, tick & 7] == time:
            self.counters.duplicates += 1
        else:
            self.counters.late += 1

    def _listen(self, now: float) -> None:
        """Silence counts only while this stage listens: a pause of ours is taken off every node's silence."""
        pause = now - self._called
        if self._called and pause > self.config.stale_after / 2:
            for cell in self._cells.values():
                cell.fed += pause
                for node in cell.nodes.values():
                    node.arrived += pause
        self._called = now

    def _settle(self, cells: Iterable[Cell], now: float) -> list[Anomaly | Summary]:
        summaries: list[Summary] = []
        left = list(cells)
        while left:
            runs = [run for cell in left if (run := self._run(cell, cell.ready(now, self.config)))]
            if runs:
                summaries += self._judge(runs)
            left = [run[0].cell for run in runs]
        if now >= self._silence_at or now < self._silence_at - 2 * _SILENCE_EVERY:
            self._silence_at = now + _SILENCE_EVERY
            for key, cell in list(self._cells.items()):
                for node in silence.check(cell, now, self._life, self.config):
                    self._life.close(
                        (cell.cluster, cell.name, "node", node.name, silence.METRIC),
                        time=now, end=now, reason="node_forgotten",
                    )  # fmt: skip
                    self._rows.remove(cell, node, cell.judged, now)
                    if not cell.nodes:
                        self.forget([key])
        return [*self._life.take(), *summaries]

    def _run(self, cell: Cell, ready: list[int]) -> list[_Judged]:
        """The first of the ticks that are ready, as many as can be read at once: up to one after which bounds are
        set anew, or before which a node is new or changed its layout.
        """
        run: list[_Judged] = []
        for tick in ready:
            moved = [entry for entry in cell.pending[tick].values() if entry[2].layout_id != entry[0].layout_id]
            if moved and run:
                break
            run.append(self._begin(cell, tick, moved))
            if tick >= cell.refresh_at:
                break
        return run

    def _begin(self, cell: Cell, tick: int, moved: list[Entry]) -> _Judged:
        """Takes the tick's frames out of the cell's open ones."""
        for node, time, frame in sorted(moved, key=lambda entry: entry[0].name):
            self._rows.place(cell, node, self._layouts.of(frame), tick, time)
            self._mark(node)
        entries = list(cell.pending.pop(tick).values())
        latest = max([time for _, time, _ in entries])
        cell.judged = tick
        cell.settled += 1
        if cell.first < 0:
            cell.first = tick
        if cell.regroup:
            self._rows.regroup(cell, tick, latest)
        self.counters.ticks += 1
        return _Judged(cell, tick, latest, entries)

    def _judge(self, runs: list[list[_Judged]]) -> list[Summary]:
        """Judges some ticks of each cell: the numbers of all are read at once, then judged tick by tick."""
        self._read([each for run in runs for each in run])
        summaries, ranks = [], []
        for wave in zip_longest(*runs):
            judged = [each for each in wave if each is not None]
            for each in judged:
                if each.tick == each.cell.first + int(self.rewind):
                    self._life.give_up(each.cell.cluster, each.cell.name, each.time)
                self._look(each, self._write(each))
            self._learn(judged)
            self._refresh(judged)
            summaries += [self._summary(each) for each in judged]
            ranks += [ranked(each.cell, each.tick) for each in judged]
        for summary, part, jobs in zip(summaries, ranks, jobs_of(ranks), strict=True):
            summary.jobs, summary.not_running = jobs, part.not_running
        return summaries

    def _read(self, judged: list[_Judged]) -> None:
        """Reads the numbers of all frames, table by table."""
        tables: dict[Table, list[tuple[_Judged, list[Entry]]]] = {}
        for each in judged:
            for table, entries in _by_table(each).items():
                tables.setdefault(table, []).append((each, entries))
        for table, members in tables.items():
            entries = [entry for _, part in members for entry in part]
            rows = np.array([node.row for node, _, _ in entries])
            times = np.array([time for _, time, _ in entries])
            blob = b"".join([frame.values for _, _, frame in entries])
            values = np.frombuffer(blob, "<f8") if blob else np.empty(0)
            batch = table.read(rows, times, values.reshape(len(rows), table.width))
            start = 0
            for each, part in members:
                each.parts.append((table, batch, start, start + len(part)))
                start += len(part)

    def _write(self, each: _Judged) -> dict[int, set[int]]:
        """Puts the tick's numbers into their tables; returns what deserves a look: group → metrics."""
        looks: dict[int, set[int]] = {}
        for table, batch, start, stop in each.parts:
            for number in table.write(batch, start, stop, each.tick).tolist():
                found = self._rows.pair(number)
                if found is not None:
                    group, metric = found
                    looks.setdefault(group.base, set()).add(metric)
        return looks

    def _refresh(self, judged: list[_Judged]) -> None:
        """Sets new bounds where they are due, all groups of a kind at once, and gives back the rows that nodes left."""
        due: dict[tuple[str, tuple[str, ...], int], list[Group]] = {}
        for each in judged:
            cell, tick = each.cell, each.tick
            if tick >= cell.refresh_at:
                for (kind, _, _, metrics), group in cell.groups.items():
                    due.setdefault((kind, metrics, tick), []).append(group)
                young = tick < cell.young_until
                cell.refresh_at = tick + (self.config.refresh_young if young else self.config.refresh_every)
            while cell.left and cell.left[0][0] <= tick:
                _, table, row = cell.left.pop(0)
                table.release(row)
        for (_, _, tick), groups in due.items():
            Group.joined(groups).refresh(tick, self.config)

    def _look(self, each: _Judged, looks: dict[int, set[int]]) -> None:
        for group in each.cell.groups.values():
            found = looks.get(group.base)
            wanted = group.hot | found if found else group.hot
            if wanted and group.pieces:
                metrics = np.array(sorted(wanted))
                verdict = group.judge(metrics, each.tick, self.config)
                self._verdicts.apply(Look(each.cell, group, metrics, verdict, each.tick, each.time))
                self.counters.looks += len(metrics)

    def _learn(self, judged: list[_Judged]) -> None:
        """Lets the past learn this wave: rows that are new each tick, all others once in `learn_every`."""
        learning: dict[Table, list[tuple[Batch, RowNumbers]]] = {}
        for each in judged:
            due = each.tick % self.config.learn_every == 0
            if not due and each.tick >= each.cell.young_until:
                continue
            for table, batch, start, stop in each.parts:
                chosen = np.arange(start, stop)
                if not due:
                    chosen = chosen[table.young_until[batch.rows[start:stop]] > each.tick]
                learning.setdefault(table, []).append((batch, chosen))
        for table, members in learning.items():
            rows = np.concatenate([batch.rows[chosen] for batch, chosen in members])
            if len(rows):
                table.learn(rows, np.concatenate([batch.times[chosen] for batch, chosen in members]))

    def _summary(self, each: _Judged) -> Summary:
        cell = each.cell
        cell.seen.update(
            [(node.name, Seen(time, frame.clock_offset_s, frame.dropped)) for node, time, frame in each.entries]
        )
        if cell.live < len(cell.nodes):
            for node in cell.nodes.values():
                if node.stale and node.name in cell.seen:
                    cell.seen[node.name] = msgspec.structs.replace(cell.seen[node.name], stale=True)
        return summarise(cell, each.tick, each.time)


def _by_table(each: _Judged) -> dict[Table, list[Entry]]:
    places = each.cell.places
    if len(places) == 1:
        return {places[0][0]: each.entries}
    parts: dict[Table, list[Entry]] = {}
    for entry in each.entries:
        table = entry[0].table
        assert table is not None  # noqa: S101  (its frame is judged, so it was placed)
        parts.setdefault(table, []).append(entry)
    return parts
