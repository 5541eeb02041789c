"""Which undos keep an order: last injected first, among faults that touch the same kind of thing.

No two faults of a node hold the same thing (`resources`), so each can be taken back without the others. An order is
kept all the same where the undo of one may need what another has taken away: bits of a file cannot be put back while
its filesystem is frozen. It is kept for a while only: an undo that hangs holds up no other for longer.
"""

from __future__ import annotations

from typing import Final

#: How long an undo waits for those of later faults of its kind, seconds. Enough for one that waits for nothing itself,
#: and little beside the time that a halt has; one that began too early fails and is tried again.
PATIENCE_S: Final = 1.0

_FILES, _NETWORK, _PROCESSES = "files", "network", "processes"
#: Fault → what it touches, by `layer` and `resources`. Looking at the names alone asks nothing that could hang.
_TOUCHES: Final = {
    "certificate-expiry": frozenset({_FILES, _PROCESSES}),
    "database-outage": frozenset({_NETWORK}),
    "memory-corruption": frozenset({_FILES}),
    "network-partition": frozenset({_NETWORK}),
    "numa-misalignment": frozenset({_PROCESSES}),
    "process-stop": frozenset({_PROCESSES}),
    "rdma-link": frozenset({_NETWORK}),
    "service-latency": frozenset({_NETWORK}),
    "storage-disconnect": frozenset({_FILES, _NETWORK}),
}


def touches(fault: str) -> frozenset[str]:
    """The kinds of things that a fault touches; of one that is not in the table, only its own."""
    return _TOUCHES.get(fault, frozenset({fault}))
