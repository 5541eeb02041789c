"""Run as a program: an agent's executor with its hands; it injects a real fault and kills itself (SIGKILL) at a step.

Arguments: state folder, pid of the victim, step, 0-based count of that step.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from agent_kit import CLUSTER, CONTROL, NODE, command, inject, signed

from gpuchaos_agent import clock
from gpuchaos_agent.believe import Believer
from gpuchaos_agent.executor import Executor
from gpuchaos_agent.hands import Hands
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.process_stop import ProcessStop
from gpuchaos_agent.journal import Journal
from gpuchaos_agent.nonces import Seen
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.signing import KeyRing, Verifier

_DEADLINE_S = 20.0
STEPS = [
    ("before Seen.add", 0),
    ("after Seen.add", 0),
    ("before Journal.write", 0),
    ("after Journal.write", 0),
    ("before ProcessStop.inject", 0),
    ("after ProcessStop.inject", 0),
    ("after ProcessStop.evidence", 0),
    ("after Journal.write", 1),
    ("before ProcessStop.undo", 0),
    ("after ProcessStop.undo", 0),
    ("before Journal.write", 2),
    ("after Journal.write", 2),
]


def main() -> None:
    folder, victim, step, count = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
    left = [count]

    def dying(kind: type, name: str) -> None:
        was: Callable[..., Any] = getattr(kind, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            die_at(f"before {kind.__name__}.{name}")
            result = was(*args, **kwargs)
            die_at(f"after {kind.__name__}.{name}")
            return result

        setattr(kind, name, wrapped)

    def die_at(here: str) -> None:
        if here == step:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1

    for kind, name in ((Seen, "add"), (Journal, "write"), *((ProcessStop, n) for n in ("inject", "evidence", "undo"))):
        dying(kind, name)
    at = clock.now()
    said = {phase: threading.Event() for phase in FaultPhase}
    executor = Executor(
        cluster=CLUSTER,
        node=NODE,
        boot_id=clock.boot_id(),
        strategies={"process-stop": ProcessStop(Env(node=NODE, boot_id=clock.boot_id(), job_of=lambda _pid: "llama"))},
        journal=Journal(folder / "journal"),
        seen=Seen(folder / "seen.jsonl", now=at.wall),
        believer=Believer(Verifier(KeyRing(keys=(CONTROL.trusted(),)))),
        emit=lambda event, _trace: said[event.phase].set(),
        clock=clock.now,
    )
    hands = Hands(executor, cluster=CLUSTER, node=NODE, interval_s=_DEADLINE_S)
    hands.start()
    hands.give(signed(inject(at.wall, fault="process-stop", entity=f"process/{NODE}/{victim}")), None)
    said[FaultPhase.INJECTED].wait(_DEADLINE_S)
    hands.give(signed(command(CommandKind.HALT, at.wall, experiment_id="e1")), None)
    said[FaultPhase.UNDONE].wait(_DEADLINE_S)


if __name__ == "__main__":
    main()
