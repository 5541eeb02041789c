"""What is mounted where (proc_pid_mountinfo(5)), what of it this node cannot do without, and who serves it.

Everything is read from procfs and sysfs: nothing here calls into a filesystem that may hang.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.kernelfs import files

#: Folders whose filesystems the node needs to stay alive, reachable, and able to undo.
_NEEDED: Final = (
    *("/", "/boot", "/usr", "/etc", "/var", "/var/lib", "/var/log", "/run", "/tmp"),  # noqa: S108
    # In a container these are files of the node's own disk.
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf"),
    *("/var/lib/kubelet", "/var/lib/containerd", "/var/lib/docker", "/var/lib/etcd", "/var/lib/rancher"),
)
#: Types that hold nobody's data.
PSEUDO: Final = frozenset(
    {
        *("proc", "sysfs", "devtmpfs", "devpts", "cgroup", "cgroup2", "securityfs", "debugfs", "tracefs", "mqueue"),
        *("bpf", "pstore", "configfs", "fusectl", "hugetlbfs", "binfmt_misc", "autofs", "rpc_pipefs", "nfsd"),
    }
)
_NETWORK: Final = frozenset({"nfs", "nfs4", "cifs", "smb3", "ceph", "lustre", "glusterfs", "beegfs", "gpfs"})
_PORTS: Final = {"nfs": 2049, "nfs4": 2049, "cifs": 445, "smb3": 445}
_OCTAL: Final = re.compile(r"\\([0-7]{3})")
_SESSION: Final = re.compile(r"/session(\d+)/")


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount. `device` is major:minor of its filesystem, `options` the mount's own, `super_options` its whole
    filesystem's; `root` is the folder of the filesystem that shows here, `parent` the `id` of what it is mounted on.
    """

    path: str
    kind: str
    device: str
    source: str
    root: str
    options: str
    super_options: str
    id: int = 0
    parent: int = 0

    @property
    def writable(self) -> bool:
        """Neither the mount nor the filesystem is read-only."""
        return "ro" not in self.options.split(",") and "ro" not in self.super_options.split(",")

    @property
    def network(self) -> bool:
        """A server answers for it."""
        return self.kind in _NETWORK or self.kind.startswith("fuse.")


@dataclass(frozen=True, slots=True)
class Server:
    """Who serves a mount: an address and a port."""

    address: str
    port: int


def mounts(procfs: Path, process: str = "self") -> list[Mount]:
    """All mounts of a process's namespace (ours), the one on top last."""
    found = []
    for line in (files.text(procfs / process / "mountinfo") or "").splitlines():
        head, dash, tail = line.partition(" - ")
        left, right = head.split(" "), tail.split(" ")
        if dash and len(left) >= 6 and len(right) >= 3:
            path, source, root = _plain(left[4]), _plain(right[1]), _plain(left[3])
            numbers = int(left[0]), int(left[1])
            found.append(Mount(path, right[0], left[2], source, root, left[5], right[2], *numbers))
    return found


def at(found: list[Mount], path: str) -> Mount | None:
    """The mount that a path is on: the longest that it lies below, the last of several on one folder."""
    best: Mount | None = None
    for mount in found:
        if below(path, mount.path) and (best is None or len(mount.path) >= len(best.path)):
            best = mount
    return best


def below(path: str, parent: str) -> bool:
    """Whether a path is a folder or in it."""
    return path == parent or path.startswith(parent.rstrip("/") + "/")


def needed_by_node(found: list[Mount], device: str, env: Env) -> str | None:
    """What this node needs that is on the filesystem, or None.

    Asked of init's mounts as well: in a container what the node needs is mounted elsewhere, or nowhere.
    """
    for table in (found, mounts(env.procfs, "1")):
        for folder, why in _needs(env):
            for on in _stack(table, folder, env.sysfs):
                if on.device == device:
                    return f"{folder} is on it ({why})"
    return None


def servers(mount: Mount, sysfs: Path) -> tuple[tuple[Server, ...], str]:
    """Who serves the mount, or nobody and why that is not known or cannot be cut by packet rules."""
    options = dict(part.partition("=")[::2] for part in mount.super_options.split(","))
    if "rdma" in options.get("proto", ""):
        return (), f"{mount.path} is mounted over RDMA, which packet rules never see: use rdma-link"
    if mount.kind in _PORTS:
        address = options.get("addr")
        port = int(options.get("port", "0") or 0) or _PORTS[mount.kind]
        if address is None:
            return (), f"the kernel does not tell the server's address of {mount.path}: give endpoint"
        return (Server(address, port),), ""
    if mount.network:
        return (), f"the servers of a {mount.kind} mount are not known to the kernel's mount table: give endpoint"
    block = files.text(sysfs / "dev/block" / mount.device / "dev") is not None
    real = os.path.realpath(sysfs / "dev/block" / mount.device) if block else ""
    found = _iscsi(real, sysfs) or _nvme(real)
    if found:
        return found, ""
    return (), f"{mount.path} ({mount.kind}) has no server: its path is a disk of this node"


def device_mapper(device: str, sysfs: Path) -> str | None:
    """The device-mapper name of a block device, None where it is none."""
    return (files.text(sysfs / "dev/block" / device / "dm/name") or "").strip() or None


def _needs(env: Env) -> Iterator[tuple[str, str]]:
    yield str(env.state_dir.absolute()), "the undo journal"
    package = str(Path(__file__).absolute().parents[2])
    for folder in {package, sys.prefix, sys.base_prefix, str(Path(sys.executable).parent)}:
        yield folder, "the agent itself"
    for folder in _NEEDED:
        yield folder, "the node itself"
    for line in (files.text(env.procfs / "swaps") or "").splitlines()[1:]:
        if line.startswith("/"):
            yield _plain(line.split()[0]), "swap"


def _stack(found: list[Mount], folder: str, sysfs: Path) -> Iterator[Mount]:
    """The mount of a folder, and, where that is an image in a file, the mount of the file, and so on."""
    seen = set[str]()
    where: str | None = folder
    while where is not None:
        mount = at(found, where)
        if mount is None or mount.device in seen:
            return
        seen.add(mount.device)
        yield mount
        where = (files.text(sysfs / "dev/block" / mount.device / "loop/backing_file") or "").strip() or None


def _iscsi(block: str, sysfs: Path) -> tuple[Server, ...]:
    session = _SESSION.search(block)
    if session is None:
        return ()
    found = []
    for connection in sorted((sysfs / "class/iscsi_connection").glob(f"connection{session[1]}:*")):
        address = (files.text(connection / "address") or files.text(connection / "persistent_address") or "").strip()
        port = (files.text(connection / "port") or files.text(connection / "persistent_port") or "").strip()
        if address and port.isdecimal():
            found.append(Server(address, int(port)))
    return tuple(found)


def _nvme(block: str) -> tuple[Server, ...]:
    """NVMe over TCP: the controllers of the subsystem that the disk belongs to."""
    found = []
    for controller in sorted(Path(block).parent.glob("nvme*")) if "/nvme" in block else []:
        if (files.text(controller / "transport") or "").strip() != "tcp":
            continue
        words = dict(part.partition("=")[::2] for part in (files.text(controller / "address") or "").strip().split(","))
        if "traddr" in words and words.get("trsvcid", "").isdecimal():
            found.append(Server(words["traddr"], int(words["trsvcid"])))
    return tuple(found)


def _plain(text: str) -> str:
    return _OCTAL.sub(lambda match: chr(int(match[1], 8)), text)
