"""What an operator orders the breaker, whether on the command line or through the page."""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.experiment import BreakerState
from gpuchaos_stream.experiments import client

#: Characters; it travels with the breaker's state.
_LONGEST_REASON: Final = 500


def order(kind: CommandKind, cluster: str, reason: str, *, now: float, before: BreakerState | None) -> Command:
    """The operator's command to the breaker at `now`, epoch seconds; `before` is the breaker's last known state.

    Raises:
        UserError: the reason is blank or too long.
    """
    reason = " ".join(reason.split())
    if not reason:
        raise UserError("--reason", "is empty", "say why; who comes next will want to know")
    if len(reason) > _LONGEST_REASON:
        raise UserError("--reason", f"is {len(reason)} characters long", f"use at most {_LONGEST_REASON}")
    # A slow clock here would date a reset before the trip that it is meant for, or a trip before the last reset,
    # and it would be taken for stale.
    last = before.time if before is not None else 0.0
    return client.operator_command(kind, cluster=cluster, now=max(now, last + 0.001), reason=reason)
