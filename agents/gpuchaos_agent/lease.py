"""Leases: how long a fault may stay without being renewed. Pure; time is the boot-time clock's."""

from __future__ import annotations

from typing import Final

#: The longest lease that an agent grants unless its configuration says otherwise, seconds.
LONGEST_S: Final = 300.0


class Leases:
    """Deadlines by fault id, on the boot-time clock, which no one sets: a clock step extends nothing."""

    def __init__(self) -> None:
        self._deadline: dict[str, float] = {}

    def grant(self, fault_id: str, *, deadline: float) -> None:
        """Starts a lease that runs until `deadline`."""
        self._deadline[fault_id] = deadline

    def renew(self, fault_id: str, *, boot: float, lease_s: float) -> float | None:
        """Extends a lease that still runs, never shortens it. None where there is none, or it has run out."""
        deadline = self._deadline.get(fault_id)
        if deadline is None or boot >= deadline:
            return None
        self._deadline[fault_id] = max(deadline, boot + lease_s)
        return self._deadline[fault_id]

    def end(self, fault_id: str) -> None:
        """Forgets the lease."""
        self._deadline.pop(fault_id, None)

    def expired(self, boot: float) -> list[str]:
        """Fault ids whose lease has run out, the longest overdue first."""
        return sorted((f for f, deadline in self._deadline.items() if boot >= deadline), key=self._deadline.__getitem__)
