"""The kernel log, followed: every record once, over restarts of the agent, and as soon as it is there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect.base import Evidence, Fact, Reading, Sources
from gpuchaos_agent.kernelfs import files, quiet
from gpuchaos_agent.logs.device import DeviceSource
from gpuchaos_agent.logs.journalctl import JournalSource
from gpuchaos_agent.logs.kernel_source import KernelSource, Sourced
from gpuchaos_agent.logs.record import Writer
from gpuchaos_agent.logs.syslog_source import SyslogSource
from gpuchaos_agent.story.facts import fact_of
from gpuchaos_agent.story.hear import Heard, hear
from gpuchaos_agent.story.story import Story
from gpuchaos_agent.words import registry
from gpuchaos_agent.words.base import Finding
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.frame import Kind

#: Name of the fact that records were overwritten before anybody read them.
GAP: Final = "kernel_log_gap"
#: Where other distributions keep what Debian's keep in /var/log/syslog.
MESSAGES: Final = Path("/var/log/messages")
#: The position is written this often while no fact is under way, seconds: what is read again after a kill is noise.
SAVE_EVERY_S: Final = 5.0


class KernelLogCollector:
    """Follows the first of `ways` that can be read; when one closes, the next is tried."""

    name = "kernel_log"
    kinds: tuple[Kind, ...] = ()
    ORDER = 60

    def __init__(self, ways: Sequence[KernelSource]) -> None:
        self._ways = tuple(ways)
        self._way: KernelSource | None = None
        self._story = Story()
        self._in_flight = False
        self._saved: float | None = None
        self._bell: int | None = None
        self._open()

    @classmethod
    def from_sources(cls, sources: Sources) -> KernelLogCollector:
        """The collector of these roots; the boot id is the kernel's own."""
        made = _ways(sources)
        names = _auto(sources) if sources.kernel_log == "auto" else (sources.kernel_log,)
        return cls([made[name]() for name in names])

    def fileno(self) -> int | None:
        """The device's descriptor or the journal's pipe; for a file one that rings while there is more to read."""
        way = self._way
        if way is None:
            return None
        found = way.fileno()
        if found is None:
            if self._bell is None:
                self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            found = self._bell
        return found

    def read(self, now: float) -> Reading:
        """The facts since the last call, and where in the log we are."""
        facts = self.drain(now)
        self._story.ended(now)
        way = self._way
        if way is None:
            return Reading(absent={self.name: "; ".join(one.problem for one in self._ways)}, facts=facts)
        absent: dict[str, str] = {}
        if not self._in_flight and (self._saved is None or not 0 <= now - self._saved < SAVE_EVERY_S):
            absent = self._save_or_say(way)
            self._saved = None if absent else now
        return Reading(
            facts=facts, absent=absent, info={"way": way.name, **way.info(), "repeats": self._story.held_back}
        )

    def drain(self, now: float) -> tuple[Fact, ...]:
        """Reads what is there, never waits; bounded, and where more is left the descriptor says so."""
        way = self._way or self._open()
        if way is None:
            return ()
        if self._bell is not None:
            with contextlib.suppress(BlockingIOError):
                os.eventfd_read(self._bell)
        facts = [fact for sourced in way.records(now) if (fact := self._fact(sourced, way.name, now)) is not None]
        if self._bell is not None and way.behind:
            os.eventfd_write(self._bell, 1)
        if way.problem:
            self._open()
        self._in_flight = self._in_flight or bool(facts)
        return tuple(facts)

    def commit(self) -> None:
        """Saves the position: the facts handed out are safe. Without facts under way `read` does it itself.

        Raises:
            OSError: it cannot be written.
        """
        self._in_flight = False
        if self._way is not None:
            self._way.save()

    def close(self) -> None:
        """Closes the log."""
        for way in self._ways:
            way.close()
        self._way = None
        if self._bell is not None:
            os.close(self._bell)
            self._bell = None

    def _open(self) -> KernelSource | None:
        """The first way that can be read, beginning with the one in use; None where there is none."""
        kept = [self._way] if self._way is not None else []
        self._way = next((way for way in (*kept, *self._ways) if way.open()), None)
        return self._way

    def _save_or_say(self, way: KernelSource) -> dict[str, str]:
        try:
            way.save()
        except OSError as error:
            return {f"{self.name}.position": f"cannot be kept: {os.strerror(error.errno or 0)}"}
        return {}

    def _fact(self, sourced: Sourced, way: str, now: float) -> Fact | None:
        record = sourced.record
        if sourced.lost:
            heard: Heard | None = _gap(sourced.lost)
        else:
            if record.writer is Writer.KERNEL:
                quiet.heard(record.text, os.getpid())
            heard = hear(record)
        if heard is None:
            return None
        when = now if record.time is None else record.time
        event = self._story.tell(
            heard.finding,
            key=sourced.key,
            time=when,
            writer=Writer.KERNEL if sourced.lost else record.writer,
            injected_mark=heard.injected_mark,
        )
        if event is None:
            return None
        more: Evidence = {"source": way, "seq": record.seq, "facility": record.facility, "level": record.level}
        more["kernel_device"] = record.tags.get("DEVICE", "")[:64] or None
        return fact_of(
            event, key=sourced.key, time=when, more={name: value for name, value in more.items() if value is not None}
        )


def _gap(lost: int) -> Heard:
    return Heard(Finding(GAP, Severity.WARNING, evidence={"count": lost, "action": "look_at_other_logs"}))


def _auto(sources: Sources) -> tuple[str, ...]:
    """What is tried, in order. Where paths were set they stand for another machine than this one, or for a part of
    it, and then this one's journal and files are not asked instead.
    """
    usual = Sources()
    ours = sources.kmsg == usual.kmsg
    return ("kmsg", *(("journal",) if ours else ()), *(("syslog",) if ours or sources.syslog != usual.syslog else ()))


def _ways(sources: Sources) -> dict[str, Callable[[], KernelSource]]:
    """How each way is made."""
    hints = (*registry.hints(Writer.KERNEL), quiet.HINT)
    folder = sources.state_dir

    def device() -> KernelSource:
        boot = files.text(sources.procfs / "sys/kernel/random/boot_id") or "unknown"
        return DeviceSource(sources.kmsg, boot_id=boot, hints=hints, state=folder and folder / "kmsg.json")

    def journal() -> KernelSource:
        return JournalSource(hints=hints, state=folder and folder / "journal.json")

    def syslog() -> KernelSource:
        fallback = (MESSAGES,) if sources.syslog == Sources().syslog else ()
        return SyslogSource((sources.syslog, *fallback), hints=hints, state=folder and folder / "syslog.json")

    return {"kmsg": device, "journal": journal, "syslog": syslog}


COLLECTOR = KernelLogCollector
