"""The breaker: a latched stop of all new injection.

It opens on a rule (rate or level, `rules/breaker.yaml`) or a person's word, survives restarts, and closes
only by a person with a reason. It is asked before an injection and never before an undo: this class has no
method that an undo could ask. What it does is decided by event time alone, so that a repeated or late
message changes nothing: a cause from before the last reset does not trip it, a reset from before the last
trip does not close it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

from gpuchaos_stream.events.experiment import BreakerState

PREFIX: Final = "breaker/"
_KEY: Final = PREFIX + "state"
#: Resets that are remembered, so that one delivered again much later is known.
_REMEMBERED: Final = 100


class Breaker:
    """The breaker of one cluster (`Stateful`, prefix `breaker/`)."""

    def __init__(self, cluster: str) -> None:
        self._cluster = cluster
        self._state = BreakerState(id="breaker", time=0.0, cluster=cluster)
        self._cause = ""
        self._reset_at = 0.0
        self._resets: list[str] = []
        self._dirty = False
        self._changed = True

    @property
    def state(self) -> BreakerState:
        """Its state, as published."""
        return self._state

    @property
    def cause(self) -> str:
        """What tripped it, in one word: a rule's name or `operator:<command id>`. Empty while it is closed."""
        return self._cause

    @property
    def reset_at(self) -> float:
        """Event time of the last reset, 0 for never. Rates are counted from here on."""
        return self._reset_at

    def trip(self, cause: str, reason: str, at: float) -> bool:
        """Opens it; whether that changed something. `at` is when the cause came about (event time).

        A cause not younger than the last reset is stale and ignored; one on an open breaker changes nothing.
        """
        if self._state.tripped or (self._reset_at and at <= self._reset_at):
            return False
        self._cause = cause
        self._set(at, tripped=True, since=at, cause=f"{cause}: {reason}" if reason else cause)
        return True

    def reset(self, *, by: str, reason: str, at: float, now: float, command_id: str) -> bool:
        """Closes it, and lifts a freeze; whether that changed something.

        `at` is the time of the person's command, taken for `now` where it lies ahead of it (a clock that is
        fast must not blind the breaker to what comes). Repeats are known by `command_id`.

        Raises:
            ValueError: no reason is given.
        """
        if not reason.strip():
            raise ValueError("a breaker is reset with a reason: say what was wrong and why it is over")
        if command_id in self._resets:
            return False
        at = min(at, now)
        self._resets = [*self._resets, command_id][-_REMEMBERED:]
        self._dirty = True
        since = self._state.since
        if at < self._reset_at or (self._state.tripped and since is not None and at < since):
            return False
        self._reset_at = at
        self._cause = ""
        self._set(at, tripped=False, since=None, cause="", reset_by=by, reset_reason=reason.strip(), frozen_until=None)
        return True

    def freeze(self, until: float, now: float) -> bool:
        """No new injection before `until`; never shortens an earlier freeze. Whether that changed something."""
        current = self._state.frozen_until or 0.0
        # A rule that stays on asks at every tick: moving the end by less than a second is not worth a record.
        if until <= now or until < current + 1.0:
            return False
        self._set(now, frozen_until=until)
        return True

    def allows_injection(self, now: float) -> bool:
        """Whether a new fault may be injected at `now`."""
        return not self.refusal(now)

    def refusal(self, now: float) -> str:
        """Why a new fault may not be injected at `now`; empty if it may."""
        if self._state.tripped:
            reset = "gpuchaos breaker reset --reason …"
            return f"the breaker is tripped ({self._state.cause}); a person must reset it: {reset}"
        if self._state.frozen_until is not None and now < self._state.frozen_until:
            return f"injection is frozen for {self._state.frozen_until - now:.0f} s more"
        return ""

    def changed(self) -> BreakerState | None:
        """The state if it changed since the last call, to be published; the first call gives it anyway."""
        if not self._changed:
            return None
        self._changed = False
        return self._state

    def _set(self, at: float, **update: object) -> None:
        self._state = self._state.model_copy(update={"time": max(at, self._state.time), **update})
        self._dirty = self._changed = True

    def dirty(self) -> dict[str, bytes | None]:
        """See `Stateful`."""
        if not self._dirty:
            return {}
        self._dirty = False
        state = self._state.model_dump(mode="json")
        body = {"state": state, "cause": self._cause, "reset_at": self._reset_at, "resets": self._resets}
        return {_KEY: json.dumps(body).encode()}

    def load(self, items: Mapping[str, bytes]) -> None:
        """See `Stateful`."""
        self.__init__(self._cluster)  # type: ignore[misc]  # back to the state of a breaker that never tripped
        if _KEY in items:
            body = json.loads(items[_KEY])
            self._state = BreakerState.model_validate(body["state"])
            self._cause = str(body["cause"])
            self._reset_at = float(body["reset_at"])
            self._resets = list(body["resets"])
