"""The delivering half: for each receiver a task of its own, so that one that hangs keeps nobody waiting."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import sqlite3
from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from gpuchaos_stream.notify import metrics
from gpuchaos_stream.notify.config import Config
from gpuchaos_stream.notify.delivery import Outcome, Result, Sender
from gpuchaos_stream.notify.queue import Queue, Taken
from gpuchaos_stream.notify.receivers.alertmanager import Alertmanager
from gpuchaos_stream.notify.receivers.base import Receiver, Request
from gpuchaos_stream.notify.secret import SecretError
from gpuchaos_stream.notify.upkeep import Upkeep
from gpuchaos_stream.observe.logs import Sparingly

#: A receiver's task looks around at least so often, seconds.
_LOOK_S: Final = 5.0
#: Seconds between two attempts to write to a queue whose disk refuses.
_DISK_S: Final = 1.0

_log = structlog.get_logger(__name__)


class Desk:
    """Delivers what the queue holds until it is cancelled. `clock` gives epoch seconds."""

    def __init__(self, config: Config, queue: Queue, sender: Sender, clock: Callable[[], float]) -> None:
        self._config = config
        self._queue = queue
        self._sender = sender
        self._clock = clock
        self._wake = {name: asyncio.Event() for name in config.receivers}
        # As it stood when the last process ended: a success after that is news, and hastens what waits.
        self._failing = {name for name in config.receivers if queue.last_answer(name)}
        for name in self._failing:
            metrics.HEALTHY.labels(receiver=name).set(0)
        self._upkeep = Upkeep(queue, self._send_made)
        self._sparingly = Sparingly()
        for name, receiver in config.receivers.items():
            if queue.disabled(name) not in (None, fingerprint(receiver)):
                queue.enable(name)

    def wake(self) -> None:
        """There may be something new to deliver."""
        for event in self._wake.values():
            event.set()

    async def run(self) -> None:
        """Delivers for ever, to all receivers at once."""
        async with asyncio.TaskGroup() as group:
            for receiver in self._config.receivers.values():
                group.create_task(self._serve(receiver), name=f"notify {receiver.name}")

    async def _serve(self, receiver: Receiver) -> None:
        wake = self._wake[receiver.name]
        while True:
            wake.clear()
            if not await self._step_or_wait(receiver):
                due = self._queue.next_due(receiver.name)
                wait = _LOOK_S if due is None else min(max(due - self._clock(), 0.01), _LOOK_S)
                if isinstance(receiver, Alertmanager):
                    wait = min(wait, receiver.renew)
                try:
                    async with asyncio.timeout(wait):
                        await wake.wait()
                except TimeoutError:
                    pass

    async def _step_or_wait(self, receiver: Receiver) -> bool:
        try:
            return await self.step(receiver)
        except sqlite3.OperationalError as error:
            await self._no_disk(receiver, error)
            return False

    async def _no_disk(self, receiver: Receiver, error: sqlite3.OperationalError) -> None:
        """The queue cannot be written to. Nothing is sent that could not be noted, so that nothing is told twice."""
        if self._sparingly(str(error)):
            _log.error("queue cannot be written", reason=str(error))
        metrics.HEALTHY.labels(receiver=receiver.name).set(0)
        await asyncio.sleep(_DISK_S)

    async def step(self, receiver: Receiver) -> bool:
        """Makes one delivery, and what else is due; returns whether there was one to make."""
        now = self._clock()
        if self._queue.disabled(receiver.name) is not None:
            left = self._queue.give_up(receiver.name, now - self._config.give_up_after, now)
            metrics.DEAD.labels(receiver=receiver.name).inc(left)
        elif isinstance(receiver, Alertmanager):
            await self._upkeep.keep_up(receiver, now)
        taken = self._queue.take(receiver.name, receiver.most, now)
        if taken is not None:
            outcome = await self._deliver(receiver, taken, now)
            while True:
                try:
                    self._settle(receiver, taken, outcome)
                    break
                except sqlite3.OperationalError as error:
                    await self._no_disk(receiver, error)
            metrics.HEALTHY.labels(receiver=receiver.name).set(outcome.result is Result.DELIVERED)
        standing = self._queue.standing(receiver.name, now)
        metrics.WAITING.labels(receiver=receiver.name).set(standing["waiting"])
        metrics.OLDEST.labels(receiver=receiver.name).set(standing["oldest"])
        metrics.SET_ASIDE.labels(receiver=receiver.name).set(standing["dead"])
        return taken is not None

    async def _deliver(self, receiver: Receiver, taken: Taken, now: float) -> Outcome:
        return await self._send_made(receiver, partial(receiver.request, taken.batch, now), now)

    def _note(self, receiver: Receiver, outcome: Outcome) -> Outcome:
        well = outcome.result is Result.DELIVERED
        metrics.ATTEMPTS.labels(receiver=receiver.name, result=outcome.result).inc()
        metrics.HEALTHY.labels(receiver=receiver.name).set(well)
        if well and receiver.name in self._failing:
            with contextlib.suppress(sqlite3.OperationalError):  # then at the next success
                self._queue.hasten(receiver.name, self._clock())
                _log.info("receiver works again", receiver=receiver.name)
                self._failing.discard(receiver.name)
        elif not well and receiver.name not in self._failing:
            _log.warning("receiver failed", receiver=receiver.name, result=outcome.result, reason=outcome.reason)
            self._failing.add(receiver.name)
        return outcome

    def _settle(self, receiver: Receiver, taken: Taken, outcome: Outcome) -> None:
        now = self._clock()
        if outcome.result is Result.DELIVERED:
            self._queue.delivered(taken)
            metrics.DELAY.labels(receiver=receiver.name).observe(max(0.0, now - taken.made))
        elif outcome.result is Result.FAILED and now - taken.made < self._config.give_up_after:
            self._queue.again(receiver.name, taken, outcome.reason, now, outcome.asked)
        elif outcome.result is Result.REFUSED and len(taken.rows) > 1:
            self._queue.apart(taken, outcome.reason, now)
        else:
            self._queue.set_aside(taken, outcome.reason, now)
            metrics.DEAD.labels(receiver=receiver.name).inc(len(taken.rows))
            _log.error("message set aside", receiver=receiver.name, reason=outcome.reason, message_id=taken.batch.id)
            if outcome.result is Result.GONE:
                self._queue.disable(receiver.name, fingerprint(receiver), outcome.reason)

    async def _send_made(self, receiver: Receiver, make: Callable[[], Request], now: float) -> Outcome:
        try:
            return self._note(receiver, await self._sender.send(receiver, make(), now))
        except SecretError as error:
            return self._note(receiver, Outcome(Result.FAILED, str(error)))


def fingerprint(receiver: Receiver) -> str:
    """A digest of a receiver's settings, which hold no secrets; new settings deserve a new chance."""
    return hashlib.sha256(receiver.model_dump_json().encode()).hexdigest()[:20]
