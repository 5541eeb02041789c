"""`storage-disconnect`: the path to one volume is gone, hanging, read-only, full, or erring.

Each mode is a file beside this one (`storage_…`). A filesystem that the node itself needs is never touched in any
mode, and no mode leaves a state from which the node could not return: a frozen one has a guard that thaws it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from gpuchaos_agent.inject import capabilities, storage_probe
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.storage_erring import Erring
from gpuchaos_agent.inject.storage_full import Full
from gpuchaos_agent.inject.storage_hanging import Hanging
from gpuchaos_agent.inject.storage_mode import StorageDisconnectParams, StorageMode
from gpuchaos_agent.inject.storage_mounts import PSEUDO, Mount, at, mounts, needed_by_node
from gpuchaos_agent.inject.storage_readonly import ReadOnly
from gpuchaos_agent.inject.storage_unreachable import Unreachable, knock
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

_MODES: Final[dict[str, StorageMode]] = {
    "unreachable": Unreachable(),
    "hanging": Hanging(),
    "readonly": ReadOnly(),
    "full": Full(),
    "erring": Erring(),
}
#: Mode → what it may not do without. Root fills a volume as its owner.
_CAPABILITIES: Final = {
    "unreachable": "CAP_NET_ADMIN",
    "hanging": "CAP_SYS_ADMIN",
    "readonly": "CAP_SYS_ADMIN",
    "erring": "CAP_SYS_ADMIN",
}
#: A volume that takes longer than this to answer before the fault is not well to begin with, seconds.
_WELL_S: Final = 2.0


class StorageDisconnect:
    """One volume of this node is lost; see the module."""

    name = "storage-disconnect"
    layer = "the volume's path: packets of its servers, its filesystem, or its block device"
    certifies = ("checkpoint-resume", "storage-failover")
    not_certified = ("node-loss", "checkpoint-integrity", "silent-data-corruption", "disk-failure")
    params: type[Authored] = StorageDisconnectParams

    def __init__(self, env: Env) -> None:
        self._env = env

    def unavailable(self) -> str | None:
        """Needs root and a mount table. What a mode needs besides, `check` asks for: `full` needs no capability."""
        if os.geteuid() != 0:
            return "filesystems can be frozen, filled and remounted by root alone"
        return None if mounts(self._env.procfs) else f"{self._env.procfs}/self/mountinfo cannot be read"

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses what the node needs itself, what is not well, and a mode that this filesystem cannot suffer."""
        if target != f"node/{self._env.node}":
            return f"the target must be node/{self._env.node}, not {target}"
        asked = StorageDisconnectParams.model_validate(params)
        needed = _CAPABILITIES.get(asked.mode)
        reason = self.unavailable() or (capabilities.lacking(needed) if needed else None)
        if reason is not None:
            return reason
        if asked.path is None:
            return _MODES[asked.mode].why_not(self._env, asked, None)
        found = mounts(self._env.procfs)
        mount = self._mount(found, asked)
        if mount is None:
            return f"{asked.path} is not there, or does not answer"
        if mount.kind in PSEUDO or mount.kind == "overlay":
            return f"{mount.path} is {mount.kind}, no volume"
        needed = needed_by_node(found, mount.device, self._env)
        if needed is not None:
            return f"{mount.path} is never touched: {needed}"
        return _MODES[asked.mode].why_not(self._env, asked, mount) or self._unwell(asked, mount)

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:  # noqa: ARG002
        """The mount, exactly, how it answered, and what the mode needs."""
        asked = StorageDisconnectParams.model_validate(params)
        payload: Payload = {"mode": asked.mode}
        mount = None
        if asked.path is not None:
            mount = self._mount(mounts(self._env.procfs), asked)
            if mount is None:
                raise InjectError(f"{asked.path} has gone")
            before = storage_probe.run("ask", mount.path)
            payload |= {"mount": mount.path, "kind": mount.kind, "source": mount.source, "before": before.outcome}
            payload |= {"filesystem": mount.device, "root": mount.root}
        payload |= _MODES[asked.mode].plan(self._env, asked, mount, fault_id)
        if mount is None:
            payload["before"] = knock(str(payload["servers"])).outcome
        return payload

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The filesystem, whatever its mounts are called; servers by their names."""
        asked = StorageDisconnectParams.model_validate(params)
        held = {f"path:{end.strip()}" for end in (asked.endpoint or "").split(",") if end.strip()}
        if asked.path is not None:
            mount = at(mounts(self._env.procfs), os.path.normpath(asked.path))
            held.add(f"filesystem:{mount.device if mount is not None else asked.path}")
        return frozenset(held)

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """The mode's."""
        return self._mode(entry).commands(entry)

    def inject(self, entry: JournalEntry) -> None:
        """The mode's."""
        self._mode(entry).inject(self._env, entry)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """The mode's: what a program meets that uses the volume now."""
        return self._mode(entry).evidence(self._env, entry)

    def undo(self, entry: JournalEntry) -> None:
        """The mode's."""
        self._mode(entry).undo(self._env, entry)

    def verify(self, entry: JournalEntry) -> bool:
        """The mode's."""
        return self._mode(entry).verify(self._env, entry)

    def _mode(self, entry: JournalEntry) -> StorageMode:
        mode = _MODES.get(str(entry.payload.get("mode")))
        if mode is None:
            raise InjectError(f"the journal entry of {entry.fault_id} names no mode")
        return mode

    def _mount(self, found: list[Mount], asked: StorageDisconnectParams) -> Mount | None:
        """The mount of the path, its links followed by a child, as its servers may be gone."""
        said = storage_probe.run("resolve", str(asked.path), limit_s=_WELL_S)
        return at(found, said.words) if said.ok else None

    def _unwell(self, asked: StorageDisconnectParams, mount: Mount) -> str | None:
        said = storage_probe.run("ask", mount.path, limit_s=_WELL_S)
        if said.ok and asked.mode in {"hanging", "full"}:
            said = storage_probe.run("write", mount.path, ".gpuchaos-probe", limit_s=_WELL_S)
        return None if said.ok else f"{mount.path} does not work as it is ({said.outcome}): nothing could be told"


STRATEGY = StorageDisconnect
