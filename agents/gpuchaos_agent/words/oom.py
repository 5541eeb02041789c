"""The kernel's OOM killer: three lines for one killed process.

    python3 invoked oom-killer: gfp_mask=0xcc0(GFP_KERNEL), order=0, oom_score_adj=985      (who asked, not who dies)
    oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),…,task_memcg=/a/b,task=worker,pid=36520,uid=0     (4.19)
    Memory cgroup out of memory: Killed process 36520 (worker) total-vm:…          (`Kill process … score` to 5.2)

CONSTRAINT_MEMCG is a limit of the victim's control group: the node has memory left. Linux `mm/oom_kill.c`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import NONE, TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.conclude import conclude
from gpuchaos_agent.words.table import LONGEST, LONGEST_VALUE
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("invoked oom-killer: ", "oom-kill:constraint=", "ut of memory", "oom_reaper: ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})

_INVOKED: Final = re.compile(r"(?P<comm>.{1,64}) invoked oom-killer: gfp_mask=")
_CONSTRAINT: Final = re.compile(r"oom-kill:constraint=(?P<constraint>CONSTRAINT_[A-Z_]{1,24}),")
_VICTIM: Final = re.compile(r",task=(?P<victim>.{1,64}),pid=(?P<pid>\d{1,10}),uid=\d")
_MEMCG: Final = re.compile(r",task_memcg=(?P<path>[^,\n]{1,4096})")
_KILLED: Final = re.compile(
    r"(?P<memcg>Memory cgroup out of memory|Out of memory(?: \(oom_kill_allocating_task\))?): "
    r"Kill(?:ed)? process (?P<pid>\d{1,10}) \((?P<victim>.{1,64}?)\)(?: total-vm|,? ?(?:UID|score|total)|,)"
)
_NOBODY: Final = re.compile(
    r"(?:Kernel panic - not syncing: )?(?:System is deadlocked on memory|Out of memory and no killable)"
)
_REAPED: Final = re.compile(r"oom_reaper: reaped process (?P<pid>\d{1,10}) \((?P<victim>.{1,64}?)\)")


def conclude_oom(parts: Sequence[Finding]) -> Finding:
    """The killed process with all that its lines say of it; `scope` is `app` where its own group was full."""
    made = conclude(parts)
    memcg = any(part.evidence.get("constraint") == "CONSTRAINT_MEMCG" for part in parts)
    evidence: Evidence = {**made.evidence}
    if memcg:
        evidence.update(scope="app", action="raise_memory_limit")
    return replace(made, evidence=evidence)


FAMILIES: Final = (Family("oom", gap_s=5.0, conclude=conclude_oom),)


def read(record: LogRecord) -> Finding | None:
    """One line of a kill; findings of one victim share its pid as device. `victim` and `pid` are the host's."""
    text = record.text[:LONGEST]
    invoked = _INVOKED.match(text)
    if invoked is not None:
        return Finding(NONE, Severity.INFO, evidence={"comm": invoked["comm"]}, family="oom", part=Part.DETAIL)
    constraint = _CONSTRAINT.match(text)
    if constraint is not None:
        victim = _VICTIM.match(text, max(text.rfind(",task="), 0))
        if victim is None:
            return None
        memcg = _MEMCG.search(text)
        said: Evidence = {"constraint": constraint["constraint"]}
        if memcg is not None:
            said["path"] = memcg["path"][:LONGEST_VALUE]
        return _kill(text, victim, said, memcg=constraint["constraint"] == "CONSTRAINT_MEMCG")
    killed = _KILLED.match(text)
    if killed is not None:
        memcg_line = killed["memcg"].startswith("Memory")
        constraint_said: Evidence = {"constraint": "CONSTRAINT_MEMCG"} if memcg_line else {}
        return _kill(text, killed, constraint_said, memcg=memcg_line)
    if _NOBODY.match(text):
        evidence: Evidence = {"action": "reboot_node", "scope": "node", "cause": "no_victim", "text": text[:TEXT_KEPT]}
        return Finding("oom_kill", Severity.CRITICAL, evidence=evidence, family="oom")
    reaped = _REAPED.match(text)
    if reaped is not None:
        said = {"pid": int(reaped["pid"]), "victim": reaped["victim"]}
        return Finding(NONE, Severity.INFO, evidence=said, device=reaped["pid"], family="oom", part=Part.DETAIL)
    return None


def _kill(text: str, line: re.Match[str], said: Evidence, *, memcg: bool) -> Finding:
    evidence: Evidence = {
        **said,
        "victim": line["victim"],
        "pid": int(line["pid"]),
        "scope": "app" if memcg else "node",
        "action": "raise_memory_limit" if memcg else "free_memory",
        "text": text[:TEXT_KEPT],
    }
    return Finding("oom_kill", Severity.ERROR, evidence=evidence, device=line["pid"], family="oom")
