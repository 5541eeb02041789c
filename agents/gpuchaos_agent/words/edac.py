"""EDAC: memory errors with the module (DIMM) they come from.

    EDAC MC0: 4 CE memory read error on CPU_SrcID#0_Ha#0_Chan#2_DIMM#0 (channel:2 slot:0 page:0x0 offset:0x0 …)

Linux `drivers/edac/edac_mc.c`, 3.5 to 6.14; before that `EDAC MC0: CE page 0x283, … label "DIMM_B1": amd64_edac`.
The number is how many errors the line stands for. Page 0 means that the address is not known.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import NONE, TEXT_KEPT, Finding, Part
from gpuchaos_agent.words.mce import FAMILY
from gpuchaos_agent.words.table import LONGEST, LONGEST_VALUE
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("EDAC ",)
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
#: Machine checks and EDAC's lines are one event: the family is declared in `mce`.
FAMILIES: Final = ()

_ERROR: Final = re.compile(
    r"EDAC (?P<mc>MC\d{1,3}): (?P<number>\d{1,9}) (?P<kind>CE|UE) (?:(?P<cause>[^()\n]{1,80}?) )?on "
    r"(?P<dimm>[^()\n]{1,200}) \([^)\n]{0,200}?page:0x(?P<page>[0-9a-f]{1,16})\b"
)
_OLD: Final = re.compile(
    r"EDAC (?P<mc>MC\d{1,3}): (?P<kind>CE|UE) (?:- no information available: )?page 0x(?P<page>[0-9a-f]{1,16}), "
    r"[^\"\n]{0,200}\"(?P<dimm>[^\"\n]{0,128})\": "
)
_DECODING: Final = re.compile(
    r"EDAC \w{1,32} (?P<mc>MC\d{1,3}): CPU (?P<cpu>\d{1,5}): Machine Check (?:Event|Exception): "
    r"[0-9a-f]{1,16} Bank (?P<bank>\d{1,3}): [0-9a-f]{16}"
)
#: Labels that name nothing (`edac_mc.c`).
_NOBODY: Final = frozenset({"any memory", "unknown memory", "unknown label", ""})


def read(record: LogRecord) -> Finding | None:
    """A memory error: `dimm` is the label, `ce_count` or `ue_count` how many errors, `page` where known."""
    text = record.text[:LONGEST]
    decoding = _DECODING.match(text)
    if decoding is not None:
        said: Evidence = {"cpu": int(decoding["cpu"]), "bank": int(decoding["bank"]), "mc": decoding["mc"]}
        return Finding(NONE, Severity.INFO, evidence=said, family=FAMILY, part=Part.DETAIL)
    line = _ERROR.match(text) or _OLD.match(text)
    if line is None:
        return None
    groups = line.groupdict()
    corrected = groups["kind"] == "CE"
    evidence: Evidence = {
        "mc": groups["mc"],
        "ce_count" if corrected else "ue_count": int(groups.get("number") or 1),
        "action": "replace_dimm_at_maintenance" if corrected else "replace_dimm",
        "text": text[:TEXT_KEPT],
    }
    dimm = groups["dimm"].strip()[:LONGEST_VALUE]
    if dimm not in _NOBODY:
        evidence["dimm"] = dimm
    if groups.get("cause") not in {None, "error"}:
        evidence["cause"] = groups["cause"]
    if int(groups["page"], 16):
        evidence["page"] = f"0x{groups['page']}"
    return Finding(
        "mem_ce" if corrected else "mem_ue",
        Severity.WARNING if corrected else Severity.ERROR,
        evidence=evidence,
        family=FAMILY,
    )
