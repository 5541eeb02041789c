"""What an Alertmanager must be told again and again: alerts that are on, and silences of experiments that run."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final

from gpuchaos_stream.events.experiment import ExperimentState, Status
from gpuchaos_stream.notify.conditions import HARM, SIGNAL
from gpuchaos_stream.notify.delivery import Outcome, Result
from gpuchaos_stream.notify.queue import Queue
from gpuchaos_stream.notify.receivers.alertmanager import Alertmanager
from gpuchaos_stream.notify.receivers.base import Receiver, Request

#: A silence that could not be made or removed is tried again after this, seconds.
_AGAIN_S: Final = 5.0
#: A silence begins so much later than it is made: Alertmanager keeps a start that is not past, and renews by it.
_AHEAD_S: Final = 1.0

#: A silence ends by itself so long after its experiment should have recovered, seconds: who could say that it is over
#: may have died, and what is silenced for ever is told to nobody.
_OVERDUE_S: Final = 600.0

#: Sends the request that the second argument makes, at a time, and says what became of it.
Send = Callable[[Receiver, Callable[[], Request], float], Awaitable[Outcome]]


class Upkeep:
    """Renews alerts and silences; times are passed in, epoch seconds."""

    def __init__(self, queue: Queue, send: Send) -> None:
        self._queue = queue
        self._send = send
        self._renewed: dict[str, float] = {}
        self._next_try: dict[tuple[str, str], float] = {}
        self._ended: dict[tuple[str, str], float] = {}

    async def keep_up(self, receiver: Alertmanager, now: float) -> None:
        """Posts open alerts again before they end, and keeps silences as experiments run."""
        due = now - self._renewed.get(receiver.name, float("-inf")) >= receiver.renew
        trouble: sqlite3.OperationalError | None = None
        try:
            if not await self._keep_silences(receiver, now, due=due):
                return  # it cannot be reached: alerts are not kept waiting for every silence to fail
        except sqlite3.OperationalError as error:  # no reason to let alerts end
            trouble = error
        if due:
            self._renewed[receiver.name] = now
            alerts = self._queue.open_alerts(receiver.name)
            for first in range(0, len(alerts), receiver.most):
                part = alerts[first : first + receiver.most]
                outcome = await self._send(receiver, partial(receiver.post, part, now), now)
                if outcome.result is not Result.DELIVERED:
                    break
        if trouble is not None:
            raise trouble

    async def _keep_silences(self, receiver: Alertmanager, now: float, *, due: bool) -> bool:
        """Makes, renews and removes silences; False: the receiver cannot be reached."""
        running = self._running(now) if receiver.silence else {}
        silences = self._queue.silences(receiver.name)
        for experiment_id in sorted(set(silences) | set(running)):
            fresh = (experiment_id in silences) == (experiment_id in running)
            if (fresh and not due) or now < self._next_try.get((receiver.name, experiment_id), now):
                continue
            if experiment_id not in running and self._harm_lasts(receiver, experiment_id, now):
                continue
            self._next_try[receiver.name, experiment_id] = now + min(_AGAIN_S, receiver.renew / 2)
            silence_id, starts = silences.get(experiment_id, (None, now + _AHEAD_S))
            if experiment_id in running:
                outcome = await self._silence(receiver, experiment_id, silence_id, starts, now)
            else:
                outcome = await self._unsilence(receiver, experiment_id, str(silence_id), now)
            if outcome.result is Result.FAILED and outcome.status is None:
                return False
        return True

    def _harm_lasts(self, receiver: Alertmanager, experiment_id: str, now: float) -> bool:
        """Whether harm of an experiment that has ended is not told to be over yet: its alerts would be sent out when
        the silence goes, and be resolved a moment later. Harm that stays for a round is no longer the experiment's.
        """
        ended = self._ended.setdefault((receiver.name, experiment_id), now)
        if now - ended >= receiver.renew:
            return False
        theirs = (each for each in self._queue.open_alerts(receiver.name) if each.experiment_id == experiment_id)
        return bool(self._queue.standing(receiver.name, now)["waiting"]) or any(
            each.labels.get(SIGNAL) == HARM for each in theirs
        )

    def _running(self, now: float) -> dict[str, ExperimentState]:
        states = [ExperimentState.model_validate_json(each) for each in self._queue.experiments().values()]
        return {each.id: each for each in states if each.status is not Status.PENDING and now < _over_at_last(each)}

    async def _silence(
        self, receiver: Alertmanager, experiment_id: str, silence_id: str | None, starts: float, now: float
    ) -> Outcome:
        make = partial(receiver.silence_of, experiment_id, silence_id, starts, now)
        outcome = await self._send(receiver, make, now)
        if outcome.result is Result.DELIVERED:
            made = _silence_id(outcome.answer)
            self._queue.keep_silence(receiver.name, experiment_id, made, starts)
        elif outcome.status == 404 and silence_id is not None:
            self._queue.keep_silence(receiver.name, experiment_id, None)
        return outcome

    async def _unsilence(self, receiver: Alertmanager, experiment_id: str, silence_id: str, now: float) -> Outcome:
        outcome = await self._send(receiver, partial(receiver.unsilence, silence_id), now)
        # One that it does not know, or that has ended (it answers 404 or 500), is gone as well.
        if outcome.result is Result.DELIVERED or outcome.status in (404, 500):
            self._queue.keep_silence(receiver.name, experiment_id, None)
            self._ended.pop((receiver.name, experiment_id), None)
        return outcome


def _over_at_last(state: ExperimentState) -> float:
    """When an experiment of which nothing more is heard must be over, epoch seconds."""
    objectives = state.plan.get("objectives")
    ttr = objectives.get("ttr") if isinstance(objectives, dict) else None
    return max(state.time, state.ends or 0.0) + (float(ttr) if isinstance(ttr, (int, float)) else 0.0) + _OVERDUE_S


def _silence_id(answer: bytes) -> str | None:
    try:
        found = json.loads(answer)["silenceID"]
    except (ValueError, KeyError, TypeError):
        return None
    return found if isinstance(found, str) else None
