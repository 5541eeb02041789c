"""Where agents are killed: how everything looked before, and that nothing is left of a fault afterwards."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

import yaml
from kill_ground import NODE, Thing, links, rules
from lab.waiting import until

MARK = "GPUCHAOS_KILLED"
_AGENTS = ("gpuchaos_agent.agent", "gpuchaos_agent.deadman")


def seed(what: str) -> int:
    """Of this test's moments: GPUCHAOS_KILL_SEED or a new one; it is told."""
    drawn = int(os.environ.get("GPUCHAOS_KILL_SEED") or random.randrange(1 << 32))
    sys.stdout.write(f"GPUCHAOS_KILL_SEED={drawn}: {what}\n")
    return drawn


@dataclass(frozen=True)
class Kill:
    """One SIGKILL: what was aimed at, when, and what the journal and the world said right after it."""

    aim: str
    moment: str
    hit: str

    def __str__(self) -> str:
        return f"{self.aim:8} {self.moment:22} -> {self.hit}"


class Scene:
    """A thing, an agent's folder and settings, and the mark that all its processes bear in their environment."""

    def __init__(self, thing: Thing, folder: Path, **config: object) -> None:
        self.thing, self.folder = thing, folder
        self.mark = uuid.uuid4().hex
        self.kills: list[Kill] = []
        self.state = folder / "agent"
        self.state.mkdir()
        self.journal = self.state / "journal"
        file = folder / "agent.yaml"
        file.write_text(yaml.safe_dump({**thing.config, **config}))
        self.settings = ["--node", NODE, "--config", str(file), "--state-dir", str(self.state), *thing.options]
        self.before = self.look()

    def look(self) -> dict[str, object]:
        """All that must be after a kill as it was before the first one."""
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        return {
            "effect": self.thing.effect(),
            "rules": rules(),
            "links": links(),
            "mounts": sorted(line for line in mounts if str(self.folder) in line),
            "files": _files(self.thing.kept) if self.thing.kept else {},
        }

    def states(self) -> dict[str, str]:
        """The states of the journal's entries by fault, read as anybody would."""
        found = {}
        for path in self.journal.glob("*.json") if self.journal.is_dir() else ():
            with contextlib.suppress(FileNotFoundError):
                found[path.stem] = str(json.loads(path.read_text())["state"])
        return found

    def left(self) -> dict[int, str]:
        """What the agents have started and lives, but agents and their dead man's switches: pid → command line."""
        return {pid: words for pid, words in self.marked().items() if not any(name in words for name in _AGENTS)}

    def marked(self) -> dict[int, str]:
        """All processes that bear the mark: pid → command line."""
        found, wanted = {}, f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if wanted in (folder / "environ").read_bytes().split(b"\0"):
                    found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        return found

    def note(self, aim: str, moment: str, state: str | None) -> Kill:
        """What a kill has hit: of the fault's life in the journal's words, and of its effect as it looks."""
        if state == "injected":
            hit = {"undo": "in the undo", "restart": "in the restart's undo"}.get(aim, "while it stands")
        elif state == "planned":
            moved = self.left() or self.thing.effect() != self.before["effect"]
            hit = "in the effect's steps" if moved else "between journal and effect"
        else:
            hit = "after the undo" if state or aim in ("undo", "restart") else "before the journal"
        self.kills.append(Kill(aim, moment, hit))
        return self.kills[-1]

    def nothing_is_left(self, after: object) -> None:
        """Compares with before. A holder that was only just being started may live on for a moment."""
        try:
            until(lambda: not self.left())  # an agent that has just begun asks its tools what they can
        except TimeoutError:
            raise AssertionError(f"{after}: {self.left()}") from None
        states = self.states()
        assert set(states.values()) <= {"undone"}, f"{after}: the journal holds {states}"
        assert not (self.journal / "aside").exists(), f"{after}: the journal has unreadable entries"
        deadline = time.monotonic() + self.thing.still_s
        while True:
            now = self.look()
            wrong = {name: (was, now[name]) for name, was in self.before.items() if now[name] != was}
            assert not wrong, f"{after}: {wrong}"
            if time.monotonic() >= deadline:
                break
            time.sleep(0.1)  # an order on its way would show within this time, and no sooner is it known not to

    def end(self) -> None:
        """Kills whatever a failed test has left."""
        for pid in self.marked():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def _files(folder: Path) -> dict[str, tuple[str, int, int, int]]:
    """Everything below: SHA-256 of the bytes, mode, owner, and for files the time of the last change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        stat, content = path.stat(), path.read_bytes() if path.is_file() else b""
        changed = stat.st_mtime_ns if path.is_file() else 0
        found[str(path)] = (hashlib.sha256(content).hexdigest(), stat.st_mode, stat.st_uid, changed)
    return found
