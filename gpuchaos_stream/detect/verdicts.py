"""From verdicts to anomalies: persistence, hysteresis, and one anomaly for a job rather than one a device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from gpuchaos_stream.detect.config import EVENT_SEVERITY, DetectConfig
from gpuchaos_stream.detect.layout import clean
from gpuchaos_stream.detect.lifecycle import Key, Lifecycle
from gpuchaos_stream.detect.numbers import Look, number, of_device, of_group
from gpuchaos_stream.detect.peers import Group, Piece, gather, scatter
from gpuchaos_stream.detect.table import Mask
from gpuchaos_stream.detect.window import Cell
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind
from gpuchaos_stream.events.base import Severity

Bits = NDArray[np.uint8]

#: How many of the eight bits of a history are set.
_BITS: Final[Bits] = np.array([value.bit_count() for value in range(256)], np.uint8)


@dataclass(frozen=True, slots=True)
class _Device:
    """One device of a look: where its number lies, what it is called, when its frame was."""

    m: int
    n: int
    metric: int
    piece: Piece
    row: int
    column: int
    entity: str
    node: str
    key: Key
    time: float


class Verdicts:
    """Applies verdicts to the histories in the tables and to the open anomalies."""

    def __init__(self, config: DetectConfig, lifecycle: Lifecycle) -> None:
        self._config = config
        self._life = lifecycle
        self._recent = np.uint8((1 << config.persist_of) - 1)
        self._calm = np.uint8((1 << config.close_after) - 1)

    def apply(self, look: Look) -> None:
        """Takes one tick's verdict in and opens, updates and closes what follows from it.

        A device whose value is missing keeps its history: what is not seen neither opens nor closes. Where
        most of a group left its past together, the group has the anomaly, and its devices only what sets
        them apart from their peers.
        """
        group, metrics, verdict = look.group, look.metrics, look.verdict
        known = ~np.isnan(verdict.x)
        mass = self._mass(look, known)
        flag = verdict.peer_bad | (verdict.past_bad & ~mass[:, None])
        places = group.places(metrics)
        before: Bits = gather("hist", places)
        hist = np.where(known, (before << 1) | flag, before).astype(np.uint8)
        opened: Mask = gather("opened", places)
        opening = known & ~opened & (_BITS[hist & self._recent] >= group.rules.need[metrics])
        closing = known & opened & ((hist & self._calm) == 0)
        still = (opened | opening) & ~closing
        scatter("hist", places, hist)
        scatter("opened", places, still)
        self._masses(look)
        whole = group.mass_open[metrics][:, None]
        scatter("blocked", places, flag | verdict.past_bad | still | whole)
        for m, n in np.argwhere(opening):
            self._open(look, self._device(look, int(m), int(n)), int(hist[m, n] & self._recent))
        for m, n in np.argwhere(closing):
            self._close(look, self._device(look, int(m), int(n)))
        for m, n in np.argwhere(opened & ~closing & known):
            self._update(look, self._device(look, int(m), int(n)))
        warm = (hist != 0).any(axis=1) | still.any(axis=1) | group.mass_open[metrics] | (group.hist[metrics] != 0)
        for metric, is_warm in zip(metrics.tolist(), warm.tolist(), strict=True):
            (group.hot.add if is_warm else group.hot.discard)(metric)

    def _mass(self, look: Look, known: Mask) -> Mask:
        """Per metric: whether most of the group left its own past together, now or in the last ticks."""
        group, metrics = look.group, look.metrics
        members = known.sum(axis=1)
        most = (look.verdict.past_bad & known).sum(axis=1) > self._config.mass_share * members
        most &= members >= self._config.min_peers
        before = group.hist[metrics]
        hist = np.where(members > 0, (before << 1) | most, before).astype(np.uint8)
        group.hist[metrics] = hist
        mass: Mask = ((hist & self._recent) != 0) | group.mass_open[metrics]
        return mass

    def _masses(self, look: Look) -> None:
        group, metrics = look.group, look.metrics
        hist, is_open = group.hist[metrics], group.mass_open[metrics]
        enough = _BITS[hist & self._recent] >= group.rules.need[metrics][:, 0]
        for m in np.flatnonzero((enough | is_open) & ~np.isnan(look.verdict.x).all(axis=1)).tolist():
            metric = int(metrics[m])
            if not is_open[m]:
                self._open_group(look, m, int(hist[m] & self._recent))
            elif not hist[m] & self._calm:
                end = self._first_time(group.pieces, look.tick + 1 - self._config.close_after, look.time)
                self._life.close(group_key(look.cell, group, metric), time=look.time, end=end)
                group.mass_open[metric] = False
            else:
                self._update_group(look, m)

    def _open_group(self, look: Look, m: int, bits: int) -> None:
        cell, group, metric = look.cell, look.group, int(look.metrics[m])
        kind, job, role, _ = group.key
        numbers = of_group(look, m, self._config)
        event = bool(group.rules.event[metric, 0])
        group.mass_open[metric] = True
        self._life.open(
            group_key(cell, group, metric),
            cluster=cell.cluster,
            entity=f"job/{clean(job)}" if job else f"cell/{clean(cell.name)}",
            metric=group.metrics[metric],
            start=self._first_time(group.pieces, look.tick + 1 - bits.bit_length(), look.time),
            time=look.time,
            identity=(cell.name, role),
            kind=AnomalyKind.SIGNAL if event else AnomalyKind.PAST,
            severity=self._severity(group, metric, numbers.effect),
            score=None if event else numbers.score,
            effect=numbers.effect,
            value=numbers.value,
            expected=numbers.expected,
            cell=cell.name,
            job=job,
            detail={
                "of": kind,
                "devices": int(look.verdict.past_bad[m].sum()),
                "members": int((~np.isnan(look.verdict.x[m])).sum()),
                **({"role": role} if role else {}),
            },
        )

    def _update_group(self, look: Look, m: int) -> None:
        group, metric = look.group, int(look.metrics[m])
        key = group_key(look.cell, group, metric)
        if self._outlived(group, metric, self._life.get(key), look.time):
            self._life.close(key, time=look.time, end=look.time, reason="new_normal")
            group.mass_open[metric] = False
            group.hist[metric] = 0
            for device in range(look.verdict.x.shape[1]):
                piece, row, column, _ = group.locate(metric, device)
                if piece.table.quarantine[row] < look.time:
                    piece.table.forget(row, column, look.tick)
        elif self._life.update_due(key, look.time):
            numbers = of_group(look, m, self._config)
            self._life.update(key, time=look.time, value=numbers.value, score=numbers.score, effect=numbers.effect)

    def _open(self, look: Look, device: _Device, bits: int) -> None:
        group, metric = look.group, device.metric
        numbers = of_device(look, device.m, device.n, self._config)
        peer = bool(look.verdict.peer_bad[device.m, device.n])
        event = bool(group.rules.event[metric, 0])
        first = look.tick + 1 - bits.bit_length()
        self._life.open(
            device.key,
            cluster=look.cell.cluster,
            entity=device.entity,
            metric=group.metrics[metric],
            start=self._first_time([device.piece], first, device.time, device.row),
            time=device.time,
            kind=AnomalyKind.SIGNAL if event else AnomalyKind.PEER if peer else AnomalyKind.PAST,
            severity=self._severity(group, metric, numbers.effect),
            score=None if event else numbers.score,
            effect=numbers.effect,
            value=numbers.value,
            expected=numbers.expected,
            node=device.node,
            cell=look.cell.name,
            job=group.key[1],
            detail={"peers": int((~np.isnan(look.verdict.x[device.m])).sum()) - 1} if peer else {},
        )

    def _update(self, look: Look, device: _Device) -> None:
        table, past = device.piece.table, not look.verdict.peer_bad[device.m, device.n]
        if past and self._outlived(look.group, device.metric, self._life.get(device.key), device.time):
            if table.quarantine[device.row] < device.time:
                self._life.close(device.key, time=device.time, end=device.time, reason="new_normal")
                table.forget(device.row, device.column, look.tick)
                table.opened[device.row, device.column] = False
        elif self._life.update_due(device.key, device.time):
            n = of_device(look, device.m, device.n, self._config)
            self._life.update(device.key, time=device.time, value=n.value, score=n.score, effect=n.effect)

    def _close(self, look: Look, device: _Device) -> None:
        first_good = look.tick + 1 - self._config.close_after
        end = self._first_time([device.piece], first_good, device.time, device.row)
        value = number(look.verdict.x[device.m, device.n])
        self._life.close(device.key, time=device.time, end=end, value=value)

    def _outlived(self, group: Group, metric: int, anomaly: Anomaly | None, time: float) -> bool:
        """A number that stayed off its past for so long is the new normal; a state or an event never is."""
        if anomaly is None or not group.rules.number[metric, 0]:
            return False
        return time - anomaly.start > self._config.accept_after

    @staticmethod
    def _severity(group: Group, metric: int, effect: float | None) -> Severity:
        if group.rules.event[metric, 0]:
            return EVENT_SEVERITY.get(group.metrics[metric], Severity.WARNING)
        if group.rules.state[metric, 0] or (effect is not None and effect >= 0.5):
            return Severity.ERROR
        return Severity.WARNING

    @staticmethod
    def _device(look: Look, m: int, n: int) -> _Device:
        metric = int(look.metrics[m])
        piece, row, column, index = look.group.locate(metric, n)
        node = look.cell.nodes[piece.table.nodes[row]]
        assert node.layout is not None  # noqa: S101  (it has a row, so it has a layout)
        entity = node.layout.blocks[piece.block].entity(node.name, index)
        key = (look.cell.cluster, look.cell.name, entity, look.group.metrics[metric])
        time = float(piece.table.times[row, look.tick & 7])
        return _Device(m, n, metric, piece, row, column, entity, node.name, key, time)

    @staticmethod
    def _first_time(pieces: list[Piece], tick: int, latest: float, row: int | None = None) -> float:
        """Event time of the first frame from `tick` on, among the last eight of the nodes meant."""
        parts = [piece.table.times[piece.rows if row is None else [row]].ravel() for piece in pieces]
        times = np.concatenate(parts)
        times = times[(times >= tick) & (times <= latest)]
        return float(times.min()) if len(times) else latest


def group_key(cell: Cell, group: Group, metric: int) -> Key:
    """Key of a group's anomaly as a whole."""
    kind, job, role, _ = group.key
    return (cell.cluster, cell.name, f"whole {kind}", job, role, group.metrics[metric])
