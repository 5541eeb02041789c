"""The dead man's switch: a second process that takes faults back when the agent cannot.

It holds one end of a pipe; when the agent ends, by whatever signal, the pipe does, and everything that the
journal holds is undone. While the agent lives but hangs, faults whose lease has run out are undone all the same.
It does nothing else, so that nothing else can stop it.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

import structlog

from gpuchaos_agent import clock, offline
from gpuchaos_agent.inject import registry
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.journal import Journal
from gpuchaos_stream.observe import logs

_log = structlog.get_logger(__name__)

#: Of a check interval: how long after the end of its lease a fault is left to the agent, and between two looks.
_HALF: Final = 0.5


class DeadMan:
    """The switch as the agent sees it. `ensure` starts it, and again if it has ended."""

    def __init__(self, *, journal: Path, node: str, procfs: Path, kmsg: Path, interval_s: float) -> None:
        self._argv = [str(journal), node, str(procfs), str(kmsg), str(interval_s)]
        self._process: subprocess.Popen[bytes] | None = None
        self.starts = 0

    @property
    def pid(self) -> int | None:
        """Its process id, None while it does not run."""
        return self._process.pid if self._process is not None and self._process.poll() is None else None

    def ensure(self) -> None:
        """Starts it unless it runs. In a session of its own: what is sent to the agent's group does not reach it."""
        if self.pid is not None:
            return
        self.release()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "gpuchaos_agent.deadman", *self._argv], stdin=subprocess.PIPE, start_new_session=True
        )
        self.starts += 1

    def release(self) -> None:
        """Lets go, as the agent's death would: it undoes what is left and ends."""
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()


def watch(journal: Journal, env: Env, interval_s: float, *, pipe: int) -> None:
    """Waits for the end of `pipe`, then undoes everything. See the module."""
    strategies = registry.build(env)
    while not _has_ended(pipe, _HALF * interval_s):
        at = clock.now()
        overdue = at.boot - _HALF * interval_s
        done, _ = offline.undo(
            journal,
            strategies,
            at,
            "lease expired; undone in the agent's place",
            only=lambda e, t=overdue: e.boot_id != env.boot_id or e.lease_deadline < t,  # type: ignore[misc]
        )
        for item in done:
            _log.warning("undone in the agent's place", fault_id=item.entry.fault_id, problem=item.problem)
    while True:  # until nothing is left, or the next agent has taken it back
        try:
            done, _ = offline.undo(journal, strategies, clock.now(), "agent ended")
        except OSError as error:
            _log.error("the journal cannot be read", error=str(error))
            return
        for item in done:
            _log.warning("undone after the agent's end", fault_id=item.entry.fault_id, problem=item.problem)
        if all(item.problem is None for item in done):
            return
        time.sleep(max(interval_s, 1.0))


def _has_ended(pipe: int, interval_s: float) -> bool:
    readable, _, _ = select.select([pipe], [], [], interval_s)
    return bool(readable) and not os.read(pipe, 4096)


def main() -> None:
    """Arguments: journal folder, node, procfs, kernel log, check interval in seconds. The pipe is standard input."""
    folder, node, procfs, kmsg, interval_s = sys.argv[1:6]
    logs.configure()
    structlog.contextvars.bind_contextvars(node=node)
    env = Env(node=node, boot_id=clock.boot_id(Path(procfs)), procfs=Path(procfs), kmsg=Path(kmsg))
    watch(Journal(Path(folder)), env, float(interval_s), pipe=sys.stdin.fileno())


if __name__ == "__main__":
    main()
