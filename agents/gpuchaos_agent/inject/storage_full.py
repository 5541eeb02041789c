"""`full`: one ballast file takes all the space that is left, so that the next write ends with ENOSPC.

Space that others free meanwhile is free. The file outlives a reboot, and is removed after one as well.
"""

from __future__ import annotations

import shlex
from pathlib import PurePath
from typing import Final

from gpuchaos_agent.inject import storage_probe
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.storage_mode import (
    StorageDisconnectParams,
    must,
    same_boot,
    standing,
    told,
    word,
    write,
)
from gpuchaos_agent.inject.storage_mounts import Mount, below
from gpuchaos_agent.inject.storage_reach import Way, ways
from gpuchaos_agent.journal import JournalEntry

#: Filesystems that give space to a file without writing it (fallocate), and take it back at once (btrfs does not).
_FALLOCATE: Final = frozenset({"ext4", "xfs", "f2fs", "tmpfs", "ocfs2", "gfs2", "nfs4"})
#: What lives in memory is gone with its mount.
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
#: A terabyte of extents is taken in about a second, seconds.
_FILLS_S: Final = 20.0


class Full:
    """See the module."""

    def why_not(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None) -> str | None:  # noqa: ARG002
        """Only where space can be taken without writing it."""
        if mount is None:
            return None
        if not mount.writable:
            return f"{mount.path} is read-only"
        if mount.kind not in _FALLOCATE:
            return f"{mount.path} is {mount.kind}, which gives no space without writing it (fallocate)"
        return None

    def plan(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None, fault_id: str) -> Payload:  # noqa: ARG002
        """The file that will be there."""
        if mount is None:
            raise InjectError("it is mounted no more")
        return {"ballast": f"{mount.path.rstrip('/')}/.gpuchaos-ballast-{fault_id}"}

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """As fallocate(1); the size is what is free at that time."""
        mount, ballast = shlex.quote(word(entry, "mount")), shlex.quote(word(entry, "ballast"))
        return (f"fallocate -l $(($(stat -f -c '%f*%S' {mount}))) {ballast}", f"rm -f {ballast}")

    def inject(self, env: Env, entry: JournalEntry) -> None:
        """Takes the space."""
        if standing(env, entry) is None or not same_boot(env, entry):
            raise InjectError(f"{word(entry, 'mount')} is not mounted as it was")
        must(storage_probe.run("fill", word(entry, "ballast"), limit_s=_FILLS_S), "the space cannot be taken")

    def evidence(self, env: Env, entry: JournalEntry) -> Evidence:  # noqa: ARG002
        """A write that ends with ENOSPC, and how much root could still write."""
        said = write(entry)
        free = storage_probe.run("ask", word(entry, "mount"))
        return Evidence(
            said.outcome == "ENOSPC",
            {**told(entry, said), "free_blocks": int(free.words) if free.ok else None},
        )

    def undo(self, env: Env, entry: JournalEntry) -> None:
        """Removes the file, also after a reboot, as soon as the filesystem is there again."""
        found = self._reached(env, entry)
        if not found and not self._went(env, entry):
            raise InjectError(f"{word(entry, 'mount')} is not mounted as it was; {word(entry, 'ballast')} is on it")
        said = None
        for way, ballast in found:
            said = way.call("remove", ballast)
            if said.ok:
                return
        if said is not None:
            must(said, f"{word(entry, 'ballast')} cannot be removed")

    def verify(self, env: Env, entry: JournalEntry) -> bool:
        """There is no such file."""
        found = self._reached(env, entry)
        if not found:
            return self._went(env, entry)
        way, ballast = found[0]
        said = way.call("exists", ballast)
        return said.ok and said.words == "no"

    def _reached(self, env: Env, entry: JournalEntry) -> list[tuple[Way, str]]:
        """The mounts that show the file's folder, and what it is called there."""
        if word(entry, "kind") in _MEMORY and not same_boot(env, entry):
            return []
        name, folder = PurePath(word(entry, "ballast")).name, entry.payload.get("root")
        found = []
        for way in ways(env, entry, content=True):
            shown = way.mount.root if folder is None else str(folder)
            if below(shown, way.mount.root):
                found.append((way, str(PurePath(way.mount.path, PurePath(shown).relative_to(way.mount.root), name))))
        return found

    def _went(self, env: Env, entry: JournalEntry) -> bool:
        """Memory is empty after a reboot, and after it was unmounted."""
        gone = not same_boot(env, entry) or not ways(env, entry, content=True)
        return word(entry, "kind") in _MEMORY and gone
