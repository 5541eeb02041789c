"""What each way of losing a volume is: a file beside this one with the same few functions, found in one table.

The parameters are here as well, because every mode reads some of them.
"""

from __future__ import annotations

import os
from typing import Annotated, Final, Literal, Protocol, Self

from pydantic import AfterValidator, Field, model_validator

from gpuchaos_agent.inject import endpoints, storage_probe
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.params import belong
from gpuchaos_agent.inject.storage_mounts import Mount, mounts
from gpuchaos_agent.inject.storage_probe import Said
from gpuchaos_agent.journal import JournalEntry
from gpuchaos_stream.events.base import Authored

#: A child that is only slow is waited for this long where the answer decides about an undo, seconds.
PATIENT_S: Final = 5.0

#: Parameter → the mode that reads it.
_OF_MODE: Final = {
    "endpoint": ("unreachable",),
    "include_brokers": ("unreachable",),
    "errors": ("erring",),
    "remount": ("erring",),
}


def _endpoints(text: str) -> str:
    found = endpoints.checked(endpoints.parse_list(text))
    if not found or any(end.host is None for end in found):
        raise ValueError("servers as host:port, separated by commas")
    return text


class StorageDisconnectParams(Authored):
    """`path` is a mount point or anything on it. `endpoint` names the servers where the mount table does not.

    `errors` and `remount` are for `erring`; `remount` agrees that the undo may have to unmount and mount again what
    gave itself up over the errors. `include_brokers` allows `unreachable` to cut the agent's own way to Kafka.
    """

    mode: Literal["unreachable", "hanging", "readonly", "full", "erring"]
    path: str | None = Field(default=None, pattern="^/", max_length=4096)
    endpoint: Annotated[str, AfterValidator(_endpoints)] | None = None
    errors: Literal["all", "writes"] = "all"
    remount: bool = False
    include_brokers: bool = False

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.mode != "unreachable" and self.path is None:
            raise ValueError(f"mode {self.mode} needs a path")
        if self.path is None and self.endpoint is None:
            raise ValueError("name a path, or an endpoint, for mode unreachable")
        if self.path is not None and os.path.normpath(self.path).strip("/") == "":
            raise ValueError(f"path {self.path} is never touched: the node itself needs it")
        belong(self, "mode", _OF_MODE)
        if self.mode == "erring" and not self.remount:
            raise ValueError("a volume may give itself up over errors; remount: true agrees to a new mount afterwards")
        return self


class StorageMode(Protocol):
    """One way. The calls are those of `base.FaultStrategy`, for a mount that was found and may be disturbed."""

    def why_not(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None) -> str | None:
        """Why this mount cannot be lost in this way, or None."""

    def plan(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None, fault_id: str) -> Payload:
        """What the undo needs besides the mount itself."""

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """As a person would type it: inject, then undo."""

    def inject(self, env: Env, entry: JournalEntry) -> None:
        """Brings it about."""

    def evidence(self, env: Env, entry: JournalEntry) -> Evidence:
        """What a program meets that uses the volume now."""

    def undo(self, env: Env, entry: JournalEntry) -> None:
        """Takes it back, or does nothing."""

    def verify(self, env: Env, entry: JournalEntry) -> bool:
        """It is gone."""


def word(entry: JournalEntry, name: str) -> str:
    """A text of the payload.

    Raises:
        InjectError: the entry has none, so it is no entry of this fault.
    """
    value = entry.payload.get(name)
    if value is None:
        raise InjectError(f"the journal entry of {entry.fault_id} has no {name}")
    return str(value)


def standing(env: Env, entry: JournalEntry) -> Mount | None:
    """The very filesystem of the entry, on top where it was, None where it is mounted there no more."""
    on = [mount for mount in mounts(env.procfs) if mount.path == word(entry, "mount")]
    same = bool(on) and (on[-1].kind, on[-1].source) == (word(entry, "kind"), word(entry, "source"))
    return on[-1] if same else None


def same_boot(env: Env, entry: JournalEntry) -> bool:
    """What the kernel alone holds (frozen, read-only, a table) is gone after a reboot."""
    return entry.boot_id == env.boot_id


def must(said: Said, what: str) -> Said:
    """The answer of a call that has to succeed.

    Raises:
        InjectError: it did not.
    """
    if not said.ok:
        raise InjectError(f"{what}: {'no answer' if said.hangs else said.outcome}")
    return said


def write(entry: JournalEntry, limit_s: float = storage_probe.HANGS_S) -> Said:
    """Writes a block to where the volume is used, as a checkpoint would."""
    return storage_probe.run("write", word(entry, "mount"), f".gpuchaos-probe-{entry.fault_id}", limit_s=limit_s)


def told(entry: JournalEntry, said: Said) -> Payload:
    """A probe in words for the evidence."""
    return {
        "mode": entry.payload.get("mode"),
        "mount": entry.payload.get("mount"),
        "before": entry.payload.get("before"),
        "probe": said.outcome,
        "probe_ms": round(said.seconds * 1000, 1),
    }
