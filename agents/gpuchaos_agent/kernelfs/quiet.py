"""Devices that are better left alone: reading their counters makes their driver write into the kernel log.

Ports that a fabric manager owns refuse the register behind a counter, and mlx5 prints one `mlx5_cmd_out_err` line
for each refusal, with the id of the thread that read. A monitor that polls such a port floods the log it watches
(leptonai/gpud#1164). So whoever reads the kernel log shows such lines to `heard`, and whoever reads counters asks
`asked` first. The memory is the process's: after a restart the first refusal teaches it anew.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

#: A literal that is in every text that `heard` understands.
HINT: Final = "ACCESS_REG"

#: More devices than a node has; a forged log must not fill the memory.
MOST: Final = 1024

_REFUSED: Final = re.compile(
    r"mlx5_core ([0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]): mlx5_cmd_out_err:\d{1,6}:"
    r"\(pid (\d{1,10})\): ACCESS_REG\(0x805\)",
    re.IGNORECASE,
)

_asked: set[str] = set()


def ask_less(address: str) -> None:
    """Leave the device with this PCI address (`0000:05:00.1`, with its function) alone from now on."""
    if len(_asked) < MOST:
        _asked.add(_written(address))


def asked(address: str) -> bool:
    """Whether the device with this PCI address is to be left alone."""
    return bool(_asked) and _written(address) in _asked


def forget() -> None:
    """As after a restart."""
    _asked.clear()


def heard(text: str, own_pid: int | None = None) -> str | None:
    """Takes one text of the kernel log; returns the address of the device that is left alone from now on.

    None for any other text, and where another process's reading is complained about: the number in the line is
    a thread's, so it is ours if it is one of this process's threads, or `own_pid`.
    """
    found = _REFUSED.search(text) if HINT in text else None
    if found is None:
        return None
    thread = int(found[2])
    if thread != own_pid and not Path(f"/proc/self/task/{thread}").exists():
        return None
    ask_less(found[1])
    return _written(found[1])


def _written(address: str) -> str:
    """As sysfs writes it: at least four digits of domain, lower case."""
    domain, _, rest = address.strip().lower().partition(":")
    try:
        return f"{int(domain, 16):04x}:{rest}"
    except ValueError:
        return address.strip().lower()
