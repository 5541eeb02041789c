"""`/proc/self/mountinfo`: the filesystems of this node that can be asked how full they are without waiting.

`statvfs` of a network filesystem waits for its server, for ever if that is gone, and cannot be cancelled. So only
types of a table are asked, and none that is mounted below anything else.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Final

#: Filesystems on a local disk or in memory, which answer from memory.
LOCAL: Final = frozenset(
    {"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "jfs", "reiserfs", "bcachefs", "zfs", "tmpfs", "ramfs"}
)
#: Types that hold nothing of anybody's, and wait for nobody: what is mounted below them may be asked.
_PSEUDO: Final = frozenset(
    {
        *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "overlay", "securityfs", "debugfs", "tracefs"),
        *("rootfs", "squashfs", "erofs", "iso9660", "vfat"),
    }
)
_ROOT: Final = "/"


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. `device` is major:minor of the filesystem: mounts that share it are one filesystem."""

    path: str
    kind: str
    device: str
    writable: bool


@dataclass(frozen=True, slots=True)
class Space:
    """Shares in use, 0 to 1, as who is not root sees them; `inodes` None where there is no number of them.

    `free_bytes` is what an ordinary process can still write.
    """

    blocks: float
    inodes: float | None
    free_bytes: float


def parse(content: str) -> list[Mount]:
    """proc_pid_mountinfo(5); lines that are none are skipped."""
    found = []
    for line in content.splitlines():
        head, dash, tail = line.partition(" - ")
        fields, kind = head.split(), tail.split()
        if not dash or len(fields) < 6 or not kind:
            continue
        # Writable needs both: the mount's own options and those of the filesystem.
        read_only = "ro" in fields[5].split(",") or (len(kind) > 2 and "ro" in kind[2].split(","))
        found.append(Mount(path=_unescaped(fields[4]), kind=kind[0], device=fields[2], writable=not read_only))
    return found


def local(mounts: list[Mount]) -> list[Mount]:
    """One mount of each local filesystem that can be written; of several the one with the shortest path.

    The root counts in a container as well (`overlay`), other overlays share the disk of what is asked already.
    """
    waits = tuple(mount.path for mount in mounts if mount.kind not in LOCAL | _PSEUDO)
    chosen: dict[str, Mount] = {}
    # Of several on one path the last one is on top, and the only one that can be asked.
    on_top = {mount.path: mount for mount in mounts}
    for mount in sorted(on_top.values(), key=lambda at: (len(at.path), at.path)):
        asked = mount.kind in LOCAL or (mount.kind == "overlay" and mount.path == _ROOT)
        if asked and mount.writable and not any(_below(mount.path, path) for path in waits):
            chosen.setdefault(mount.device, mount)
    return list(chosen.values())


def space(path: str) -> Space | None:
    """How full it is, None where it cannot be asked or has no size. As df(1): reserved blocks are nobody's."""
    try:
        stat = os.statvfs(path)
    except OSError:
        return None
    used = stat.f_blocks - stat.f_bfree
    if stat.f_blocks <= 0 or used + stat.f_bavail <= 0:
        return None
    inodes = 1.0 - stat.f_favail / stat.f_files if stat.f_files > 0 else None
    return Space(blocks=used / (used + stat.f_bavail), inodes=inodes, free_bytes=float(stat.f_bavail) * stat.f_frsize)


def _below(path: str, parent: str) -> bool:
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def _unescaped(text: str) -> str:
    # Blank, tab, newline and backslash are octal there.
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text
