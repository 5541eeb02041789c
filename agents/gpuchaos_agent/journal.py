"""The undo journal: what must be taken back, on disk before it is done.

One JSON file per fault, written whole (new file, fsync, rename, fsync of the folder), so that after a kill at
any point a fault is either not there and not journalled, or journalled. What is still `planned` or `injected`
when an agent starts is undone.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Literal

from pydantic import Field, ValidationError

from gpuchaos_stream.events.base import Entity, Timestamp, Wire

#: A fault id becomes a file name, so it may hold nothing that means something to a file system.
FAULT_ID: Final = re.compile(r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")

Scalar = str | float | int | bool | None


class EntryState(StrEnum):
    """How far a fault has come. Whatever is not undone is undone at the agent's next start."""

    PLANNED = "planned"  # the effect may or may not be there
    INJECTED = "injected"
    UNDONE = "undone"


class JournalEntry(Wire):
    """Everything that taking one fault back needs, also after a reboot, from this file alone.

    `payload` is the strategy's own. `boot_id` is the kernel's at injection: a process or a kernel log of
    another boot is gone by itself. `command_id` is the inject's, `undone_by` the command that ended it, None where
    the lease or a restart did. `lease_deadline` is on the boot-time clock of that boot, seconds;
    `lease_expires` the same on the wall clock, for people. `order` counts injections of this agent.
    `reported` becomes true once the outcome is in the outbox, so that it is told exactly at least once.
    """

    version: Literal[1] = 1
    fault_id: str = Field(pattern=FAULT_ID.pattern)
    experiment_id: str
    command_id: str
    undone_by: str | None = None
    fault: str
    entity: Entity
    params: dict[str, Scalar] = {}
    payload: dict[str, Scalar] = {}
    state: EntryState = EntryState.PLANNED
    boot_id: str
    order: int = Field(ge=0)
    created: Timestamp
    lease_s: float = Field(gt=0)
    lease_expires: Timestamp
    lease_deadline: float
    injected_at: Timestamp | None = None
    undone_at: Timestamp | None = None
    evidence: dict[str, Scalar] = {}
    reason: str = ""
    traceparent: str | None = None
    reported: bool = False


@dataclass(frozen=True, slots=True)
class Damaged:
    """A journal file that cannot be read; it was moved to `aside`. Its fault may still be there."""

    fault_id: str
    problem: str
    aside: Path


class Journal:
    """The entries of one folder. Not for several writers of the same entry, except that `UNDONE` may be written twice.

    Raises:
        OSError: from `write` and the constructor, where the disk refuses; nothing may be injected then.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._aside = folder / "aside"
        folder.mkdir(parents=True, exist_ok=True)
        _sync_folder(folder.parent)

    def write(self, entry: JournalEntry) -> None:
        """Makes the entry durable before it returns."""
        path = self._path(entry.fault_id)
        fresh = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        try:
            _write_all(descriptor, entry.model_dump_json().encode())
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        fresh.replace(path)
        _sync_folder(self.folder)

    def read(self) -> tuple[list[JournalEntry], list[Damaged]]:
        """All entries in order of injection, and what could not be read, which is kept aside.

        A file that was never renamed into place belongs to a fault that was never injected: it is removed once its
        writer is gone. While it lives the file is a write under way, and this may be another process's look.
        """
        entries: list[JournalEntry] = []
        damaged: list[Damaged] = []
        for path in sorted(self.folder.iterdir()):
            if path.name.endswith(".tmp"):
                if not _writer_lives(path):
                    path.unlink(missing_ok=True)
                continue
            if path.suffix != ".json" or not path.is_file():
                continue
            try:
                entry = self._read(path, path.stem)
            except FileNotFoundError:
                continue
            except OSError as error:
                damaged.append(Damaged(path.stem, str(error), path))  # left in place: the next look may succeed
            except ValueError as error:
                damaged.append(self._put_aside(path, error))
            else:
                entries.append(entry)
        entries.sort(key=lambda e: (e.order, e.created))
        return entries, damaged

    def aside(self) -> list[Damaged]:
        """What could not be read and was moved aside, until a person has settled it (`forget`).

        What can be read after all, as another version has written it, is put back first.
        """
        found: list[Damaged] = []
        for path in sorted(self._aside.iterdir()) if self._aside.is_dir() else ():
            name = path.stem  # FAULT.json.PID
            fault_id = Path(name).stem
            try:
                self._read(path, fault_id)
                if (self.folder / name).exists():
                    raise ValueError("the journal has another file of it")  # noqa: TRY301
                path.replace(self.folder / name)
            except FileNotFoundError:
                continue
            except (OSError, ValueError) as error:
                found.append(Damaged(fault_id, _words(error), path))
        return found

    def forget(self, fault_id: str) -> bool:
        """Removes what there is of a fault, readable or not, on a person's word; whether there was anything."""
        paths = [self._path(fault_id)] if FAULT_ID.match(fault_id) else []
        paths += [item.aside for item in self.aside() if item.fault_id == fault_id]
        there = [path for path in paths if path.exists()]
        for path in there:
            path.unlink(missing_ok=True)
        return bool(there)

    def remove(self, fault_id: str) -> None:
        """Forgets an entry. Only for what is undone and reported."""
        self._path(fault_id).unlink(missing_ok=True)

    def _path(self, fault_id: str) -> Path:
        if not FAULT_ID.match(fault_id):
            raise ValueError(f"fault id {fault_id!r} cannot be a file name")
        return self.folder / f"{fault_id}.json"

    def _read(self, path: Path, fault_id: str) -> JournalEntry:
        entry = JournalEntry.model_validate_json(path.read_bytes())
        if entry.fault_id != fault_id:
            raise ValueError(f"names fault {entry.fault_id!r}")
        return entry

    def _put_aside(self, path: Path, error: Exception) -> Damaged:
        target = self._aside / f"{path.name}.{os.getpid()}"
        try:
            self._aside.mkdir(exist_ok=True)
            path.replace(target)
        except OSError:
            target = path
        return Damaged(path.stem, _words(error), target)


def _words(error: Exception) -> str:
    if isinstance(error, ValidationError):
        first = error.errors(include_url=False)[0]
        return f"{'.'.join(map(str, first['loc'])) or 'file'}: {first['msg']}"
    return (str(error).splitlines() or [type(error).__name__])[0]


def _writer_lives(path: Path) -> bool:
    """Whether the process that names a file under way (`.FAULT.json.PID.tmp`) is still there."""
    pid = path.name.split(".")[-2]
    try:
        os.kill(int(pid), 0)
    except (ValueError, ProcessLookupError):
        return False
    except PermissionError:
        return True
    return True


def _write_all(descriptor: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
