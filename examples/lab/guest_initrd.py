"""The guest's first files: an archive of a shell, the modules that reach the host's files, and a first program."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

#: What must be loaded before the host's files are there; everything else comes from them with modprobe.
FIRST_MODULES: Final = ("virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay")
#: Where the first program finds the host's root, laid over by the packages' files and a writable layer.
FOLDERS: Final = ("bin", "proc", "sys", "dev", "host", "programs", "rw", "whole")

#: One header of cpio's `newc` format: Documentation/driver-api/early-userspace/buffer-format.rst.
_MAGIC: Final = b"070701"


class Archive:
    """A cpio archive in the kernel's `newc` format, built in memory."""

    def __init__(self) -> None:
        self._out = bytearray()
        self._inode = 0

    def folder(self, name: str) -> None:
        """An empty folder; its parents must have been added."""
        self._add(name, stat.S_IFDIR | 0o755)

    def file(self, name: str, content: bytes, *, executable: bool = False) -> None:
        """A file."""
        self._add(name, stat.S_IFREG | (0o755 if executable else 0o644), content)

    def device(self, name: str, major: int, minor: int) -> None:
        """A character device."""
        self._add(name, stat.S_IFCHR | 0o600, device=(major, minor))

    def finished(self) -> bytes:
        """The archive, ended. Uncompressed: unpacking costs an emulated machine more than reading does."""
        self._add("TRAILER!!!", 0)
        return bytes(self._out)

    def _add(self, name: str, mode: int, content: bytes = b"", device: tuple[int, int] = (0, 0)) -> None:
        self._inode += 1
        path = name.encode() + b"\0"
        # inode, mode, uid, gid, links, mtime, size, device of the file (2), device it is (2), name's size, check
        numbers = (self._inode, mode, 0, 0, 1, 0, len(content), 0, 0, *device, len(path), 0)
        self._out += _MAGIC + b"".join(b"%08X" % number for number in numbers)
        for part in (path, content):
            self._out += part
            self._out += b"\0" * (-len(self._out) % 4)


def closure(modules: Path, wanted: Iterable[str]) -> list[str]:
    """Paths under `modules` of `wanted` and all they depend on, in an order in which they can be loaded.

    Names that `modules.dep` does not have are built into the kernel, and are left out.
    """
    depends: dict[str, tuple[str, list[str]]] = {}
    for line in (modules / "modules.dep").read_text().splitlines():
        path, _, needs = line.partition(":")
        depends[_name(path)] = (path, [_name(need) for need in needs.split()])
    ordered: dict[str, None] = {}

    def add(name: str) -> None:
        if name in depends and depends[name][0] not in ordered:
            for need in depends[name][1]:
                add(need)
            ordered[depends[name][0]] = None

    for name in wanted:
        add(_name(name))
    return list(ordered)


def build(modules: Path, *, busybox: Path, first_program: str) -> bytes:
    """The archive: `first_program` is the shell script that the kernel starts."""
    archive = Archive()
    for folder in FOLDERS:
        archive.folder(folder)
    archive.device("dev/console", 5, 1)
    archive.file("bin/busybox", busybox.read_bytes(), executable=True)
    archive.file("init", first_program.encode(), executable=True)
    archive.folder("modules")
    for number, path in enumerate(closure(modules, FIRST_MODULES)):
        archive.file(f"modules/{number:03}-{Path(path).name}", (modules / path).read_bytes())
    return archive.finished()


def _name(path: str) -> str:
    return Path(path).name.split(".ko")[0].replace("-", "_")


def entries(archive: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Name, mode and content of each entry of a `newc` archive: the writer's check."""
    at = 0
    while archive[at : at + 6] == _MAGIC:
        numbers = [int(archive[at + 6 + 8 * i : at + 14 + 8 * i], 16) for i in range(13)]
        name_at, name_size, size = at + 110, numbers[11], numbers[6]
        content_at = name_at + name_size + (-(name_at + name_size) % 4)
        yield archive[name_at : name_at + name_size - 1].decode(), numbers[1], archive[content_at : content_at + size]
        at = content_at + size + (-(content_at + size) % 4)
