"""The processes of jobs on this node: do they run, do they get on, do they sit beside their GPU."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Fact, Group, JobSource, Places, Reading, Sources
from gpuchaos_agent.jobs.ends import Ends, Worker
from gpuchaos_agent.jobs.watch import JobWatch
from gpuchaos_agent.kernelfs import cgroups, files, numa_nodes, pci, processes
from gpuchaos_agent.kernelfs.alignment import Placement, home, placement
from gpuchaos_agent.kernelfs.numa_maps import Samples
from gpuchaos_agent.kernelfs.processes import process_stat
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.frame import GroupLayout, Kind

METRICS: Final = (
    "steps_rate",
    "step_time_seconds",
    "progress_age_seconds",
    "running",
    "numa_misaligned_ratio",
    "numa_cpu_far_ratio",
    "numa_memory_far_ratio",
    "cpu_throttled_ratio",
    "pressure_cpu_ratio",
    "pressure_memory_ratio",
    "pressure_io_ratio",
    "tokens_rate",
    "loss",
)

#: The machine's nodes, a GPU's node where it was unknown, and a process's cgroups are looked for this often, seconds.
LOOK_EVERY_S: Final = 30.0
#: An OOM kill in a worker's cgroup explains its end for this long, seconds.
OOM_EXPLAINS_S: Final = 5.0

Row = tuple[float | None, ...]


@dataclass(slots=True)
class _Job:
    """One process of a job and what was last known of it."""

    source: JobSource
    watch: JobWatch
    pid: int | None = None
    start: int | None = None
    gpu_node: int | None = None
    member: cgroups.Membership = field(default_factory=cgroups.Membership)
    folders: cgroups.Folders = field(default_factory=cgroups.Folders)
    looked_at: float | None = None

    @property
    def id(self) -> str:
        return self.source.job if self.pid is None else str(self.pid)


@dataclass(slots=True)
class _Group:
    """One cgroup's counters: in this tick, and what they were before. `oom_at` is when a kill was last counted."""

    cpu: cgroups.CpuStat | None = None
    throttled: float | None = None
    kills: float | None = None
    oom_at: float | None = None


class ProcessCollector:
    """Follows the processes that are configured (`JobSource`), and is waited on for the end of one."""

    name = "process"
    kinds: tuple[Kind, ...] = ("process",)
    ORDER = 50

    def __init__(self, jobs: tuple[JobSource, ...], *, procfs: Path, sysfs: Path) -> None:
        self._jobs = [_Job(source, JobWatch(source)) for source in jobs]
        self._procfs = procfs
        self._sysfs = sysfs
        self._ends = Ends(procfs)
        self._samples = Samples(procfs)
        self._groups: dict[Path, _Group] = {}
        self._nodes = numa_nodes.Nodes()
        self._nodes_at: float | None = None
        self._boot = processes.boot_id(procfs)

    @classmethod
    def from_sources(cls, sources: Sources) -> ProcessCollector:
        """The collector of these roots and jobs."""
        return cls(sources.jobs, procfs=sources.procfs, sysfs=sources.sysfs)

    def read(self, now: float) -> Reading:
        """One row a process, id its pid, label `job`. A process that is gone keeps its last pid and runs not."""
        if not self._jobs:
            return Reading(absent={"process": "no job is configured"})
        absent: dict[str, str] = {}
        self._look_at_machine(now)
        facts = list(self.drain(now))
        self._count_throttling()
        rows: dict[str, tuple[str, Row]] = {}
        for job in self._jobs:
            row = self._row(job, now, absent)
            if job.id in rows:
                absent[f"process.{job.source.job}"] = f"pid {job.id} is another job's already"
                continue
            rows[job.id] = (job.source.job, row)
        self._samples.keep((job.pid, job.start) for job in self._jobs)
        layout = GroupLayout(
            kind="process", ids=tuple(rows), metrics=METRICS, labels={"job": tuple(job for job, _ in rows.values())}
        )
        return Reading(
            groups=(Group(layout, tuple(zip(*(row for _, row in rows.values()), strict=True))),),
            absent=absent,
            facts=tuple(facts),
            places=Places(jobs=tuple(dict.fromkeys(job.source.job for job in self._jobs))),
            info=self._containers(),
        )

    def fileno(self) -> int | None:
        """Readable when a process of a job has ended."""
        return self._ends.fileno()

    def drain(self, now: float) -> tuple[Fact, ...]:
        """The ends since the last `read` or `drain`, with the kill that explains one before it."""
        facts = self._count_kills(now)
        return (*facts, *self._ends.check(now, lambda worker: self._lost_to_oom(worker, now)))

    def commit(self) -> None:
        """Nothing is kept over a restart: a process that ended while nobody looked is not known to have."""

    def close(self) -> None:
        """Gives back what is open."""
        self._ends.close()
        for job in self._jobs:
            job.watch.close()

    def _row(self, job: _Job, now: float, absent: dict[str, str]) -> Row:
        name = f"process.{job.source.job}"
        stat = self._stat(job, absent)
        alive = stat is not None and stat.state not in processes.ENDED
        running = None if job.pid is None else float(stat is not None and stat.state not in processes.NOT_RUNNING)
        if alive:
            self._look_at_groups(job, now)
            if job.folders.problem:
                absent[f"{name}.cgroup"] = job.folders.problem
        placed = self._placed(job, now, absent) if alive else Placement()
        group = self._groups.get(job.folders.cpu) if alive and job.folders.cpu is not None else None
        cpu, memory, io = cgroups.pressures(job.folders.unified if alive else None)
        watch = job.watch
        watch.poll(now)
        if watch.problem:
            absent[f"{name}.log"] = watch.problem
        return (
            watch.steps_rate(),
            watch.step_time,
            watch.progress_age(now),
            running,
            placed.misaligned,
            placed.cpu_far,
            placed.memory_far,
            group.throttled if group is not None else None,
            cpu,
            memory,
            io,
            watch.tokens_rate(),
            watch.loss,
        )

    def _stat(self, job: _Job, absent: dict[str, str]) -> processes.ProcessStat | None:
        """The job's process, None where it is gone; `job.pid` stays None while it is not known which one it is."""
        pid = self._find_pid(job)
        if pid is None and job.pid is None:
            absent[f"process.{job.source.job}"] = f"no pid in {job.source.pidfile or 'the configuration'}"
            return None
        if pid is not None and pid != job.pid:
            job.pid, job.start, job.looked_at = pid, None, None
        stat = process_stat(self._procfs, job.pid) if job.pid is not None else None
        if stat is None or job.pid is None:
            return None
        if job.start is None:
            job.start = stat.start
            self._ends.watch(job.source.job, job.pid, stat)
        # Another start time under the same pid is another process: ours is gone.
        return stat if stat.start == job.start else None

    def _find_pid(self, job: _Job) -> int | None:
        if job.source.pid is not None:
            return job.source.pid
        content = files.text(job.source.pidfile) if job.source.pidfile is not None else None
        return int(content) if content and content.isdecimal() and len(content) < 10 else None

    def _look_at_machine(self, now: float) -> None:
        if self._nodes_at is not None and 0 <= now - self._nodes_at < LOOK_EVERY_S:
            return
        self._nodes_at = now
        self._nodes = numa_nodes.read(self._sysfs / numa_nodes.NODES)
        for job in self._jobs:
            if job.gpu_node is None:
                job.gpu_node = self._gpu_node(job.source)

    def _look_at_groups(self, job: _Job, now: float) -> None:
        if job.looked_at is not None and 0 <= now - job.looked_at < LOOK_EVERY_S:
            return
        job.looked_at = now
        job.member = cgroups.membership(self._procfs, job.pid or 0)
        job.folders = cgroups.folders(self._sysfs, job.member)
        used = {at for each in self._jobs for at in (each.folders.cpu, each.folders.memory) if at is not None}
        for folder in set(self._groups) - used:
            del self._groups[folder]
        for folder in used - set(self._groups):
            # The counts from before we looked are history: they only make the baseline.
            self._groups[folder] = _Group(cpu=cgroups.cpu_stat(folder), kills=cgroups.oom_kills(folder))

    def _placed(self, job: _Job, now: float, absent: dict[str, str]) -> Placement:
        name = f"process.{job.source.job}.numa"
        if job.pid is None or len(self._nodes.cpus) < 2:
            return Placement()
        if home(job.gpu_node, self._nodes) is None:
            absent[name] = f"it is not known which NUMA node GPU {job.source.gpu or '(none is configured)'} is on"
            return Placement()
        status = processes.process_status(self._procfs, job.pid)
        pages, problem = self._samples.pages((job.pid, job.start), job.pid, now, status.resident)
        if problem:
            absent[f"{name}.memory"] = problem
        return placement(job.gpu_node, self._nodes, allowed=status.cpus, pages=pages)

    def _count_throttling(self) -> None:
        """Share of the periods since the last tick that were cut short; unknown after a counter went back."""
        for folder, group in self._groups.items():
            before, group.cpu = group.cpu, cgroups.cpu_stat(folder)
            group.throttled = _share(before, group.cpu)

    def _count_kills(self, now: float) -> list[Fact]:
        facts = []
        for folder, group in self._groups.items():
            before, kills = group.kills, cgroups.oom_kills(folder)
            group.kills = kills
            if before is not None and kills is not None and kills > before:
                group.oom_at = now
                facts += self._oom(folder, now, int(kills - before), int(kills))
        return facts

    def _oom(self, folder: Path, now: float, count: int, total: int) -> list[Fact]:
        """The fact of kills in a cgroup, said of its only process if it has but one of ours."""
        ours = [job for job in self._jobs if job.folders.memory == folder]
        if not ours:
            return []
        path = ours[0].member.path("memory") or ""
        limit = cgroups.group_memory(folder).limit
        alone = len(ours) == 1
        return [
            Fact(
                key=f"{self._boot}:oom:{path}:{cgroups.identity(folder)}:{total}",
                fault="oom_kill",
                severity=Severity.ERROR,
                time=now,
                kind="process" if alone else "node",
                local=ours[0].id if alone else "",
                origin=Origin.AGENT,
                evidence={
                    "job": ",".join(dict.fromkeys(job.source.job for job in ours)),
                    "cgroup": path,
                    "count": count,
                    "limit_bytes": limit,
                    "scope": "app",
                    "cause": "cgroup",
                    "action": "give_job_memory",
                    "advice": catalogue.advice("give_job_memory"),
                },
            )
        ]

    def _lost_to_oom(self, worker: Worker, now: float) -> bool:
        """Whether its group lost a process to OOM of late; the kernel counts the kill before the victim ends."""
        for job in self._jobs:
            folder = job.folders.memory
            group = self._groups.get(folder) if folder is not None else None
            if (job.pid, job.start) == (worker.pid, worker.start) and group is not None:
                counted = group.oom_at is not None and now - group.oom_at <= OOM_EXPLAINS_S
                return counted or (cgroups.oom_kills(folder) or 0.0) > (group.kills or 0.0)
        return False

    def _containers(self) -> dict[str, str | int | float]:
        info: dict[str, str | int | float] = {}
        for job in self._jobs:
            found = job.member.container
            if found.id:
                info[f"{job.source.job}.container"] = f"{found.runtime or 'container'} {found.id[:12]}"
            if found.pod:
                info[f"{job.source.job}.pod"] = found.pod
        return info

    def _gpu_node(self, source: JobSource) -> int | None:
        """The NUMA node of the job's GPU: as configured, else as its PCI device says."""
        if source.numa_node is not None:
            return source.numa_node
        address = source.gpu
        if address is not None and address.isdecimal():
            known = pci.gpus(self._sysfs)
            address = known[int(address)] if int(address) < len(known) else None
        if address is None:
            return None
        return numa_nodes.device_node(files.number(pci.numa_file(self._sysfs, address)), self._nodes.online)


def _share(before: cgroups.CpuStat | None, after: cgroups.CpuStat) -> float | None:
    values = () if before is None else (before.periods, before.throttled, after.periods, after.throttled)
    known = [value for value in values if value is not None]
    if len(known) < 4:
        return None
    periods, throttled = known[2] - known[0], known[3] - known[1]
    if periods < 0 or throttled < 0:
        return None
    return min(1.0, throttled / periods) if periods else 0.0


COLLECTOR = ProcessCollector
