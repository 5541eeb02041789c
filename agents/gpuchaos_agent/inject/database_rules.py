"""The table of a database outage: packets to and from one address and port, and nothing else."""

from __future__ import annotations

from typing import Final

from gpuchaos_agent.inject.endpoints import Network, Selector
from gpuchaos_agent.inject.nft import PRIORITY

#: What a reset itself sends, in either direction, must arrive.
_RESETS: Final = "tcp flags & rst == rst accept"
_FIRST: Final = "tcp flags & (syn | ack) == syn "
_WITH_RESET: Final = "reject with tcp reset"


def body(networks: tuple[Network, ...], port: int, mode: str, *, everybody: bool) -> str:
    """The table's content. `everybody`: also clients from elsewhere that reach the database here."""
    database = Selector(networks, (str(port),), "tcp")
    to = [f'counter name "to_database" {_verdict(mode)}']
    back = [] if mode == "refused" else [f'counter name "from_database" {_verdict(mode)}']
    first = _FIRST if mode == "refused" else ""
    asking = [f"{match}{first}{then}" for match in database.matches("daddr", either_end=False) for then in to]
    answering = [f"{match}{then}" for match in database.matches("saddr", either_end=False) for then in back]
    resets = [_RESETS] if mode != "hanging" else []
    chains = {
        "output": [*resets, *asking, *(answering if everybody else [])],
        "input": [*resets, *answering, *(asking if everybody else [])],
        "forward": [*resets, *asking, *answering],
    }
    blocks = ["  counter to_database { }", "  counter from_database { }"]
    for hook, rules in chains.items():
        head = f"    type filter hook {hook} priority {PRIORITY}; policy accept;"
        blocks.append("\n".join([f"  chain {hook} {{", head, *(f"    {rule}" for rule in rules), "  }"]))
    return "\n".join(blocks)


def _verdict(mode: str) -> str:
    return "drop" if mode == "hanging" else _WITH_RESET
