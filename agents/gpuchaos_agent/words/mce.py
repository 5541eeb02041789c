"""Machine checks: the kernel's own lines, the firmware's (APEI), and what the daemon mcelog adds to them.

The kernel's `Machine check events logged` has no detail: the words `Hardware Error` stand before corrected
errors as well and say nothing of severity. The detail comes from EDAC (`edac.py`), from mcelog's lines, or from
the status register (Intel SDM 3B, 17.3.2.2: bit 61 is UC, uncorrected). All of it is one event.
Wordings: Linux `arch/x86/kernel/cpu/mce/{core,intel,threshold}.c` (4.14 to 6.14; since 6.9 a storm is per bank:
`CPU3 BANK7 CMCI storm detected`), `drivers/edac/mce_amd.c`, `drivers/firmware/efi/cper.c`; mcelog 1xx.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.conclude import filled
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    *("[Hardware Error]: ", "CMCI storm ", "Fatal machine check", "hardware memory error in "),
    *("mcelog", "Hardware event. This is not a software error", " BANK ", "Corrected error", "Uncorrected error"),
    "MCGSTATUS ",
)
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED, Writer.PROGRAM})

#: The family of machine checks; EDAC's findings are of it as well. None names a device before it is concluded:
#: the kernel's first line does not know it, and mcelog's lines are another program's.
FAMILY: Final = "machine_check"
#: Which of two equally severe findings names the event: the one that says more.
_TELLING: Final = ("mce_corrected", "mce_uncorrected", "mce_corrected_storm", "mem_ce", "mem_ue")
#: Firmware's section of an error (UEFI CPER) → what a corrected and an uncorrected one is.
_SECTIONS: Final = {
    "memory error": ("mem_ce", "mem_ue"),
    "PCIe error": ("pcie_aer_corrected", "pcie_aer_fatal"),
}

_HW: Final = r"(?:mce: )?(?:\{\d{1,9}\})?\[Hardware Error\]: "
_CORRECTED: Final = ("mce_corrected", Severity.WARNING, "monitor")
_BROKEN: Final = ("mce_uncorrected", Severity.ERROR, "replace_cpu_or_board")
_STORM: Final = "mce_corrected_storm"

RULES: Final = (
    Rule(re.compile(_HW + r"Machine check events logged"), *_CORRECTED, "2.6", FAMILY),
    # Bit 61 of the status: the first digit's second lowest bit.
    Rule(
        re.compile(
            _HW + r"CPU (?P<cpu>\d{1,5}): Machine Check(?: Exception)?: [0-9a-f]{1,16} Bank (?P<bank>\d{1,3}): "
            r"(?P<status>[2367abef][0-9a-f]{15})\b"
        ),
        "mce_uncorrected",
        Severity.CRITICAL,
        "replace_cpu_or_board",
        "2.6",
        FAMILY,
    ),
    Rule(
        re.compile(
            _HW + r"CPU (?P<cpu>\d{1,5}): Machine Check(?: Exception)?: [0-9a-f]{1,16} Bank (?P<bank>\d{1,3}): "
            r"(?P<status>[0-9a-f]{1,16})\b"
        ),
        *_CORRECTED,
        "2.6",
        FAMILY,
    ),
    Rule(re.compile(_HW + r"Corrected error, no action required"), *_CORRECTED, "2.6 (AMD)", FAMILY),
    Rule(re.compile(_HW + r"(?P<cause>Deferred error), no action required"), *_CORRECTED, "4.0 (AMD)", FAMILY),
    Rule(re.compile(_HW + r"(?P<cause>Uncorrected, [a-z ]{1,40}error)"), *_BROKEN, "2.6 (AMD)", FAMILY),
    Rule(
        re.compile(_HW + r"CPU:(?P<cpu>\d{1,5}) \([0-9a-f:]{1,16}\) MC(?P<bank>\d{1,3})_STATUS\["),
        NONE,
        since="2.6 (AMD)",
        family=FAMILY,
        part=Part.DETAIL,
    ),
    Rule(re.compile(_HW + r"event severity: corrected\b"), *_CORRECTED, "3.10 (APEI)", FAMILY),
    Rule(re.compile(_HW + r"event severity: recoverable\b"), *_BROKEN, "3.10 (APEI)", FAMILY),
    Rule(
        re.compile(_HW + r"event severity: fatal\b"),
        "mce_uncorrected",
        Severity.CRITICAL,
        "replace_cpu_or_board",
        "3.10 (APEI)",
        FAMILY,
    ),
    Rule(
        re.compile(_HW + r" {0,8}section_type: (?P<section>[A-Za-z ]{1,40}error)"),
        NONE,
        since="3.10 (APEI)",
        family=FAMILY,
        part=Part.DETAIL,
    ),
    Rule(
        re.compile(r"(?:mce: )?(?:CPU(?P<cpu>\d{1,5}) BANK(?P<bank>\d{1,3}) )?CMCI storm detected"),
        _STORM,
        Severity.WARNING,
        "monitor",
        "3.5; per bank 6.9",
        FAMILY,
    ),
    Rule(
        re.compile(r"(?:mce: )?(?:CPU\d{1,5} BANK\d{1,3} )?CMCI storm subsided"),
        NONE,
        since="3.5",
        family=FAMILY,
        part=Part.DETAIL,
        says={"subsided": True},
    ),
    Rule(
        re.compile(r"mce: Uncorrected hardware memory error in (?P<cause>user-access)"),
        "mem_ue",
        Severity.ERROR,
        "replace_dimm",
        "4.1",
        FAMILY,
    ),
)

#: mcelog's lines, one of a record each. They add to what the kernel says; a corrected error it has said already.
_SIGNED: Final = re.compile(r"mcelog(?:\[\d{1,10}\])?: ")
DAEMON_RULES: Final = (
    Rule(
        re.compile(r"(?:MCE \d{1,9} )?CPU (?P<cpu>\d{1,5}) BANK (?P<bank>\d{1,3})\b"),
        NONE,
        family=FAMILY,
        part=Part.DETAIL,
    ),
    Rule(re.compile(r"Corrected error\b"), NONE, family=FAMILY, part=Part.DETAIL),
    Rule(re.compile(r"Uncorrected error\b"), *_BROKEN, family=FAMILY),
    Rule(re.compile(r"Hardware event\. This is not a software error"), NONE, family=FAMILY, part=Part.DETAIL),
    Rule(re.compile(r"STATUS (?P<status>[0-9a-f]{1,16}) MCGSTATUS"), NONE, family=FAMILY, part=Part.DETAIL),
)


def conclude_machine_check(parts: Sequence[Finding]) -> Finding:
    """One error from all that speak of it, or a storm of corrected ones.

    `ce_count` sums what EDAC counted (of the parts that are kept: a lower bound in a long storm), `dimm` is the
    module with most of them, `dimms` all where there are several.
    """
    faults = [part for part in parts if part.part is Part.FAULT and part.fault != NONE]
    if not faults:
        return parts[0]
    chosen = max(faults, key=lambda part: (part.severity.rank, _telling(part.fault)))
    made = filled(chosen, parts)
    section = str(made.evidence.get("section") or "")
    if chosen.fault in {"mce_corrected", "mce_uncorrected"} and section in _SECTIONS:
        made = replace(made, fault=_SECTIONS[section][chosen.fault == "mce_uncorrected"])
    if chosen.fault not in {"mem_ce", "mem_ue"}:
        return made
    counted = "ce_count" if chosen.fault == "mem_ce" else "ue_count"
    dimms: dict[str, int] = {}
    for part in faults:
        if part.fault == chosen.fault:
            dimm, found = str(part.evidence.get("dimm") or ""), part.evidence.get(counted)
            dimms[dimm] = dimms.get(dimm, 0) + (found if isinstance(found, int) else 1)
    worst = max(dimms, key=lambda dimm: (bool(dimm), dimms[dimm]))
    evidence: Evidence = {**made.evidence, counted: sum(dimms.values())}
    if worst:
        evidence["dimm"] = worst
    if len(dimms) > 1:
        evidence["dimms"] = ",".join(sorted(filter(None, dimms)))
    return replace(made, evidence=evidence, device=worst or made.device)


FAMILIES: Final = (Family(FAMILY, gap_s=15.0, conclude=conclude_machine_check),)


def read(record: LogRecord) -> Finding | None:
    """A machine check; mcelog is believed where the log names it, or where it signs its own line."""
    if record.writer is not Writer.PROGRAM:
        found = table.read(RULES, record.text)
        if found is not None:
            return found
    signed = _SIGNED.match(record.text)
    if signed is None and (record.writer is not Writer.PROGRAM or record.tag != "mcelog"):
        return None
    return table.read(DAEMON_RULES, record.text[signed.end() if signed else 0 :])


def _telling(fault: str) -> int:
    return _TELLING.index(fault) if fault in _TELLING else -1
