"""One way in which a job tells of its progress: what all of them have to say."""

from __future__ import annotations

from typing import Protocol


class Way(Protocol):
    """A log, a page, a file. What it does not tell is None."""

    step: int | None
    step_time: float | None
    loss: float | None
    problem: str

    def poll(self, now: float) -> None:
        """Looks once; never waits. `now` is the node's clock, seconds since the epoch."""

    def steps_rate(self) -> float | None:
        """Steps a second; None before two readings, or where the step went back."""

    def tokens_rate(self) -> float | None:
        """Tokens a second."""

    def progress_age(self, now: float) -> float | None:
        """Seconds since the last sign of progress; None while there was none."""

    def close(self) -> None:
        """Gives back what is open. May be called twice."""
