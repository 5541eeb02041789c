"""`hanging`: the filesystem is frozen (FIFREEZE): who writes waits in the kernel, who reads what is cached goes on.

It is frozen by a process of its own, which holds the folder open and thaws it at the end of the lease whatever became
of the agent; the undo ends that process first, and thaws in any case.
"""

from __future__ import annotations

from typing import Final

from gpuchaos_agent.inject import hold, storage_probe
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.storage_mode import (
    PATIENT_S,
    StorageDisconnectParams,
    must,
    same_boot,
    standing,
    told,
    word,
    write,
)
from gpuchaos_agent.inject.storage_mounts import Mount
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
        mount = word(entry, "mount")
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
        if same_boot(env, entry) and standing(env, entry) is not None:
            must(storage_probe.run("thaw", word(entry, "mount"), limit_s=PATIENT_S), "the filesystem cannot be thawed")
            storage_probe.settle()

    def verify(self, env: Env, entry: JournalEntry) -> bool:
        """No guard, and a write comes back, however it ends."""
        if hold.find(word(entry, "guard")):
            return False
        if not same_boot(env, entry) or standing(env, entry) is None:
            return True
        return not write(entry).hangs
