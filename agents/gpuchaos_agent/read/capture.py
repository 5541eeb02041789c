"""`gpuchaos-agent capture OUT.jsonl`: what the collectors read on this node, as a file for a bug report.

One line a file: `{"path", "content"}`, or `{"path", "error"}` with the errno's name, or `{"path", "link"}`. What
names a machine or a person is left out: GUIDs, GIDs, MAC and IP addresses, serial numbers, process command lines,
host names; where one stands in a name (`enx<MAC>`) or a content, a word stands for it (`redact.py`).
`gpuchaos-agent read OUT.jsonl` concludes from it what the agent would conclude here.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, TextIO

from gpuchaos_agent.kernelfs import files
from gpuchaos_agent.read import redact

#: Below the root of sysfs: what is read of NUMA nodes, RDMA devices, network devices and PCI devices.
SYS: Final = (
    "devices/system/node/*",
    "devices/system/node/node*/*",
    "class/infiniband/*/*",
    "class/infiniband/*/ports/*/*",
    "class/infiniband/*/ports/*/counters/*",
    "class/infiniband/*/ports/*/hw_counters/*",
    "class/infiniband/*/ports/*/gid_attrs/*/*",
    "class/infiniband/*/hw_counters/*",
    "class/infiniband/*/device/*",
    "class/infiniband/*/device/net/*/*",
    "class/infiniband/*/device/net/*/statistics/*",
    "class/net/*/*",
    "class/net/*/bonding/*",
    "class/net/*/statistics/*",
    "bus/pci/devices/*/*",
)
#: Below the root of procfs.
PROC: Final = ("meminfo", "stat", "loadavg", "pressure/*", "vmstat", "filesystems", "sys/kernel/osrelease")
#: Links whose target says where a device sits.
LINKS: Final = (
    "bus/pci/devices/*",
    "class/infiniband/*",
    "class/infiniband/*/device",
    "class/net/*",
    "class/net/*/device",
)

# fmt: off
#: Files that are read of a PCI device, out of some hundred.
PCI_FILES: Final = frozenset((
    "vendor", "device", "class", "numa_node", "local_cpulist", "enable",
    "current_link_speed", "current_link_width", "max_link_speed", "max_link_width",
    "aer_dev_correctable", "aer_dev_fatal", "aer_dev_nonfatal",
))
#: Names that tell which machine this is, or are large, binary or written to: left out.
PRIVATE: Final = frozenset((
    "node_guid", "sys_image_guid", "node_desc", "gids", "board_id",
    "address", "broadcast", "permaddr", "phys_switch_id", "phys_port_id", "phys_port_name", "ifalias",
    "ad_actor_system", "ad_partner_mac", "ad_user_port_key", "arp_ip_target", "ns_ip6_target",
    "serial", "serial_number", "vpd", "config", "rom", "uevent",
    "remove", "rescan", "reset", "bind", "unbind", "new_id",
))
# fmt: on
#: Beginnings of names of the same sort (`resource0` is a device's memory).
PRIVATE_BEGINNINGS: Final = ("resource", "gid", "pkey", "config")
#: Most files of a capture; a node with 16 NICs and 8 GPUs has some 12,000.
MOST: Final = 100_000


def capture(out: TextIO, *, sysfs: Path, procfs: Path) -> tuple[int, int]:
    """Writes the capture; how many files were read, and how many could not be.

    Paths are written as if the roots were /sys and /proc.
    """
    read = failed = 0
    hide = redact.Redactor()
    for found in _lines(sysfs, procfs):
        line = {name: hide(text) for name, text in found.items()}
        out.write(json.dumps(line, ensure_ascii=False) + "\n")
        read += "error" not in line
        failed += "error" in line
        if read + failed >= MOST:
            break
    return read, failed


def _lines(sysfs: Path, procfs: Path) -> Iterator[dict[str, str]]:
    for root, name, patterns in ((sysfs, "/sys", SYS), (procfs, "/proc", PROC)):
        for path in _files(root, patterns):
            yield {"path": f"{name}/{path.relative_to(root)}", **_content(path)}
    for path in _sorted(sysfs, LINKS):
        if path.is_symlink():
            yield {"path": f"/sys/{path.relative_to(sysfs)}", "link": str(path.readlink())}


def _files(root: Path, patterns: Iterable[str]) -> Iterator[Path]:
    for path in _sorted(root, patterns):
        pci = "bus/pci/devices" in str(path.parent) or path.parent.name == "device"
        private = path.name in PRIVATE or path.name.startswith(PRIVATE_BEGINNINGS)
        if not private and (not pci or path.name in PCI_FILES) and _regular(path):
            yield path


def _sorted(root: Path, patterns: Iterable[str]) -> Iterator[Path]:
    seen: set[Path] = set()
    for pattern in patterns:
        for path in sorted(root.glob(pattern)):
            if path not in seen:
                seen.add(path)
                yield path


def _regular(path: Path) -> bool:
    try:
        return path.is_file() and bool(path.stat().st_mode & 0o444)
    except OSError:
        return False


def _content(path: Path) -> dict[str, str]:
    try:
        with path.open("rb", buffering=0) as file:
            content = file.read(files.LARGEST) or b""
    except OSError as error:
        return {"error": errno.errorcode.get(error.errno or 0, os.strerror(error.errno or 0))}
    return {"error": "binary"} if b"\0" in content else {"content": content.decode("utf-8", "replace")}
