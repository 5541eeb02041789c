"""A mark on a file that bits of it are flipped, and by which fault: one fault at a time, whosever journal it is in.

The mark is on the file itself, so that it outlives its agent and is seen by every other one: an extended attribute,
or, where the filesystem has none, a hidden file beside it. It bears the inode's number: a copy of a marked file is not
marked.
"""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.base import InjectError

#: In this order; the second one only root may set (filesystems in memory had no other before Linux 6.6).
_NAMES: Final = ("user.gpuchaos.fault", "trusted.gpuchaos.fault")
_NONE: Final = frozenset({errno.EOPNOTSUPP, errno.EPERM, errno.ENOSYS})
_MOST: Final = 256


def holder(file: int) -> tuple[str, str] | None:
    """Which fault has marked an open file, and where the mark is; None where it is not marked."""
    inode = str(os.fstat(file).st_ino)
    for name in _NAMES:
        try:
            fault_id, _, of = os.getxattr(file, name).decode(errors="replace").partition(" ")
        except OSError:
            continue
        if of == inode:
            return fault_id, name
    try:
        return _beside(file).read_text()[:_MOST].strip(), str(_beside(file))
    except OSError:
        return None


def refusal(file: int, fault_id: str = "") -> str | None:
    """Why the file must not be changed by this fault, or None."""
    held = holder(file)
    if held is None or held[0] == fault_id:
        return None
    return f"bits of it are flipped by fault {held[0]} (its mark is {held[1]}): undo that first"


def take(file: int, fault_id: str) -> None:
    """Marks it.

    Raises:
        InjectError: another fault has.
        OSError: it cannot be marked.
    """
    value = f"{fault_id} {os.fstat(file).st_ino}".encode()
    for name in _NAMES:
        if _set(file, name, value):
            break
    else:
        try:
            descriptor = os.open(_beside(file), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        except FileExistsError:
            pass
        else:
            try:
                os.write(descriptor, fault_id.encode())
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
    if (reason := refusal(file, fault_id)) is not None:
        raise InjectError(reason)


def release(file: int, fault_id: str) -> None:
    """Takes this fault's mark away, where there is one."""
    held = holder(file)
    if held is None or held[0] != fault_id:
        return
    if held[1] in _NAMES:
        os.removexattr(file, held[1])
    else:
        Path(held[1]).unlink(missing_ok=True)


def forget(path: Path, inode: object, fault_id: str) -> None:
    """Takes away what is left of the mark of a file that was deleted."""
    beside = path.with_name(f".gpuchaos-{inode}")
    with suppress(OSError):
        if beside.read_text() == fault_id:
            beside.unlink()


def _set(file: int, name: str, value: bytes) -> bool:
    """Whether there is such a mark now, ours or another's. One that came with a copy is replaced."""
    try:
        os.setxattr(file, name, value, os.XATTR_CREATE)
    except FileExistsError:
        if holder(file) is None:
            os.setxattr(file, name, value, os.XATTR_REPLACE)
    except OSError as error:
        if error.errno not in _NONE:
            raise
        return False
    return True


def _beside(file: int) -> Path:
    """In the folder where the file is now; named by its inode, which a new name does not change."""
    folder = Path(f"/proc/self/fd/{file}").readlink().parent
    return folder / f".gpuchaos-{os.fstat(file).st_ino}"
