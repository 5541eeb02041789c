"""One reading of one card: its row, its links, the facts it states, and where it sits."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.kernelfs.counters import Rates
from gpuchaos_agent.nvml import codes, conditions, ecc, fabric, links, mig, processes, values
from gpuchaos_agent.nvml.asking import Asking
from gpuchaos_agent.nvml.fields import CALLS, METRICS, RETIRED_DBE, RETIRED_PENDING, RETIRED_SBE, VALUES
from gpuchaos_agent.words.xid import RECOVERY_ACTIONS
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.node import GpuPlace

#: What changes seldom is asked at this interval, seconds.
SLOW_S: Final = 5.0
#: As many pages as a card before Ampere can retire (NVIDIA, Dynamic Page Retirement, "Page Retirement Limits").
MOST_RETIRED: Final = 64
#: Uncorrectable errors are the kernel log's Xid 48: the same severity and action.
_ECC_XID: Final = 48

__all__ = ["METRICS", "CardReader", "CardReading"]


@dataclass(frozen=True, slots=True)
class CardReading:
    """`row` are the columns `METRICS`, `links` number → the columns of `links.py`; `lost` says in words why a card
    that is lost has no numbers; `code` is then NVML's.
    """

    row: tuple[float | None, ...]
    links: dict[int, tuple[float | None, ...]] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    lost: str | None = None
    code: int = 0
    absent: str | None = None
    info: dict[str, str | int | float] = field(default_factory=dict)

    @classmethod
    def nothing(cls, absent: str) -> CardReading:
        """A reading without a number."""
        return cls(EMPTY, absent=absent)


EMPTY: Final = (None,) * len(METRICS)


class CardReader:
    """Reads one card, in one thread. It outlives restarts of the library; `handle` comes anew with each."""

    def __init__(self, place: GpuPlace, memory_node: int | None, boot: str, procfs: Path) -> None:
        self.place = place
        self.domain: str | None = None
        self.asking = Asking()
        self._procfs = procfs
        self._boot = boot
        self._rates = Rates()
        self._links = links.Links()
        self.link_numbers: tuple[int, ...] = ()
        self._up: set[int] = set()
        self._conditions = conditions.Conditions(place.uuid, boot)
        self._uncorrected = ecc.EccPlaces(ecc.UNCORRECTED)
        self._corrected = ecc.EccPlaces(ecc.CORRECTED)
        self._slow_at: float | None = None
        self._kept: dict[str, float | None] = {}
        self._info: dict[str, str | int | float] = {}
        if memory_node is not None:
            self._info["memory_node"] = memory_node
        self._mig: bool | None = None
        self._lost = 0
        self._first = True
        self._facts: list[Fact] = []

    def renew(self) -> None:
        """The library was started anew, perhaps with another driver: what is supported is asked again."""
        self.asking.renew()
        self._links.forget()
        self._slow_at = None

    def read(self, nvml: Any, handle: Any, now: float, steady: float) -> CardReading:
        """Reads everything once. `now` is the node's clock, `steady` one that never jumps, both in seconds.

        Raises:
            LibraryError: the library must be started anew; what was read until then is not given out.
        """
        facts = self._facts  # kept over an error: what was found out before it is true
        self.asking.begin(nvml)
        try:
            numbers, rows = self._all(nvml, handle, now, steady, facts)
        except codes.CardError as error:
            return self.failed(error.code, now)
        facts += self._back(now)
        self._facts = []
        self._first = False
        errors = ", ".join(f"{name} ({code})" for name, code in sorted(self.asking.errors.items())[:4])
        info = dict(self._info)
        if self.asking.unsupported:
            top = sorted({name.partition(".")[0] for name in self.asking.unsupported})
            info["unsupported"] = ", ".join(top)[:300]
        return CardReading(
            row=tuple(numbers.get(metric) for metric in METRICS),
            links=rows,
            facts=tuple(facts),
            absent=f"NVML gives no {errors}" if errors else None,
            info=info,
        )

    def failed(self, code: int, now: float) -> CardReading:
        """The reading of a card that is lost: said as a fact once, until it comes back."""
        fault, action = codes.LOSSES.get(code, ("gpu_lost", "reboot_node"))
        facts, self._facts = self._facts, []
        if self._lost != code:
            self._lost = code
            evidence: Evidence = {"nvml": str(code), "action": action}
            facts.append(self._fact(fault, Severity.CRITICAL, now, f"{now:.3f}", evidence))
        nothing: tuple[float | None, ...] = (None,) * len(links.METRICS)
        gone = dict.fromkeys(self.link_numbers, nothing)
        return CardReading(EMPTY, gone, tuple(facts), lost=f"NVML says {fault} ({code})", code=code)

    # -- the parts of a reading

    def _all(
        self, nvml: Any, handle: Any, now: float, steady: float, facts: list[Fact]
    ) -> tuple[dict[str, float | None], dict[int, tuple[float | None, ...]]]:
        slow = self._slow_at is None or steady >= self._slow_at
        if slow:
            self._cut(nvml, handle)
        numbers = self._kept
        totals: dict[str, float | None] = {}
        for call in CALLS:
            if call.slow and not slow:
                continue
            found = self.asking.ask(call.metrics[0], lambda call=call: call.read(nvml, handle))  # type: ignore[misc]
            for metric, value in zip(call.metrics, found or (None,) * len(call.metrics), strict=True):
                checked = value if value is not None and 0 <= value <= call.most else None
                totals[metric] = checked
                numbers[metric] = self._rates.rate((metric,), checked, steady) if call.counter else checked
        self._values(nvml, handle, steady, numbers)
        if slow:
            self._slow(nvml, handle, now, steady, facts)
            self._slow_at = steady + SLOW_S
        self._judge(numbers, now, steady, facts)
        self._ecc(nvml, handle, totals, now, facts, slow=slow)
        return numbers, self._read_links(nvml, handle, now, steady, facts)

    def _values(self, nvml: Any, handle: Any, steady: float, numbers: dict[str, float | None]) -> None:
        wanted = [value for value in VALUES if value.metric not in self.asking.unsupported]
        ids = [(value.field, value.scope) for value in wanted]
        answers = self.asking.ask("fields", lambda: values.ask(nvml, handle, ids)) or [(0, None)] * len(wanted)
        numbers.update(dict.fromkeys((value.metric for value in VALUES), None))
        for item, (code, value) in zip(wanted, answers, strict=True):
            if code:
                self.asking.failed(item.metric, code)
            checked = value * item.scale if value is not None and 0 <= value * item.scale <= item.most else None
            numbers[item.metric] = self._rates.rate((item.metric,), checked, steady) if item.counter else checked

    def _cut(self, nvml: Any, handle: Any) -> None:
        """MIG comes first: a card in that mode lacks what it has otherwise, and the other way round."""
        mode = self.asking.ask("mig", lambda: mig.enabled(nvml, handle))
        if mode is not None and self._mig is not None and mode != self._mig:
            self.asking.renew()
        self._mig = mode
        parts = self.asking.ask("mig.instances", lambda: mig.instances(nvml, handle)) if mode else ()
        if parts is not None and parts != self.place.mig:
            self.place = self.place.model_copy(update={"mig": parts})
        if mode:
            self._info["mig"] = f"{len(self.place.mig)} instances"
        else:
            self._info.pop("mig", None)

    def _slow(self, nvml: Any, handle: Any, now: float, steady: float, facts: list[Fact]) -> None:
        self._retired(nvml, handle, now, steady, facts)
        found = self.asking.ask("fabric", lambda: fabric.read(nvml, handle))
        self._kept["fabric_ready"] = None if found is None else float(found.ready)
        if found is not None:
            self.domain = found.domain or self.domain
            self._info["fabric"] = found.words
            self._condition(conditions.FABRIC_NOT_READY, "" if found.ready else found.words, now, steady, facts)
        total = self._kept.get("memory_total_bytes")
        listed = self.asking.ask("processes", lambda: processes.read(nvml, handle, self._procfs, total))
        self._kept["processes"] = None if listed is None or listed.garbled else float(len(listed.found))
        self._info.pop("processes", None)
        if listed is not None and listed.garbled:
            self._info["processes"] = "the driver's list is garbled (driver 535 and a binding of another version)"
        elif listed is not None and listed.found:
            named = listed.found[: processes.MOST]
            self._info["processes"] = ", ".join(
                f"{p.pid}:{p.container[:12]}" if p.container else f"{p.pid}" for p in named
            )

    def _retired(self, nvml: Any, handle: Any, now: float, steady: float, facts: list[Fact]) -> None:
        wanted = [(RETIRED_SBE, 0), (RETIRED_DBE, 0), (RETIRED_PENDING, 0)]
        answers = self.asking.ask("retired_pages", lambda: values.ask(nvml, handle, wanted))
        if answers is None:
            self._kept["retired_pages"] = None
            return
        for code, _ in answers:
            if code:
                self.asking.failed("retired_pages", code)
        single, double, pending = (value for _, value in answers)
        count = single + double if single is not None and double is not None else None
        self._kept["retired_pages"] = count
        evidence: Evidence = {} if count is None else {"count": int(count)}
        state = None if pending is None else "pending" if pending else ""
        self._condition(conditions.RETIREMENT_PENDING, state, now, steady, facts, evidence)
        state = None if count is None else "full" if count >= MOST_RETIRED else ""
        self._condition(conditions.RETIREMENT_FULL, state, now, steady, facts, evidence)

    def _judge(self, numbers: dict[str, float | None], now: float, steady: float, facts: list[Fact]) -> None:
        for metric, condition in (
            ("remapped_rows_pending", conditions.ROW_REMAP_PENDING),
            ("remapped_rows_failed", conditions.ROW_REMAP_FAILED),
        ):
            value = numbers.get(metric)
            state = None if value is None else condition.name if value else ""
            self._condition(condition, state, now, steady, facts)
        number = numbers.get("recovery_action")
        if number is None:
            return
        action = int(number)
        severity, words = RECOVERY_ACTIONS.get(action, (Severity.ERROR, "investigate"))
        condition = conditions.Condition("recovery_action", "gpu_recovery_action", severity, words)
        evidence: Evidence = {"recovery_action": action}
        self._condition(condition, f"{action}" if action else "", now, steady, facts, evidence)

    def _ecc(
        self,
        nvml: Any,
        handle: Any,
        totals: dict[str, float | None],
        now: float,
        facts: list[Fact],
        *,
        slow: bool,
    ) -> None:
        moved = self._uncorrected.look(nvml, handle, self.asking, totals.get("ecc_uncorrected_rate"))
        if moved is not None:
            entry = catalogue.xids()[_ECC_XID]
            severity = Severity.WARNING if self._first else entry.severity or Severity.ERROR
            evidence: Evidence = {
                "location": ",".join(moved.places) or None,
                "count": moved.count,
                "aggregate": moved.aggregate,
                "action": entry.action,
                "scope": entry.scope,
            }
            if self._first:
                evidence["baseline"] = True
            when = f"{self._boot}/{moved.count}" if self._first else f"{now:.3f}"
            facts.append(self._fact(entry.fault, severity, now, f"uncorrected/{when}", evidence))
        if slow:
            moved = self._corrected.look(nvml, handle, self.asking, totals.get("ecc_corrected_rate"))
            if moved is not None:
                where = ",".join(moved.places) or "place unknown"
                self._info["ecc_corrected"] = f"{moved.count} lately in {where}; {moved.aggregate} over all boots"

    def _read_links(
        self, nvml: Any, handle: Any, now: float, steady: float, facts: list[Fact]
    ) -> dict[int, tuple[float | None, ...]]:
        rows: dict[int, tuple[float | None, ...]] = {}
        down = []
        rate = self._rates.rate
        for link in self._links.read(nvml, handle, self.asking):
            number, counts = link.number, link.counts
            rows[number] = (
                link.active,
                rate((number, 0), counts[0], steady),
                rate((number, 1), counts[1], steady),
                rate((number, 2), counts[2], steady),
            )
            if link.active:
                self._up.add(link.number)
            elif link.active == 0 and link.number in self._up:
                down.append(link.number)
        self.link_numbers = tuple(rows)
        if rows:
            # Only links that were up before: an unconnected one is down for ever and no fault.
            evidence: Evidence = {"nvlink": down[0], "links": ",".join(map(str, down))} if down else {}
            self._condition(conditions.LINKS_DOWN, ",".join(map(str, down)), now, steady, facts, evidence)
        return rows

    # -- facts

    def _condition(
        self,
        condition: conditions.Condition,
        state: str | None,
        now: float,
        steady: float,
        facts: list[Fact],
        evidence: Evidence | None = None,
    ) -> None:
        told = self._conditions.judge(
            condition,
            state,
            local=self.place.index,
            now=now,
            steady=steady,
            evidence={**self._who(), **(evidence or {})},
        )
        if told is not None:
            facts.append(told)

    def _back(self, now: float) -> list[Fact]:
        """A card that answers again after it was lost."""
        if not self._lost:
            return []
        fault, _ = codes.LOSSES.get(self._lost, ("gpu_lost", ""))
        evidence: Evidence = {"nvml": str(self._lost), "cleared": True, "action": "none"}
        self._lost = 0
        return [self._fact(fault, Severity.INFO, now, f"back/{now:.3f}", evidence)]

    def _who(self) -> Evidence:
        return {"source": "nvml", "pci": self.place.pci, "uuid": self.place.uuid}

    def _fact(self, fault: str, severity: Severity, now: float, key: str, evidence: Evidence) -> Fact:
        return Fact(
            key=f"nvml/{self.place.uuid}/{fault}/{key}",
            fault=fault,
            severity=severity,
            time=now,
            kind="gpu",
            local=self.place.index,
            origin=Origin.DRIVER,
            evidence={**self._who(), **evidence},
        )
