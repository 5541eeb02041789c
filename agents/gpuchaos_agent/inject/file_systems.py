"""Which filesystem a file is on, told again after a remount, a move of the mount, or a reboot.

A device number is no name: the same volume comes back on another loop device, and another one takes its number. It is
known by its UUID, or by the id that statfs(2) gives, or, where it has neither, by its source (`nfs4 server:/export`).
Only what is known to be there can be said to lack a file.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import file_handle
from gpuchaos_agent.inject.base import Env, InjectError, Payload
from gpuchaos_agent.inject.file_handle import GoneError
from gpuchaos_agent.inject.storage_mounts import Mount, at, mounts
from gpuchaos_agent.journal import JournalEntry
from gpuchaos_agent.kernelfs.processes import process_stat

#: FS_IOC_GETFSUUID of linux/fs.h (Linux 6.9): a length and up to 16 bytes.
_UUID_IOCTL: Final = 0x8011_1500
_UUIDS: Final = Path("/dev/disk/by-uuid")
#: Their id is made of their device's number (xfs_fs_statfs).
_NUMBERED: Final = frozenset({"xfs"})
#: What they hold is gone when nobody has them mounted any more.
_MEMORY: Final = frozenset({"tmpfs", "ramfs"})
#: The PID namespace of init (PROC_PID_INIT_INO of linux/proc_ns.h).
_FIRST_PIDS: Final = Path(f"pid:[{0xEFFF_FFFC}]")


def planned(path: Path, env: Env) -> Payload:
    """What `path` and its filesystem are known by, as a journal keeps it.

    Raises:
        InjectError: the path cannot be looked at.
    """
    mount = at(mounts(env.procfs), str(path))
    try:
        told = path.stat()
        name = _name(path, mount)
        with opened(path) as descriptor:
            handle = file_handle.of(descriptor)
    except OSError as error:
        raise InjectError(f"{path}: {error.strerror}") from error
    device = f"{os.major(told.st_dev)}:{os.minor(told.st_dev)}"
    return {
        "filesystem": name,
        "filesystem_kind": mount.kind if mount else "",
        "filesystem_device": device,
        "handle": handle,
    }


def is_on(path: Path, payload: Payload, env: Env) -> bool:
    """Whether the path is there, and on the filesystem of the entry (of an older agent's entry: on any)."""
    if "filesystem" not in payload:
        return path.exists()
    try:
        return _name(path, at(mounts(env.procfs), str(path))) == payload.get("filesystem")
    except OSError:
        return False


def places(payload: Payload, env: Env) -> list[Path]:
    """Where the filesystem is mounted now, as this process sees it; the device that it had comes first."""
    found = []
    wanted = str(payload.get("filesystem"))
    for mount in mounts(env.procfs):
        name = ""
        if mount.kind != payload.get("filesystem_kind"):
            continue
        # A server that does not answer is not asked.
        if wanted.startswith("source:"):
            name = _source(mount)
        else:
            with contextlib.suppress(OSError):
                name = _name(Path(mount.path), mount)
        if name == wanted:
            found.append(mount)
    found.sort(key=lambda mount: mount.device != payload.get("filesystem_device"))
    return [Path(mount.path) for mount in found]


def has_ended(entry: JournalEntry, env: Env) -> bool:
    """Whether it was memory that nobody has mounted any more, in any namespace: nothing of it is left.

    That can be seen only by whoever sees all processes of the node, and may look at them.
    """
    payload = entry.payload
    if payload.get("filesystem_kind") not in _MEMORY:
        return False
    if entry.boot_id != env.boot_id:
        return True
    seen = set()
    try:
        if (env.procfs / "self/ns/pid").readlink() != _FIRST_PIDS:
            return False
    except OSError:
        return False
    for process in env.procfs.glob("[0-9]*"):
        space = process
        with contextlib.suppress(OSError):  # not to be looked at, or over: then its mounts are asked for by themselves
            space = (process / "ns/mnt").readlink()
        if space not in seen:
            seen.add(space)
            table = mounts(env.procfs, process.name)
            if not table and _is_alive(process):
                return False
            if any(mount.device == payload.get("filesystem_device") for mount in table):
                return False
    return True


def holds(folder: Path, entry: JournalEntry, env: Env) -> bool:
    """Whether a folder is there to be looked into; False where it has ended with all that was in it.

    Raises:
        InjectError: its filesystem is not here now, and may come back.
    """
    if is_on(folder, entry.payload, env):
        return True
    if has_ended(entry, env):
        return False
    if _is_away(folder, entry.payload, env):
        raise InjectError(f"{folder} is not there as it was ({away(entry)}): mount it again")
    if (now := _moved(folder, entry)) is not None:
        raise InjectError(f"{folder} was moved: it is {now} now; move it back, or put right what is in it")
    return False


def away(entry: JournalEntry) -> str:
    """Names the filesystem that is missed."""
    payload = entry.payload
    return f"{payload.get('filesystem_kind')} filesystem {payload.get('filesystem')} is not mounted there"


def _is_alive(process: Path) -> bool:
    stat = process_stat(process.parent, int(process.name))
    return stat is not None and stat.state not in "ZX"


def _is_away(folder: Path, payload: Payload, env: Env) -> bool:
    """Of a folder that is not on the filesystem: whether that is so because the filesystem is not there."""
    if folder.exists():
        return True
    above = next((parent for parent in folder.parents if parent.exists()), Path("/"))
    return not is_on(above, payload, env)


def _moved(folder: Path, entry: JournalEntry) -> Path | None:
    """Where a folder is that is not at its path any more, None where it was deleted or that cannot be asked."""
    handle = entry.payload.get("handle")
    above = next((parent for parent in folder.parents if parent.exists()), Path("/"))
    if not isinstance(handle, str):
        return None
    with contextlib.suppress(GoneError, OSError), opened(above) as mount:
        found = file_handle.opened(mount, handle, os.O_PATH)
        try:
            return Path(f"/proc/self/fd/{found}").readlink() if os.fstat(found).st_nlink else None
        finally:
            os.close(found)
    return None


@contextlib.contextmanager
def opened(path: Path) -> Iterator[int]:
    """A descriptor of whatever is there."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _name(path: Path, mount: Mount | None) -> str:
    with opened(path) as descriptor:
        told = os.fstat(descriptor)
        uuid = _uuid(descriptor) or _listed(told)
        if uuid is not None:
            return f"uuid:{uuid}"
        number = os.fstatvfs(descriptor).f_fsid
    if number and (mount is None or mount.kind not in _NUMBERED):
        return f"id:{number:x}"
    # Many filesystems in memory have the same source, and none outlives its device's number.
    return _source(mount) if mount is not None and mount.kind not in _MEMORY else f"device:{told.st_dev}"


def _uuid(descriptor: int) -> str | None:
    found = bytearray(17)
    try:
        fcntl.ioctl(descriptor, _UUID_IOCTL, found)
    except OSError:  # an older kernel, or a filesystem without
        return None
    value = bytes(found[1 : 1 + found[0]])
    return value.hex() if any(value) else None


def _listed(told: os.stat_result) -> str | None:
    """By what udev found out about the device."""
    with contextlib.suppress(OSError):
        for link in _UUIDS.iterdir():
            device = link.stat()
            if stat.S_ISBLK(device.st_mode) and device.st_rdev == told.st_dev:
                return link.name.replace("-", "").lower()
    return None


def _source(mount: Mount) -> str:
    return f"source:{mount.kind} {mount.source}"
