"""Local filesystems of this node that fill up: a checkpoint that cannot be written ends a job.

How full they are is no metric of a frame, only the fact is told: once when one becomes full, again when it gets
worse, anew after it was well in between. NFS and its like are never asked (`kernelfs/mounts.py`); their server's
silence is in the kernel log.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence, Fact, JobSource, Reading, Sources
from gpuchaos_agent.kernelfs import files, mounts, processes
from gpuchaos_agent.kernelfs.mounts import Mount, Space
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.frame import Kind

#: Shares of blocks or inodes in use, from which a filesystem is nearly full, and full.
NEARLY: Final = 0.98
FULL: Final = 0.99
#: It is well again below this, so that a log that is rotated at the limit does not tell every time.
WELL: Final = 0.95
#: More filesystems than this are not asked, those with the shortest paths first.
MOST: Final = 64

_ACTION: Final = "free_space"
_LEVELS: Final = (None, Severity.WARNING, Severity.ERROR)


@dataclass(frozen=True, slots=True)
class _Fill:
    share: float
    cause: str


class FilesystemCollector:
    """Asks each local filesystem once a tick (3 us each were measured); mounts are read anew when they change."""

    name = "filesystems"
    kinds: tuple[Kind, ...] = ()
    ORDER = 60

    def __init__(self, procfs: Path, jobs: tuple[JobSource, ...] = ()) -> None:
        self._procfs = procfs
        self._jobs = jobs
        self._content = ""
        self._mounts: list[Mount] = []
        self._level: dict[str, int] = {}
        self._boot = processes.boot_id(procfs)

    @classmethod
    def from_sources(cls, sources: Sources) -> FilesystemCollector:
        """The collector of these roots; the jobs say which of them write to what."""
        return cls(sources.procfs, sources.jobs)

    def read(self, now: float) -> Reading:
        """Facts `fs_full` of the node: `path` is the mount, `cause` blocks or inodes, `used_ratio` of it."""
        path = self._procfs / "self/mountinfo"
        content = files.text(path)
        if content is None:
            return Reading(absent={"filesystems": f"{path} cannot be read"})
        if content != self._content:
            self._content, self._mounts = content, mounts.local(mounts.parse(content))[:MOST]
            self._level = {at.device: self._level.get(at.device, 0) for at in self._mounts}
        facts = [fact for mount in self._mounts if (fact := self._ask(mount, now)) is not None]
        return Reading(facts=tuple(facts), info={"asked": len(self._mounts)})

    def close(self) -> None:
        """Nothing is held open."""

    def _ask(self, mount: Mount, now: float) -> Fact | None:
        space = mounts.space(mount.path)
        if space is None:
            return None
        fill = max(_fills(space), key=lambda fill: fill.share)
        before, level = self._level[mount.device], (fill.share >= NEARLY) + (fill.share >= FULL)
        if level < before:
            # Between well and nearly full nothing is told, and what was told stays.
            self._level[mount.device] = 0 if fill.share < WELL else before
            return None
        self._level[mount.device] = level
        severity = _LEVELS[level]
        return self._fact(mount, space, fill, severity, now) if severity is not None and level > before else None

    def _fact(self, mount: Mount, space: Space, fill: _Fill, severity: Severity, now: float) -> Fact:
        evidence: Evidence = {
            "path": mount.path,
            "fstype": mount.kind,
            "cause": fill.cause,
            "used_ratio": round(fill.share, 4),
            "free_bytes": space.free_bytes,
            "action": _ACTION,
            "advice": catalogue.advice(_ACTION),
        }
        jobs = [job.job for job in self._jobs if any(self._holds(mount, path) for path in (job.log, job.heartbeat))]
        if jobs:
            evidence["job"] = ",".join(dict.fromkeys(jobs))
        return Fact(
            key=f"{self._boot}:fs:{mount.device}:{mount.path}:{severity.value}:{now:.0f}",
            fault="fs_full",
            severity=severity,
            time=now,
            origin=Origin.AGENT,
            evidence=evidence,
        )

    def _holds(self, mount: Mount, path: Path | None) -> bool:
        """Whether the path lies on the mount, by its name alone: links are not followed, for they may lead to NFS."""
        if path is None:
            return False
        above = [at.path for at in self._mounts if path.is_relative_to(at.path)]
        return bool(above) and max(above, key=len) == mount.path


def _fills(space: Space) -> tuple[_Fill, ...]:
    blocks = _Fill(space.blocks, "blocks")
    return (blocks,) if space.inodes is None else (blocks, _Fill(space.inodes, "inodes"))


COLLECTOR = FilesystemCollector
