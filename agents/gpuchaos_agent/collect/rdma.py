"""RDMA ports from `/sys/class/infiniband`: state, rate, and counters made rates.

Every file is read by itself: drivers leave out whole directories (irdma, efa have no `counters`), answer
EINVAL, or write `N/A (no PMA)`, and one adapter's silence must not hide another's numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect import files, numa
from gpuchaos_agent.collect.base import Fact, Group, Places, Reading, Sources
from gpuchaos_agent.collect.counters import Rates
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.frame import GroupLayout, Kind
from gpuchaos_stream.events.node import PortPlace

#: ib_verbs.h, `enum ib_port_state` and the physical states of the InfiniBand specification (vol. 1, 14.2.5.6).
STATE_INIT: Final = 2
STATE_ACTIVE: Final = 4
PHYS_LINK_UP: Final = 5
#: A port that stays INIT for longer than this has no subnet manager, seconds.
NO_SM_AFTER_S: Final = 60.0

_RATE: Final = re.compile(r"^(\d+(?:\.\d+)?) Gb/sec")


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter below the port's directory, times `scale`, as a rate named `metric`."""

    metric: str
    path: str
    scale: float = 1.0


#: Data counters are in 4-byte words (IBTA PortCounters), EFA's in bytes. `lifespan` is no counter.
COUNTERS: Final = (
    Counter("rx_bytes_rate", "counters/port_rcv_data", 4.0),
    Counter("tx_bytes_rate", "counters/port_xmit_data", 4.0),
    Counter("link_downed_rate", "counters/link_downed"),
    Counter("symbol_error_rate", "counters/symbol_error"),
    Counter("rcv_errors_rate", "counters/port_rcv_errors"),
    Counter("out_of_sequence_rate", "hw_counters/out_of_sequence"),
    Counter("ack_timeout_rate", "hw_counters/local_ack_timeout_err"),
    Counter("cnp_handled_rate", "hw_counters/rp_cnp_handled"),
)
#: Where `counters` is missing altogether (EFA), bytes as they are.
IN_BYTES: Final = {"rx_bytes_rate": "hw_counters/rx_bytes", "tx_bytes_rate": "hw_counters/tx_bytes"}

METRICS: Final = ("port_active", "rate_bits", *(counter.metric for counter in COUNTERS))


class RdmaCollector:
    """Reads `<sysfs>/class/infiniband`. `rails` is port name → rail."""

    name = "rdma"
    kinds: tuple[Kind, ...] = ("rdma",)

    def __init__(self, sysfs: Path, rails: dict[str, str] | None = None) -> None:
        self._sysfs = sysfs
        self._root = sysfs / "class/infiniband"
        self._rails = rails or {}
        self._rates = Rates()
        self._init_since: dict[str, float] = {}

    @classmethod
    def from_sources(cls, sources: Sources) -> RdmaCollector:
        """The collector of these roots."""
        return cls(sources.sysfs, sources.rails)

    def read(self, now: float) -> Reading:
        """One row a port, named as the device, with `_N` where it has several."""
        ports = self._ports()
        if not ports:
            why = "no RDMA device" if self._root.is_dir() else "no RDMA driver loaded"
            return Reading(absent={"rdma": f"{why} ({self._root})"})
        self._rates.keep(ports)
        rows = [self._row(name, path, now) for name, path in ports.items()]
        # Cabling cannot be read from here and is not guessed: a rail is known where it is configured.
        rails = {name: self._rails.get(name, "") for name in ports}
        layout = GroupLayout(
            kind="rdma", ids=tuple(ports), metrics=METRICS, labels={"rail": tuple(rails[name] for name in ports)}
        )
        nodes = numa.online(self._sysfs / numa.NODES)
        places = Places(
            ports=tuple(
                PortPlace(
                    name=name,
                    rail=rails[name] or None,
                    numa_node=numa.device_node(files.number(path.parents[1] / "device/numa_node"), nodes),
                )
                for name, path in ports.items()
            )
        )
        group = Group(layout, tuple(zip(*rows, strict=True)))
        return Reading(groups=(group,), places=places, facts=self._without_manager(ports, now))

    def close(self) -> None:
        """Nothing is held open."""

    def _ports(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for device in sorted(files.names(self._root), key=_natural):
            numbers = sorted(files.names(self._root / device / "ports"), key=_natural)
            for number in numbers:
                name = device if len(numbers) == 1 else f"{device}_{number}"
                found[name] = self._root / device / "ports" / number
        return found

    def _row(self, name: str, path: Path, now: float) -> tuple[float | None, ...]:
        state = files.number(path / "state")
        active = None if state is None else float(state == STATE_ACTIVE)
        return (active, _rate_bits(path) if active else None, *(self._rate(name, path, c, now) for c in COUNTERS))

    def _rate(self, name: str, path: Path, counter: Counter, now: float) -> float | None:
        value = files.number(path / counter.path)
        scale = counter.scale
        if value is None and counter.metric in IN_BYTES:
            value, scale = files.number(path / IN_BYTES[counter.metric]), 1.0
        return self._rates.rate((name, counter.metric, scale), None if value is None else value * scale, now)

    def _without_manager(self, ports: dict[str, Path], now: float) -> tuple[Fact, ...]:
        """Ports whose link is up and which stay INIT: not a cable's fault, the subnet manager's."""
        facts: list[Fact] = []
        for name, path in ports.items():
            waits = files.number(path / "state") == STATE_INIT and files.number(path / "phys_state") == PHYS_LINK_UP
            if not waits:
                self._init_since.pop(name, None)
                continue
            since = self._init_since.setdefault(name, now)
            if now - since > NO_SM_AFTER_S:
                self._init_since[name] = now  # said again each minute while it lasts
                facts.append(
                    Fact(
                        key=f"rdma/{name}/no_subnet_manager/{since:.0f}",
                        fault="no_subnet_manager",
                        severity=Severity.ERROR,
                        time=now,
                        kind="port",
                        local=name,
                        origin=Origin.DRIVER,
                        evidence={"waited_s": round(now - since, 1)},
                    )
                )
        return tuple(facts)


def _rate_bits(path: Path) -> float | None:
    """Bits a second of `400 Gb/sec (4X NDR)`. Asked only of active ports: others show a default of 10 Gb/s."""
    match = _RATE.match(files.text(path / "rate") or "")
    return float(match[1]) * 1e9 if match else None


def _natural(name: str) -> tuple[str | int, ...]:
    """`mlx5_2` before `mlx5_10`."""
    return tuple(int(part) if part.isdecimal() else part for part in re.split(r"(\d+)", name))
