"""The counters of an RDMA port: which files they are, how each behaves at its end, and what an increment means.

A counter since boot says nothing by itself; its increments do. Three things look like one and are not: a counter
that was cleared or whose driver was loaded anew (smaller: unknown), one that went round (32 bits of hardware: an
increment), and one that stands at its largest value and cannot grow any more (the IBTA's port counters stop there:
from then on nothing is known, which is not the same as nothing happening).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.kernelfs import ports
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

_C: Final = "counters/"
_HW: Final = "hw_counters/"


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter as the rate `metric`: the first of `files` that the port has, times its scale.

    `stops_at` is the width in bits of a register that stays at its largest value until it is cleared.
    """

    metric: str
    files: tuple[tuple[str, float], ...]
    stops_at: int | None = None


#: Files: mlx5, mlx4 and hfi1 share the kernel's `counters` (IBTA PortCounters, volume 1, 16.1.3.5; their widths as
#: in PORT_PMA_ATTR of drivers/infiniband/core/sysfs.c); data there is in words of four bytes. The rest by driver:
#: mlx5 counters.c, efa_verbs.c (bytes), irdma verbs.c (`cnpSent`), bnxt_re hw_counters.c (both its old and its new
#: names). `port_xmit_wait` is in ticks of the adapter and large on healthy ports.
COUNTERS: Final = (
    Counter("rx_bytes_rate", ((f"{_C}port_rcv_data", 4.0), (f"{_HW}rx_bytes", 1.0)), stops_at=32),
    Counter("tx_bytes_rate", ((f"{_C}port_xmit_data", 4.0), (f"{_HW}tx_bytes", 1.0)), stops_at=32),
    Counter("link_downed_rate", ((f"{_C}link_downed", 1.0),), stops_at=8),
    Counter("symbol_error_rate", ((f"{_C}symbol_error", 1.0),), stops_at=16),
    Counter("rcv_errors_rate", ((f"{_C}port_rcv_errors", 1.0),), stops_at=16),
    Counter("link_recovery_rate", ((f"{_C}link_error_recovery", 1.0),), stops_at=8),
    Counter("link_integrity_rate", ((f"{_C}local_link_integrity_errors", 1.0),), stops_at=4),
    Counter("buffer_overrun_rate", ((f"{_C}excessive_buffer_overrun_errors", 1.0),), stops_at=4),
    Counter("xmit_wait_rate", ((f"{_C}port_xmit_wait", 1.0),), stops_at=32),
    Counter("out_of_sequence_rate", ((f"{_HW}out_of_sequence", 1.0), (f"{_HW}oos_drop_count", 1.0))),
    Counter("ack_timeout_rate", ((f"{_HW}local_ack_timeout_err", 1.0),)),
    Counter("rnr_retry_rate", ((f"{_HW}rnr_nak_retry_err", 1.0),)),
    Counter("slow_restart_rate", ((f"{_HW}roce_slow_restart", 1.0),)),
    Counter("cnp_handled_rate", tuple((_HW + n, 1.0) for n in ("rp_cnp_handled", "cnpHandled", "rx_cnp_pkts"))),
    Counter("cnp_sent_rate", tuple((_HW + n, 1.0) for n in ("np_cnp_sent", "cnpSent", "np_cnp_pkts", "tx_cnp_pkts"))),
    Counter(
        "ecn_marked_rate",
        tuple((_HW + n, 1.0) for n in ("np_ecn_marked_roce_packets", "RxECNMrkd", "rx_ecn_marked_pkts")),
    ),
)

#: A hardware counter of 32 bits that was above this and is below `_LOW` has gone round.
_ROUND: Final = 1 << 32
_HIGH: Final = 3 << 30
_LOW: Final = 1 << 30


class Step(NamedTuple):
    """One counter at one tick. `value` is as the file has it, `delta` its increment, `scale` units for each.

    `delta` is None where it is unknown: first read, reset, unreadable. `stuck` says that it stands at its end.
    """

    file: str
    value: int | None
    delta: int | None = None
    seconds: float = 0.0
    scale: float = 1.0
    stuck: bool = False

    @property
    def rate(self) -> float | None:
        """Units a second."""
        return None if self.delta is None or self.seconds <= 0 else self.delta * self.scale / self.seconds


class Tally:
    """Remembers each port's counters from one tick to the next."""

    def __init__(self) -> None:
        self._last: dict[str, dict[str, tuple[str, int, float]]] = {}
        self._files: dict[str, tuple[ports.Port, tuple[_File, ...]]] = {}

    def read(self, port: ports.Port, now: float) -> dict[str, Step]:
        """All counters that the port has, by metric. `now` is in seconds of any clock; where it stood still or
        went back, nothing is known.
        """
        before = self._last.get(port.name, {})
        there = self._files_of(port)
        values = [ports.read_counter(port, one.file) for one in there]
        after = {
            one.metric: (one.file, value, now) for one, value in zip(there, values, strict=True) if value is not None
        }
        fell = [m for m, (file, value, _) in after.items() if m in before and value < before[m][1] and _is_hw(file)]
        steps: dict[str, Step] = {}
        for one, value in zip(there, values, strict=True):
            last = before.get(one.metric)
            if value is None or last is None or last[0] != one.file or now <= last[2]:
                steps[one.metric] = Step(one.file, value, scale=one.scale)
            else:
                steps[one.metric] = _step(one, value, last, now, alone=len(fell) == 1)
        self._last[port.name] = after
        return steps

    def keep(self, names: Iterable[str]) -> None:
        """Drops what is known of other ports."""
        alive = set(names)
        self._last = {name: counters for name, counters in self._last.items() if name in alive}
        self._files = {name: files for name, files in self._files.items() if name in alive}

    def _files_of(self, port: ports.Port) -> tuple[_File, ...]:
        """Which files the port has is found out once for each description of it."""
        known = self._files.get(port.name)
        if known is None or known[0] is not port:
            known = self._files[port.name] = (port, tuple(_files(port)))
        return known[1]


class _File(NamedTuple):
    """Where a port has a counter. `end` is the value at which it stays, None for one that does not."""

    metric: str
    file: str
    scale: float
    end: int | None
    hardware: bool


def _files(port: ports.Port) -> Iterable[_File]:
    for counter in COUNTERS:
        for file, scale in counter.files:
            folder, _, name = file.partition("/")
            if name in (port.counters if folder == "counters" else port.hw_counters):
                end = None if counter.stops_at is None or _is_hw(file) else (1 << counter.stops_at) - 1
                yield _File(counter.metric, file, scale, end, _is_hw(file))
                break


def _step(one: _File, value: int, before: tuple[str, int, float], now: float, *, alone: bool) -> Step:
    _, last, then = before
    delta: int | None = value - last
    stuck = value == last == one.end
    if stuck:
        delta = None
    elif value < last:
        # Several hardware counters that fall at once were reset together, whatever their values were.
        went_round = one.hardware and alone and _HIGH <= last < _ROUND and value < _LOW
        delta = value + _ROUND - last if went_round else None
    return Step(one.file, value, delta, now - then, one.scale, stuck)


def _is_hw(file: str) -> bool:
    return file.startswith(_HW)


@dataclass(frozen=True, slots=True)
class Limit:
    """More than `most` increments of `metric` within `within_s` seconds are a fact (0: between two readings).

    `trained` counts only while the port is active at both readings: a link that is being trained has errors.
    """

    metric: str
    most: int
    within_s: float
    fault: str
    severity: Severity = Severity.ERROR
    trained: bool = False


#: NVSentinel's fatal counters (docs/nic-health-monitor.md of v1.23): any increment of the first three, and more than
#: 120 symbol errors an hour, which is the IBTA's limit of bit errors at 10^-12 on a slow link. Its fourth, link_downed,
#: is told by `rdma_links.py` as what it is, a link that went down. Its degraded ones (rates) are metrics.
LIMITS: Final = (
    Limit("buffer_overrun_rate", 0, 0, "rdma_buffer_overrun"),
    Limit("link_integrity_rate", 0, 0, "rdma_link_errors", trained=True),
    Limit("rnr_retry_rate", 0, 0, "rdma_retry_exceeded"),
    Limit("symbol_error_rate", 120, 3600, "rdma_link_errors", trained=True),
)
#: While a counter goes on growing it is said once in this time, with how many there were meanwhile, seconds.
SAY_AGAIN_S: Final = 60.0
#: Increments within this time are kept as one, so that an hour is a hundred entries, seconds.
_GRAIN_S: Final = 36.0


class Watch:
    """Holds increments against `LIMITS`. `boot` makes the facts' keys those of this boot."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._seen: dict[tuple[str, str], deque[tuple[float, int]]] = {}
        self._told: dict[tuple[str, str], float] = {}

    def step(
        self, port: str, steps: Mapping[str, Step], now: float, *, trained: bool, evidence: Evidence
    ) -> list[Fact]:
        """The limits that the port is over at this tick."""
        facts: list[Fact] = []
        for limit in LIMITS:
            step = steps.get(limit.metric)
            if step is None or not step.delta or (limit.trained and not trained):
                continue
            key = (port, limit.metric)
            count = self._count(key, step.delta, now, limit.within_s)
            if count <= limit.most or now - self._told.get(key, -SAY_AGAIN_S) < SAY_AGAIN_S:
                continue
            self._told[key] = now
            self._seen[key].clear()
            facts.append(
                Fact(
                    key=f"rdma/{self._boot}/{port}/{limit.metric}/{step.value}",
                    fault=limit.fault,
                    severity=limit.severity,
                    time=now,
                    kind="port",
                    local=port,
                    origin=Origin.DRIVER,
                    evidence={**evidence, "count": count, "cause": step.file.partition("/")[2]},
                )
            )
        return facts

    def keep(self, names: Iterable[str]) -> None:
        """Drops what is known of other ports."""
        alive = set(names)
        self._seen = {key: seen for key, seen in self._seen.items() if key[0] in alive}
        self._told = {key: told for key, told in self._told.items() if key[0] in alive}

    def _count(self, key: tuple[str, str], delta: int, now: float, within_s: float) -> int:
        """All increments in the window; what was held back since the last fact counts as well."""
        seen = self._seen.setdefault(key, deque(maxlen=256))
        if seen and 0 <= now - seen[-1][0] < _GRAIN_S:
            seen[-1] = (seen[-1][0], seen[-1][1] + delta)
        else:
            seen.append((now, delta))
        while seen and now - seen[0][0] > max(within_s, SAY_AGAIN_S):
            seen.popleft()
        return sum(count for _, count in seen)
