"""`numa-misalignment`: a job's process runs on, and has its memory on, the node that is farthest from its GPU.

CPUs: the affinity of each of its threads; threads and children that it starts meanwhile inherit it. Memory: its own
pages are moved (move_pages(2)), and what it allocates meanwhile is placed where its threads run. Back: each thread
its former mask, each page the node that it was on; what was made meanwhile gets the main thread's mask and the node
nearest to the GPU. Pages that the kernel does not move (pinned for a device, shared with others) never left.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

from pydantic import Field, model_validator

from gpuchaos_agent.inject import page_moves, thread_masks
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.page_moves import Run
from gpuchaos_agent.inject.params import belong
from gpuchaos_agent.inject.process_stop import Process, ProcessStop, read_process
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_agent.kernelfs import cgroups, files, numa_maps, numa_nodes, pci, processes
from gpuchaos_agent.kernelfs.alignment import farness, home, placement
from gpuchaos_agent.kernelfs.numa_nodes import Nodes
from gpuchaos_stream.events.base import Authored

#: Of the memory to be moved, how much more must be free on the other node.
_SPARE: Final = 1.25
_MB: Final = 1 << 20
#: How often one undo looks again for pages that came to light while others went back.
_ROUNDS: Final = 5


class NumaMisalignmentParams(Authored):
    """What is moved, and where to.

    `node` is the NUMA node to move to, by default the one with CPUs that is farthest from the GPU. `gpu_node` is the
    GPU's where the settings do not name the job's GPU. At most `memory_mb` are moved, in order of address. `job`: if
    given, the process must belong to it.
    """

    job: str | None = Field(default=None, min_length=1)
    cpus: bool = True
    memory: bool = True
    memory_mb: int = Field(default=4096, ge=1, le=65536)
    node: int | None = Field(default=None, ge=0)
    gpu_node: int | None = Field(default=None, ge=0)

    @model_validator(mode="after")
    def _something_moves(self) -> Self:
        if not self.cpus and not self.memory:
            raise ValueError("cpus or memory must be moved")
        belong(self, "memory", {"memory_mb": (True,)})
        return self


@dataclass(frozen=True, slots=True)
class _Move:
    """Where a process is moved: away from `home`, the node of its GPU's CPUs, to the CPUs of `node`."""

    process: Process
    nodes: Nodes
    gpu_node: int
    home: int
    node: int
    cpus: frozenset[int]


class NumaMisalignment:
    """One process; see the module."""

    name = "numa-misalignment"
    layer = "a process's CPUs and memory node against its GPU's"
    certifies = ("straggler-detection", "straggler-recovery")
    not_certified = ("gpu-failure",)
    params: type[Authored] = NumaMisalignmentParams

    def __init__(self, env: Env) -> None:
        self._env = env
        self._rules = ProcessStop(env)

    def unavailable(self) -> str | None:
        """Needs two NUMA nodes with CPUs."""
        nodes = self._nodes()
        if len(nodes.cpus) < 2:
            return f"this node has CPUs on {len(nodes.cpus)} NUMA node: nothing can lie wrong"
        return page_moves.unavailable()

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses what `process-stop` refuses, a GPU that nobody knows, and a move that a cpuset forbids."""
        given = NumaMisalignmentParams.model_validate(params)
        reason = self.unavailable() or self._rules.check(target, {"job": given.job} if given.job else {})
        if reason:
            return reason
        try:
            move = self._move(target, given)
            return self._why_not(move, given)
        except (InjectError, OSError) as error:
            return str(error)

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:
        """Who it is, each thread's mask, and how far from its GPU it stands. The pages go into a file at `inject`."""
        given = NumaMisalignmentParams.model_validate(params)
        move = self._move(target, given)
        pid = move.process.pid
        misaligned, far = self._placed(pid, move.gpu_node, move.node, move.nodes)
        return {
            "pid": pid,
            "start": move.process.start,
            "comm": move.process.comm,
            "since": self._ticks(),
            "gpu_node": move.gpu_node,
            "home": move.home,
            "node": move.node,
            "cpus": thread_masks.listed(move.cpus) if given.cpus else None,
            "masks": thread_masks.Masks.now(self._env.procfs, pid).text(),
            "memory_mb": given.memory_mb if given.memory else 0,
            "pages_file": str(self._env.state_dir / f"numa-misalignment-{fault_id}.pages") if given.memory else None,
            "misaligned_before": misaligned,
            "far_bytes_before": far,
        }

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The process."""
        return frozenset({f"process:{target.rsplit('/', 1)[1]}"})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """As taskset(1) and migratepages(8); the pages really go by move_pages, each back to where it was."""
        at = entry.payload
        done, back = [], []
        if at.get("cpus"):
            done.append(f"taskset -a -c -p {at['cpus']} {at['pid']}")
            known = thread_masks.Masks.of(str(at["masks"])).threads
            back += [f"taskset -c -p {thread_masks.listed(mask)} {tid}" for (tid, _), mask in known.items()]
        if at.get("pages_file"):
            done.append(f"migratepages {at['pid']} all {at['node']}  # at most {at['memory_mb']} MB")
            back.append(f"migratepages {at['pid']} {at['node']} {at['home']}  # each page where it was")
        return (*done, *back)

    def inject(self, entry: JournalEntry) -> None:
        """Writes down where each page is, then moves threads, then pages."""
        at = entry.payload
        process = self._same(entry)
        if process is None:
            raise InjectError(f"process {at.get('pid')} has ended")
        runs: list[Run] = []
        if at.get("pages_file"):
            try:
                runs = list(self._pages(process.pid))
                page_moves.write(Path(str(at["pages_file"])), runs)
            except OSError as error:
                raise InjectError(f"where the pages of {process.pid} are: {error}") from error
        if at.get("cpus"):
            thread_masks.bind(self._env.procfs, process.pid, thread_masks.ids(at["cpus"]))
        node = int(at["node"])  # type: ignore[arg-type]
        left = int(at["memory_mb"] or 0) * _MB
        for run in runs:
            if run.node != node and left > 0:
                part = Run(run.start, min(run.pages, max(1, left // page_moves.PAGE)), run.node)
                left -= page_moves.move(process.pid, [part], node)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """The same number as the telemetry's, the threads' masks, and the bytes that are on the far node now."""
        at = entry.payload
        process = self._same(entry)
        if process is None:
            return Evidence(moved=False, detail={"process": "ended"})
        there = thread_masks.ids(at.get("cpus"))
        masks = list(thread_masks.Masks.now(self._env.procfs, process.pid).threads.values())
        misaligned, far = self._placed(process.pid, int(at["gpu_node"]), int(at["node"]), self._nodes())  # type: ignore[arg-type]
        before, far_before = at.get("misaligned_before"), at.get("far_bytes_before")
        detail: Payload = {
            "comm": process.comm,
            "misaligned_before": before,
            "misaligned": misaligned,
            "threads_moved": sum(mask <= there for mask in masks) if there else 0,
            "threads": len(masks),
            "bytes_moved": int(far - far_before) if far is not None and isinstance(far_before, float) else None,
        }
        worse = misaligned is not None and misaligned > float(before if isinstance(before, float) else 0.0)
        return Evidence(worse and (not there or all(mask <= there for mask in masks)), detail)

    def undo(self, entry: JournalEntry) -> None:
        """Gives each thread its mask and each page its node. A process of another boot, or ended, has neither."""
        at = entry.payload
        file = Path(str(at["pages_file"])) if at.get("pages_file") else None
        process = self._same(entry)
        if process is not None:
            there, before = thread_masks.ids(at.get("cpus")), thread_masks.Masks.of(str(at.get("masks") or "{}"))
            for pid in self._family(entry):
                thread_masks.release(self._env.procfs, pid, there, before)
            if file is not None:
                self._restore_pages(entry, process.pid, file)
        if file is not None:
            file.unlink(missing_ok=True)

    def verify(self, entry: JournalEntry) -> bool:
        """No thread is bound to the far node that was not before, and no page is left to be put back."""
        process = self._same(entry)
        file = entry.payload.get("pages_file")
        if isinstance(file, str) and Path(file).exists():
            return False
        if process is None:
            return True
        there = thread_masks.ids(entry.payload.get("cpus"))
        before = thread_masks.Masks.of(str(entry.payload.get("masks") or "{}"))
        return not any(thread_masks.bound(self._env.procfs, pid, there, before) for pid in self._family(entry))

    def _family(self, entry: JournalEntry) -> list[int]:
        """The process, and the processes that it started since the fault began: they inherited its CPUs."""
        pid, since = entry.payload.get("pid"), entry.payload.get("since")
        return (
            thread_masks.family(self._env.procfs, pid, since) if isinstance(pid, int) and isinstance(since, int) else []
        )

    # Pages

    def _restore_pages(self, entry: JournalEntry, pid: int, file: Path) -> None:
        before = page_moves.read(file)
        if before is None:
            return  # not one page was moved: they are written down before
        node, at_home = int(entry.payload["node"]), int(entry.payload["home"])  # type: ignore[arg-type]

        def strayed() -> list[Run]:
            try:
                return page_moves.strayed(self._pages(pid), before, node, at_home)
            except OSError:
                return []

        known = sum(run.pages for run in before) or 1
        astray = strayed()
        for _ in range(_ROUNDS):
            page_moves.move(pid, astray)
            astray = strayed()
            left = sum(run.pages for run in astray)
            # A page in a thousand: what is under way at this very moment.
            if left <= known / 1000 or self._same(entry) is None:
                return
        raise InjectError(f"{left * page_moves.PAGE} bytes of process {pid} are still on node {node}")

    def _pages(self, pid: int) -> Iterator[Run]:
        procfs = self._env.procfs
        return page_moves.where(procfs, pid, page_moves.own_ranges(procfs, pid))

    # Who and where

    def _move(self, target: str, given: NumaMisalignmentParams) -> _Move:
        process = read_process(self._env.procfs, int(target.rsplit("/", 1)[1]))
        if process is None:
            raise InjectError(f"{target} has ended")
        nodes = self._nodes()
        gpu_node = given.gpu_node if given.gpu_node is not None else self._gpu_node(process, nodes)
        at_home = home(gpu_node, nodes)
        if gpu_node is None or at_home is None:
            raise InjectError(f"it is not known which NUMA node the GPU of process {process.pid} is on: give gpu_node")
        far = farness(at_home, nodes)
        node = given.node
        if node is None:
            node = max((n for n in nodes.cpu_nodes if n != at_home), key=lambda n: (far.get(n, 1.0), -n))
        if node == at_home or node not in nodes.cpus:
            raise InjectError(f"node {node} has no CPUs, or is the GPU's own: nothing would lie wrong there")
        allowed = self._cpuset(process.pid)
        cpus = nodes.cpus[node] if allowed.cpus is None else nodes.cpus[node] & frozenset(allowed.cpus)
        return _Move(process, nodes, gpu_node, at_home, node, cpus)

    def _why_not(self, move: _Move, given: NumaMisalignmentParams) -> str | None:
        pid = move.process.pid
        if given.cpus and not move.cpus:
            return f"process {pid} is in a cpuset without CPUs of node {move.node}"
        misaligned, _ = self._placed(pid, move.gpu_node, move.node, move.nodes)
        if misaligned is not None and misaligned >= 1.0:
            return f"process {pid} is as far from its GPU as can be already"
        if not given.memory:
            return None
        mems = processes.process_status(self._env.procfs, pid).mems
        if mems is not None and move.node not in mems:
            return f"process {pid} is in a cpuset without memory of node {move.node}; memory: false moves CPUs alone"
        size = processes.process_status(self._env.procfs, pid).resident or 0.0
        if size > numa_maps.LARGEST:
            return f"process {pid} has more memory than is looked through; memory: false moves CPUs alone"
        free = numa_nodes.memory(self._env.sysfs / numa_nodes.NODES, move.node).free
        if free is not None and free < min(size, given.memory_mb * _MB) * _SPARE:
            return f"node {move.node} has {free / _MB:.0f} MB free, too little for the memory of process {pid}"
        return None

    def _placed(self, pid: int, gpu_node: int, node: int, nodes: Nodes) -> tuple[float | None, float | None]:
        """How far the process is from its GPU, 0 to 1, and its bytes on `node`."""
        status = processes.process_status(self._env.procfs, pid)
        pages: dict[int, float] | None = None
        if (status.resident or 0.0) <= numa_maps.LARGEST:
            with contextlib.suppress(OSError):
                pages = numa_maps.read(self._env.procfs / str(pid) / "numa_maps")
        where = placement(gpu_node, nodes, allowed=status.cpus, pages=pages)
        return where.misaligned, None if pages is None else pages.get(node, 0.0)

    def _gpu_node(self, process: Process, nodes: Nodes) -> int | None:
        """The node of the GPU that the settings name for the process, or for the nearest parent that has one."""
        seen = set[int]()
        current: Process | None = process
        while current is not None and current.pid > 1 and current.pid not in seen:
            seen.add(current.pid)
            gpu = self._env.gpu_of(current.pid)
            if gpu is not None:
                known = pci.gpus(self._env.sysfs)
                address = self._env.gpu_pci(gpu) or (
                    gpu if not gpu.isdecimal() else known[int(gpu)] if int(gpu) < len(known) else None
                )
                number = files.number(pci.numa_file(self._env.sysfs, address)) if address else None
                return numa_nodes.device_node(number, nodes.online)
            current = read_process(self._env.procfs, current.parent)
        return None

    def _cpuset(self, pid: int) -> cgroups.Cpuset:
        found = cgroups.folders(self._env.sysfs, cgroups.membership(self._env.procfs, pid))
        return cgroups.cpuset(found.cpuset)

    def _nodes(self) -> Nodes:
        return numa_nodes.read(self._env.sysfs / numa_nodes.NODES)

    def _same(self, entry: JournalEntry) -> Process | None:
        if entry.boot_id != self._env.boot_id:
            return None
        pid, start = entry.payload.get("pid"), entry.payload.get("start")
        process = read_process(self._env.procfs, pid) if isinstance(pid, int) and pid > 1 else None
        return process if process is not None and process.start == start and process.state not in "ZX" else None

    def _ticks(self) -> int:
        return int(time.clock_gettime(time.CLOCK_BOOTTIME) * os.sysconf("SC_CLK_TCK"))


STRATEGY = NumaMisalignment
