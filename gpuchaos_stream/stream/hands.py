"""What a token may do through `gpuchaos serve`, as an operator's signed commands: the same as on the command line."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from typing import Final

import structlog

from gpuchaos_stream.act.orders import order
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.command import Command, CommandKind
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.experiments import client
from gpuchaos_stream.stream.bus import Bus, BusClosedError
from gpuchaos_stream.web.site import NotSentError
from gpuchaos_stream.web.views import Sent

#: Seconds that the broker may take.
SEND_S: Final = 10.0

_log = structlog.get_logger(__name__)


class OperatorHands:
    """Signs with the operator's key and sends. Commands carry the token's name as who issued them."""

    def __init__(self, bus: Bus, signer: Signer) -> None:
        self._bus = bus
        self._signer = signer
        self._late: set[asyncio.Task[None]] = set()

    async def stop(self, state: ExperimentState, reason: str, who: str) -> list[Sent]:
        """Tells the control plane, and every agent that may hold a fault of the experiment."""
        return await self._send(client.stop_commands(state, reason), who)

    async def trip(self, cluster: str, before: BreakerState | None, reason: str, who: str) -> list[Sent]:
        """Stops every experiment of a cluster; none may begin until the reset."""
        return await self._send([order(CommandKind.STOP_ALL, cluster, reason, now=time.time(), before=before)], who)

    async def reset(self, cluster: str, before: BreakerState | None, reason: str, who: str) -> list[Sent]:
        """Closes the breaker."""
        command = order(CommandKind.RESET, cluster, reason, now=time.time(), before=before)
        return await self._send([command], who, keep=False)

    async def _send(self, commands: Iterable[Command], who: str, *, keep: bool = True) -> list[Sent]:
        """Sends all at once. What the broker has not taken in time goes out when it is back if `keep`: a late stop is
        better than none, a late reset is not.
        """
        issued = [command.model_copy(update={"issued_by": who}) for command in commands]
        sending = [asyncio.create_task(client.send(self._bus, self._signer, command)) for command in issued]
        done, late = await asyncio.wait(sending, timeout=SEND_S)
        for task in done:
            if isinstance(error := task.exception(), UserError | BusClosedError):
                raise NotSentError(str(error)) from error
            task.result()
        if late and not keep:
            for task in late:
                task.cancel()
            raise NotSentError(f"no Kafka broker took it within {SEND_S:g} s; it was taken back")
        if late:
            self._late |= late
            for task in late:
                task.add_done_callback(self._came_late)
            raise NotSentError(
                f"no Kafka broker took {len(late)} of {len(sending)} commands within {SEND_S:g} s; "
                "they go out as soon as one answers"
            )
        return [Sent(kind=command.kind.value, id=command.id, node=command.node) for command in issued]

    def _came_late(self, task: asyncio.Task[None]) -> None:
        self._late.discard(task)
        if task.cancelled() or (error := task.exception()) is None:
            return
        _log.error("a command was not sent", reason=str(error))
