"""The processes of jobs on this node: do they run, do they get on, do they sit beside their GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.collect import files, numa, pci
from gpuchaos_agent.collect.app_log import AppLog
from gpuchaos_agent.collect.base import Group, JobSource, Places, Reading, Sources
from gpuchaos_stream.events.frame import GroupLayout, Kind

METRICS: Final = ("steps_rate", "step_time_seconds", "progress_age_seconds", "running", "numa_misaligned_ratio")

#: States of /proc/PID/stat (proc(5)) in which a process does nothing: stopped, traced, dead, zombie.
NOT_RUNNING: Final = frozenset("TtXxZ")

_ALLOWED: Final = re.compile(r"^Cpus_allowed_list:\s*(\S+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """State letter and start time (clock ticks since boot) of a process: pid and start name it for good."""

    state: str
    start: int


def process_stat(procfs: Path, pid: int) -> ProcessStat | None:
    """`/proc/PID/stat`, None where there is no such process. The command's name may hold blanks and brackets."""
    _, found, rest = (files.text(procfs / str(pid) / "stat") or "").rpartition(")")
    fields = rest.split()
    if not found or len(fields) < 20 or not fields[19].isdecimal():
        return None
    return ProcessStat(state=fields[0], start=int(fields[19]))


class _Job:
    """One process of a job and what was last known of it."""

    def __init__(self, source: JobSource) -> None:
        self.source = source
        self.pid: int | None = None
        self.start: int | None = None
        self.home: int | None = None
        self.log = (
            None
            if source.log is None
            else AppLog(source.log, step_pattern=source.step_pattern, time_pattern=source.time_pattern)
        )

    @property
    def id(self) -> str:
        return self.source.job if self.pid is None else str(self.pid)


class ProcessCollector:
    """Follows the processes that are configured (`JobSource`)."""

    name = "process"
    kinds: tuple[Kind, ...] = ("process",)

    def __init__(self, jobs: tuple[JobSource, ...], *, procfs: Path, sysfs: Path) -> None:
        self._jobs = [_Job(source) for source in jobs]
        self._procfs = procfs
        self._sysfs = sysfs

    @classmethod
    def from_sources(cls, sources: Sources) -> ProcessCollector:
        """The collector of these roots and jobs."""
        return cls(sources.jobs, procfs=sources.procfs, sysfs=sources.sysfs)

    def read(self, now: float) -> Reading:
        """One row a process, id its pid, label `job`. A process that is gone keeps its last pid and runs not."""
        if not self._jobs:
            return Reading(absent={"process": "no job is configured"})
        absent: dict[str, str] = {}
        nodes = numa.cpus(self._sysfs / numa.NODES)
        rows: dict[str, tuple[str, tuple[float | None, ...]]] = {}
        for job in self._jobs:
            row = self._row(job, now, nodes, absent)
            if job.id in rows:
                absent[f"process.{job.source.job}"] = f"pid {job.id} is another job's already"
                continue
            rows[job.id] = (job.source.job, row)
        layout = GroupLayout(
            kind="process", ids=tuple(rows), metrics=METRICS, labels={"job": tuple(job for job, _ in rows.values())}
        )
        columns = tuple(zip(*(row for _, row in rows.values()), strict=True))
        jobs = tuple(dict.fromkeys(job.source.job for job in self._jobs))
        return Reading(groups=(Group(layout, columns),), absent=absent, places=Places(jobs=jobs))

    def close(self) -> None:
        """Nothing is held open between ticks."""

    def _row(
        self, job: _Job, now: float, nodes: dict[int, frozenset[int]], absent: dict[str, str]
    ) -> tuple[float | None, ...]:
        running = self._running(job, absent)
        misaligned = self._misaligned(job, nodes)
        if job.log is None:
            return (None, None, None, running, misaligned)
        job.log.poll(now)
        if job.log.problem:
            absent[f"process.{job.source.job}.log"] = job.log.problem
        return (job.log.steps_rate(), job.log.step_time, job.log.progress_age(now), running, misaligned)

    def _running(self, job: _Job, absent: dict[str, str]) -> float | None:
        """1 while it runs, 0 while it is stopped or gone, None while it is not known which process it is."""
        pid = self._find_pid(job)
        if pid is None and job.pid is None:
            absent[f"process.{job.source.job}"] = f"no pid in {job.source.pidfile or 'the configuration'}"
            return None
        if pid is not None and pid != job.pid:
            job.pid, job.start = pid, None
        stat = process_stat(self._procfs, job.pid) if job.pid is not None else None
        if stat is None:
            return 0.0
        if job.start is None:
            job.start = stat.start
        # Another start time under the same pid is another process: ours is gone.
        return float(stat.start == job.start and stat.state not in NOT_RUNNING)

    def _find_pid(self, job: _Job) -> int | None:
        if job.source.pid is not None:
            return job.source.pid
        content = files.text(job.source.pidfile) if job.source.pidfile is not None else None
        return int(content) if content and content.isdecimal() and len(content) < 10 else None

    def _misaligned(self, job: _Job, nodes: dict[int, frozenset[int]]) -> float | None:
        """Share of the CPUs it may run on that are off its GPU's NUMA node; None where the node is unknown."""
        home = nodes.get(self._home(job))
        if job.pid is None or home is None:
            return None
        allowed = _ALLOWED.search(files.text(self._procfs / str(job.pid) / "status") or "")
        # The mask names CPUs that this machine does not have as well.
        may = frozenset(files.id_list(allowed[1] if allowed else None)) & frozenset().union(*nodes.values())
        return len(may - home) / len(may) if may else None

    def _home(self, job: _Job) -> int:
        """The NUMA node of the job's GPU, -1 where it is unknown. Looked up once: devices do not move."""
        if job.home is None:
            found = job.source.numa_node
            address = self._address(job.source.gpu)
            if found is None and address is not None:
                nodes = numa.online(self._sysfs / numa.NODES)
                found = numa.device_node(files.number(pci.numa_file(self._sysfs, address)), nodes)
            job.home = -1 if found is None else found
        return job.home

    def _address(self, gpu: str | None) -> str | None:
        if gpu is None or not gpu.isdecimal():
            return gpu
        known = pci.gpus(self._sysfs)
        return known[int(gpu)] if int(gpu) < len(known) else None
