"""`memory-corruption` on the telemetry plane: one record in the kernel log, in the driver's words, for an Xid.

It is written to /dev/kmsg by a process, so the kernel gives it the facility of a user (1, never 0), and it
carries ` gpuchaos-injected=<fault_id>`: it can be told from hardware speaking, twice over. No bit of any
memory changes. The undo writes a record that says so; records cannot be taken out of the log.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

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

MARK: Final = "gpuchaos-injected="
_CLEARED: Final = "gpuchaos: memory-corruption cleared"

#: `0000:3b:00`, with or without a function, in NVML's eight digits or the kernel's four or five.
_PCI: Final = re.compile(r"^([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})(\.[0-7])?$")
#: The kernel gives one record at a time, of at most this many bytes (CONSOLE_EXT_LOG_MAX).
_RECORD: Final = 8192


def _one_of_table(value: int) -> int:
    if value not in TEXTS:
        raise ValueError(f"one of {', '.join(map(str, TEXTS))}")
    return value


def _is_pci(value: str) -> str:
    if not _PCI.match(value):
        raise ValueError("a PCI address like 0000:3b:00.0")
    return value


class MemoryCorruptionParams(Authored):
    """`xid` of the table above. `pci` is needed where the node cannot tell the GPU's address itself."""

    xid: Annotated[int, AfterValidator(_one_of_table)] = Field(default=94)
    pci: Annotated[str, AfterValidator(_is_pci)] | None = None


class MemoryCorruption:
    """One marked Xid record; see the module."""

    name = "memory-corruption"
    layer = "the telemetry plane: the kernel log"
    certifies = ("error-detection", "error-attribution", "automatic-halt")
    not_certified = ("gpu-failure", "row-remapping", "checkpoint-integrity", "silent-data-corruption")
    params: type[Authored] = MemoryCorruptionParams

    def __init__(self, env: Env) -> None:
        self._env = env

    def unavailable(self) -> str | None:
        """Needs a kernel log that can be written and read back."""
        path = self._env.kmsg
        if not path.exists():
            return f"there is no {path} on this node"
        for mode, what in ((os.R_OK, "read"), (os.W_OK, "written")):
            if not os.access(path, mode):
                return f"{path} cannot be {what} by this agent; it needs root or the group of the device"
        return None

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses where the kernel log cannot be written and read back, or the GPU's address is not known."""
        kind, _, index = target.partition(f"/{self._env.node}/")
        if kind != "gpu" or not index:
            return f"the target must be gpu/{self._env.node}/INDEX, not {target}"
        if self._pci(target, params) is None:
            return f"the PCI address of {target} is not known here; give it as parameter pci"
        return self.unavailable()

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:
        """The text and its mark."""
        pci = self._pci(target, params)
        if pci is None:
            raise InjectError(f"the PCI address of {target} is not known any more")
        xid = MemoryCorruptionParams.model_validate(params).xid
        return {"pci": pci, "xid": xid, "text": f"NVRM: Xid (PCI:{pci}): {xid}, {TEXTS[xid]} {MARK}{fault_id}"}

    def inject(self, entry: JournalEntry) -> None:
        """Writes the record, at the level at which the driver writes its own (4, warning)."""
        self._write(str(entry.payload["text"]))

    def evidence(self, entry: JournalEntry) -> Evidence:
        """The record as it is read back from the log."""
        found = next((record for record in self._records() if self._is_injected(record, entry)), None)
        if found is None:
            return Evidence(moved=False, detail={"record": None})
        return Evidence(moved=True, detail={"record": found.partition("\n")[0][:400], "xid": entry.payload.get("xid")})

    def undo(self, entry: JournalEntry) -> None:
        """Writes the clearing record, once."""
        if not self.verify(entry):
            self._write(f"{_CLEARED} (PCI:{entry.payload.get('pci')}) {MARK}{entry.fault_id}")

    def verify(self, entry: JournalEntry) -> bool:
        """The clearing record follows the last injected one, or the log holds neither any more."""
        standing = False
        for record in self._records():
            if self._is_injected(record, entry):
                standing = True
            elif _CLEARED in record and self._is_marked(record, entry):
                standing = False
        return not standing

    def _is_injected(self, record: str, entry: JournalEntry) -> bool:
        return "NVRM: Xid" in record and self._is_marked(record, entry)

    def _is_marked(self, record: str, entry: JournalEntry) -> bool:
        return record.partition("\n")[0].rstrip().endswith(f"{MARK}{entry.fault_id}")

    def _pci(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """The address as the driver prints it: four digits of domain, lower case, no function."""
        given = MemoryCorruptionParams.model_validate(params).pci
        address = given or self._env.gpu_pci(target.rsplit("/", 1)[1])
        match = _PCI.match(address or "")
        return f"{int(match[1], 16):04x}:{match[2].lower()}:{match[3].lower()}" if match else None

    def _write(self, text: str) -> None:
        # Opened for each record: the kernel limits the rate per open file (printk_devkmsg=ratelimit).
        try:
            descriptor = os.open(self._env.kmsg, os.O_WRONLY | os.O_APPEND)
            try:
                os.write(descriptor, f"<4>{text}\n".encode())
            finally:
                os.close(descriptor)
        except OSError as error:
            raise InjectError(f"{self._env.kmsg} cannot be written: {error.strerror}") from error

    def _records(self) -> Iterator[str]:
        try:
            descriptor = os.open(self._env.kmsg, os.O_RDONLY | os.O_NONBLOCK)
        except OSError as error:
            raise InjectError(f"{self._env.kmsg} cannot be read: {error.strerror}") from error
        try:
            yield from _read_records(descriptor)
        finally:
            os.close(descriptor)


def _read_records(descriptor: int) -> Iterator[str]:
    """The records of /dev/kmsg, or the lines of a plain file that stands for it."""
    rest = ""
    while True:
        try:
            data = os.read(descriptor, _RECORD)
        except BrokenPipeError:
            continue  # overwritten while it was read: the next read is the oldest that is left
        except BlockingIOError:
            break
        except OSError as error:
            raise InjectError(f"the kernel log cannot be read: {error.strerror}") from error
        if not data:
            break
        lines = (rest + data.decode("utf-8", "replace")).split("\n")
        rest = lines.pop()
        yield from lines
    if rest:
        yield rest
