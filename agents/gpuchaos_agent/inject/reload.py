"""How a service is made to read its files again: a signal that it catches, or a command from the agent's settings."""

from __future__ import annotations

import os
import shlex
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Final, Literal

from gpuchaos_agent.inject import tools
from gpuchaos_agent.inject.base import Env, InjectError, Payload
from gpuchaos_agent.journal import Scalar
from gpuchaos_agent.kernelfs.processes import process_stat

How = Literal["none", "signal", "command"]
Signal = Literal["HUP", "USR1", "USR2"]

#: A reload may take this long, seconds.
_COMMAND_S: Final = 10.0


def process(pidfile: Path) -> int | None:
    """The pid in the file, None where there is none."""
    try:
        pid = int(pidfile.read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return pid if pid > 1 else None


def unfit(env: Env, *, how: How, pidfile: str | None, name: Signal, command: str | None) -> str | None:
    """Why the service could not be told, or None. Changes nothing."""
    if how == "command":
        known = ", ".join(sorted(env.reload_commands)) or "none"
        return None if command in env.reload_commands else f"the agent's reload_commands are {known}, not {command}"
    if how == "none":
        return None
    pid = process(Path(str(pidfile)))
    stat = process_stat(env.procfs, pid) if pid is not None else None
    if pid is None or stat is None:
        return f"{pidfile} names no process"
    if pid == os.getpid() or stat.comm in env.protected:
        return f"process {pid} ({stat.comm}) is protected"
    return None if catches(env.procfs, pid, name) else _would_end(pid, stat.comm, name)


def planned(env: Env, *, how: How, pidfile: str | None, name: Signal, command: str | None) -> Payload:
    """What `tell` needs, as a journal keeps it."""
    argv = env.reload_commands.get(command or "", ()) if how == "command" else ()
    return {"reload": how, "pidfile": pidfile, "signal": name, "reload_argv": shlex.join(argv) or None}


def tell(payload: Mapping[str, Scalar], procfs: Path) -> None:
    """Tells it. A service that does not run needs none: it reads its files when it starts.

    Raises:
        InjectError: the command failed, or the process would be ended by the signal.
    """
    if payload.get("reload") == "command":
        tools.run(shlex.split(str(payload.get("reload_argv"))), timeout_s=_COMMAND_S)
        return
    if payload.get("reload") != "signal":
        return
    pid, name = process(Path(str(payload.get("pidfile")))), str(payload.get("signal"))
    stat = process_stat(procfs, pid) if pid is not None else None
    if pid is None or stat is None or stat.state in "ZX":
        return
    if not catches(procfs, pid, name):
        raise InjectError(_would_end(pid, stat.comm, name))
    try:
        os.kill(pid, signal.Signals[f"SIG{name}"])
    except ProcessLookupError:
        return
    except OSError as error:
        raise InjectError(f"SIG{name} to process {pid}: {error.strerror}") from None


def typed(payload: Mapping[str, Scalar]) -> tuple[str, ...]:
    """As a person would type it."""
    if payload.get("reload") == "command":
        return (str(payload.get("reload_argv")),)
    if payload.get("reload") == "signal":
        return (f"kill -{payload.get('signal')} $(cat {shlex.quote(str(payload.get('pidfile')))})",)
    return ()


def catches(procfs: Path, pid: int, name: str) -> bool:
    """Whether the process has a handler for the signal (SigCgt of /proc/PID/status): without, it would be ended."""
    try:
        status = (procfs / str(pid) / "status").read_text()
    except OSError:
        return False
    caught = next((line.split()[1] for line in status.splitlines() if line.startswith("SigCgt:")), "0")
    return bool(int(caught, 16) >> (signal.Signals[f"SIG{name}"] - 1) & 1)


def _would_end(pid: int, comm: str, name: str) -> str:
    return f"process {pid} ({comm}) does not catch SIG{name}: it would be ended, or pay no heed"
