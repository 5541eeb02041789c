"""Processes that hold a fault in place (a proxy, a watchdog), known for ever by pid **and** start time.

A holder is a session of its own: it outlives the agent, and is ended by the fault's undo from the journal alone. One
whose effect must not outlive everything has a bound of its own (`--until`), which it keeps itself.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.base import InjectError, Payload
from gpuchaos_agent.journal import JournalEntry
from gpuchaos_agent.kernelfs.processes import process_stat

_READY: Final = "ready"
_STEP_S: Final = 0.01
_DIES_S: Final = 1.0


def start(module: str, arguments: Sequence[str], *, log: Path, ready_s: float = 5.0) -> Payload:
    """Starts `python -m module arguments...`; returns what names it: `holder_pid`, `holder_start`.

    It must print `ready` on its standard output once it holds. What it says on standard error goes to `log`.

    Raises:
        InjectError: it ended, or did not say so within `ready_s`; it is gone then.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as complaints:
        child = subprocess.Popen(
            [sys.executable, "-m", module, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=complaints,
            start_new_session=True,
        )
    stat = process_stat(Path("/proc"), child.pid)
    if stat is None or not _says_ready(child, ready_s):
        child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(_DIES_S)  # one that waits in the kernel dies later
        words = log.read_text(errors="replace")[-300:].strip()
        raise InjectError(f"{module} did not come up: {words or 'it said nothing'}")
    return {"holder_pid": child.pid, "holder_start": stat.start}


def alive(payload: Payload | dict[str, object], procfs: Path = Path("/proc")) -> bool:
    """Whether the very process is there and not a zombie."""
    pid, began = payload.get("holder_pid"), payload.get("holder_start")
    stat = process_stat(procfs, pid) if isinstance(pid, int) else None
    return stat is not None and stat.start == began and stat.state not in "ZX"


def stop(entry: JournalEntry, boot_id: str, *, wait_s: float = 1.0) -> None:
    """Ends the holder of a journal entry, with SIGTERM and then SIGKILL; nothing where it is gone or of another boot.

    Raises:
        InjectError: it does not end.
    """
    if entry.boot_id == boot_id and isinstance(entry.payload.get("holder_pid"), int):
        _end(entry.payload, wait_s)


def marker(state_dir: Path, fault_id: str) -> str:
    """An argument by which the holders of a fault are found for as long as they live, whatever the journal knows."""
    return f"--holds={state_dir.absolute()}/{fault_id}"


def find(mark: str, procfs: Path = Path("/proc")) -> list[Payload]:
    """The processes that were started with `mark` among their arguments, as `alive` takes them."""
    wanted, found = mark.encode(), list[Payload]()
    for folder in procfs.iterdir():
        if not folder.name.isdecimal() or int(folder.name) == os.getpid():
            continue
        try:
            arguments = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        stat = process_stat(procfs, int(folder.name)) if wanted in arguments else None
        if stat is not None:
            found.append({"holder_pid": int(folder.name), "holder_start": stat.start})
    return found


def end(mark: str, *, wait_s: float = 1.0) -> None:
    """Ends every process that was started with `mark`, which has `wait_s` seconds; nothing where there is none.

    Raises:
        InjectError: one does not end.
    """
    for holder in find(mark):
        _end(holder, wait_s)


def _says_ready(child: subprocess.Popen[bytes], within_s: float) -> bool:
    if child.stdout is None:
        return False
    ready, _, _ = select.select([child.stdout], [], [], within_s)
    return bool(ready) and child.stdout.readline().strip() == _READY.encode()


def _end(holder: Payload, wait_s: float) -> None:
    pid = holder["holder_pid"]
    assert isinstance(pid, int)  # noqa: S101  (the callers have looked)
    for number in (signal.SIGTERM, signal.SIGKILL):
        if not alive(holder):
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
        deadline = time.monotonic() + wait_s
        while alive(holder) and time.monotonic() < deadline:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
            time.sleep(_STEP_S)
    if alive(holder):
        raise InjectError(f"the holder {pid} does not end")
