"""Journals for tests: a `journalctl` that says what it is told to, and a real journald in a namespace of its own."""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuchaos_agent.logs.journalctl import JournalSource
from gpuchaos_agent.logs.kernel_source import KernelSource, Sourced

NOW = 1_770_000_000.0
XID = "NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def entry(number: int, text: str, at: float = NOW, **fields: Any) -> str:
    """One line of `journalctl -o json` about the kernel."""
    real = int(at * 1e6)
    known = {
        "__CURSOR": f"s=0a;i={number:x};b=0b;m=1;t={real:x};x=1",
        "__REALTIME_TIMESTAMP": str(real),
        "_TRANSPORT": "kernel",
        "SYSLOG_FACILITY": "0",
        "SYSLOG_IDENTIFIER": "kernel",
        "PRIORITY": "4",
        "MESSAGE": text,
    }
    return json.dumps(known | fields)


class Script:
    """A `journalctl` that notes how it was called, says what it is told to, and ends or waits."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "journalctl"
        self.calls = folder / "calls"
        self.calls.write_text("")
        journal = folder / "journal/machine/system.journal"
        journal.parent.mkdir(parents=True)
        journal.write_text("")
        self.folders = (folder / "journal",)

    def says(self, *lines: str, then: str = "exec sleep 60") -> None:
        said = "\n".join(lines)
        text = f"#!/bin/sh\necho \"$@\" >> '{self.calls}'\ncat <<'EOF'\n{said}\nEOF\n{then}\n"
        fresh = self.path.with_suffix(".new")
        fresh.write_text(text if lines else text.replace("cat <<'EOF'\n\nEOF\n", ""))
        fresh.chmod(0o755)
        fresh.replace(self.path)

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines()

    def source(self, clock: Clock | None = None, **fields: Any) -> JournalSource:
        return JournalSource(
            command=(str(self.path),),
            folders=self.folders,
            monotonic=clock or Clock(),
            wall=fields.pop("wall", lambda: NOW - 3600.0),
            **fields,
        )


def until(source: KernelSource, count: int) -> list[Sourced]:
    """The records of a source once there are `count`, or once it has ended."""
    found: list[Sourced] = []
    deadline = time.monotonic() + 20
    while len(found) < count and not source.problem:
        fd = source.fileno()
        assert fd is not None
        assert select.select([fd], [], [], deadline - time.monotonic())[0], "nothing came"
        found += source.records(NOW)
    return found


_DAEMON = Path("/usr/lib/systemd/systemd-journald")
#: /run is the given folder there; the daemon takes the place of the shell, so that ending one ends the other.
_START = 'mount --make-rprivate / && mount --bind "$1" /run && exec "$2"'


def needs_journald() -> None:
    if not _DAEMON.exists() or shutil.which("journalctl") is None or shutil.which("unshare") is None:
        pytest.skip("systemd-journald, journalctl or unshare is not there")
    if os.geteuid() != 0 or not os.access("/dev/kmsg", os.R_OK | os.W_OK):
        pytest.skip("a journald of our own needs root and /dev/kmsg")


def journalctl(folder: Path, *options: str) -> bytes:
    done = subprocess.run(
        ("journalctl", f"--directory={folder}", "--no-pager", "--quiet", "--all", *options),
        capture_output=True,
        check=False,
    )
    return done.stdout


@contextlib.contextmanager
def journald(run: Path) -> Iterator[Path]:
    """The folder of its journals, once it has read the kernel log."""
    needs_journald()
    folder = run / "log/journal"
    folder.mkdir(parents=True)
    (run / "systemd/journal").mkdir(parents=True)
    daemon = subprocess.Popen(
        ("unshare", "--mount", "sh", "-c", _START, "sh", str(run), str(_DAEMON)),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + 20
        mark = uuid.uuid4().hex
        Path("/dev/kmsg").write_text(f"<6>journald-kit: {mark} is the last record before a test of its own journal\n")
        while mark.encode() not in journalctl(folder, "--lines=20", "_TRANSPORT=kernel"):
            if daemon.poll() is not None or time.monotonic() > deadline:
                assert daemon.stderr is not None
                daemon.kill()
                pytest.skip(f"no journald can be run here: {daemon.stderr.read().decode()[-300:]}")
        yield folder
    finally:
        daemon.kill()
        daemon.communicate()
