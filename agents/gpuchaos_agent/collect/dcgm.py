"""A DCGM exporter's page, where one is configured: the numbers of GPUs without NVML in this process."""

from __future__ import annotations

import urllib.request
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Fact, Group, Places, Reading, Sources
from gpuchaos_agent.dcgm import page
from gpuchaos_agent.kernelfs.counters import Rates
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.frame import GroupLayout, Kind
from gpuchaos_stream.events.node import GpuPlace

#: The exporter answers at once from what it last measured, seconds.
TIMEOUT_S: Final = 2.0
#: Most bytes of a page that are read; 16 cards with 7 instances each are under one MiB.
LARGEST: Final = 8 << 20

METRICS: Final = tuple(dict.fromkeys(named.metric for named in page.SERIES.values()))


class DcgmCollector:
    """Reads `url` each tick. Its group gives way to NVML's where both are there (`Snapshot` keeps the first)."""

    name = "dcgm"
    kinds: tuple[Kind, ...] = ("gpu",)
    ORDER = 15

    def __init__(self, url: str | None, jobs: dict[str, str] | None = None) -> None:
        self._url = url
        self._jobs = jobs or {}
        self._rates = Rates()
        self._seen: dict[tuple[str, str], tuple[int | None, dict[int, int]]] = {}

    @classmethod
    def from_sources(cls, sources: Sources) -> DcgmCollector:
        """The collector of that page."""
        return cls(sources.dcgm_url, {source.gpu: source.job for source in sources.jobs if source.gpu})

    def read(self, now: float) -> Reading:
        """One row a card, in percent and MiB made base units. Instances of a divided card are left out."""
        if self._url is None:
            return Reading(absent={self.name: "no page is configured"})
        try:
            cards = page.parse(self._fetch())
        except (OSError, ValueError) as error:
            reason = getattr(error, "reason", error)
            return Reading(absent={"dcgm": f"{self._url}: {reason}"})
        facts = [fact for card in cards for fact in self._xids(card, now)]
        whole = [card for card in cards if card.gpu and not card.instance]
        if not whole:
            return Reading(absent={"dcgm": f"{self._url}: names no card"}, facts=tuple(facts))
        rows = [self._row(card, now) for card in whole]
        layout = GroupLayout(
            kind="gpu",
            ids=tuple(card.gpu for card in whole),
            metrics=METRICS,
            labels={
                "job": tuple(self._jobs.get(card.gpu, "") for card in whole),
                "pci": tuple(card.pci for card in whole),
            },
        )
        places = Places(
            gpus=tuple(
                GpuPlace(index=card.gpu, uuid=card.uuid, pci=card.pci, job=self._jobs.get(card.gpu)) for card in whole
            )
        )
        return Reading((Group(layout, tuple(zip(*rows, strict=True))),), facts=tuple(facts), places=places)

    def close(self) -> None:
        """Nothing is held open."""

    def _fetch(self) -> str:
        request = urllib.request.Request(self._url or "", headers={"Accept": "text/plain"})  # noqa: S310  (settings)
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310  (http and https by settings)
            return bytes(answer.read(LARGEST)).decode("utf-8", "replace")

    def _row(self, card: page.Card, now: float) -> tuple[float | None, ...]:
        counters = {named.metric for named in page.SERIES.values() if named.counter}
        return tuple(
            self._rates.rate((card.gpu, metric), card.values.get(metric), now)
            if metric in counters
            else card.values.get(metric)
            for metric in METRICS
        )

    def _xids(self, card: page.Card, now: float) -> list[Fact]:
        """Xids that are new since the last page. What stood there at first happened before us.

        The last one is sticky, so that the same code twice is seen only where the count of the window rose.
        """
        key = (card.gpu, card.instance)
        known = self._seen.get(key)
        self._seen[key] = (card.last_xid, dict(card.xids))
        if known is None:
            return []
        last, counts = known
        risen = [code for code, count in card.xids.items() if count > counts.get(code, 0)]
        if card.last_xid and card.last_xid != last and card.last_xid not in risen:
            risen.append(card.last_xid)
        return [self._fact(card, code, now) for code in risen]

    def _fact(self, card: page.Card, code: int, now: float) -> Fact:
        entry = catalogue.xids().get(code)
        return Fact(
            key=f"dcgm/{card.uuid or card.gpu}/{code}/{now:.0f}",
            fault=entry.fault if entry else "gpu_unknown_xid",
            severity=(entry.severity if entry else None) or Severity.WARNING,
            time=now,
            kind="gpu",
            local=card.gpu,
            origin=Origin.DRIVER,
            evidence={
                "xid": code,
                "source": "dcgm",
                "pci": card.pci,
                "action": entry.action if entry else "investigate",
                "count": card.xids.get(code),
            },
        )


COLLECTOR = DcgmCollector
