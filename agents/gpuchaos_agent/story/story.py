"""`Story`: findings in, events out; several lines that are one event are told as one, and floods are counted.

Evidence has the same names everywhere, in facts and in what `read` prints:

- what and who: `xid`, `xids` ("48,63,94"), `sxid`, `pid`, `name` (a process), `comm`, `task`, `victim`, `scope`,
  `action`, `text` (at most 300 characters), `count`, `cleared`, `follows` with `follows_fault`
- GPU: `gpu_instance`, `compute_instance`, `gpu_index`, `partition`, `recovery_action`, `root_xid`, `pci_id`, `nvml`
- links: `nvlink`, `link`, `regs`, `peer`, `netdev`, `local`, `ib_status`, `vendor_err`
- host: `bdf`, `cpu`, `bank`, `dimm`, `ce_count`, `bits`, `reporter`, `watts`, `facility`, `member`, `constraint`
- storage, services: `server`, `path`, `errno`, `cause`, `broker`, `side`, `not_after`
- checkpoints: `checkpoint`, `file` (in it), `format`, `missing_bytes`
- jobs: `op`, `seq`, `ranks`, `last_completed`, `exitcode`, `local_rank`
"""

from __future__ import annotations

from collections import OrderedDict, deque
from dataclasses import dataclass, field, replace
from typing import Final

from gpuchaos_agent.logs.record import Writer
from gpuchaos_agent.story.chains import Causes, When
from gpuchaos_agent.words import registry
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.conclude import conclude
from gpuchaos_stream.events.base import Severity

#: Open events at most; the one that was added to longest ago is ended for a new one.
MOST_OPEN: Final = 1024
#: Findings of one event that are kept: the first half, the latest, and one of each conclusion in between.
MOST_PARTS: Final = 64
#: A flood is told again after `again_s`, then after twice that, and so on up to this many seconds.
LONGEST_AGAIN_S: Final = 60.0

#: Evidence that says which part it was: an event that gains some is told again, once.
NAMING: Final = ("cpu", "bank", "dimm", "pid", "port")

_ALONE: Final = Family("", gap_s=5.0)

#: Family, device (or what a finding without a family is), and whose: the writer, with the mark of an injection.
_Key = tuple[str, object, str]
_Sign = tuple[str, Severity, object, Part]


@dataclass(frozen=True, slots=True)
class Event:
    """One event as it is known now. `finding` is the conclusion from all that was found so far.

    `key` is that of the record that opened it; `first` and `last` are the earliest and the latest record's time
    (None where the log has none). `count` is how many records said it, details left out. `writer` wrote the
    first of them. `said` is how often it has been told, this time included.
    """

    finding: Finding
    key: str
    first: float | None
    last: float | None
    count: int
    writer: Writer
    injected_mark: bool = False
    said: int = 0


@dataclass(slots=True)
class _Open:
    """An event that may still grow."""

    family: Family
    realm: str
    key: str
    writer: Writer
    injected_mark: bool
    order: int
    parts: list[Finding] = field(default_factory=list)
    signs: dict[_Sign, int] = field(default_factory=dict)
    first: float | None = None
    last: float | None = None
    count: int = 0
    dropped: bool = False
    said: int = 0
    said_as: tuple[str, Severity, object] | None = None
    said_at: float | None = None
    said_names: frozenset[str] = frozenset()
    named_later: bool = False
    again_s: float = 0.0


class Story:
    """Joins findings to events. Pure: the time is that of the records, in any order; None where they have none.

    A new event is told at once, a conclusion that changed is told again, one that learns which part it was as well
    (`NAMING` or the device; once an event), and a flood now and then with its count; what is held back in between is
    in the next telling's `count`. Memory is bounded whatever comes.
    `held_back` counts findings that were not told; `forgotten` the ended events that nobody fetched in time.
    """

    def __init__(self, again_s: float = 5.0, *, most_open: int = MOST_OPEN) -> None:
        self._again_s = again_s
        self._most = most_open
        self._open: OrderedDict[_Key, _Open] = OrderedDict()
        self._silent: dict[_Key, None] = {}  # of those that are open, the ones of details alone
        self._done: deque[Event] = deque()
        self._standing: OrderedDict[_Key, Event] = OrderedDict()
        self._causes = Causes()
        self._earliest = float("-inf")
        self._order = 0
        self.held_back = 0
        self.forgotten = 0

    def tell(
        self, finding: Finding, *, key: str, time: float | None, writer: Writer, injected_mark: bool = False
    ) -> Event | None:
        """What to say now that this was found, None to say nothing.

        `key` names the record for good (boot id and number, file and offset); `time` is the record's, seconds.
        """
        self._order += 1
        whose = _whose(finding, writer)
        family = registry.families().get(finding.family, _ALONE)
        where = self._where(finding, family, whose, time)
        if finding.part is Part.CLEAR:
            return self._clear(where, finding, family, key, time, writer)
        open_ = self._joined(where, family, time)
        if open_ is None:
            open_ = self._opened(where, family, key, time, writer, injected_mark=injected_mark)
        elif finding.part is Part.FAULT and open_.count == 0:
            open_.key, open_.writer, open_.injected_mark = key, writer, injected_mark
            open_.order = self._order
        new_sign = _add(open_, finding, time)
        self._silent.pop(where, None)
        if open_.count == 0:  # details alone say nothing
            self._silent[where] = None  # put in anew: the latest stands last
            self.held_back += 1
            return None
        return self._said(open_, finding, time, new_sign=new_sign)

    def ended(self, time: float | None) -> list[Event]:
        """The events that ended before `time` because nothing joined them, and those ended since the last call."""
        if time is not None:
            self._sweep(time)
        return self._fetched()

    def close(self) -> list[Event]:
        """Ends everything, in the order in which it was last added to."""
        for where in list(self._open):
            self._end(where)
        return self._fetched()

    def _fetched(self) -> list[Event]:
        done = list(self._done)
        self._done.clear()
        return done

    def _sweep(self, time: float) -> None:
        """Ends what nothing can join any more at `time`; looks only if there may be such an event."""
        if time < self._earliest:
            return
        for where, open_ in list(self._open.items()):
            if open_.last is not None and open_.last + open_.family.gap_s < time:
                self._end(where)
        deadlines = (open_.last + open_.family.gap_s for open_ in self._open.values() if open_.last is not None)
        self._earliest = min(deadlines, default=float("inf"))

    def _where(self, finding: Finding, family: Family, whose: str, time: float | None) -> _Key:
        """The key of the event that the finding belongs to."""
        if not family.name:
            return "", _identity(finding), whose
        if family.any_device:
            return family.name, "", whose
        where = (family.name, finding.device, whose)
        if finding.part is Part.FAULT:
            return self._adopted(where, family, time)
        mine = self._open.get(where)
        if mine is not None and _fits(mine, family, time):
            return where
        # Without a name: to the latest. A detail with one: to its device's, or to what nobody gave a name.
        names = {finding.device, ""} if finding.part is Part.DETAIL else {finding.device}
        for other, open_ in reversed(self._open.items()):
            same = other[0] == family.name and (not finding.device or other[1] in names)
            if same and _may_join(other[2], whose, finding.part) and _fits(open_, family, time):
                return other
        return where

    def _adopted(self, where: _Key, family: Family, time: float | None) -> _Key:
        """Details before their fault: said of nobody (a banner), they go to the first fault that has a name;
        with a name, they give it to a fault without one.
        """
        mine = self._open.get(where)
        if mine is not None and _fits(mine, family, time):
            return where
        for other in reversed(self._silent):
            halves = other[0] == family.name and other[2] == where[2] and "" in {other[1], where[1]}
            if halves and _fits(self._open[other], family, time):
                if where[1]:
                    if mine is not None:
                        self._end(where)
                    self._open[where] = self._open.pop(other)
                    self._silent.pop(other)
                    return where
                return other
        return where

    def _joined(self, where: _Key, family: Family, time: float | None) -> _Open | None:
        open_ = self._open.get(where)
        if open_ is None:
            return None
        if not _fits(open_, family, time):
            self._end(where)
            return None
        self._open.move_to_end(where)
        return open_

    def _opened(
        self, where: _Key, family: Family, key: str, time: float | None, writer: Writer, *, injected_mark: bool
    ) -> _Open:
        open_ = _Open(family, _realm(where[2]), key, writer, injected_mark, self._order, again_s=self._again_s)
        open_.first = open_.last = time
        self._open[where] = open_
        self._standing.pop(where, None)
        if time is not None:
            self._earliest = min(self._earliest, time + family.gap_s)
            if len(self._open) > self._most:
                self._sweep(time)
        while len(self._open) > self._most:
            self._end(next(iter(self._open)))
        return open_

    def _said(self, open_: _Open, finding: Finding, time: float | None, *, new_sign: bool) -> Event | None:
        due = _is_due(open_, time)
        if open_.dropped and not new_sign and not due:
            self.held_back += 1
            return None
        event = self._event(open_)
        said_as = (event.finding.fault, event.finding.severity, event.finding.evidence.get("action"))
        changed = said_as != open_.said_as
        nothing = event.finding.fault == NONE and open_.said == 0
        names = _names(event.finding)
        named = open_.said > 0 and not open_.named_later and not names <= open_.said_names
        if nothing or not (changed or named or (due and finding.part is Part.FAULT)):
            self.held_back += 1
            return None
        open_.named_later = open_.named_later or (named and not changed)
        open_.said_names |= names
        if not (changed or named):
            open_.again_s = min(2 * open_.again_s, max(LONGEST_AGAIN_S, self._again_s))
        open_.said, open_.said_as, open_.said_at = open_.said + 1, said_as, time
        self._causes.note(event.finding.fault, key=open_.key, when=When(time, self._order), realm=open_.realm)
        return replace(event, said=open_.said)

    def _clear(
        self, where: _Key, finding: Finding, family: Family, key: str, time: float | None, writer: Writer
    ) -> Event | None:
        open_ = self._joined(where, family, time)
        if open_ is not None:
            _add(open_, finding, time)
            event = self._end(where)
            self._standing.pop(where, None)
        else:
            standing = self._standing.pop(where, None)
            alone = replace(finding, evidence={**finding.evidence, "cleared": True})
            event = Event(alone, key, time, time, 1, writer)
            self._done.append(event)
            if standing is not None:
                named = {**alone.evidence, "clears": standing.key}
                alone = replace(alone, fault=standing.finding.fault, evidence=named)
                event = replace(event, finding=alone, said=standing.said, injected_mark=standing.injected_mark)
        self._bound()
        if event.said == 0:
            self.held_back += 1
            return None
        return replace(event, finding=replace(event.finding, severity=Severity.INFO), said=event.said + 1)

    def _end(self, where: _Key) -> Event:
        open_ = self._open.pop(where)
        self._silent.pop(where, None)
        event = self._event(open_)
        if open_.count or open_.parts[-1].part is Part.CLEAR:
            self._done.append(event)
        if open_.said and not event.finding.evidence.get("cleared"):
            self._standing[where] = event
        self._bound()
        return event

    def _event(self, open_: _Open) -> Event:
        made = (open_.family.conclude or conclude)(tuple(open_.parts))
        evidence = dict(made.evidence)
        if open_.count > 1 and (open_.family.conclude is None or "count" not in evidence):
            evidence["count"] = open_.count
        evidence |= self._causes.look(made.fault, key=open_.key, when=When(open_.first, open_.order), realm=open_.realm)
        finding = replace(made, evidence=evidence)
        first, last = open_.first, open_.last
        return Event(finding, open_.key, first, last, open_.count, open_.writer, open_.injected_mark, open_.said)

    def _bound(self) -> None:
        while len(self._standing) > self._most:
            self._standing.popitem(last=False)
        while len(self._done) > self._most:
            self._done.popleft()
            self.forgotten += 1


def _whose(finding: Finding, writer: Writer) -> str:
    """Records of different writers are different events: nobody but the kernel adds to what the kernel said."""
    if writer is Writer.INJECTED:
        return f"{writer.value} {finding.evidence.get('fault_id') or ''}"
    return writer.value


def _realm(whose: str) -> str:
    """What programs say may come of what the kernel says; an injected record is neither's cause."""
    return "" if whose in {Writer.KERNEL.value, Writer.PROGRAM.value} else whose


def _may_join(theirs: str, whose: str, part: Part) -> bool:
    """Details may come from a daemon that reads the same registers (mcelog); they never decide a severity."""
    plain = {Writer.KERNEL.value, Writer.PROGRAM.value}
    return theirs == whose or (part is Part.DETAIL and {theirs, whose} <= plain)


def _fits(open_: _Open, family: Family, time: float | None) -> bool:
    if time is None or open_.first is None or open_.last is None:
        return True
    return open_.first - family.gap_s <= time <= open_.last + family.gap_s


def _identity(finding: Finding) -> object:
    said = tuple(sorted((k, repr(v)) for k, v in finding.evidence.items() if k not in {"text", "count"}))
    return finding.fault, finding.severity, finding.kind, finding.local, finding.device, said


def _names(finding: Finding) -> frozenset[str]:
    """Which parts it names."""
    named = {name for name in NAMING if finding.evidence.get(name) not in {None, ""}}
    return frozenset({*named, "device"} if finding.device else named)


def _sign(finding: Finding) -> _Sign:
    return finding.fault, finding.severity, finding.evidence.get("action"), finding.part


def _add(open_: _Open, finding: Finding, time: float | None) -> bool:
    """Adds a part; true if its like was not there yet."""
    if time is not None:
        open_.first = time if open_.first is None else min(open_.first, time)
        open_.last = time if open_.last is None else max(open_.last, time)
    times = finding.evidence.get("count")
    many = times if isinstance(times, int) and times > 0 else 1
    if finding.part is Part.FAULT:
        open_.count += many
    sign = _sign(finding)
    new = sign not in open_.signs
    open_.signs[sign] = open_.signs.get(sign, 0) + 1
    open_.parts.append(finding)
    if len(open_.parts) > MOST_PARTS:
        _drop(open_)
    return new


def _drop(open_: _Open) -> None:
    """Takes one part out of the middle, if possible one that has its like among the others."""
    open_.dropped = True
    half = MOST_PARTS // 2
    out = next((n for n in range(half, MOST_PARTS) if open_.signs[_sign(open_.parts[n])] > 1), half)
    sign = _sign(open_.parts.pop(out))
    open_.signs[sign] -= 1
    if not open_.signs[sign]:
        del open_.signs[sign]


def _is_due(open_: _Open, time: float | None) -> bool:
    if time is None or open_.said_at is None:
        return False
    return time - open_.said_at >= open_.again_s
