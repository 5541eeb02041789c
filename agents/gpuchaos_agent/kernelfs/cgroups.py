"""The control groups of a process: which they are, what they allow, and what they took from it.

`/proc/PID/cgroup` names one path a hierarchy (cgroups(7)): `N:controllers:path` of version 1, `0::path` of version
2, both on a hybrid machine. The paths are seen from the reader's cgroup namespace: outside of it they begin with
`/..`, and then the files are not below our mount. The hierarchies are expected where every distribution mounts
them: `SYSFS/fs/cgroup`, with a folder a controller on version 1 and `unified` on hybrid machines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import files
from gpuchaos_agent.kernelfs.memory import pressure

#: Below the root of sysfs.
CGROUPS: Final = "fs/cgroup"

#: Version 1 says "no limit" as the largest multiple of a page in a signed 64-bit number; anything like it is none.
_NO_LIMIT: Final = 2.0**62
_DEEPEST: Final = 32

_ID: Final = r"(?P<id>[0-9a-f]{64})"
#: The last part of a container's path → its runtime. Docker, Podman (libpod), CRI-O and containerd under systemd
#: make a scope, cri-dockerd as Docker; without systemd the part is the bare id, and the parent names the runtime.
_SCOPES: Final = tuple(
    (runtime, re.compile(pattern))
    for runtime, pattern in (
        ("docker", rf"docker-{_ID}(?:\.scope)?\Z"),
        ("podman", rf"libpod-(?:payload-)?{_ID}(?:\.scope)?\Z"),
        ("crio", rf"crio-{_ID}(?:\.scope)?\Z"),
        ("containerd", rf"(?:cri-)?containerd-{_ID}(?:\.scope)?\Z"),
        ("containerd", rf"[\w.-]{{1,200}}:cri-containerd:{_ID}\Z"),
        ("", rf"{_ID}\Z"),
        # Amazon ECS: task id, then container id with its number.
        ("ecs", r"(?P<id>[0-9a-f]{32}-\d{1,12})\Z"),
    )
)
_PARENTS: Final = {"docker": "docker", "libpod_parent": "podman", "lxc": "lxc"}
#: A pod's uid, dashes written as underscores by the systemd driver; static pods have 32 digits without any.
_POD: Final = re.compile(
    r"(?:\A|-)pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?(?:\Z|:)"
)


@dataclass(frozen=True, slots=True)
class Container:
    """Who contains a process; empty where nobody can be told. `runtime` is empty where only an id is named."""

    runtime: str = ""
    id: str = ""
    pod: str = ""


@dataclass(frozen=True, slots=True)
class Membership:
    """A process's paths: of version 1 by controller, and of version 2 (None where it is not mounted)."""

    v1: dict[str, str] = field(default_factory=dict)
    v2: str | None = None

    def path(self, controller: str) -> str | None:
        """The path in the hierarchy that has the controller."""
        return self.v1.get(controller, self.v2)

    @property
    def container(self) -> Container:
        """Read off the longest path that names one."""
        every = sorted({*self.v1.values(), *((self.v2,) if self.v2 else ())}, key=lambda path: (-len(path), path))
        return next((found for path in every if (found := container(path)) != Container()), Container())


@dataclass(frozen=True, slots=True)
class CpuStat:
    """`cpu.stat`: periods in which the group had anything to run, in how many it was cut short, and for how long."""

    periods: float | None = None
    throttled: float | None = None
    throttled_s: float | None = None


@dataclass(frozen=True, slots=True)
class GroupMemory:
    """Bytes in use, the limit in bytes (None: no limit or unknown), and processes killed since the group was made."""

    current: float | None = None
    limit: float | None = None
    oom_kills: float | None = None


@dataclass(frozen=True, slots=True)
class Cpuset:
    """The CPUs and memory nodes that are left to a group, its parents counted; None where unknown."""

    cpus: tuple[int, ...] | None = None
    mems: tuple[int, ...] | None = None


def parse(content: str | None) -> Membership:
    """`/proc/PID/cgroup`; lines that are none are skipped. Named hierarchies (`name=systemd`) hold no controller."""
    v1: dict[str, str] = {}
    v2: str | None = None
    for line in (content or "").splitlines():
        number, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        path = path.removesuffix(" (deleted)")
        if not colon or not number.isdecimal() or not path.startswith("/"):
            continue
        if number == "0" and not controllers:
            v2 = path
        else:
            v1.update((name, path) for name in controllers.split(",") if name and "=" not in name)
    return Membership(v1=v1, v2=v2)


def membership(procfs: Path, pid: int) -> Membership:
    """The groups of a process; empty where there is none, or it is not for us."""
    return parse(files.text(procfs / str(pid) / "cgroup"))


def container(path: str) -> Container:
    """The container and pod that a path names: the innermost of each."""
    parts = [part for part in path.split("/") if part]
    pod = next((found["uid"].replace("_", "-") for part in reversed(parts) if (found := _POD.search(part))), "")
    for at in range(len(parts) - 1, -1, -1):
        for runtime, pattern in _SCOPES:
            if found := pattern.match(parts[at]):
                parent = parts[at - 1] if at else ""
                return Container(runtime=runtime or _PARENTS.get(parent, ""), id=found["id"], pod=pod)
    return Container(pod=pod)


@dataclass(frozen=True, slots=True)
class Folders:
    """Where a process's groups can be read: found seldom, read often. None where they cannot, for `problem`.

    `cpu` is the innermost group with a quota (a pod's quota holds for its containers as well), else its own;
    `memory` and `cpuset` the innermost that is counted (on version 2 a controller may be off in a leaf);
    `unified` the group of version 2, which has the pressure files.
    """

    cpu: Path | None = None
    memory: Path | None = None
    cpuset: Path | None = None
    unified: Path | None = None
    problem: str = ""


def folders(sysfs: Path, member: Membership) -> Folders:
    """The folders of a process's groups below `SYSFS/fs/cgroup`."""
    root = sysfs / CGROUPS
    problems = dict.fromkeys(why for what in ("cpu", "memory", "cpuset") if (why := _folder(root, member, what)[1]))
    cpu = tuple(_upwards(root, member, "cpu"))
    memory = tuple(_upwards(root, member, "memory"))
    sets = tuple(_upwards(root, member, "cpuset"))
    return Folders(
        cpu=next((at for at in cpu if cpu_stat(at).periods), next(iter(cpu), None)),
        memory=next((at for at in memory if oom_kills(at) is not None), next(iter(memory), None)),
        cpuset=next((at for at in sets if cpuset(at) != Cpuset()), None),
        unified=_folder(root, Membership(v2=member.v2), "")[0],
        problem="; ".join(problems),
    )


def cpu_stat(folder: Path | None) -> CpuStat:
    """`cpu.stat` of either version; all None without a quota's controller."""
    stat = _pairs(folder, "cpu.stat")
    # Microseconds on version 2, nanoseconds on version 1.
    took = stat["throttled_usec"] / 1e6 if "throttled_usec" in stat else None
    if "throttled_time" in stat:
        took = stat["throttled_time"] / 1e9
    return CpuStat(periods=stat.get("nr_periods"), throttled=stat.get("nr_throttled"), throttled_s=took)


def oom_kills(folder: Path | None) -> float | None:
    """Processes of the group that the kernel killed for memory since the group was made.

    `memory.events` of version 2 (children counted), `memory.oom_control` of version 1 (since Linux 4.13).
    """
    for name in ("memory.events", "memory.oom_control"):
        kills = _pairs(folder, name).get("oom_kill")
        if kills is not None:
            return kills
    return None


def identity(folder: Path) -> int:
    """Tells groups of one path apart: a service that starts again gets a new one, with counts of its own. 0 if gone."""
    try:
        return folder.stat().st_ino
    except OSError:
        return 0


def group_memory(folder: Path | None) -> GroupMemory:
    """What the group uses and may use, of either version."""
    if folder is None:
        return GroupMemory()
    for used, limit in (("memory.current", "memory.max"), ("memory.usage_in_bytes", "memory.limit_in_bytes")):
        current, most = files.number(folder / used), files.number(folder / limit)
        if current is not None or most is not None:
            return GroupMemory(current, most if most is not None and most < _NO_LIMIT else None, oom_kills(folder))
    return GroupMemory(oom_kills=oom_kills(folder))


def cpuset(folder: Path | None) -> Cpuset:
    """What is effective: `cpuset.cpus.effective` of version 2, `cpuset.effective_cpus` of version 1, old `cpus`."""
    if folder is None:
        return Cpuset()
    cpus, mems = (
        next((ids for name in same if (ids := files.id_list(files.text(folder / name)))), None)
        for same in (
            ("cpuset.cpus.effective", "cpuset.effective_cpus", "cpuset.cpus"),
            ("cpuset.mems.effective", "cpuset.effective_mems", "cpuset.mems"),
        )
    )
    return Cpuset(cpus, mems)


def pressures(folder: Path | None) -> tuple[float | None, float | None, float | None]:
    """CPU, memory and IO `some avg10` of the group, 0 to 1. Version 1 has none."""
    if folder is None:
        return None, None, None
    return (
        pressure(folder / "cpu.pressure"),
        pressure(folder / "memory.pressure"),
        pressure(folder / "io.pressure"),
    )


def _folder(root: Path, member: Membership, controller: str) -> tuple[Path | None, str]:
    """The folder of the group that the controller counts for, and why there is none, in words for a person."""
    path = member.path(controller)
    if path is None:
        return None, f"no {controller} hierarchy"
    if ".." in path.split("/"):
        return None, f"{path} is outside of this agent's cgroup namespace"
    for mount in _mounts(root, member, controller):
        folder = mount / path.lstrip("/")
        if folder.is_dir():
            return folder, ""
    return None, f"{path} is not below {root}"


def _mounts(root: Path, member: Membership, controller: str) -> Iterator[Path]:
    if controller not in member.v1:
        yield root if (root / "cgroup.controllers").exists() else root / "unified"
        return
    # Controllers that share a hierarchy share a folder (`cpu,cpuacct`), mostly with a link for each.
    yield root / controller
    for name in files.names(root):
        if controller in name.split(","):
            yield root / name


def _upwards(root: Path, member: Membership, controller: str) -> Iterator[Path]:
    """The group's folder, then its parents that are on the same mount."""
    folder, _ = _folder(root, member, controller)
    if folder is None:
        return
    depth = len([part for part in (member.path(controller) or "").split("/") if part])
    yield folder
    for _ in range(min(depth, _DEEPEST)):
        folder = folder.parent
        yield folder


def _pairs(folder: Path | None, name: str) -> dict[str, float]:
    text = files.text(folder / name) if folder is not None else None
    pairs = (line.split() for line in (text or "").splitlines())
    return {pair[0]: float(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
