"""`memory-corruption`: errors of memory, on one of three planes. None of them changes a memory cell.

`telemetry` is what is said of errors (`corrupt_records.py`), `file` what they leave behind in a checkpoint
(`corrupt_file.py`), `machine-check` the kernel's handling of them (`corrupt_machine.py`). What an experiment may claim
differs from plane to plane (`PLANES`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Protocol, Self

from pydantic import AfterValidator, Field, model_validator

from gpuchaos_agent.inject import corrupt_file, corrupt_machine, corrupt_records, kernel_log
from gpuchaos_agent.inject.base import Env, Evidence, Payload
from gpuchaos_agent.inject.corrupt_records import TEXTS
from gpuchaos_agent.inject.kernel_log import MARK
from gpuchaos_agent.inject.params import belong, need
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

TELEMETRY: Final = "telemetry"
FILE: Final = "file"
MACHINE_CHECK: Final = "machine-check"


@dataclass(frozen=True, slots=True)
class Plane:
    """What a plane really reaches, and what may therefore be claimed. `target` is the kind of its entity."""

    layer: str
    target: str
    certifies: tuple[str, ...]
    not_certified: tuple[str, ...]


PLANES: Final[dict[str, Plane]] = {
    TELEMETRY: Plane(
        "the telemetry plane: the kernel log",
        "gpu",
        ("error-detection", "error-attribution", "automatic-halt"),
        ("gpu-failure", "row-remapping", "checkpoint-integrity", "silent-data-corruption"),
    ),
    FILE: Plane(
        "bytes of a checkpoint or tensor file",
        "node",
        ("checkpoint-integrity",),
        ("gpu-failure", "row-remapping", "error-detection", "silent-data-corruption"),
    ),
    MACHINE_CHECK: Plane(
        "the kernel's decoding of machine checks",
        "node",
        ("error-detection",),
        ("gpu-failure", "row-remapping", "checkpoint-integrity", "silent-data-corruption"),
    ),
}


#: Parameter → the planes that read it.
_OF_PLANE: Final = {
    **dict.fromkeys(("xid", "pci", "dcgm"), (TELEMETRY,)),
    **dict.fromkeys(("path", "bits", "region", "seed"), (FILE,)),
    **dict.fromkeys(("cpu", "bank"), (MACHINE_CHECK,)),
}


def _one_of_table(value: int) -> int:
    if value not in TEXTS:
        raise ValueError(f"one of {', '.join(map(str, TEXTS))}")
    return value


def _is_pci(value: str) -> str:
    if not corrupt_records.is_pci(value):
        raise ValueError("a PCI address like 0000:3b:00.0")
    return value


class MemoryCorruptionParams(Authored):
    """Of the plane `telemetry`: `xid` of the table, `pci` where the node cannot tell the GPU's address, `dcgm`.

    Of `file`: `path`, how many `bits` to flip, in the `weights` or in `any` region of it, chosen by `seed` (by the
    fault's id if not given). Of `machine-check`: the `cpu` and its `bank`.
    """

    plane: Literal["telemetry", "file", "machine-check"] = TELEMETRY
    xid: Annotated[int, AfterValidator(_one_of_table)] = Field(default=94)
    pci: Annotated[str, AfterValidator(_is_pci)] | None = None
    dcgm: bool = False
    path: str | None = Field(default=None, min_length=1)
    bits: int = Field(default=1, ge=1, le=64)
    region: Literal["weights", "any"] = "weights"
    seed: int | None = Field(default=None, ge=0, lt=1 << 63)
    cpu: int = Field(default=0, ge=0)
    bank: int = Field(default=1, ge=0, le=255)

    @model_validator(mode="after")
    def _of_the_plane(self) -> Self:
        belong(self, "plane", _OF_PLANE)
        need(self, "plane", {FILE: ("path",)})
        return self


class MemoryCorruption:
    """One error on one plane; see the module."""

    name = "memory-corruption"
    layer = PLANES[TELEMETRY].layer
    #: What some plane certifies, and what none does.
    certifies = ("error-detection", "error-attribution", "automatic-halt", "checkpoint-integrity")
    not_certified = ("gpu-failure", "row-remapping", "silent-data-corruption")
    params: type[Authored] = MemoryCorruptionParams

    def __init__(self, env: Env) -> None:
        self._env = env

    def unavailable(self) -> str | None:
        """Needs one plane: a kernel log to write and read, a folder whose files may be changed, or mce-inject."""
        reasons = (
            kernel_log.unavailable(self._env.kmsg),
            corrupt_file.unavailable(self._env),
            corrupt_machine.unavailable(self._env),
        )
        return None if None in reasons else "; ".join(str(reason) for reason in reasons)

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses what the plane cannot reach here."""
        given = MemoryCorruptionParams.model_validate(params)
        wanted = PLANES[given.plane].target
        if wanted == "gpu":
            kind, _, index = target.partition(f"/{self._env.node}/")
            if kind != "gpu" or not index:
                return f"the target must be gpu/{self._env.node}/INDEX, not {target}"
            return corrupt_records.why_not(self._env, target, given.pci, dcgm=given.dcgm)
        if target != f"node/{self._env.node}":
            return f"the target of plane {given.plane} must be node/{self._env.node}, not {target}"
        if given.plane == MACHINE_CHECK:
            return corrupt_machine.unavailable(self._env)
        if given.path is None:
            return "plane file needs path, the checkpoint or tensor file"
        return corrupt_file.why_not(self._env, given.path, given.bits, given.region)

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:
        """What is written where, and what was there."""
        given = MemoryCorruptionParams.model_validate(params)
        match given.plane:
            case "telemetry":
                made = corrupt_records.plan(self._env, target, given.pci, given.xid, fault_id, dcgm=given.dcgm)
            case "file":
                seed = given.seed if given.seed is not None else _seed(fault_id)
                made = corrupt_file.plan(self._env, given.path or "", given.bits, given.region, seed)
            case _:
                made = corrupt_machine.plan(given.bank, given.cpu, fault_id)
        return {"plane": given.plane, **made}

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:
        """The file, or what the records name."""
        given = MemoryCorruptionParams.model_validate(params)
        if given.plane == FILE:
            return frozenset({f"file:{corrupt_file.resolved(given.path or '')}"})
        return frozenset({f"records:{target}"})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """By `echo` and `dd`."""
        match _plane(entry):
            case "file":
                return corrupt_file.commands(entry)
            case "machine-check":
                return corrupt_machine.commands(self._env, entry)
            case _:
                return corrupt_records.commands(self._env, entry)

    def inject(self, entry: JournalEntry) -> None:
        """Writes the record, flips the bits, or hands the kernel a machine check."""
        _MODULES[_plane(entry)].inject(self._env, entry)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """What is read back: the record, or the bytes that differ."""
        return _MODULES[_plane(entry)].evidence(self._env, entry)

    def undo(self, entry: JournalEntry) -> None:
        """Clears the record, or flips the bits back."""
        _MODULES[_plane(entry)].undo(self._env, entry)

    def verify(self, entry: JournalEntry) -> bool:
        """The record is cleared, or no byte is as we left it."""
        return _MODULES[_plane(entry)].verify(self._env, entry)


class _Reach(Protocol):
    """What each plane's module does."""

    def inject(self, env: Env, entry: JournalEntry) -> None: ...

    def evidence(self, env: Env, entry: JournalEntry) -> Evidence: ...

    def undo(self, env: Env, entry: JournalEntry) -> None: ...

    def verify(self, env: Env, entry: JournalEntry) -> bool: ...


_MODULES: Final[dict[str, _Reach]] = {TELEMETRY: corrupt_records, FILE: corrupt_file, MACHINE_CHECK: corrupt_machine}


def _plane(entry: JournalEntry) -> str:
    """Entries of agents that knew one plane name none."""
    plane = entry.payload.get("plane")
    return plane if isinstance(plane, str) and plane in _MODULES else TELEMETRY


def _seed(fault_id: str) -> int:
    return int.from_bytes(hashlib.sha256(fault_id.encode()).digest()[:7], "big")


STRATEGY = MemoryCorruption

__all__ = ["MARK", "PLANES", "STRATEGY", "TEXTS", "MemoryCorruption", "MemoryCorruptionParams", "Plane"]
