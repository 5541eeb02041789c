"""`readonly`: the whole filesystem becomes read-only, as after an error of its own, and no other option changes."""

from __future__ import annotations

import shlex

from gpuchaos_agent.inject import storage_probe
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
from gpuchaos_agent.inject.storage_reach import Way, must_be_free, ways
from gpuchaos_agent.journal import JournalEntry


class ReadOnly:
    """See the module. Refused by the kernel (EBUSY) while somebody has a file open for writing there."""

    def why_not(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None) -> str | None:  # noqa: ARG002
        """What is read-only already must stay so."""
        if mount is not None and not mount.writable:
            return f"{mount.path} is read-only already"
        return None

    def plan(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None, fault_id: str) -> Payload:  # noqa: ARG002
        """The options as they are, to be compared."""
        return {"super_options": mount.super_options if mount is not None else None}

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """As mount(8); really by fspick(2), which leaves every other option alone."""
        mount = shlex.quote(word(entry, "mount"))
        return (f"mount -o remount,ro {mount}", f"mount -o remount,rw {mount}")

    def inject(self, env: Env, entry: JournalEntry) -> None:
        """One call, which the kernel makes or refuses as a whole."""
        if standing(env, entry) is None or not same_boot(env, entry):
            raise InjectError(f"{word(entry, 'mount')} is not mounted as it was")
        said = storage_probe.run("reconfigure", word(entry, "mount"), "ro", limit_s=PATIENT_S)
        if said.outcome == "EBUSY":
            raise InjectError(f"{word(entry, 'mount')}: somebody has a file open for writing there (EBUSY)")
        must(said, "the filesystem cannot be made read-only")

    def evidence(self, env: Env, entry: JournalEntry) -> Evidence:
        """A write that ends with EROFS, and the kernel's own word for the mount."""
        said = write(entry)
        mount = standing(env, entry)
        options = mount.super_options.split(",")[0] if mount is not None else None
        return Evidence(said.outcome == "EROFS" and options == "ro", {**told(entry, said), "kernel": options})

    def undo(self, env: Env, entry: JournalEntry) -> None:
        """Writable again, if it is not, by whatever mount of it can be reached."""
        found = self._ways(env, entry)
        if found and not _writable(found[0].mount):
            way = found[0]
            must(way.call("reconfigure", way.mount.path, "rw"), f"{way.mount.path} cannot be made writable again")

    def verify(self, env: Env, entry: JournalEntry) -> bool:
        """The kernel says rw, or has let go of the filesystem."""
        return all(_writable(way.mount) for way in self._ways(env, entry))

    def _ways(self, env: Env, entry: JournalEntry) -> list[Way]:
        found = ways(env, entry) if same_boot(env, entry) else []
        if not found and same_boot(env, entry):
            must_be_free(env, entry)
        return found


def _writable(mount: Mount) -> bool:
    return "ro" not in mount.super_options.split(",")
