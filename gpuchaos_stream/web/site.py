"""What the routes of a server share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from fastapi import Request

from gpuchaos_stream.errors import nearest
from gpuchaos_stream.events.experiment import BreakerState, ExperimentState
from gpuchaos_stream.web.board import Board
from gpuchaos_stream.web.cluster import ClusterBoard
from gpuchaos_stream.web.problems import ProblemError
from gpuchaos_stream.web.streams import Streams
from gpuchaos_stream.web.tokens import Failures, Tokens
from gpuchaos_stream.web.views import Sent

#: Returns None when all is well, else the reason in words.
Check = Callable[[], str | None]


class NotSentError(Exception):
    """A command did not reach the broker; the text says what became of it."""


class Hands(Protocol):
    """What acts: signs commands and sends them. Each call returns what the broker has.

    `who` is the name of the token. Raises `NotSentError`, and `UserError` for a reason that cannot be sent.
    """

    async def stop(self, state: ExperimentState, reason: str, who: str) -> list[Sent]:
        """Stops an experiment and tells each agent that may hold a fault of it."""

    async def trip(self, cluster: str, before: BreakerState | None, reason: str, who: str) -> list[Sent]:
        """Trips the breaker: every experiment is stopped, and none may begin."""

    async def reset(self, cluster: str, before: BreakerState | None, reason: str, who: str) -> list[Sent]:
        """Closes the breaker."""


@dataclass(slots=True)
class Site:
    """One server: its board, its streams and, unless it is read-only, who may act and what acts."""

    board: Board
    clock: Callable[[], float]
    streams: Streams
    failures: Failures
    tokens: Tokens | None
    hands: Hands | None
    healthy: Check
    ready: Check

    def cluster(self, name: str) -> ClusterBoard:
        """The board of a cluster.

        Raises:
            ProblemError: nothing was heard of it.
        """
        found = self.board.clusters.get(name)
        if found is None:
            waits = self.ready()
            fix = f"{waits}: try again in a moment" if waits else nearest(name, self.board.clusters)
            raise ProblemError(404, f"nothing was heard of a cluster {name!r}", field="cluster", fix=fix)
        return found

    def experiment(self, cluster: ClusterBoard, experiment_id: str) -> ExperimentState:
        """The state of an experiment.

        Raises:
            ProblemError: nothing was heard of it.
        """
        found = cluster.known.experiments.get(experiment_id)
        if found is None:
            known = cluster.known.experiments
            fix = nearest(experiment_id, known) if len(known) <= 2000 else ""
            fix = fix if fix.startswith("did you mean") else "see GET …/experiments for all of them"
            raise ProblemError(404, f"no experiment {experiment_id!r} is known", field="experiment_id", fix=fix)
        return found


def site(request: Request) -> Site:
    """The site that a request is answered by."""
    found: Site = request.app.state.site
    return found
