"""Xid 74: seven registers say what an NVLink error is.

Bits after NVIDIA's Xid catalogue (edition 2025-10), workflow for Xid 74: the first, third, fourth and fifth
register count (Hopper; on older GPUs the first alone). The worst rule decides.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_stream.events.base import Severity

_REGISTERS: Final = re.compile(r"\((0x[0-9a-fA-F]{1,8}(?:, ?0x[0-9a-fA-F]{1,8}){0,6})\)")


@dataclass(frozen=True, slots=True)
class BitRule:
    """Bits (the lowest is 0) of one register (the first is 0): what an error is, how bad, and what to do."""

    register: int
    bits: tuple[int, ...]
    meaning: str
    severity: Severity
    action: str


#: The most important first. A link with an Xid 74 is down until a reset, whatever the reason: nothing here is
#: less than an error, but for thresholds of corrected errors and bits that may be ignored.
RULES: Final = (
    BitRule(0, (8, 9, 12, 16, 17, 24, 28), "hardware or connection", Severity.CRITICAL, "check_link_reseat"),
    BitRule(0, (4, 5), "ecc or parity", Severity.CRITICAL, "replace_if_repeated"),
    BitRule(2, (0, 1, 2, 6), "ecc or parity", Severity.CRITICAL, "replace_if_repeated"),
    BitRule(4, (18, 19, 21, 22, 24, 25, 27, 28), "ecc or parity", Severity.CRITICAL, "replace_if_repeated"),
    BitRule(0, (21, 22), "marginal signal", Severity.CRITICAL, "check_link_reseat"),
    BitRule(2, (16, 19), "to be diagnosed if repeated", Severity.CRITICAL, "run_diagnostics"),
    BitRule(2, (13,), "not expected in production", Severity.CRITICAL, "contact_support"),
    BitRule(0, (27, 29), "unclear", Severity.CRITICAL, "contact_support"),
    BitRule(2, (17, 18), "unclear", Severity.CRITICAL, "contact_support"),
    BitRule(3, (18,), "consequence, fabric needs a reset", Severity.CRITICAL, "reset_fabric_reboot"),
    BitRule(0, (1, 20), "consequence", Severity.ERROR, "follow_other_xid"),
    BitRule(3, (16, 17), "consequence", Severity.ERROR, "follow_other_xid"),
    BitRule(4, (20, 23, 26, 29), "corrected errors over a threshold", Severity.WARNING, "monitor"),
    BitRule(0, (0, 23, 30), "may be ignored", Severity.WARNING, "none"),
)

_BY_CODE: Final = (Severity.CRITICAL, "check_link_reseat")


def judge(evidence: Evidence, body: str) -> tuple[Severity, str]:
    """Severity and action; `regs` (`0x10000,0,0,0,0,0,0`) and `meaning` go into the evidence."""
    found = _REGISTERS.search(body, 0, 2048)
    if found is None:
        return _BY_CODE
    registers = [int(word, 16) for word in found[1].split(",")]
    evidence["regs"] = ",".join(f"{value:#x}" if value else "0" for value in registers)
    for rule in RULES:
        if rule.register < len(registers) and any(registers[rule.register] >> bit & 1 for bit in rule.bits):
            evidence["meaning"] = rule.meaning
            return rule.severity, rule.action
    return _BY_CODE
