"""Failures that happen when they are told to: what a demonstration and a drill need beside chance."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.base import Authored, Entity
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.experiments.plan import Duration
from gpuchaos_stream.sim.faults import NotPossibleError
from gpuchaos_stream.sim.organic import Organic
from gpuchaos_stream.yamlfile import read


class Failure(Authored):
    """One failure: `after` the start of the simulation, or after the first injection of experiment `of`."""

    cause: str = Field(description="name from the table of organic causes, like faulty-gpu")
    entity: Entity
    after: Duration
    of: str | None = Field(default=None, description="name of an experiment")


class Failures(Authored):
    """A file of failures."""

    failures: tuple[Failure, ...]


def load(path: Path) -> tuple[Failure, ...]:
    """Reads a file of failures.

    Raises:
        UserError: with file, line, field.
    """
    return read(path).validate(Failures).failures


class Script:
    """Puts failures on the clock as their time becomes known."""

    def __init__(self, failures: tuple[Failure, ...], organic: Organic, started: float) -> None:
        """`started` is the start of the simulation, epoch seconds.

        Raises:
            UserError: an unknown cause or device.
        """
        self._organic = organic
        self._waiting = [failure for failure in failures if failure.of is not None]
        for failure in failures:
            try:
                organic.schedule(float("inf") if failure.of else started + failure.after, failure.cause, failure.entity)
            except NotPossibleError as error:
                raise UserError("failure", str(error), "check the entity") from error

    def feed(self, event: FaultEvent) -> None:
        """An event of the agents: the first injection of an experiment starts the clock of what waits for it."""
        if event.phase is not FaultPhase.INJECTED or event.experiment_id is None:
            return
        for failure in [f for f in self._waiting if _is_run_of(event.experiment_id, f.of or "")]:
            self._organic.schedule(event.event_time + failure.after, failure.cause, failure.entity)
            self._waiting.remove(failure)


def _is_run_of(experiment_id: str, name: str) -> bool:
    """Whether an experiment's id is the name with its suffix."""
    return experiment_id == name or experiment_id.startswith(f"{name}-")
