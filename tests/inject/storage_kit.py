"""What the tests of storage-disconnect share: a node, journal entries on disk, and filesystems of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from journal_entries import journalled
from lab.waiting import until

from gpuchaos_agent import clock
from gpuchaos_agent.inject import tools
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.storage_disconnect import StorageDisconnect
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry, Scalar

NODE = "n1"
TARGET = f"node/{NODE}"


def strategy(state: Path, **fields: object) -> StorageDisconnect:
    return StorageDisconnect(Env(node=NODE, boot_id=clock.boot_id(), state_dir=state, **fields))  # type: ignore[arg-type]


def planned(of: StorageDisconnect, state: Path, params: dict[str, Scalar], *, lease_s: float = 60.0) -> JournalEntry:
    """A journal entry as the agent makes it, on disk."""
    assert of.check(TARGET, params) is None
    fault_id = f"f-{os.urandom(4).hex()}"
    payload = of.plan(TARGET, params, fault_id)
    entry = journalled(
        of.name, TARGET, params, payload, boot_id=clock.boot_id(), fault_id=fault_id, lease_s=lease_s, now=clock.now()
    )
    Journal(state / "journal").write(entry)
    return Journal(state / "journal").read()[0][-1]


def undone(state: Path, entry: JournalEntry) -> None:
    Journal(state / "journal").write(entry.model_copy(update={"state": EntryState.UNDONE}))


@contextmanager
def mounted(folder: Path, kind: str = "ext4", size_mb: int = 32, options: str = "") -> Iterator[Path]:
    """A filesystem of its own: an image on a loop device, or memory."""
    where = folder / "mnt"
    where.mkdir()
    if kind == "tmpfs":
        source = ["-t", "tmpfs", "-o", f"size={size_mb}m", "tmpfs"]
    else:
        image = folder / "image"
        with image.open("wb") as file:
            file.truncate(size_mb << 20)
        subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True)
        source = ["-t", kind, "-o", f"loop{',' if options else ''}{options}", str(image)]
    subprocess.run(["mount", *source, str(where)], check=True)
    try:
        yield where
    finally:
        subprocess.run(["umount", str(where)], check=True)


def mount_line(where: Path) -> str:
    """Everything that the kernel says of a mount."""
    return next(line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {where} " in line)


def undo_elsewhere(state: Path) -> subprocess.CompletedProcess[str]:
    """What the journal of `state` holds is taken back by a process that knows nothing else."""
    program = f"""
from pathlib import Path
from gpuchaos_agent import clock, offline
from gpuchaos_agent.inject import registry
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.journal import Journal
state = Path({str(state)!r})
env = Env(node={NODE!r}, boot_id=clock.boot_id(), state_dir=state)
outcomes, damaged = offline.undo(Journal(state / "journal"), registry.build(env), clock.now(), "test")
print([outcome.problem for outcome in outcomes], damaged)
"""
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=60)


def wait_until(true: Callable[[], object], what: str, within_s: float = 20.0) -> None:
    """Waits for a condition."""
    until(true, within_s, what)


def needs(kind: str) -> None:
    """Skips where filesystems of this kind cannot be made."""
    if kind != "tmpfs" and tools.find(f"mkfs.{kind}") is None:
        pytest.skip(f"no mkfs.{kind}: run `make tools`")
