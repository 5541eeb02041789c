"""GPUs and their NVLinks by NVML: a call that hangs keeps its thread, and holds up its own card and nobody else."""

from __future__ import annotations

import importlib
import time
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.collect.base import Columns, Fact, Group, JobSource, Places, Reading, Sources
from gpuchaos_agent.nvml import codes, links
from gpuchaos_agent.nvml.fields import METRICS
from gpuchaos_agent.nvml.fleet import Fleet
from gpuchaos_agent.nvml.reader import EMPTY, CardReader, CardReading
from gpuchaos_agent.nvml.worker import Worker
from gpuchaos_stream.events.frame import GroupLayout, Kind
from gpuchaos_stream.events.node import GpuPlace

#: A reading older than this is not given out any more, seconds: unknown is better than old.
STALE_AFTER_S: Final = 2.5
#: How long a tick waits for the cards that answered their last call, seconds. A reading takes some milliseconds.
WAIT_S: Final = 0.1
#: How long the very first one waits: the library's start takes some tenths, seconds.
FIRST_WAIT_S: Final = 0.4

_NO_LINK: Final[tuple[float | None, ...]] = (None,) * len(links.METRICS)


def _import_nvml() -> Any:
    return importlib.import_module("pynvml")


class GpuCollector:
    """Asks for a reading of each card and gives out what is there; what hangs is said, not waited for.

    `load` returns the `pynvml` module. `monotonic` is the clock of staleness, seconds.
    """

    name = "gpu"
    kinds: tuple[Kind, ...] = ("gpu", "nvlink")
    ORDER = 10

    def __init__(
        self,
        sysfs: Path,
        jobs: tuple[JobSource, ...] = (),
        *,
        procfs: Path = Path("/proc"),
        load: Callable[[], Any] = _import_nvml,
        monotonic: Callable[[], float] = time.monotonic,
        first_wait_s: float = FIRST_WAIT_S,
        wait_s: float = WAIT_S,
    ) -> None:
        owners = {source.gpu: source.job for source in jobs if source.gpu is not None}
        self._fleet = Fleet(sysfs, procfs, owners, load, monotonic)
        self._monotonic = monotonic
        self._wait = wait_s
        self._next_wait = first_wait_s

    @classmethod
    def from_sources(cls, sources: Sources) -> GpuCollector:
        """The collector of these roots and jobs."""
        return cls(sources.sysfs, sources.jobs, procfs=sources.procfs)

    def read(self, now: float) -> Reading:
        """All cards that were ever seen, those that do not answer without numbers and with the reason."""
        fleet = self._fleet
        fleet.ask(now)
        fleet.wait(self._next_wait)
        self._next_wait = self._wait
        absent: dict[str, str] = {}
        facts: list[Fact] = []
        info: dict[str, str | int | float] = {}
        cards = fleet.cards()
        readings = [self._card(reader, worker, now, absent, facts) for reader, worker in cards]
        for (reader, _), reading in zip(cards, readings, strict=True):
            info.update({f"gpu.{reader.place.index}.{what}": value for what, value in reading.info.items()})
        facts += fleet.take_facts()
        self._say(absent)
        if not cards:
            return Reading(absent=absent, facts=tuple(facts), info=info)
        readers = [reader for reader, _ in cards]
        domains = Counter(reader.domain for reader in readers if reader.domain)
        places = Places(
            gpus=tuple(reader.place for reader in readers),
            nvlink_domain=domains.most_common(1)[0][0] if domains else None,
        )
        return Reading(groups=_groups(readers, readings), absent=absent, facts=tuple(facts), places=places, info=info)

    def close(self) -> None:
        """Shuts the library down; a thread that hangs in the driver is left, it is a daemon."""
        self._fleet.close()

    def _card(
        self, reader: CardReader, worker: Worker | None, now: float, absent: dict[str, str], facts: list[Fact]
    ) -> CardReading:
        """The card's last reading while it is fresh, else none, with the reason in `absent`."""
        what = f"gpu.{reader.place.index}"
        fleet = self._fleet
        if not fleet.session.running:
            return CardReading(EMPTY)  # the reason is the library's
        if worker is None:
            if not fleet.complete:
                return CardReading(EMPTY)
            gone = reader.failed(codes.GPU_IS_LOST, now)
            facts += gone.facts
            absent[what] = "NVML does not find it any more"
            return gone
        if worker.result is not None and self._monotonic() - worker.result[0] <= STALE_AFTER_S:
            reading = worker.result[1]
            why = reading.lost or reading.absent
            if why:
                absent[what] = why
            return reading
        busy = worker.busy_for
        absent[what] = (
            f"a call to NVML ({worker.doing}) has not returned for {busy:.0f} s" if busy else "NVML has not answered"
        )
        return CardReading(EMPTY)

    def _say(self, absent: dict[str, str]) -> None:
        """What concerns no single known card."""
        fleet = self._fleet
        starting = fleet.starting_for()
        if not fleet.session.running or not fleet.workers:
            why = fleet.session.reason
            absent["gpu"] = f"NVML's start has not returned for {starting:.0f} s" if starting is not None else why
            return
        for worker in fleet.workers:
            busy = worker.busy_for
            if worker.settled or busy is None:
                continue
            absent.setdefault(f"gpu.{worker.number}", f"NVML has not said for {busy:.0f} s which card this is")
        if fleet.events.deaf:
            absent["gpu.events"] = f"{fleet.events.deaf}; health unknown but for what is read each second"


def _columns(rows: list[tuple[float | None, ...]]) -> Columns:
    return tuple(zip(*rows, strict=True))


@lru_cache(maxsize=4)
def _gpu_layout(places: tuple[GpuPlace, ...]) -> GroupLayout:
    return GroupLayout(
        kind="gpu",
        ids=tuple(place.index for place in places),
        metrics=METRICS,
        labels={"job": tuple(place.job or "" for place in places), "pci": tuple(place.pci for place in places)},
    )


@lru_cache(maxsize=4)
def _link_layout(links_of: tuple[tuple[GpuPlace, tuple[int, ...]], ...]) -> GroupLayout:
    of = [(place, number) for place, numbers in links_of for number in numbers]
    return GroupLayout(
        kind="nvlink",
        ids=tuple(f"{place.index}/{number}" for place, number in of),
        metrics=links.METRICS,
        labels={
            "gpu": tuple(place.index for place, _ in of),
            "pci": tuple(place.pci for place, _ in of),
            "job": tuple(place.job or "" for place, _ in of),
        },
    )


def _groups(readers: list[CardReader], readings: list[CardReading]) -> tuple[Group, ...]:
    """Cards and links; those of a silent card stay, without numbers. No links where no card has any."""
    # Checking a layout of 144 links costs more than reading them: it is made when something changed.
    cards = Group(_gpu_layout(tuple(reader.place for reader in readers)), _columns([r.row for r in readings]))
    links_of = tuple((reader.place, reader.link_numbers) for reader in readers)
    rows = [
        reading.links.get(number, _NO_LINK)
        for (_, numbers), reading in zip(links_of, readings, strict=True)
        for number in numbers
    ]
    return (cards, Group(_link_layout(links_of), _columns(rows))) if rows else (cards,)


COLLECTOR = GpuCollector
