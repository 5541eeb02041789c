"""The guest's kernel and the few programs it needs, from Debian's packages: fetched once, kept in the user's cache.

They are unpacked beside each other and never installed: `$XDG_CACHE_HOME/gpuchaos/guest` (else `~/.cache/…`) holds a
folder for each set of packages. Run as a script it fetches them and says where they are.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.missing import MissingError

#: Packages whose files the guest sees over the host's, which may have them as well: an NFS server and client with
#: their libraries, and the program that makes failing disks. RDMA links are made with the host's iproute2.
PROGRAMS: Final = (
    *("nfs-kernel-server", "nfs-common", "libnfsidmap1", "libevent-core-2.1-7", "libtirpc3", "libtirpc-common"),
    *("libwrap0", "libkeyutils1", "libsqlite3-0", "dmsetup", "libdevmapper1.02.1"),
)
#: Depends on the newest kernel of the distribution.
KERNEL: Final = "linux-image-amd64"
#: Programs of the host, with the Debian package that has them.
TOOLS: Final = {
    "qemu-system-x86_64": "qemu-system-x86",
    "busybox": "busybox-static",
    "depmod": "kmod",
    "ip": "iproute2",
}
FETCH_TIMEOUT_S: Final = 240.0


@dataclass(frozen=True, slots=True)
class GuestKernel:
    """An unpacked kernel: `root` is laid over the host's files in the guest and holds `lib/modules/<release>`."""

    image: Path
    release: str
    root: Path

    @property
    def modules(self) -> Path:
        """The modules' folder, with `modules.dep`."""
        return self.root / "usr/lib/modules" / self.release


def missing_tools() -> list[str]:
    """Debian packages of the programs that are not on PATH."""
    return sorted({package for tool, package in TOOLS.items() if _which(tool) is None})


def cached() -> GuestKernel | None:
    """The newest kernel that was fetched before, None where there is none. Needs no network."""
    folders = [ready.parent for ready in cache_folder().glob("*/ready") if ready.read_text().split() == [*PROGRAMS]]
    found = [kernel for folder in folders if (kernel := _open(folder))]
    return max(found, key=lambda kernel: _version(kernel.release), default=None)


def prepare() -> GuestKernel:
    """The kernel, fetched if it has not been.

    Raises:
        MissingError: the host lacks a program, or the packages cannot be fetched.
    """
    missing = missing_tools()
    if missing:
        raise MissingError(f"no {', '.join(missing)}: run `make tools`")
    if not is_static(Path(_which("busybox") or "").read_bytes()):
        raise MissingError("busybox is linked to libraries that the guest's first files lack: use busybox-static")
    return cached() or _fetch()


def is_static(program: bytes) -> bool:
    """Whether a 64-bit ELF file names no interpreter (PT_INTERP, type 3 in elf(5)) that would load libraries."""
    table, size, count = (struct.unpack_from("<Q", program, 32)[0], *struct.unpack_from("<HH", program, 54))
    return all(struct.unpack_from("<I", program, table + size * number)[0] != 3 for number in range(count))


def cache_folder() -> Path:
    """Where kernels are kept."""
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gpuchaos/guest"


def _fetch() -> GuestKernel:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise MissingError("the guest's kernel is one of Debian's packages, and there is no apt-get here")
    shown = _run("apt-cache", "depends", KERNEL)
    image = re.search(r"Depends: (linux-image-[0-9]\S*)", shown)
    if image is None:
        raise MissingError(f"apt knows no {KERNEL}: run `apt-get update` as root")
    wanted = (image[1], *PROGRAMS)
    name = hashlib.sha256(" ".join(wanted).encode()).hexdigest()[:16]
    target = cache_folder() / name
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".new-") as scratch:
        folder = Path(scratch)
        # apt gives its own user the download where it may write, and says so where it may not.
        _run("apt-get", "download", "-qq", *wanted, cwd=folder)
        for package in sorted(folder.glob("*.deb")):
            _run("dpkg", "-x", str(package), str(folder / "root"))
            package.unlink()
        _under_usr(folder / "root")
        _run("depmod", "-b", str(folder / "root/usr"), image[1].removeprefix("linux-image-"))
        (folder / "ready").write_text(" ".join(PROGRAMS))
        try:
            folder.rename(target)
            folder.mkdir()  # for the scratch folder's own end
        except OSError:  # another session was faster
            pass
    kernel = _open(target)
    if kernel is None:
        raise MissingError(f"{image[1]} holds no kernel that could be read in {target}")
    return kernel


def _open(folder: Path) -> GuestKernel | None:
    images = sorted((folder / "root/boot").glob("vmlinuz-*"))
    if not images:
        return None
    return GuestKernel(images[-1], images[-1].name.removeprefix("vmlinuz-"), folder / "root")


def _under_usr(root: Path) -> None:
    """`lib` and `sbin` moved under `usr`: laid over a host where they are links, they would hide all of it."""
    for name in ("bin", "sbin", "lib", "lib64"):
        if (root / name).is_dir():
            shutil.copytree(root / name, root / "usr" / name, dirs_exist_ok=True, symlinks=True)
            shutil.rmtree(root / name)


def _which(tool: str) -> str | None:
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def _version(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", release))


def _run(*command: str, cwd: Path | None = None) -> str:
    program = _which(command[0]) or command[0]
    try:
        done = subprocess.run(
            [program, *command[1:]], cwd=cwd, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise MissingError(f"{command[0]} did not finish in {FETCH_TIMEOUT_S:.0f} s") from error
    if done.returncode:
        raise MissingError(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-300:]}")
    return done.stdout


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{prepare().image}\n")
    except MissingError as error:
        sys.exit(str(error))
