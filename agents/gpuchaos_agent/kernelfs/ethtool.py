"""A network driver's own statistics (`ethtool -S`), by ioctl: pause frames are told nowhere in sysfs.

Numbers and structures from include/uapi/linux/ethtool.h. Netlink's standard statistics hold plain pause frames but
not those of a priority (PFC), so the drivers' own names are needed, and a table of them.
"""

from __future__ import annotations

import array
import fcntl
import re
import socket
import struct
from collections.abc import Callable
from typing import Final

_SIOCETHTOOL: Final = 0x8946
_GDRVINFO, _GSTRINGS, _GSTATS, _GSSET_INFO = 0x03, 0x1B, 0x1D, 0x37
_SS_STATS: Final = 1
_NAME: Final = 32  # ETH_GSTRING_LEN
_IFREQ: Final = 40  # struct ifreq on 64 bits
_DRVINFO: Final = 196
_BUS_INFO: Final = slice(4 + 32 + 32 + 32, 4 + 32 + 32 + 32 + 32)
#: More statistics than any driver has (mlx5 with 128 queues: about 6,000).
_MOST: Final = 1 << 16
#: Room for statistics that appear between asking how many there are and reading them (a queue that is added):
#: kernels before 6.19 write them all, whatever the caller made room for.
_SPARE: Final = 4096

#: Pause frames received, one counter a priority. mlx5: en_stats.c, mlx4: en_ethtool.c, ice and i40e, bnxt_en.
#: `xoff` is the frame that stops; `xon` lets go and is not counted.
_PER_PRIORITY: Final = re.compile(
    r"rx_prio[0-7]_pause\Z"
    r"|rx_pause_prio_[0-7]\Z"
    r"|(?:port\.)?rx_priority_[0-7]_xoff(?:_rx|\.nic)?\Z"
    r"|rx_pfc_ena_frames_pri[0-7]\Z"
)
#: Where the driver or firmware tells no priorities: all pause frames together.
_TOGETHER: Final = re.compile(r"(?:rx_pause_ctrl_phy|rx_pfc_frames|(?:port\.)?(?:link_xoff_rx|rx_flow_control_xoff))\Z")

#: One ioctl: interface name and the request's bytes, which hold the answer afterwards. Raises OSError.
Ask = Callable[[str, "array.array[int]"], None]


class Statistics:
    """Reads statistics of interfaces in this network namespace. `ask` is the ioctl, for tests.

    Not for several threads. A driver takes from 0.1 to some ms for one read: ask seldom.
    """

    def __init__(self, ask: Ask | None = None) -> None:
        self._socket: socket.socket | None = None
        self._ask = ask or self._ioctl

    def bus_address(self, name: str) -> str | None:
        """Where the interface sits, as its driver says: a PCI address, mostly. None where it does not answer."""
        request = array.array("B", struct.pack("=I", _GDRVINFO) + bytes(_DRVINFO - 4))
        if not self._answers(name, request):
            return None
        return request.tobytes()[_BUS_INFO].partition(b"\0")[0].decode("ascii", "replace") or None

    def names(self, name: str) -> tuple[str, ...] | None:
        """The names of the interface's statistics in their order, None where its driver has none."""
        count = self._count(name)
        if not count:
            return None
        header = struct.pack("=III", _GSTRINGS, _SS_STATS, count)
        request = array.array("B", header + bytes((count + _SPARE) * _NAME))
        if not self._answers(name, request):
            return None
        content = request.tobytes()
        told = min(struct.unpack_from("=I", content, 8)[0], count)
        cut = (content[12 + at * _NAME : 12 + (at + 1) * _NAME] for at in range(told))
        return tuple(one.partition(b"\0")[0].decode("ascii", "replace") for one in cut)

    def values(self, name: str) -> tuple[int, ...] | None:
        """The statistics in the order of `names`. Compare the lengths: queues may have come or gone."""
        count = self._count(name)
        if not count:
            return None
        header = struct.pack("=II", _GSTATS, count)
        request = array.array("B", header + bytes((count + _SPARE) * 8))
        if not self._answers(name, request):
            return None
        content = request.tobytes()
        told = min(struct.unpack_from("=I", content, 4)[0], count)
        return struct.unpack_from(f"={told}Q", content, 8)

    def close(self) -> None:
        """May be called twice."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _count(self, name: str) -> int | None:
        request = array.array("B", struct.pack("=IIQI", _GSSET_INFO, 0, 1 << _SS_STATS, 0) + bytes(4))
        if not self._answers(name, request):
            return None
        _, _, mask, count = struct.unpack_from("=IIQI", request.tobytes())
        return count if mask & 1 << _SS_STATS and count < _MOST else None

    def _answers(self, name: str, request: array.array[int]) -> bool:
        try:
            self._ask(name, request)
        except OSError:
            return False
        return True

    def _ioctl(self, name: str, request: array.array[int]) -> None:
        if self._socket is None:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        address, _ = request.buffer_info()
        ifreq = struct.pack("=16sQ", name.encode()[:15], address)
        fcntl.ioctl(self._socket, _SIOCETHTOOL, ifreq.ljust(_IFREQ, b"\0"))


class PauseFrames:
    """The number of pause frames that an interface has received, all priorities together."""

    def __init__(self, statistics: Statistics) -> None:
        self._statistics = statistics
        #: By name and address: how many statistics there were, and which of them count pause frames.
        self._places: dict[tuple[str, str], tuple[int, tuple[int, ...]]] = {}

    def received(self, name: str, address: str) -> int | None:
        """The counter now; None where the driver tells none.

        `address` is the PCI address at which sysfs has the interface. Where the driver names another one, the
        interface is another of the same name (a captured tree, another network namespace), and None is returned.
        """
        for _ in range(2):
            known = self._places.get((name, address)) or self._learn(name, address)
            if not known[1]:
                return None
            values = self._statistics.values(name)
            if values is not None and len(values) == known[0]:
                return sum(values[at] for at in known[1])
            del self._places[name, address]  # queues came or went, or it has another name now
        return None

    def close(self) -> None:
        """Gives the socket back. May be called twice."""
        self._statistics.close()

    def _learn(self, name: str, address: str) -> tuple[int, tuple[int, ...]]:
        names: tuple[str, ...] = ()
        if address and self._statistics.bus_address(name) == address:
            names = self._statistics.names(name) or ()
        places = tuple(at for at, one in enumerate(names) if _PER_PRIORITY.match(one))
        places = places or tuple(at for at, one in enumerate(names) if _TOGETHER.match(one))[:1]
        self._places[name, address] = (len(names), places)
        return self._places[name, address]
