"""What touches a disturbed filesystem, run as a program of its own (`storage_probe.run`): nothing but the library.

A call into a filesystem that hangs cannot be cancelled, so the agent never makes one itself. The program says
`begun` before the call, and afterwards one line: `ok WORDS`, or the name of the error (`EROFS`).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import sys
from collections.abc import Callable
from typing import Final

#: linux/fs.h: _IOWR('X', 119, int) and _IOWR('X', 120, int).
_FIFREEZE: Final = 0xC0045877
_FITHAW: Final = 0xC0045878
#: System calls of the mount interface (Linux 5.2); the numbers are the same on every architecture.
_FSCONFIG: Final = 431
_FSPICK: Final = 433
_FSPICK_CLOEXEC: Final = 1
_AT_FDCWD: Final = -100
_SET_FLAG: Final = 0
_RECONFIGURE: Final = 7
_BLOCK: Final = 4096
#: CLONE_NEWNS; MS_REC | MS_PRIVATE; MNT_DETACH.
_NEW_MOUNTS: Final = 0x20000
_PRIVATE: Final = 0x44000
_DETACH: Final = 2
_MOST_COVERS: Final = 64


def write(folder: str, name: str) -> str:
    """One block, to the disk. The file has no name where the filesystem can do that, so that none is left behind."""
    path = os.path.join(folder, name)  # noqa: PTH118  (pathlib costs this program half of its start)
    named = False
    try:
        descriptor = os.open(folder, os.O_TMPFILE | os.O_WRONLY, 0o600)
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EISDIR, errno.ENOENT, errno.EINVAL):
            raise
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        named = True
    try:
        os.write(descriptor, b"\0" * _BLOCK)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
        if named:
            os.unlink(path)  # noqa: PTH108
    return ""


def ask(folder: str) -> str:
    """Asks how much is free: a network filesystem asks its server each time."""
    return str(os.statvfs(folder).f_bavail)


def read_device(path: str) -> str:
    """Reads the first block of a block device, past the cache."""
    with mmap.mmap(-1, _BLOCK) as block:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            return str(os.readv(descriptor, [block]))
        finally:
            os.close(descriptor)


def thaw(folder: str) -> str:
    """Thaws; a filesystem that is not frozen says EINVAL, which is as good."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return thaw_open(descriptor)
    finally:
        os.close(descriptor)


def thaw_open(descriptor: int) -> str:
    """As `thaw`, of the filesystem of an open folder: `thawed`, or `not frozen`."""
    try:
        fcntl.ioctl(descriptor, _FITHAW, 0)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return "not frozen"
    return "thawed"


def freeze_open(descriptor: int) -> None:
    """Freezes the filesystem of an open folder: what is dirty is written, and every writer waits from here on."""
    fcntl.ioctl(descriptor, _FIFREEZE, 0)


def reconfigure(mount: str, flag: str) -> str:
    """Sets `ro` or `rw` of the whole filesystem and no other option (fspick(2), fsconfig(2))."""
    picked = _call(_FSPICK, _AT_FDCWD, mount.encode(), _FSPICK_CLOEXEC)
    try:
        _call(_FSCONFIG, picked, _SET_FLAG, flag.encode(), None, 0)
        _call(_FSCONFIG, picked, _RECONFIGURE, None, None, 0)
    finally:
        os.close(picked)
    return ""


def fill(path: str) -> str:
    """Takes all the space there is with one file, root's reserve as well; says how many bytes."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        taken, step = 0, max(_BLOCK, os.fstatvfs(descriptor).f_bfree * os.fstatvfs(descriptor).f_frsize)
        while step >= _BLOCK:
            try:
                os.posix_fallocate(descriptor, taken, step)
                taken += step
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                # What a failed call has taken beyond the end is given back before the next one.
                os.ftruncate(descriptor, taken)
                step = step // 2 // _BLOCK * _BLOCK
        os.fsync(descriptor)
        return str(taken)
    finally:
        os.close(descriptor)


def remove(path: str) -> str:
    """Removes a file, or finds none."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
    return ""


def claim(path: str) -> str:
    """Opens a block device for itself alone: EBUSY where a filesystem, or whatever else, holds it."""
    os.close(os.open(path, os.O_RDONLY | os.O_EXCL | os.O_CLOEXEC))
    return ""


def within(process: str, device: str, mount: str, call: str, *arguments: str) -> str:
    """Another call, where the mount is not to be seen from here: covered, or in the namespace of another process.

    In a mount namespace of this child's own, which ends with it, what covers the mount is taken off.
    """
    own = os.open("/proc/self", os.O_PATH | os.O_DIRECTORY)  # /proc may be another one there, or none
    if process != "self":
        theirs = os.open(f"/proc/{process}/ns/mnt", os.O_RDONLY)
        _libc("setns", theirs, _NEW_MOUNTS)
    _libc("unshare", _NEW_MOUNTS)
    _libc("mount", b"none", b"/", None, _PRIVATE, None)
    for _ in range(_MOST_COVERS):
        hiding = _covers(own, device.encode(), os.fsencode(mount))
        if not hiding:
            return _CALLS[call](*arguments)
        _libc("umount2", min(hiding, key=len), _DETACH)
    raise OSError(errno.ELOOP, "")


def _covers(own: int, device: bytes, path: bytes) -> list[bytes]:
    """What hides the mount (as `storage_reach.covers`), in this child's namespace."""
    descriptor = os.open("mountinfo", os.O_RDONLY, dir_fd=own)
    with open(descriptor, "rb") as table:  # noqa: PTH123
        lines = [line.split(b" ") for line in table]
    on = {words[0]: (words[1], _plain(words[4])) for words in lines}
    meant = [words[0] for words in lines if words[2] == device and _plain(words[4]) == path]
    if not meant:
        raise FileNotFoundError(errno.ENOENT, "")
    chain, at = set[bytes](), meant[-1]
    while at in on and at not in chain:
        chain.add(at)
        at = on[at][0]
    return [
        each
        for number, (_, each) in on.items()
        if number not in chain and (path == each or path.startswith(each.rstrip(b"/") + b"/"))
    ]


def _plain(text: bytes) -> bytes:
    head, *rest = text.split(b"\\")
    return head + b"".join(bytes([int(each[:3], 8)]) + each[3:] for each in rest)


def exists(path: str) -> str:
    """Whether there is such a file: `yes` or `no`."""
    return "yes" if os.path.lexists(path) else "no"


def resolve(path: str) -> str:
    """The path with its links followed; it must be there."""
    return os.path.realpath(path, strict=True)


def _call(number: int, *arguments: int | bytes | None) -> int:
    return _libc("syscall", ctypes.c_long(number), *arguments)


def _libc(name: str, *arguments: object) -> int:
    made = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    function = getattr(ctypes.CDLL(None, use_errno=True), name)
    function.restype = ctypes.c_long if name == "syscall" else ctypes.c_int
    result = int(function(*made))
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result


_CALLS: Final[dict[str, Callable[..., str]]] = {
    call.__name__: call
    for call in (write, ask, read_device, thaw, reconfigure, fill, remove, claim, exists, resolve, within)
}


def main(arguments: list[str]) -> int:
    """`CALL ARGUMENT...`; 0 where it could be made."""
    sys.stdout.write("begun\n")
    sys.stdout.flush()
    try:
        said = _CALLS[arguments[0]](*arguments[1:])
    except OSError as error:
        sys.stdout.write(f"{errno.errorcode.get(error.errno or 0, 'EIO')}\n")
        return 1
    sys.stdout.write(f"ok {said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
