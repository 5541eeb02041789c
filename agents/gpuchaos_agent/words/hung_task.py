"""Tasks that wait for too long without being interruptible, and whether they wait for NFS.

    INFO: task kworker/u203:1:1177 blocked for more than 120 seconds.        (the name may hold `/`, `:` and blanks)
          Not tainted 6.1.0 #1
    task:kworker/u203:1 state:D stack: 0 pid: 1177 ppid: 2 flags:0x00004000
    Call Trace:
     nfs_wait_bit_killable+0x1f/0x80 [nfs]

Linux `kernel/hung_task.c`, 2.6.30 to 6.14. The kernel stops after ten such lines (`hung_task_warnings`): silence is
not recovery. A stack with frames of the NFS client belongs to its server, not to this node.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import NONE, TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.conclude import conclude
from gpuchaos_agent.words.table import LONGEST
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("blocked for more than ", "nfs_", "nfs4_", "rpc_wait")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})

_HUNG: Final = re.compile(
    r"INFO: task (?P<task>.{1,64}):(?P<pid>\d{1,10}) blocked for more than (?P<seconds>\d{1,9}) seconds"
)
_FRAME: Final = re.compile(
    r"(?:^|\n)\s{0,8}(?:\[<[0-9a-f]{0,16}>\] )?(?:\? )?"
    r"(?P<frame>(?:nfs4?_\w{1,60}|rpc_wait\w{1,60}))\+0x[0-9a-f]{1,6}/0x"
)


def conclude_hung(parts: Sequence[Finding]) -> Finding:
    """The first task that hung (`count` tells of how many lines), or the silent server if NFS is in a stack."""
    made = conclude(parts)
    if not made.evidence.get("frame"):
        return made
    evidence = {**made.evidence, "cause": "hung_task", "action": "check_nfs_server"}
    return replace(made, fault="nfs_unresponsive", evidence=evidence)


#: The kernel looks every 120 s (`hung_task_timeout_secs`): what hangs on is one event.
FAMILIES: Final = (Family("hung_task", gap_s=130.0, any_device=True, conclude=conclude_hung),)


def read(record: LogRecord) -> Finding | None:
    """A task that hangs, or a frame of the NFS client from a stack (a detail)."""
    text = record.text[:LONGEST]
    hung = _HUNG.match(text)
    frame = _FRAME.search(text)
    if hung is None:
        if frame is None or frame.start() > 0:
            return None
        said = {"frame": frame["frame"]}
        return Finding(NONE, Severity.INFO, evidence={**said}, family="hung_task", part=Part.DETAIL)
    evidence = {
        "task": hung["task"],
        "pid": int(hung["pid"]),
        "seconds": int(hung["seconds"]),
        "action": "check_stack",
        "text": text[:TEXT_KEPT],
        **({"frame": frame["frame"]} if frame else {}),
    }
    return Finding("hung_task", Severity.ERROR, evidence=evidence, device=hung["task"], family="hung_task")
