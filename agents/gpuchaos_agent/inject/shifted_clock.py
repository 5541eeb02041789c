"""The clock of one process, days off: every certificate is expired, or not yet valid, as that process sees it.

A running process's clock cannot be shifted from outside: Linux's time namespaces leave the wall clock alone
(time_namespaces(7)) and are joined at fork. So only a process that was **started** under libfaketime with a file for
its offset (`FAKETIME_TIMESTAMP_FILE`, `FAKETIME_NO_CACHE=1`) can suffer this; any other one is refused. The offset
file is all that changes, and the process reads it at each look at the clock.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import certificate_file, file_systems, reload, tools
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.journal import JournalEntry, Scalar

_LIBRARY: Final = "libfaketime"
_FILE: Final = "FAKETIME_TIMESTAMP_FILE"
_DAY_S: Final = 86400.0
#: Offset files are a line.
_MOST: Final = 4096
_PROBE_S: Final = 5.0


def unfit(env: Env, pidfile: Path) -> str | None:
    """Why the process's clock cannot be shifted, or None. Changes nothing."""
    try:
        planned(env, pidfile, 0.0, "check")
    except InjectError as error:
        return str(error)
    return tools.missing("date")


def planned(env: Env, pidfile: Path, shift_days: float, fault_id: str) -> Payload:
    """The offset file, what it holds now, and what it will hold.

    Raises:
        InjectError: there is no such process, or it does not run under libfaketime in the way that is needed.
    """
    pid = reload.process(pidfile)
    if pid is None or not (env.procfs / str(pid)).exists():
        raise InjectError(f"{pidfile} names no process")
    try:
        words = (env.procfs / str(pid) / "environ").read_bytes().split(b"\0")
        maps = (env.procfs / str(pid) / "maps").read_text().splitlines()
    except OSError as error:
        raise InjectError(f"process {pid} cannot be inspected: {error.strerror}") from None
    environ = dict(word.decode(errors="replace").partition("=")[::2] for word in words if b"=" in word)
    library = next((line.split()[-1] for line in maps if _LIBRARY in line), None)
    file = environ.get(_FILE)
    if library is None or file is None or environ.get("FAKETIME_NO_CACHE") != "1":
        raise InjectError(
            f"process {pid} was not started under libfaketime with {_FILE} and FAKETIME_NO_CACHE=1, "
            "and the clock of a running process cannot be shifted from outside"
        )
    path = Path(file).resolve()
    reason = certificate_file.unfit(path)
    if reason is not None:
        raise InjectError(reason)
    before = _read(path)
    if _offset_s(library, path) is None or abs(_offset_s(library, path) or 0.0) > 60:
        raise InjectError(f"the clock under {path} is not right as it is ({before.strip()!r})")
    return {
        "pid": pid,
        "library": library,
        "offset_file": str(path),
        "fresh": str(path.with_name(f".{path.name}.{fault_id}")),
        "before": before,
        "mtime_ns": path.stat().st_mtime_ns,
        **file_systems.planned(path.parent, env),
        "after": f"{shift_days:+g}d\n",
        "shift_s": shift_days * _DAY_S,
    }


def shift(payload: Payload) -> None:
    """Writes the offset.

    Raises:
        InjectError: the file was changed by somebody else, or cannot be written.
    """
    path = Path(str(payload["offset_file"]))
    if _read(path) != payload["before"]:
        raise InjectError(f"{path} was changed by somebody else a moment ago")
    certificate_file.replace(path, str(payload["after"]).encode(), fresh=Path(str(payload["fresh"])))


def evidence(payload: Payload) -> Evidence:
    """A process of ours under the same library and the same file: what it takes for now, against what is now."""
    offset = _offset_s(str(payload["library"]), Path(str(payload["offset_file"])))
    wanted = float(str(payload["shift_s"]))
    moved = offset is not None and abs(offset - wanted) < 60 and Path(f"/proc/{payload['pid']}").exists()
    return Evidence(moved, {"clock_off_s": offset, "pid": payload.get("pid"), "measured_by": "a process under it"})


def restore(entry: JournalEntry, env: Env) -> None:
    """Puts the line back, unless somebody wrote another one since.

    Raises:
        InjectError: the file cannot be written, or its filesystem is not here.
    """
    payload = entry.payload
    path = Path(str(payload["offset_file"]))
    if not file_systems.holds(path.parent, entry, env):
        return
    Path(str(payload["fresh"])).unlink(missing_ok=True)
    if path.exists() and _read(path) == payload["after"]:
        mtime_ns = payload.get("mtime_ns")
        certificate_file.replace(
            path,
            str(payload["before"]).encode(),
            fresh=Path(str(payload["fresh"])),
            mtime_ns=mtime_ns if isinstance(mtime_ns, int) else None,
        )


def is_gone(entry: JournalEntry, env: Env) -> bool:
    """The offset is not ours any more."""
    payload = entry.payload
    path = Path(str(payload["offset_file"]))
    return not file_systems.holds(path.parent, entry, env) or not path.exists() or _read(path) != payload["after"]


def typed(payload: Mapping[str, Scalar]) -> tuple[str, ...]:
    """As a person would type it."""
    file = shlex.quote(str(payload.get("offset_file")))
    return tuple(f"echo {shlex.quote(str(payload.get(name)).strip())} > {file}" for name in ("after", "before"))


def _offset_s(library: str, file: Path) -> float | None:
    """How far the clock of a process under the library is off, seconds; None where none can be started."""
    date = tools.find("date")
    if date is None:
        return None
    environ = {**os.environ, "LD_PRELOAD": library, _FILE: str(file), "FAKETIME_NO_CACHE": "1"}
    try:
        said = subprocess.run(
            [date, "+%s"], env=environ, capture_output=True, text=True, timeout=_PROBE_S, check=True
        ).stdout
        return round(float(said) - time.time(), 1)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _read(path: Path) -> str:
    try:
        with path.open() as file:
            return file.read(_MOST)
    except (OSError, UnicodeDecodeError) as error:
        raise InjectError(f"{path} cannot be read: {error}") from None
