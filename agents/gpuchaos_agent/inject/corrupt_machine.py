"""`memory-corruption` with `plane: machine-check`: a corrected memory error through the kernel's own decoding.

The module mce-inject takes a machine-check record from debugfs and hands it to the chain of decoders (flag `sw`: no
register of the processor and no memory cell is written, and no handler that could panic is entered). The kernel then
speaks for itself: facility 0, its own words. So that it can be told from hardware all the same, a marked record stands
before it, and the undo writes one that says that it is over.
"""

from __future__ import annotations

import hashlib
import shlex
import time
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import kernel_log
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.kernel_log import MARK
from gpuchaos_agent.journal import JournalEntry

#: Below the root of sysfs, where debugfs is mounted.
FOLDER: Final = "kernel/debug/mce-inject"
#: MCi_STATUS: valid, address valid, miscellaneous valid, corrected; memory read error, channel 2 (Intel SDM 3B, 16.9).
_STATUS: Final = 0x8C00_0040_0001_0092
_BEGUN: Final = "gpuchaos: machine check injected"
_CLEARED: Final = "gpuchaos: machine check cleared"
_WAIT_S: Final = 0.5
_STEP_S: Final = 0.01


def unavailable(env: Env) -> str | None:
    """Why this kernel takes no machine check, or None."""
    if not (env.sysfs / FOLDER / "bank").exists():
        return f"there is no {env.sysfs / FOLDER}: it needs root, debugfs, and the kernel's module mce-inject"
    return kernel_log.unavailable(env.kmsg)


def plan(bank: int, cpu: int, fault_id: str) -> Payload:
    """What is written; the address, which the kernel prints, is the fault's own, and beyond 64 GiB."""
    digest = int.from_bytes(hashlib.sha256(fault_id.encode()).digest()[:3], "big")
    return {"bank": bank, "cpu": cpu, "status": f"{_STATUS:#x}", "addr": f"{0x10_0000_0000 | digest << 12:#x}"}


def commands(env: Env, entry: JournalEntry) -> tuple[str, ...]:
    """As a shell would."""
    folder = env.sysfs / FOLDER
    return (
        f"echo '<4>{_marked(_BEGUN, entry)}' > {shlex.quote(str(env.kmsg))}",
        *(f"echo {value} > {shlex.quote(str(folder / name))}" for name, value in _fields(entry)),
        f"echo '<4>{_marked(_CLEARED, entry)}' > {shlex.quote(str(env.kmsg))}",
    )


def inject(env: Env, entry: JournalEntry) -> None:
    """Marks it, then hands the record to the kernel."""
    kernel_log.write(env.kmsg, _marked(_BEGUN, entry))
    for name, value in _fields(entry):
        path = env.sysfs / FOLDER / name
        try:
            Path(path).write_text(f"{value}\n")
        except OSError as error:
            raise InjectError(f"{path}: {error.strerror}") from error


def evidence(env: Env, entry: JournalEntry) -> Evidence:
    """The kernel's own record of that address."""
    address = str(entry.payload["addr"]).removeprefix("0x")
    deadline = time.monotonic() + _WAIT_S
    while True:
        found = [
            record for record in kernel_log.records(env.kmsg) if _of_kernel(record) and f"ADDR {address}" in record
        ]
        if found or time.monotonic() >= deadline:
            break
        time.sleep(_STEP_S)
    record = found[0].partition("\n")[0][:400] if found else None
    return Evidence(bool(found), {"record": record, "bank": entry.payload.get("bank"), "cpu": entry.payload.get("cpu")})


def undo(env: Env, entry: JournalEntry) -> None:
    """Writes the clearing record, once."""
    if not verify(env, entry):
        kernel_log.write(env.kmsg, _marked(_CLEARED, entry))


def verify(env: Env, entry: JournalEntry) -> bool:
    """The clearing record follows the mark, or the log holds neither any more."""
    standing = False
    for record in kernel_log.records(env.kmsg):
        if kernel_log.is_marked(record, entry.fault_id):
            standing = _BEGUN in record or (standing and _CLEARED not in record)
    return not standing


def _fields(entry: JournalEntry) -> tuple[tuple[str, object], ...]:
    """The files of mce-inject; what is written to `bank` sets it off."""
    at = entry.payload
    return (
        ("flags", "sw"),
        ("status", at["status"]),
        ("addr", at["addr"]),
        ("cpu", at["cpu"]),
        ("bank", at["bank"]),
    )


def _marked(text: str, entry: JournalEntry) -> str:
    return f"{text} (CPU {entry.payload.get('cpu')}, bank {entry.payload.get('bank')}) {MARK}{entry.fault_id}"


def _of_kernel(record: str) -> bool:
    """Facility 0 is the kernel's, and no process can write under it."""
    prefix = record.partition(",")[0]
    return prefix.isdecimal() and int(prefix) >> 3 == 0
