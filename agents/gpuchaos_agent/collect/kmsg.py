"""The kernel log, followed: every record once, over restarts of the agent, and as soon as it is there."""

from __future__ import annotations

import errno
import json
import os
import stat
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect import files
from gpuchaos_agent.collect.base import Fact, Reading, Sources
from gpuchaos_agent.collect.framing import Framer, LogRecord
from gpuchaos_agent.collect.messages import Message, read_message
from gpuchaos_agent.collect.repeats import Repeats
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.frame import Kind

#: A read with less room than the record gives EINVAL; this is the kernel's CONSOLE_EXT_LOG_MAX, bytes.
BUFFER: Final = 8192
#: Reads per call, so that a flood does not keep the agent from its other work; the rest comes next time.
READS_PER_CALL: Final = 2000


class KmsgCollector:
    """Follows `path`. `state` is the file that keeps boot id and sequence number, None to keep nothing.

    The first start ever begins at the log's end (`from_start`: at its beginning); a later one where the last
    `commit` was, and after a reboot at the log's beginning.
    `monotonic` gives seconds on the clock of the records (CLOCK_MONOTONIC).
    """

    name = "kmsg"
    kinds: tuple[Kind, ...] = ()

    def __init__(
        self,
        path: Path,
        *,
        boot_id: str,
        state: Path | None = None,
        from_start: bool = False,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._boot = boot_id
        self._state = state
        self._from_start = from_start
        self._monotonic = monotonic
        self._framer = Framer()
        self._repeats = Repeats()
        self._seq: int | None = None
        self._saved: int | None = None
        self._lost = 0
        self._in_flight = False
        self._fd: int | None = None
        self._is_file = False
        self._absent = ""
        self._open()

    @classmethod
    def from_sources(cls, sources: Sources) -> KmsgCollector:
        """The collector of these roots; the boot id is the kernel's own."""
        boot = files.text(sources.procfs / "sys/kernel/random/boot_id") or "unknown"
        state = None if sources.state_dir is None else sources.state_dir / "kmsg.json"
        return cls(sources.kmsg, boot_id=boot, state=state)

    def fileno(self) -> int | None:
        """The device's descriptor; None where it is absent or a regular file, which cannot be waited on."""
        return None if self._is_file else self._fd

    def read(self, now: float) -> Reading:
        """The facts since the last call, and where in the log we are."""
        if self._fd is None:
            self._open()
        facts = self.drain(now)
        if self._fd is None:
            return Reading(absent={self.name: self._absent}, facts=facts)
        absent = {} if self._in_flight else self._save_or_say()
        info: dict[str, str | int | float] = {
            "boot_id": self._boot,
            "position": -1 if self._seq is None else self._seq,
            "lost": self._lost,
            "unreadable": self._framer.bad,
            "repeats": self._repeats.held_back,
        }
        return Reading(facts=facts, absent=absent, info=info)

    def drain(self, now: float) -> tuple[Fact, ...]:
        """Reads what is there, never waits. Times are taken from the records' own clock against `now`."""
        if self._fd is None:
            return ()
        # Taken anew for each batch, so that a step of the wall clock does not stay in all later records.
        booted = now - self._monotonic()
        facts: list[Fact] = []
        for record in self._records(self._fd):
            fact = self._fact(record, booted, now)
            if fact is not None:
                facts.append(fact)
        self._in_flight = self._in_flight or bool(facts)
        return tuple(facts)

    def commit(self) -> None:
        """Saves the position: the facts handed out are safe. Without facts under way `read` does it itself.

        Raises:
            OSError: it cannot be written.
        """
        self._in_flight = False
        self._save()

    def _save(self) -> None:
        """Written whole beside and moved over, so that a crash leaves the old one."""
        if self._state is None or self._seq is None or self._seq == self._saved:
            return
        self._state.parent.mkdir(parents=True, exist_ok=True)
        fresh = self._state.with_suffix(".new")
        fresh.write_text(json.dumps({"boot_id": self._boot, "seq": self._seq}))
        fresh.replace(self._state)
        self._saved = self._seq

    def _save_or_say(self) -> dict[str, str]:
        try:
            self._save()
        except OSError as error:
            return {"kmsg.position": f"cannot be kept in {self._state}: {os.strerror(error.errno or 0)}"}
        return {}

    def close(self) -> None:
        """Closes the log."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            needs = "; it needs root or CAP_SYSLOG" if error.errno in {errno.EPERM, errno.EACCES} else ""
            self._absent = f"{self._path}: {os.strerror(error.errno or 0)}{needs}"
            return
        self._is_file = stat.S_ISREG(os.fstat(self._fd).st_mode)
        if self._seq is not None:
            return  # reopened: the records up to our position are skipped by their numbers
        kept = self._kept()
        if kept is None:
            if not self._from_start:
                self._skip()
        elif kept[0] == self._boot:
            self._seq = self._saved = kept[1]

    def _kept(self) -> tuple[str, int] | None:
        """Boot id and sequence number of the last `commit`; None at the first start ever, or if unreadable."""
        if self._state is None:
            return None
        try:
            raw = json.loads(self._state.read_text())
            return str(raw["boot_id"]), int(raw["seq"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _skip(self) -> None:
        """Goes to the end, record by record: a seek would leave the position unknown until the next record, and
        a kill before that would make the next start a first one again.
        """
        while self._fd is not None and self._records(self._fd):
            pass
        self._lost = 0

    def _records(self, fd: int) -> list[LogRecord]:
        found: list[LogRecord] = []
        for _ in range(READS_PER_CALL):
            try:
                data = os.read(fd, BUFFER)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:  # overwritten before we came; the gap shows in the numbers
                    continue
                self._absent = f"{self._path}: {os.strerror(error.errno or 0)}"
                self.close()
                break
            if not data:
                break
            found += self._framer.feed(data)
            if not self._is_file:
                found += self._framer.flush()
        if self._is_file:
            found += self._framer.flush()
        return [record for record in found if self._is_new(record)]

    def _is_new(self, record: LogRecord) -> bool:
        if self._seq is not None:
            if record.seq <= self._seq:
                return False
            self._lost += record.seq - self._seq - 1
        self._seq = record.seq
        return True

    def _fact(self, record: LogRecord, booted: float, now: float) -> Fact | None:
        message = read_message(record.text, by_process=record.by_process)
        if message is None:
            return None
        finding = message.finding
        when = max(0.0, min(booted + record.usec / 1e6, now))
        code = finding.evidence.get("xid")
        held = self._repeats.passes(
            (finding.fault, finding.kind, finding.local, code, record.by_process, message.fault_id), when
        )
        if held is None:
            return None
        fact = _to_fact(message, record, key=f"kmsg/{self._boot}/{record.seq}", when=when)
        if held:
            fact.evidence["repeats"] = held
        return fact


def _to_fact(message: Message, record: LogRecord, *, key: str, when: float) -> Fact:
    """A process that speaks in hardware's words is told as such; with our mark it is believed as a test."""
    finding = message.finding
    evidence = {**finding.evidence, "seq": record.seq, "facility": record.facility, "level": record.level}
    device = record.tags.get("DEVICE")
    if device:
        evidence["device"] = device[:64]
    fault, severity = finding.fault, finding.severity
    if message.fault_id is not None:
        evidence["fault_id"] = message.fault_id
    elif record.by_process:
        evidence |= {"claims": fault, "claims_severity": severity.value}
        fault, severity = "spoof_or_injected", Severity.WARNING
    return Fact(
        key=key,
        fault=fault,
        severity=severity,
        time=when,
        kind=finding.kind,
        local=finding.local,
        origin=Origin.PROCESS if record.by_process else Origin.KERNEL,
        injected_mark=message.fault_id is not None,
        evidence=evidence,
    )
