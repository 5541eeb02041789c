"""torchrun (torch.distributed.elastic) and other launchers: a worker that ended, and who was only stopped with it.

`Sending process N closing signal SIGTERM` and `Received 15 death signal` are the launcher stopping survivors: they
say nothing. Formats: torch 1.9 to 2.9 (`multiprocessing/api.py`, `errors/__init__.py`, `rendezvous/`), Slurm 20 to
25, Open MPI 4 and 5, DataLoader's `signal_handling.py`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.wordings import first, wording
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    "exitcode",
    "Rendezvous",
    "slurmstepd: error",
    "srun: error",
    "exited on signal",
    "DataLoader worker",
    "Fatal Python error",
    "Segmentation fault",
)
WRITERS: Final = frozenset({Writer.PROGRAM})

WORDINGS: Final = (
    wording(
        r"failed \(exitcode: (?P<exitcode>-?\d{1,10})\) local_rank: (?P<local_rank>\d{1,6}) \(pid: (?P<pid>\d{1,10})\)",
        "worker_failed",
        action="look_at_worker_log",
    ),
    wording(
        r"\A\s{0,8}exitcode {1,4}: (?P<exitcode>-?\d{1,10}) \(pid: (?P<pid>\d{1,10})\)",
        "worker_failed",
        action="look_at_worker_log",
        part=Part.DETAIL,
    ),
    wording(
        r"(?:RendezvousTimeoutError|RendezvousConnectionError|RendezvousClosedError)",
        "rendezvous_failed",
        action="look_at_peer",
    ),
    wording(r"slurmstepd: error: Detected \d{1,6} oom[-_]kill event", "oom_kill", Severity.CRITICAL, "give_job_memory"),
    wording(
        r"srun: error: (?P<host>[A-Za-z0-9_.-]{1,64}): tasks? (?P<ranks>[\d,-]{1,200}): Out Of Memory",
        "oom_kill",
        Severity.CRITICAL,
        "give_job_memory",
    ),
    wording(
        r"srun: error: (?P<host>[A-Za-z0-9_.-]{1,64}): tasks? (?P<ranks>[\d,-]{1,200}): (?P<cause>Killed|Bus error|"
        r"Segmentation fault|Aborted|Floating point exception)",
        "worker_killed",
        action="look_for_oom_kill",
    ),
    wording(
        r"srun: error: (?P<host>[A-Za-z0-9_.-]{1,64}): tasks? (?P<ranks>[\d,-]{1,200}): "
        r"Exited with exit code (?P<exitcode>\d{1,3})",
        "worker_failed",
        action="look_at_worker_log",
    ),
    wording(
        r"PID (?P<pid>\d{1,10}) on node (?P<host>[A-Za-z0-9_.-]{1,64}) exited on signal (?P<signal>\d{1,3})",
        "worker_killed",
        action="look_for_oom_kill",
    ),
    wording(
        r"DataLoader worker \(pids?(?:\(s\))? (?P<pid>\d{1,10})[\d, ]{0,200}\) "
        r"(?:is killed by signal|exited unexpectedly)"
        r"(?:: (?P<cause>[A-Za-z ]{1,30}))?",
        "worker_killed",
        action="look_for_oom_kill",
    ),
    wording(r"\A(?:\S{1,40} )?Fatal Python error: (?P<cause>Segmentation fault|Bus error|Aborted)", "app_segfault"),
    wording(
        r"\A(?:[^\n]{0,80}: line \d{1,6}: {1,2}\d{1,10} )?Segmentation fault(?: {1,20}\(core dumped\)|\Z)",
        "app_segfault",
    ),
)

_SIGNALS: Final = {-9: "SIGKILL", -11: "SIGSEGV", -6: "SIGABRT", -7: "SIGBUS", -15: "SIGTERM"}


def read(record: LogRecord) -> Finding | None:
    """What a launcher says of a worker that ended by itself."""
    finding = first(WORDINGS, record)
    if finding is None:
        return None
    code = finding.evidence.get("exitcode")
    if isinstance(code, int) and code in _SIGNALS:
        finding.evidence["cause"] = _SIGNALS[code]
        if code == -9:
            finding.evidence["action"] = "look_for_oom_kill"
        if code == -15:  # somebody stopped it: a preemption, or the launcher itself
            finding = replace(finding, severity=Severity.WARNING)
    return replace(finding, family="worker" if finding.fault.startswith("worker") else finding.fault)


def conclude(parts: Sequence[Finding]) -> Finding:
    """The first worker that failed: the launcher names it first, the others end because of it."""
    faults = [part for part in parts if part.part is Part.FAULT] or list(parts[:1])
    chosen = faults[0]
    evidence = dict(chosen.evidence)
    pid = evidence.get("pid")
    for part in parts:
        if part.evidence.get("pid") == pid:
            evidence = {**part.evidence, **evidence}
    return replace(chosen, evidence=evidence)


FAMILIES: Final = (
    Family("worker", gap_s=60.0, any_device=True, conclude=conclude),
    Family("oom_kill", gap_s=10.0, any_device=True),
    Family("app_segfault", gap_s=5.0, any_device=True),
)
