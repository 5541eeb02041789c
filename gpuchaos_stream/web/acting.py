"""What is done: an experiment stopped, the breaker tripped or reset. Each asks for a token and for a reason."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Annotated, Final
from urllib.parse import quote, urlsplit

import structlog
from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from pydantic import BaseModel, ConfigDict, Field

from gpuchaos_stream.events.experiment import Status
from gpuchaos_stream.experiments.run import SETTLED
from gpuchaos_stream.web import metrics, views
from gpuchaos_stream.web.problems import ProblemError, answers
from gpuchaos_stream.web.reading import TheSite
from gpuchaos_stream.web.site import Hands, NotSentError, Site

#: The longest reason, characters: it travels with the experiment's state.
LONGEST: Final = 400

router = APIRouter(prefix="/api/v1/clusters", tags=["act"])
_log = structlog.get_logger(__name__)
#: The command that does the same.
_WITHOUT: Final = {
    "stop": "gpuchaos experiment stop",
    "trip": "gpuchaos breaker trip",
    "reset": "gpuchaos breaker reset",
}
_bearer = HTTPBearer(auto_error=False, description="a token of the server's --token-file")


class Order(BaseModel):
    """Why it is done: kept with the experiment or the breaker, with the name of the token."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    reason: str = Field(min_length=1, max_length=LONGEST)

    @property
    def words(self) -> str:
        """The reason on one line, nothing in it that moves a cursor."""
        return " ".join("".join(char if char.isprintable() else " " for char in self.reason).split())


async def authorised(
    request: Request, at: TheSite, given: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> str:
    """The name of the request's token.

    Raises:
        ProblemError: 403 without a token file or from another site, 401 without a token, 401 or 429 with a wrong one,
            415 for a body that is no JSON.
    """
    if at.tokens is None or at.hands is None:
        fix = "start it with --token-file and an operator's --key"
        raise _refused("read_only", 403, "this server is read-only", fix=fix)
    _same_origin(request)
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise _refused("content_type", 415, "the body is no JSON", field="Content-Type", fix="send application/json")
    if given is None:
        raise _refused(
            "no_token", 401, "a token is needed", field="Authorization", fix="Bearer TOKEN", www_authenticate="Bearer"
        )
    name = at.tokens.name(given.credentials)
    if name is not None:
        return name
    address = request.client.host if request.client else "unknown"
    wait = at.failures.add(address, at.clock())
    _log.warning("wrong token", address=address, path=request.url.path)
    if wait is not None:
        # A right token is never refused for wrong ones: a stop must not be locked out by somebody else.
        raise _refused("too_many", 429, "too many wrong tokens from this address", retry_after=str(int(wait)))
    raise _refused(
        "wrong_token",
        401,
        "nobody has this token",
        field="Authorization",
        www_authenticate='Bearer error="invalid_token"',
    )


Who = Annotated[str, Depends(authorised)]
_ANSWERS: Final = answers(400, 401, 403, 404, 408, 413, 415, 421, 422, 429, 503)


@router.post(
    "/{cluster}/experiments/{experiment_id}/stop", status_code=202, responses=_ANSWERS, operation_id="stopExperiment"
)
async def stop(cluster: str, experiment_id: str, order: Order, who: Who, at: TheSite) -> views.Accepted:
    """Stop an experiment: its faults are undone at once. Stopping it again says it again, which changes nothing."""
    board = at.cluster(cluster)
    state = at.experiment(board, experiment_id)
    over = state.status is Status.FINISHED and all(fault.phase in SETTLED for fault in state.faults)
    sent = [] if over else await _do("stop", _hands(at).stop(state, _reason(order), who))
    _log.warning(
        "stop asked for", experiment_id=experiment_id, cluster=cluster, by=who, reason=order.words, sent=len(sent)
    )
    return views.Accepted(
        sent=tuple(sent),
        already=over,
        watch=f"/api/v1/clusters/{quote(cluster, safe='')}/experiments/{quote(experiment_id, safe='')}",
        until="`view.undo_confirmed` is true and `state.status` is finished; `state.faults` says of each where it is",
    )


@router.post("/{cluster}/breaker/trip", status_code=202, responses=_ANSWERS, operation_id="tripBreaker")
async def trip(cluster: str, order: Order, who: Who, at: TheSite) -> views.Accepted:
    """Stop every experiment, undo all faults, and let none begin until a reset."""
    board = at.cluster(cluster)
    before = board.known.breaker
    # Said again even if it is tripped: what began meanwhile is stopped by it, too.
    sent = await _do("trip", _hands(at).trip(cluster, before, _reason(order), who))
    _log.warning("breaker trip asked for", cluster=cluster, by=who, reason=order.words)
    return _breaker(cluster, sent, already=before is not None and before.tripped, until="`breaker.tripped` is true")


@router.post("/{cluster}/breaker/reset", status_code=202, responses=_ANSWERS, operation_id="resetBreaker")
async def reset(cluster: str, order: Order, who: Who, at: TheSite) -> views.Accepted:
    """Close the breaker: what was wrong, and why it is over."""
    board = at.cluster(cluster)
    before = board.known.breaker
    already = before is not None and not before.tripped and not board.freshness(at.clock()).stale
    sent = [] if already else await _do("reset", _hands(at).reset(cluster, before, _reason(order), who))
    _log.warning("breaker reset asked for", cluster=cluster, by=who, reason=order.words, sent=len(sent))
    return _breaker(cluster, sent, already=already, until="`breaker.tripped` is false")


async def _do(action: str, doing: Awaitable[list[views.Sent]]) -> list[views.Sent]:
    try:
        sent = await doing
    except NotSentError as error:
        fix = (
            f"{_WITHOUT[action]} does the same without this server, where a broker answers; "
            "agents that hear nothing undo their faults when the lease ends"
        )
        raise ProblemError(503, str(error), fix=fix) from error
    metrics.ACTIONS.labels(action=action).inc()
    return sent


def _reason(order: Order) -> str:
    if not order.words:
        raise ProblemError(422, "is blank", field="reason", fix="say why; who comes next will want to know")
    return order.words


def _hands(at: Site) -> Hands:
    if at.hands is None:
        raise RuntimeError("a read-only server has no hands")
    return at.hands


def _breaker(cluster: str, sent: list[views.Sent], *, already: bool, until: str) -> views.Accepted:
    path = f"/api/v1/clusters/{quote(cluster, safe='')}/breaker"
    return views.Accepted(sent=tuple(sent), already=already, watch=path, until=until)


def _same_origin(request: Request) -> None:
    """A browser says from which site a request comes; another one's may not act, whatever token it has."""
    origin, fetched = request.headers.get("origin"), request.headers.get("sec-fetch-site", "none")
    foreign = origin is not None and _place(origin) != request.headers.get("host", "").lower()
    if foreign or fetched not in {"same-origin", "none"}:
        fix = "use this server's own page; a proxy before it must hand on the Host header"
        raise _refused("origin", 403, "the request comes from another site", field="Origin", fix=fix)


def _place(origin: str) -> str | None:
    """Host and port of an Origin header."""
    try:
        return urlsplit(origin).netloc.lower()
    except ValueError:
        return None


def _refused(reason: str, status: int, detail: str, **more: str) -> ProblemError:
    metrics.REFUSED.labels(reason=reason).inc()
    return ProblemError(status, detail, **more)
