"""Before and after every request: which host was meant, how much may be sent, and the headers of every answer."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Iterable, Sequence
from typing import Final

import structlog
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuchaos_stream.web import metrics
from gpuchaos_stream.web.problems import ProblemError, answer

#: The most bytes of a request's body.
MOST_BYTES: Final = 16 * 1024
#: Seconds that it may take from one part of it to the next.
BODY_S: Final = 10.0
#: Nothing but what this server itself serves is loaded, run, sent to or framed.
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS: Final[tuple[tuple[str, str], ...]] = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("permissions-policy", "camera=(), geolocation=(), microphone=()"),
)
#: What a cluster's own probes and Prometheus ask for, by the address of a container.
_BY_ADDRESS: Final = frozenset({"/healthz", "/readyz", "/metrics"})
#: Names that mean this machine itself.
LOOPBACK_NAMES: Final = ("localhost", "127.0.0.1", "::1")
_log = structlog.get_logger(__name__)


def allowed_hosts(bound: str, more: Iterable[str] = ()) -> frozenset[str] | None:
    """Names that a request may be meant for; None: any.

    A server on a loopback address is asked by this machine's names alone: a page of another site whose name was made
    to point here would otherwise read it. Elsewhere `more`, where given, are all names.
    """
    names = {name.lower() for name in more}
    if _is_loopback(bound):
        return frozenset(names | set(LOOPBACK_NAMES) | {bound.lower()})
    return frozenset(names | set(LOOPBACK_NAMES)) if names else None


class Guard:
    """ASGI middleware around everything."""

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str] | None) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers a request, or refuses it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                _complete(scope, message)
                metrics.REQUESTS.labels(route=_route(scope), code=str(message["status"])).inc()
            await send(message)

        try:
            problem = self._refused(scope)
            if problem is not None:
                raise problem
            await self._app(scope, _bounded(scope, receive), sending)
        except ProblemError as error:
            if started:
                raise
            await answer(error.problem, error.headers)(scope, receive, sending)

    def _refused(self, scope: Scope) -> ProblemError | None:
        if self._hosts is None or scope["path"] in _BY_ADDRESS:
            return None
        host = name_of(Request(scope).headers.get("host", ""))
        if host in self._hosts:
            return None
        return ProblemError(
            421,
            "this server does not answer under the name that was asked for",
            field="Host",
            fix="use the name or address that it was started with; --allow-host NAME adds one",
        )


def name_of(host: str) -> str:
    """The name in a Host header, without its port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if host.count(":") == 1 else host.lower()


def _bounded(scope: Scope, receive: Receive) -> Receive:
    declared = Request(scope).headers.get("content-length", "0")
    too_large = ProblemError(413, f"a body may have {MOST_BYTES} bytes", field="body")
    if not (declared.isascii() and declared.isdecimal()) or len(declared) > 12 or int(declared) > MOST_BYTES:
        raise too_large
    received, whole = 0, False

    async def bounded() -> Message:
        nonlocal received, whole
        try:
            async with asyncio.timeout(None if whole else BODY_S):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, f"the rest of the body did not come within {BODY_S:g} s") from None
        whole = not message.get("more_body", False)
        received += len(message.get("body", b""))
        if received > MOST_BYTES:
            raise HTTPException(413, too_large.problem.detail)
        return message

    return bounded


def _complete(scope: Scope, message: Message) -> None:
    headers: list[tuple[bytes, bytes]] = list(message.get("headers", ()))
    known = {name.lower() for name, _ in headers}
    extra: Sequence[tuple[str, str]] = (*HEADERS, ("cache-control", _cache(scope["path"])))
    headers += [(n.encode(), v.encode()) for n, v in extra if n.encode() not in known]
    message["headers"] = headers


def _cache(path: str) -> str:
    """Answers are of the moment; the page's files are looked for anew each time, and sent only if they changed."""
    return "no-store" if path.startswith(("/api", "/metrics", "/healthz", "/readyz")) else "no-cache"


def _route(scope: Scope) -> str:
    """The template of the route, never what was asked for: that would be another series for each request."""
    path = getattr(scope.get("route"), "path", None)
    if isinstance(path, str) and path:
        return path
    return "page" if not scope["path"].startswith("/api") else "none"


def _is_loopback(host: str) -> bool:
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
