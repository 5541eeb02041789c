"""What this process may do (capabilities(7)): being root is not enough in a container that has dropped them."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from gpuchaos_agent.kernelfs import files

#: linux/capability.h.
_BITS: Final = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21, "CAP_SYS_TIME": 25, "CAP_SYSLOG": 34}


def lacking(*names: str, procfs: Path = Path("/proc")) -> str | None:
    """Which of these capabilities this process does not have, in words, or None. Where that is not told it has all."""
    status = files.text(procfs / "thread-self/status") or files.text(procfs / "self/status") or ""
    held = next((line.split()[1] for line in status.splitlines() if line.startswith("CapEff:")), None)
    if held is None:
        return None
    absent = [name for name in dict.fromkeys(names) if not int(held, 16) >> _BITS[name] & 1]
    return f"this agent lacks {' and '.join(absent)}" if absent else None
