"""nftables as faults use it: one table a fault, made in one transaction, counted by name, removed whole.

A table of family `inet` named `gpuchaos_…` holds everything a fault does to packets, so taking it back is one
command that touches nobody else's rules, works from the fault's id alone, and may be repeated. A table dies with
the boot and with its network namespace by itself.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from gpuchaos_agent.inject import capabilities, tools
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.journal import JournalEntry

#: Every table of ours begins so, and no other one.
PREFIX: Final = "gpuchaos_"
#: Before connection tracking, address translation and everybody's own rules: the fault sees, and counts, first.
PRIORITY: Final = -300

_UNSAFE: Final = re.compile(r"[^A-Za-z0-9_]")


@dataclass(frozen=True, slots=True)
class Counter:
    """What a named counter has counted since its table was made."""

    packets: int = 0
    bytes: int = 0


def table_name(fault_id: str) -> str:
    """The table of a fault. Two faults never share one: an id that had to be changed gets a digest of itself."""
    safe = _UNSAFE.sub("_", fault_id)
    if safe != fault_id:
        safe = f"{safe}_{hashlib.sha256(fault_id.encode()).hexdigest()[:8]}"
    return f"{PREFIX}{safe}"


def unavailable() -> str | None:
    """Why packets cannot be filtered here (no nft, no permission, a kernel without nf_tables), or None."""
    absent = tools.missing("nft") or capabilities.lacking("CAP_NET_ADMIN")
    if absent is not None:
        return absent
    try:
        tools.run(["nft", "--check", "-f", "-"], stdin=script(f"{PREFIX}probe", _PROBE))
    except InjectError as error:
        return f"nftables cannot be used here: {error}"
    return None


def script(table: str, body: str) -> str:
    """What `apply` hands to `nft -f -`: replaces the table, if there is one, and makes it anew, all or nothing.

    `body` is what stands between the braces: counters, sets, chains.
    """
    return f"table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n{body.rstrip()}\n}}\n"


def apply(table: str, body: str) -> None:
    """Makes the table in one transaction. Done twice, there is one, its counters at zero.

    Raises:
        InjectError: nft refused; nothing was changed then.
    """
    _ours(table)
    tools.run(["nft", "-f", "-"], stdin=script(table, body))


def remove(table: str) -> None:
    """Removes the table, or does nothing where it is not there.

    Raises:
        InjectError: there is no nft, it refused, or it took too long; the table may still be there.
    """
    _ours(table)
    if exists(table):
        # Made and deleted in one transaction: no error if somebody else was faster.
        tools.run(["nft", "-f", "-"], stdin=f"table inet {table}\ndelete table inet {table}\n")


def exists(table: str) -> bool:
    """Whether the kernel has the table, as it says itself.

    Raises:
        InjectError: it cannot be asked.
    """
    return table in own_tables()


def own_tables() -> tuple[str, ...]:
    """The tables of all faults in this network namespace, by name.

    Raises:
        InjectError: the kernel cannot be asked.
    """
    names = (found.get("name", "") for found in _listed("table", "list", "tables", "inet"))
    return tuple(sorted(str(name) for name in names if str(name).startswith(PREFIX)))


def counters(table: str) -> dict[str, Counter]:
    """The table's named counters.

    Raises:
        InjectError: there is no such table.
    """
    found = _listed("counter", "list", "counters", "table", "inet", table)
    return {
        str(counter["name"]): Counter(int(counter["packets"]), int(counter["bytes"]))
        for counter in found
        if counter.get("table") == table
    }


def gone_with_boot(entry: JournalEntry, boot_id: str) -> bool:
    """Whether the entry's table went with its boot and cannot be asked for any more: no nft, no rules restored."""
    return entry.boot_id != boot_id and tools.find("nft") is None


def commands(table: str, body: str) -> tuple[str, str]:
    """What `apply` and `remove` do, as a person would type it."""
    return f"nft -f - <<'EOF'\n{script(table, body)}EOF", f"nft delete table inet {table}"


def one_of(values: Iterable[str | int]) -> str:
    """`{ a, b }`, an anonymous set; the value alone where there is but one."""
    listed = [str(value) for value in values]
    return listed[0] if len(listed) == 1 else "{ " + ", ".join(listed) + " }"


def _ours(table: str) -> None:
    if not table.startswith(PREFIX) or _UNSAFE.search(table):
        raise InjectError(f"{table!r} is no table of this agent")


def _listed(kind: str, *words: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(tools.run(["nft", "-j", *words]))["nftables"]
    except (ValueError, KeyError) as error:
        raise InjectError(f"nft {' '.join(words)}: no answer that can be read") from error
    return [item[kind] for item in found if kind in item]


_PROBE: Final = f"""  counter dropped {{ }}
  chain input {{
    type filter hook input priority {PRIORITY}; policy accept;
    numgen random mod 100 < 50 counter name "dropped" drop
  }}"""
