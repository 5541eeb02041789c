"""Agents to be killed: a process that has imported everything forks one for each request, and says when it ended.

Run as a program: a request is a line of JSON, the answer another. A forked agent is `gpuchaos-agent ARGUMENTS...`; it
spends no time in imports, so that a kill at a random moment hits what it does. With `die` it kills itself (SIGKILL) at
so many lines of the agent's own code after a step began: moments too short for a clock are hit like any other.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import gpuchaos_stream.stream.settings  # noqa: F401  (what the agent imports only when it needs it)
from gpuchaos_agent import agent
from gpuchaos_agent.inject import registry

#: The calls at which the count of lines begins anew; `inject` to `verify` are the strategy's own.
STEPS = ("write", "inject", "evidence", "undo", "verify")
START = "start"


class Steps:
    """Counts the lines of the agent's own code since each step, `write#2` for the second write of the journal."""

    def __init__(self, owners: set[str], die: tuple[str, int] | None) -> None:
        self.lines: dict[str, int] = {START: 0}
        self._current = START
        self._seen: Counter[str] = Counter()
        self._begins = {f"{owner}.{step}": step for owner in owners for step in STEPS[1:]} | {"Journal.write": "write"}
        self._die = die

    def __call__(self, frame: FrameType, event: str, _: Any) -> Any:
        if "gpuchaos_agent" not in frame.f_code.co_filename:
            return None
        step = self._begins.get(frame.f_code.co_qualname) if event == "call" else None
        if step is not None:
            self._seen[step] += 1
            self._current = f"{step}#{self._seen[step]}"
            self.lines.setdefault(self._current, 0)
        elif event == "line":
            self.lines[self._current] += 1
        if self._die is not None and (self._current, self.lines[self._current]) == self._die:
            os.kill(os.getpid(), signal.SIGKILL)
        return self


def _be(asked: dict[str, Any], owners: set[str]) -> None:
    """Never returns."""
    status = 1
    try:
        os.setsid()
        out = os.open(asked["out"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        for descriptor in (1, 2):
            os.dup2(out, descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        steps = Steps(owners, tuple(asked["die"]) if asked.get("die") else None)
        sys.argv = ["gpuchaos-agent", *asked["argv"]]
        if asked.get("die") or asked.get("lines"):
            sys.settrace(steps)
            threading.settrace(steps)  # an undo that might hang runs in a thread
        try:
            agent.main()
            status = 0
        except SystemExit as ended:
            status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        sys.settrace(None)
        if asked.get("lines"):
            Path(asked["lines"]).write_text(json.dumps(steps.lines))
    except BaseException:  # noqa: BLE001  (a fork must not go on as its parent)
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        os._exit(status)


def main() -> None:
    """Answers `{"argv": ..., "out": ...}` with a pid, and `{"wait": PID}` with its exit status."""
    owners = {made.__name__ for made in registry.strategies().values()}
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            answer = os.waitstatus_to_exitcode(os.waitpid(asked["wait"], 0)[1])
        else:
            answer = os.fork()
            if answer == 0:
                _be(asked, owners)
        sys.stdout.write(f"{answer}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
