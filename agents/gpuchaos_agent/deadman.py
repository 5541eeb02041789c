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
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import structlog

from gpuchaos_agent import clock, environment, offline, stack
from gpuchaos_agent.inject import registry
from gpuchaos_agent.inject.base import Env, FaultStrategy
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry
from gpuchaos_agent.notice import Notice
from gpuchaos_stream.observe import logs

_log = structlog.get_logger(__name__)

#: Of a check interval: how long after the end of its lease a fault is left to the agent, and between two looks.
_HALF: Final = 0.5
#: A fault whose injection is under way in an agent that lives is undone again after this, seconds, as long as it is.
AGAIN_S: Final = 5.0
#: While nothing stands and the kernel tells of each change of the journal, it is looked at this often, seconds.
IDLE_S: Final = 5.0


class DeadMan:
    """The switch as the agent sees it. `ensure` starts it, and again if it has ended."""

    def __init__(self, *, journal: Path, env: Env, interval_s: float) -> None:
        self._argv = [str(journal), environment.packed(env), str(interval_s)]
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

    def dismiss(self) -> None:
        """Ends it where nothing is left for it to do."""
        if self._process is not None:
            self._process.kill()
            self.release()
            self._process.wait()


def watch(journal: Journal, env: Env, interval_s: float, *, pipe: int) -> None:
    """Waits for the end of `pipe`, then undoes everything. See the module."""
    strategies = registry.build(env)
    notice = Notice(journal.folder)
    substitute = _Substitute(journal, strategies, env, _HALF * interval_s)
    stands = True
    while not _has_ended(pipe, notice, _HALF * interval_s if stands or notice.fileno() is None else IDLE_S):
        notice.take()  # before the look: what is written after it wakes us again
        stands = substitute.look()
    notice.close()
    undoer = offline.Undoer(journal, strategies)
    ours: frozenset[str] | None = None
    told: list[offline.Outcome] = []
    while True:  # until nothing is left, or the next agent has taken it back
        began = time.monotonic()
        try:
            left, _ = undoer.begin(
                clock.now(),
                "agent ended",
                # What comes later is the next agent's.
                only=lambda entry, ours=ours: ours is None or entry.fault_id in ours,  # type: ignore[misc]
                patience_s=stack.PATIENCE_S,
            )
        except OSError as error:
            _log.error("the journal cannot be read", error=str(error))
            return
        ours = ours or frozenset(entry.fault_id for entry in left)
        undoer.wait(max(interval_s, 1.0))
        done = undoer.take()
        told += done
        for item in done:
            _log.warning("undone after the agent's end", fault_id=item.entry.fault_id, problem=item.problem)
        if {entry.fault_id for entry in left} <= {item.entry.fault_id for item in done if item.problem is None}:
            _trace(told, env.node)
            return
        time.sleep(max(0.0, began + max(interval_s, 1.0) - time.monotonic()))


class _Substitute:
    """Takes back what is overdue by more than `grace_s` seconds while the agent lives, and lets nothing hold it up."""

    def __init__(self, journal: Journal, strategies: Mapping[str, FaultStrategy], env: Env, grace_s: float) -> None:
        self._undoer = offline.Undoer(journal, strategies)
        self._env = env
        self._grace_s = grace_s
        self._again_at: dict[str, float] = {}

    def look(self) -> bool:
        """One look; whether anything stands that has to be looked at again."""
        at = clock.now()
        standing: list[JournalEntry] = []

        def overdue(entry: JournalEntry) -> bool:
            standing.append(entry)
            elapsed = entry.boot_id != self._env.boot_id or entry.lease_deadline < at.boot - self._grace_s
            if not elapsed or at.boot < self._again_at.get(entry.fault_id, 0.0):
                return False
            if not _is_over(entry):
                self._again_at[entry.fault_id] = at.boot + AGAIN_S
            return True

        _, damaged = self._undoer.begin(at, "lease expired; undone in the agent's place", only=overdue, mark=_is_over)
        for item in self._undoer.take():
            _log.warning("undone in the agent's place", fault_id=item.entry.fault_id, problem=item.problem)
        return bool(standing or damaged)


def _trace(outcomes: Iterable[offline.Outcome], node: str) -> None:
    """Traces what was undone after the agent's end: the last that is done here, for it may take its time."""
    if not any(item.entry.traceparent for item in outcomes):
        return
    from gpuchaos_agent.traces import SERVICE, Traces  # noqa: PLC0415  (what may hold an undo up is not loaded before)
    from gpuchaos_stream.observe import tracing  # noqa: PLC0415

    tracing.configure(SERVICE, instance=node)
    Traces(cluster=None, node=node).undone(outcomes)
    tracing.close()


def _is_over(entry: JournalEntry) -> bool:
    """Whether an undo ends the fault. One that is only planned the agent may be bringing about this moment."""
    return entry.state is EntryState.INJECTED


def _has_ended(pipe: int, notice: Notice, timeout_s: float) -> bool:
    told = notice.fileno()
    readable, _, _ = select.select([pipe] if told is None else [pipe, told], [], [], timeout_s)
    return pipe in readable and not os.read(pipe, 4096)


def main() -> None:
    """Arguments: journal folder, environment (`environment.packed`), check interval in seconds; the pipe is stdin."""
    folder, text, interval_s = sys.argv[1:4]
    logs.configure()
    env = environment.unpacked(text)
    structlog.contextvars.bind_contextvars(node=env.node)
    watch(Journal(Path(folder)), env, float(interval_s), pipe=sys.stdin.fileno())


if __name__ == "__main__":
    main()
