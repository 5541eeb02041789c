"""`hanging`: the filesystem is frozen (FIFREEZE): who writes waits in the kernel, who reads what is cached goes on.

It is frozen by a process of its own, which holds the folder open and thaws it at the end of the lease whatever became
of the agent; the undo ends that process first, and thaws in any case.
"""

from __future__ import annotations

import shlex
from typing import Final

from gpuchaos_agent.inject import hold, storage_probe
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
from gpuchaos_agent.inject.storage_mounts import Mount
from gpuchaos_agent.inject.storage_probe import Said
from gpuchaos_agent.inject.storage_reach import Way, must_be_free, ways
from gpuchaos_agent.journal import JournalEntry

#: Filesystems that the kernel can freeze (they have freeze_fs or freeze_super).
_FREEZABLE: Final = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "nilfs2", "gfs2", "reiserfs"})
_GUARD: Final = "gpuchaos_agent.inject.freeze_guard"
#: A disk may take this long to write what is dirty before it stands still, seconds.
_FREEZES_S: Final = 15.0


class Hanging:
    """See the module."""

    def why_not(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None) -> str | None:  # noqa: ARG002
        """Network filesystems and memory cannot be frozen."""
        if mount is None or mount.kind in _FREEZABLE:
            return None
        other = "use mode unreachable" if mount.network else f"only {', '.join(sorted(_FREEZABLE))} can"
        return f"{mount.path} is {mount.kind}, which cannot be frozen: {other}"

    def plan(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None, fault_id: str) -> Payload:  # noqa: ARG002
        """What the guard is known by."""
        return {"guard": hold.marker(env.state_dir, fault_id)}

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """As fsfreeze(8) does."""
        mount = shlex.quote(word(entry, "mount"))
        return (f"fsfreeze --freeze {mount}", f"fsfreeze --unfreeze {mount}")

    def inject(self, env: Env, entry: JournalEntry) -> None:
        """Starts the guard, which freezes and then says that it is ready."""
        mount = standing(env, entry)
        if mount is None or not same_boot(env, entry):
            raise InjectError(f"{word(entry, 'mount')} is not mounted as it was")
        hold.start(
            _GUARD,
            [
                word(entry, "guard"),
                mount.path,
                str(env.state_dir / "journal" / f"{entry.fault_id}.json"),
                str(entry.lease_deadline),
            ],
            log=env.state_dir / "holders.log",
            ready_s=_FREEZES_S,
        )

    def evidence(self, env: Env, entry: JournalEntry) -> Evidence:  # noqa: ARG002
        """A write that does not come back, and waits in the kernel."""
        said = write(entry)
        guards = len(hold.find(word(entry, "guard")))
        return Evidence(said.hangs and guards > 0, {**told(entry, said), "state": said.state, "guards": guards})

    def undo(self, env: Env, entry: JournalEntry) -> None:
        """Ends the guard, so that nobody freezes any more, and thaws."""
        hold.end(word(entry, "guard"))
        for way in self._ways(env, entry)[:1]:
            said = way.call("thaw", way.mount.path)
            if not said.ok and _write(way, entry).hangs:
                must(said, "the filesystem cannot be thawed")
            storage_probe.settle()

    def verify(self, env: Env, entry: JournalEntry) -> bool:
        """No guard, and a write comes back, however it ends."""
        if hold.find(word(entry, "guard")):
            return False
        return all(_write(way, entry).outcome not in {"hangs", "ENOTDIR"} for way in self._ways(env, entry)[:1])

    def _ways(self, env: Env, entry: JournalEntry) -> list[Way]:
        found = ways(env, entry) if same_boot(env, entry) else []
        if not found and same_boot(env, entry):
            must_be_free(env, entry)
        return found


def _write(way: Way, entry: JournalEntry) -> Said:
    return way.call("write", way.mount.path, f".gpuchaos-probe-{entry.fault_id}", limit_s=storage_probe.HANGS_S)
