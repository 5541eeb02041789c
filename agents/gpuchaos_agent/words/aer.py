"""PCIe errors: Advanced Error Reporting and Downstream Port Containment, many lines for one error.

    pcieport 0000:00:01.0: AER: Corrected error received: id=0008                (to 4.15: the id is bus and function)
    pcieport 0000:00:01.0: AER: Multiple Correctable error message received from 0000:03:04.0     (6.9 and later)
    hpsa 0000:04:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)
    hpsa 0000:04:00.0:   device [103c:323a] error status/mask=000011c1/00000000
    hpsa 0000:04:00.0:    [ 6] Bad TLP

`severity=` says Corrected, Uncorrected (Non-Fatal), Uncorrected (Fatal); newer kernels Correctable and
Uncorrectable (RHEL 9; Linux 6.9 `drivers/pci/pcie/aer.c`). The reporter (a root port) and the device that erred
are different ones, and the id in the old line may be neither: lines join whatever they name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.conclude import conclude
from gpuchaos_agent.words.table import BDF, LONGEST
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("AER: ", "PCIe Bus Error: ", "error status/mask=", ":    [", "DPC: ", "evice recovery ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})

_AT: Final = rf"[\w.-]{{1,32}} (?P<at>{BDF}): (?:AER: )?"
_RECEIVED: Final = re.compile(
    rf"{_AT}(?P<multiple>Multiple )?(?P<word>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?) error "
    rf"(?:message )?received(?:: id=(?P<id>[0-9a-f]{{4}})|(?:: | from )(?P<bdf>{BDF}))"
)
_ERROR: Final = re.compile(
    rf"{_AT}PCIe Bus Error: severity=(?P<word>(?:Unc|C)orrect(?:ed|able)(?: \((?:Non-)?Fatal\))?), "
    r"type=(?P<layer>[A-Z][A-Za-z ]{1,32})"
)
_STATUS: Final = re.compile(
    rf"{_AT} {{0,8}}device \[(?P<pci_id>[0-9a-f]{{4}}:[0-9a-f]{{4}})\] error status/mask="
    r"(?P<status>[0-9a-f]{8})/(?P<mask>[0-9a-f]{8})"
)
_BIT: Final = re.compile(
    rf"{_AT} {{0,8}}\[ ?(?P<bit>\d{{1,2}})\] (?P<name>[A-Z][A-Za-z_/-]{{0,20}}(?: [A-Za-z_/-]{{1,20}}){{0,4}})"
    r" *(?:\(First\))?\s*\Z"
)
_RECOVERY: Final = re.compile(rf"{_AT}[Dd]evice recovery (?P<how>successful|failed)")
_DPC: Final = re.compile(rf"{_AT}DPC: containment event, status:0x(?P<status>[0-9a-f]{{4}})")

_CORRECTED: Final = ("pcie_aer_corrected", Severity.WARNING, "monitor")
_NONFATAL: Final = ("pcie_aer_nonfatal", Severity.ERROR, "check_pcie")
_FATAL: Final = ("pcie_aer_fatal", Severity.CRITICAL, "replace_pcie_device")


def conclude_aer(parts: Sequence[Finding]) -> Finding:
    """One PCIe error. `device` is who erred, `reporter` who told the system, `bits` the error's numbers.

    Of several devices at once the first of the worst is named, and all of them in `devices`.
    """
    made = conclude(parts)
    errors = [part for part in parts if part.evidence.get("layer")]
    worst = max(errors, key=lambda part: part.severity.rank, default=None)
    device = worst.device if worst else made.device
    bits = sorted({int(bit) for part in parts for bit in _list(part, "bits")})
    names = dict.fromkeys(name for part in parts for name in _list(part, "errors"))
    devices = dict.fromkeys(part.device for part in errors)
    evidence: Evidence = {**made.evidence, "bdf": device}
    if bits:
        evidence["bits"] = ",".join(map(str, bits))
    if names:
        evidence["errors"] = ",".join(names)
    if len(devices) > 1:
        evidence["devices"] = ",".join(devices)
    evidence.setdefault("reporter", device)
    return replace(made, evidence=evidence, device=device)


FAMILIES: Final = (Family("aer", gap_s=5.0, any_device=True, conclude=conclude_aer),)


def read(record: LogRecord) -> Finding | None:
    """What one line adds to a PCIe error; the bits are in details, which say nothing alone."""
    text = record.text[:LONGEST]
    error = _ERROR.match(text)
    if error is not None:
        return _fault(text, error["at"], error["word"], {"layer": error["layer"].strip()})
    received = _RECEIVED.match(text)
    if received is not None:
        said: Evidence = {"reporter": received["at"].lower()}
        if received["multiple"]:
            said["multiple"] = True
        return _fault(text, received["bdf"] or received["at"], received["word"], said)
    status = _STATUS.match(text)
    if status is not None:
        bits = int(status["status"], 16) & 0xFFFFFFFF
        found = ",".join(str(bit) for bit in range(32) if bits >> bit & 1)
        return _detail(status["at"], {"pci_id": status["pci_id"], "bits": found})
    bit = _BIT.match(text)
    if bit is not None:
        return _detail(bit["at"], {"bits": bit["bit"], "errors": bit["name"].replace(" ", "")})
    recovery = _RECOVERY.match(text)
    if recovery is not None:
        if recovery["how"] == "successful":
            return _detail(recovery["at"], {"recovered": True})
        return _fault(text, recovery["at"], "Fatal", {"recovered": False, "cause": "device recovery failed"})
    contained = _DPC.match(text)
    if contained is not None:
        return _fault(text, contained["at"], "Fatal", {"cause": "contained", "reporter": contained["at"].lower()})
    return None


def _fault(text: str, bdf: str, word: str, said: Evidence) -> Finding:
    fault, severity, action = _CORRECTED
    if word.startswith("Unc") or word == "Fatal":
        fault, severity, action = _NONFATAL if "(Non-Fatal)" in word else _FATAL
    evidence: Evidence = {**said, "action": action, "text": text[:TEXT_KEPT]}
    return Finding(fault, severity, evidence=evidence, device=bdf.lower(), family="aer")


def _detail(bdf: str, said: Evidence) -> Finding:
    return Finding(_CORRECTED[0], Severity.INFO, evidence=said, device=bdf.lower(), family="aer", part=Part.DETAIL)


def _list(part: Finding, name: str) -> list[str]:
    return [each for each in str(part.evidence.get(name) or "").split(",") if each]
