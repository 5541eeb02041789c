"""Conditions of a card that last: told when they begin and when they end, never in between.

The first reading is the baseline: what is bad already is told once, marked, under a key that is the same after a
restart of the agent within one boot.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin


@dataclass(frozen=True, slots=True)
class Condition:
    """One lasting trouble. It is believed after `settle_s` seconds of it without a break."""

    name: str
    fault: str
    severity: Severity
    action: str
    settle_s: float = 0.0


#: Severity and action as of Xids 63 and 64, which are the same events in the kernel log.
ROW_REMAP_PENDING: Final = Condition("row_remap_pending", "gpu_row_remap_pending", Severity.WARNING, "reset_gpu")
ROW_REMAP_FAILED: Final = Condition("row_remap_failed", "gpu_row_remap_failure", Severity.CRITICAL, "replace_gpu")
RETIREMENT_PENDING: Final = Condition("retirement_pending", "gpu_memory_repair_pending", Severity.WARNING, "reset_gpu")
RETIREMENT_FULL: Final = Condition("retirement_full", "gpu_retirement_failure", Severity.CRITICAL, "replace_gpu")
#: Registration takes up to a minute after boot; a reset of a neighbour interrupts it.
FABRIC_NOT_READY: Final = Condition("fabric", "gpu_fabric_not_ready", Severity.ERROR, "check_fabric", settle_s=60.0)
#: One bad reading is not believed: links retrain within a second, and 214 of 288 nodes were once accused by one poll.
LINKS_DOWN: Final = Condition("links", "gpu_nvlink_error", Severity.ERROR, "check_link", settle_s=3.0)


class Conditions:
    """Remembers the conditions of one card. `subject` says whose in keys, `boot` is the boot's id."""

    def __init__(self, subject: str, boot: str) -> None:
        self._subject = subject
        self._boot = boot
        self._told: dict[str, str] = {}
        self._since: dict[str, float] = {}
        self._known: set[str] = set()

    def judge(
        self,
        condition: Condition,
        state: str | None,
        *,
        local: str,
        now: float,
        steady: float,
        evidence: Evidence | None = None,
        severity: Severity | None = None,
        action: str | None = None,
    ) -> Fact | None:
        """What to tell. `state` is empty while all is well, None where it could not be read (nothing changes), and
        otherwise says what is bad: another text of it is told as well. `now` is the node's clock, `steady` one that
        never jumps, both in seconds. `severity` and `action` replace the condition's own.
        """
        if state is None:
            return None
        first = condition.name not in self._known
        told = self._told.get(condition.name, "")
        if state == told:
            self._known.add(condition.name)
            self._since.pop(condition.name, None)
            return None
        since = self._since.setdefault(condition.name, steady)
        if state and steady - since < condition.settle_s:
            return None
        self._known.add(condition.name)
        self._since.pop(condition.name, None)
        self._told[condition.name] = state
        made: Evidence = dict(evidence or {})
        made["state"] = state or "ok"
        if first and state:
            made["baseline"] = True
        if not state:
            made["cleared"] = True
        made["action"] = (action or condition.action) if state else "none"
        told_at = self._boot if first else f"{now:.3f}"
        return Fact(
            key=f"nvml/{self._subject}/{condition.name}/{told_at}/{state}",
            fault=condition.fault,
            severity=(severity or condition.severity) if state else Severity.INFO,
            time=now,
            kind="gpu",
            local=local,
            origin=Origin.DRIVER,
            evidence=made,
        )
