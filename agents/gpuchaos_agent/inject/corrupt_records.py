"""`memory-corruption` on the telemetry plane: one record in the kernel log, in the driver's words, for an Xid.

It is marked (`kernel_log.py`). With `dcgm: true` the same error is injected into DCGM's field cache as well, by
`dcgmi test --inject`, so that what listens to DCGM hears of it. No bit of any memory changes. The undo writes a record
that says so, and DCGM's field gets the value of no error: records cannot be taken out of a log.
"""

from __future__ import annotations

import re
import shlex
from typing import Final

from gpuchaos_agent.inject import kernel_log, tools
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.kernel_log import MARK
from gpuchaos_agent.journal import JournalEntry

#: Xid → the driver's text after `Xid (PCI:…): CODE, `. Forms of open-gpu-kernel-modules; the numbers are ours.
TEXTS: Final[dict[int, str]] = {
    48: "pid='<unknown>', name=<unknown>, An uncorrectable double bit error (DBE) has been detected on GPU "
    "in the framebuffer at physAddr 0x10 partition 0, subpartition 0.",
    63: "pid='<unknown>', name=<unknown>, Row Remapper: New row (0x0000000000000010) marked for remapping, "
    "reset gpu to activate.",
    64: "pid='<unknown>', name=<unknown>, Row Remapper Error: (0x0000000000000010) - All reserved rows for bank "
    "are remapped",
    94: "pid='<unknown>', name=<unknown>, Contained: SM (0x1). RST: No, D-RST: No",
    95: "pid='<unknown>', name=<unknown>, Uncontained: FBHUB. RST: Yes, D-RST: No",
}

_CLEARED: Final = "gpuchaos: memory-corruption cleared"
#: `0000:3b:00`, with or without a function, in NVML's eight digits or the kernel's four or five.
_PCI: Final = re.compile(r"^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(\.[0-7])?$")
#: DCGM_FI_DEV_XID_ERRORS of dcgm_fields.h: the last Xid of a GPU.
_XID_FIELD: Final = 230


def is_pci(value: str) -> bool:
    """Whether it is a PCI address in one of the forms that are known."""
    return bool(_PCI.match(value))


def why_not(env: Env, target: str, pci: str | None, *, dcgm: bool) -> str | None:
    """Why the record cannot be written and read back, or None."""
    if _address(env, target, pci) is None:
        return f"the PCI address of {target} is not known here; give it as parameter pci"
    if dcgm and not target.rsplit("/", 1)[1].isdecimal():
        return f"DCGM knows GPUs by number, and {target} names none"
    return (tools.missing("dcgmi") if dcgm else None) or kernel_log.unavailable(env.kmsg)


def plan(env: Env, target: str, pci: str | None, xid: int, fault_id: str, *, dcgm: bool) -> Payload:
    """The text and its mark.

    Raises:
        InjectError: the GPU's address is not known any more.
    """
    address = _address(env, target, pci)
    if address is None:
        raise InjectError(f"the PCI address of {target} is not known any more")
    made: Payload = {
        "pci": address,
        "xid": xid,
        "text": f"NVRM: Xid (PCI:{address}): {xid}, {TEXTS[xid]} {MARK}{fault_id}",
    }
    return {**made, "dcgm_gpu": target.rsplit("/", 1)[1]} if dcgm else made


def commands(env: Env, entry: JournalEntry) -> tuple[str, ...]:
    """A line for the kernel log, and one that says that it is over."""
    log = shlex.quote(str(env.kmsg))
    lines = [f"echo {shlex.quote(f'<4>{text}')} > {log}" for text in (entry.payload.get("text"), _cleared(entry))]
    if "dcgm_gpu" not in entry.payload:
        return tuple(lines)
    there, back = (shlex.join(_dcgm(entry, value)) for value in (entry.payload.get("xid"), 0))
    return (lines[0], there, lines[1], back)


def inject(env: Env, entry: JournalEntry) -> None:
    """Writes the record, and DCGM's field where that was asked."""
    kernel_log.write(env.kmsg, str(entry.payload["text"]))
    if "dcgm_gpu" in entry.payload:
        tools.run(_dcgm(entry, entry.payload["xid"]))


def evidence(env: Env, entry: JournalEntry) -> Evidence:
    """The record as it is read back from the log."""
    records = kernel_log.records(env.kmsg)
    found = next((record for record in records if _is_injected(record, entry)), None)
    if found is None:
        return Evidence(moved=False, detail={"record": None})
    detail: Payload = {"record": found.partition("\n")[0][:400], "xid": entry.payload.get("xid")}
    if "dcgm_gpu" in entry.payload:
        detail["dcgm_field"] = _XID_FIELD
    return Evidence(moved=True, detail=detail)


def undo(env: Env, entry: JournalEntry) -> None:
    """Writes the clearing record, once."""
    if verify(env, entry):
        return
    if "dcgm_gpu" in entry.payload:
        tools.run(_dcgm(entry, 0))
    kernel_log.write(env.kmsg, _cleared(entry))


def verify(env: Env, entry: JournalEntry) -> bool:
    """The clearing record follows the last injected one, or the log holds neither any more."""
    standing = False
    for record in kernel_log.records(env.kmsg):
        if _is_injected(record, entry):
            standing = True
        elif _CLEARED in record and kernel_log.is_marked(record, entry.fault_id):
            standing = False
    return not standing


def _is_injected(record: str, entry: JournalEntry) -> bool:
    return "NVRM: Xid" in record and kernel_log.is_marked(record, entry.fault_id)


def _cleared(entry: JournalEntry) -> str:
    return f"{_CLEARED} (PCI:{entry.payload.get('pci')}) {MARK}{entry.fault_id}"


def _dcgm(entry: JournalEntry, value: object) -> list[str]:
    gpu = str(entry.payload.get("dcgm_gpu"))
    return ["dcgmi", "test", "--inject", "--gpuid", gpu, "-f", str(_XID_FIELD), "-v", str(value)]


def _address(env: Env, target: str, pci: str | None) -> str | None:
    """The address as the driver prints it: four digits of domain, lower case, no function."""
    match = _PCI.match(pci or env.gpu_pci(target.rsplit("/", 1)[1]) or "")
    return f"{int(match[1], 16):04x}:{match[2].lower()}:{match[3].lower()}" if match else None
