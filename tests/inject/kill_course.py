"""One kill after another of `gpuchaos-agent inject`, at lines of its code and at moments of the clock."""

from __future__ import annotations

import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kill_ground import Thing
from kill_scene import MARK, Kill, Scene

#: How long a fault stands while nobody kills, seconds.
STANDS_S = 0.4
#: The same in the run that is measured, in which the effect is looked at while it stands.
_LOOKED_AT_S = 1.5
#: An agent or an undo may take so long: a controller whose orders may still be on their way takes a minute.
_ENDS_S = 100.0
#: What an agent keeps for itself in its folder, whatever it did.
_KEEPS = {"lock", "holders.log"}
#: What is aimed at → the steps (`kill_nursery`) in which a kill by lines may be.
STEPS = {
    "before": ("start",),
    "journal": ("write#1",),
    "effect": ("inject#1", "evidence#1", "write#2"),
    "undo": ("undo#1", "verify#1", "write#3"),
    "restart": ("undo#1", "verify#1", "write#1"),
}


class Nursery:
    """Forks agents (`kill_nursery`), and so on the host on which it was made. What they start bears the mark."""

    def __init__(self, mark: str) -> None:
        argv = [sys.executable, str(Path(__file__).with_name("kill_nursery.py"))]
        environment = {**os.environ, MARK: mark}
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.pid = self._process.pid

    def start(self, argv: list[str], out: Path, **more: Any) -> int:
        """`gpuchaos-agent ARGV...`: its pid. `more` is `die`, a step and a line, or `lines`, a file for all counts."""
        return self._ask({"argv": argv, "out": str(out), **more})

    def ended(self, pid: int, within_s: float = _ENDS_S) -> int:
        """Its exit status, once it has ended; one that does not is killed, and the test fails."""
        descriptor = os.pidfd_open(pid)
        try:
            late = not select.select([descriptor], [], [], within_s)[0]
        finally:
            os.close(descriptor)
        if late:
            os.kill(pid, signal.SIGKILL)
        status = self._ask({"wait": pid})
        assert not late, f"agent {pid} did not end within {within_s:g} s"
        return status

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()

    def _ask(self, asked: dict[str, Any]) -> int:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asked) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())


class Course(Scene):
    """The kills of one thing. `lines` and `seconds` are what a first run and a first undo took that nobody killed."""

    def __init__(self, fault: str, thing: Thing, folder: Path, chance: random.Random) -> None:
        super().__init__(thing, folder)
        self.chance = chance
        self.nursery = Nursery(self.mark)
        self.lines: dict[str, dict[str, int]] = {}
        self.seconds: dict[str, float] = {}
        self._out, self._lines = folder / "said", folder / "lines"
        params = [word for name, value in thing.params.items() for word in ("--param", f"{name}={value}")]
        self._argv = ["inject", fault, thing.target, *params, *self.settings]

    def left(self) -> dict[int, str]:
        """Forks bear no name of their own, and are waited for one by one."""
        return {pid: words for pid, words in super().left().items() if pid != self.nursery.pid}

    def nothing_is_left(self, after: object) -> None:
        """Of the fault, and of its files in the agent's folder; the undone entries are then forgotten."""
        super().nothing_is_left(after)
        files = {str(path.relative_to(self.state)) for path in self.state.rglob("*") if path.is_file()}
        strange = {name for name in files if not name.startswith("journal/") and name not in _KEEPS}
        assert not strange, f"{after}: {strange} in the agent's folder"
        for path in self.journal.glob("*.json"):
            path.unlink()

    def measure(self) -> None:
        """A whole run: what it takes, and that the fault is one."""
        began = time.monotonic()
        pid = self._inject(_LOOKED_AT_S, lines=str(self._lines))
        self.seconds["before"] = self._until(pid, self._is_journalled) - began
        self.seconds["effect"] = self._until(pid, self._stands) - began - self.seconds["before"]
        at = time.monotonic()
        effect = self.thing.effect()
        assert self.nursery.ended(pid) == 0, self._out.read_text()
        assert effect != self.before["effect"], f"no effect was seen: {self._out.read_text()}"
        self.seconds["stands"] = STANDS_S
        self.seconds["undo"] = time.monotonic() - at - _LOOKED_AT_S
        self.lines["inject"] = json.loads(self._lines.read_text())
        self.nothing_is_left("after a run that nobody killed")

    def measure_restart(self) -> None:
        """A whole undo of a fault that a killed agent has left: what it takes."""
        self._kill_while_it_stands()
        began = time.monotonic()
        assert self.nursery.ended(self._undo(lines=str(self._lines))) == 0, self._out.read_text()
        self.seconds["restart"] = time.monotonic() - began
        self.lines["undo"] = json.loads(self._lines.read_text())
        self.nothing_is_left("after an undo that nobody killed")

    def kill(self, aim: str, how: str) -> Kill:
        """Kills an agent in that phase, by `lines` or by the `clock`, starts it again, and compares."""
        moment, pid = (self._aimed_by_lines if how == "lines" else self._aimed_by_clock)(aim)
        self.nursery.ended(pid)
        killed = self.note(aim, moment, self._state())
        status = self.nursery.ended(self._undo())
        assert status == 0, f"{killed}: {self._out.read_text()}"
        self.nothing_is_left(killed)
        return killed

    def _aimed_by_lines(self, aim: str) -> tuple[str, int]:
        known = self.lines["undo" if aim == "restart" else "inject"]
        step = self.chance.choice([step for step in STEPS[aim] if known.get(step)])
        line = self.chance.randint(1, known[step])
        if aim == "restart":
            self._kill_while_it_stands()
            return f"{step} line {line}", self._undo(die=[step, line])
        return f"{step} line {line}", self._inject(die=[step, line])

    def _aimed_by_clock(self, aim: str) -> tuple[str, int]:
        after = self.chance.uniform(0.0, self.seconds[aim])
        if aim == "restart":
            self._kill_while_it_stands()
            pid = self._undo()
        else:
            pid = self._inject()
            if aim != "before":
                self._until(pid, self._is_journalled if aim == "effect" else self._stands)
        self._kill(pid, after + (STANDS_S if aim == "undo" else 0.0))
        return f"after {after * 1000:.1f} ms", pid

    def _kill_while_it_stands(self) -> None:
        after = self.chance.uniform(0.0, 0.5 * STANDS_S)
        pid = self._inject()
        self._until(pid, self._stands)
        self._kill(pid, after)
        self.nursery.ended(pid)
        self.note("stands", f"after {after * 1000:.1f} ms", self._state())

    def _kill(self, pid: int, after_s: float) -> None:
        time.sleep(after_s)  # the moment that was drawn
        os.kill(pid, signal.SIGKILL)

    def _inject(self, stands_s: float = STANDS_S, **more: Any) -> int:
        # Without the second process that would take the fault back: what the journal alone can do is tried.
        return self.nursery.start([*self._argv, "--seconds", str(stands_s), "--no-deadman"], self._out, **more)

    def _undo(self, **more: Any) -> int:
        return self.nursery.start(["undo", "--all", *self.settings], self._out, **more)

    def _state(self) -> str | None:
        """Of the only entry there is."""
        return next(iter(self.states().values()), None)

    def _is_journalled(self) -> bool:
        return self._state() is not None

    def _stands(self) -> bool:
        return self._state() == "injected"

    def _until(self, pid: int, true: Callable[[], bool]) -> float:
        """When it was so first."""
        deadline = time.monotonic() + _ENDS_S
        descriptor = os.pidfd_open(pid)
        try:
            while not true():
                over = select.select([descriptor], [], [], 0.0005)[0]
                assert not over or true(), f"the agent ended: {self._out.read_text()}"
                assert time.monotonic() < deadline
        finally:
            os.close(descriptor)
        return time.monotonic()


@contextmanager
def course(folder: Path, fault: str, thing: Thing, seed: int) -> Iterator[Course]:
    """The course of kills; its processes end with it."""
    made = Course(fault, thing, folder, random.Random(seed))
    try:
        yield made
    finally:
        made.nursery.close()
        made.end()
