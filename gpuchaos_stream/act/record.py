"""What is kept of an experiment's halts: the shape of the saved state."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel

from gpuchaos_stream.events.experiment import Halt


class Mark(StrEnum):
    """Whether a fault is there. It only moves down this list: a fault id is injected once."""

    PRESENT = "present"
    FAILED = "failed"  # its undo failed; a person is needed
    GONE = "gone"

    @property
    def rank(self) -> int:
        """0 for present up to 2 for gone."""
        return list(Mark).index(self)


class FaultMark(BaseModel):
    """One fault of the experiment. `at` is event time; `injected` is on its agent's own clock, None if not seen."""

    node: str
    mark: Mark
    at: float
    injected: float | None = None


class Answer(BaseModel):
    """An agent's answer to a command: in event time, and on the agent's own clock."""

    at: float
    agent: float


class HaltProgress(BaseModel):
    """The real halt and the nodes that are told. `closed`: its experiment is finished."""

    halt: Halt
    nodes: list[str]
    deadline_s: float
    confirm_s: float
    closed: bool = False


class HaltFile(BaseModel):
    """Everything about one experiment: its faults, the answers by command id, its halt, and halts of dry runs.

    Answers are kept even before the halt is known: after a crash they may be read again before the breach is.
    """

    faults: dict[str, FaultMark] = {}
    answers: dict[str, Answer] = {}
    progress: HaltProgress | None = None
    rehearsed: list[Halt] = []
