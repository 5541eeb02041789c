"""Where the filesystem of a fault is by now: its mount may have moved, been covered, or be in another namespace.

A filesystem is known by its device, not by where it was mounted. One that is covered by another mount, or that other
processes alone have mounted, is reached by a child in a mount namespace of its own (`storage_child.within`), in
which the covers are taken off: nobody else sees that.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.inject import storage_probe
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.storage_mode import PATIENT_S, same_boot, word
from gpuchaos_agent.inject.storage_mounts import Mount, below, mounts
from gpuchaos_agent.inject.storage_probe import Said
from gpuchaos_agent.journal import JournalEntry
from gpuchaos_agent.kernelfs import files

#: Filesystems without a disk have a number of this kind, which is used again.
_ANONYMOUS: Final = "0:"


@dataclass(frozen=True, slots=True)
class Way:
    """A mount of the filesystem; `process` has it in its namespace, None for this one's own, uncovered."""

    mount: Mount
    process: str | None = None

    def call(self, name: str, *arguments: str, limit_s: float = PATIENT_S) -> Said:
        """One call of `storage_child`, whose paths are as the mount has them."""
        if self.process is None:
            return storage_probe.run(name, *arguments, limit_s=limit_s)
        where = (self.process, self.mount.device, self.mount.path)
        return storage_probe.run("within", *where, name, *arguments, limit_s=limit_s)


def ways(env: Env, entry: JournalEntry, *, content: bool = False) -> list[Way]:
    """All by which the filesystem of the entry can be reached, the simplest first.

    With `content` the fault is in what the filesystem holds, and so in any mount of its source; without, in what the
    kernel holds of it, which is new where it was unmounted and mounted again.
    """
    own = list(_of(env, entry, "self", content=content))
    if own:
        return own
    seen, found = {_namespace(env, "self")}, list[Way]()
    for folder in sorted(env.procfs.glob("[0-9]*"), key=lambda folder: int(folder.name)):
        namespace = _namespace(env, folder.name)
        if namespace is not None and namespace not in seen:
            seen.add(namespace)
            found += _of(env, entry, folder.name, content=content)
    return found


def must_be_free(env: Env, entry: JournalEntry) -> None:
    """For a filesystem to which no way leads: that the kernel has let go of it, as its disk says.

    Raises:
        InjectError: it is in use all the same, by whom cannot be seen.
    """
    number = entry.payload.get("filesystem")
    device = "" if number is None else _device(env, str(number))
    if device and storage_probe.run("claim", device, limit_s=PATIENT_S).outcome == "EBUSY":
        raise InjectError(
            f"{device}, which was at {word(entry, 'mount')}, is in use where it cannot be reached: unmounted while "
            "somebody has a file open, or mounted in a namespace that is not seen from here"
        )


def _of(env: Env, entry: JournalEntry, process: str, *, content: bool) -> Iterator[Way]:
    table = mounts(env.procfs, process)
    found = [mount for mount in table if _is_it(env, entry, mount, content=content)]
    elsewhere = {mount: process != "self" or bool(covers(table, mount)) for mount in found}
    for mount in sorted(found, key=lambda mount: (elsewhere[mount], mount.root != "/", len(mount.root))):
        yield Way(mount, process if elsewhere[mount] else None)


def _is_it(env: Env, entry: JournalEntry, mount: Mount, *, content: bool) -> bool:
    number, source = entry.payload.get("filesystem"), word(entry, "source")
    if mount.kind != word(entry, "kind"):
        return False
    if number is not None and same_boot(env, entry) and mount.device == number:
        return not mount.device.startswith(_ANONYMOUS) or mount.source == source
    if number is not None and not content:
        return False
    # A disk or a server has a name of its own; memory is the same only where it was.
    named = "/" in source or ":" in source
    return mount.source == source and (named or (number is None and mount.path == word(entry, "mount")))


def covers(table: Iterable[Mount], mount: Mount) -> list[Mount]:
    """The mounts of a table that hide one: at its folder or above, and not what it is mounted on itself."""
    by_id = {each.id: each for each in table}
    below_it, on = set[int](), by_id.get(mount.id)
    while on is not None and on.id not in below_it:
        below_it.add(on.id)
        on = by_id.get(on.parent)
    return [each for each in by_id.values() if each.id not in below_it and below(mount.path, each.path)]


def _namespace(env: Env, process: str) -> str | None:
    try:
        return str((env.procfs / process / "ns/mnt").readlink())
    except OSError:
        return None


def _device(env: Env, number: str) -> str:
    told = files.text(env.sysfs / "dev/block" / number / "uevent") or ""
    names = [line.partition("=")[2] for line in told.splitlines() if line.startswith("DEVNAME=")]
    return f"/dev/{names[0]}" if names else ""
