"""Xids 144 to 150 (NVLink 5): the words, and the two numbers behind them, say how bad it is.

    UNIT Fatal|Nonfatal XC0|1 i0|1 Link NN (INTRINFO ERRORSTATUS DEBUG...)

`XC1`: the program dies although the link goes on. `i` not 0: injected in the hardware by whoever tests the link.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence
from gpuchaos_stream.events.base import Severity

_WORDS: Final = re.compile(
    r"(?P<unit>[A-Z][A-Z0-9_]{1,31}) (?P<fatal>Fatal|Nonfatal) XC(?P<xc>\d) i(?P<i>\d)"
    r"(?: Link (?P<link>-?\d{1,3}))?(?: \((?P<info>0x[0-9a-fA-F]{1,8}) (?P<status>0x[0-9a-fA-F]{1,8})\b)?"
)

#: What a unit's errors are, where it is not simply an error of the link: wear of the signal, not a failure.
_BIT_ERRORS: Final = "NETIR_BER"


def judge(code: int, body: str, fault: str, evidence: Evidence) -> tuple[str, Severity, str]:
    """Fault, severity and action; `unit`, `fatal`, `hardware_injected` and `follow_up` go into the evidence.

    The word decides the severity, for the driver knows what it did about the error; the rule for the two
    numbers decides the action. No word counts as fatal.
    """
    words = _WORDS.match(body)
    if words is None:
        return fault, Severity.CRITICAL, "reset_gpu"
    evidence["unit"] = unit = words["unit"]
    evidence["hardware_injected"] = words["i"] != "0"
    evidence["fatal"] = fatal = words["fatal"] == "Fatal"
    if words["link"] is not None:
        evidence["nvlink"] = int(words["link"])
    if code == 149:
        fault = "gpu_nvlink_ber" if unit.startswith(_BIT_ERRORS) else "gpu_nvlink_error"
    rule = None
    if words["info"] is not None:
        rule = catalogue.nvlink5_rule(code, unit, int(words["info"], 16), int(words["status"], 16))
    if rule is not None:
        evidence["follow_up"] = rule.follow_up
    severity, action = _level(fatal=fatal, dies=words["xc"] == "1", by_rule=rule.action if rule else None)
    if action == "none" and unit.startswith(_BIT_ERRORS):
        action = "check_cable_if_repeated"
    return fault, severity, action


def _level(*, fatal: bool, dies: bool, by_rule: str | None) -> tuple[Severity, str]:
    if fatal:
        return Severity.CRITICAL, "reset_gpu" if by_rule in {None, "none", "follow_other_xid"} else by_rule or ""
    if dies:
        return Severity.ERROR, "restart_app" if by_rule in {None, "none"} else by_rule or ""
    return Severity.WARNING, by_rule if by_rule and by_rule != "reset_gpu" else "none"
