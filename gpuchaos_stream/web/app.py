"""The server: API, page, health and metrics as one ASGI application."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import structlog
from fastapi import FastAPI, Request, Response
from prometheus_client.exposition import choose_encoder
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles

from gpuchaos_stream import __version__
from gpuchaos_stream.web import acting, metrics, problems, reading
from gpuchaos_stream.web.board import Board
from gpuchaos_stream.web.guard import Guard
from gpuchaos_stream.web.site import Check, Hands, Site
from gpuchaos_stream.web.streams import Streams
from gpuchaos_stream.web.tokens import Failures, Tokens

#: The page's files.
STATIC: Final = Path(__file__).parent / "static"
#: Seconds between two looks for what changed: at most four events of a kind a second.
FLUSH_S: Final = 0.25
#: Some load balancers ask for the head alone.
_PROBED: Final = ["GET", "HEAD"]

_log = structlog.get_logger(__name__)


def create_app(
    board: Board,
    *,
    clock: Callable[[], float],
    tokens: Tokens | None = None,
    hands: Hands | None = None,
    hosts: frozenset[str] | None = None,
    healthy: Check = lambda: None,
    ready: Check = lambda: None,
    most_streams: int = 200,
) -> FastAPI:
    """The application over `board`. Read-only without both `tokens` and `hands`; `hosts` None: any name will do.

    `clock` gives epoch seconds. While it runs it publishes what `board` has heard, four times a second.
    """
    streams = Streams(board, clock, most=most_streams)
    board.read_only = tokens is None or hands is None
    app = FastAPI(
        title="GPUChaos Stream",
        version=__version__,
        summary="What is injected into a GPU cluster, what breaks with it, and a way to stop it.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        lifespan=_publishing(board, streams, clock),
    )
    app.state.site = Site(board, clock, streams, Failures(), tokens, hands, healthy, ready)
    problems.install(app)
    app.include_router(reading.router)
    app.include_router(acting.router)
    _add_probes(app, lambda: "publishing has failed" if streams.closed else healthy(), ready)
    if STATIC.is_dir():
        app.mount("/", StaticFiles(directory=STATIC, html=True), name="page")
    app.add_middleware(GZipMiddleware, minimum_size=2048, compresslevel=5)
    app.add_middleware(Guard, hosts=hosts)
    return app


def _publishing(board: Board, streams: Streams, clock: Callable[[], float]) -> Any:
    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        publishing = asyncio.create_task(_publish(board, streams, clock), name="publish")
        try:
            yield
        finally:
            streams.close()
            publishing.cancel()
            await asyncio.wait({publishing})

    return lifespan


async def _publish(board: Board, streams: Streams, clock: Callable[[], float]) -> None:
    try:
        while True:
            with metrics.FLUSH.time():
                for cluster in board.flush(clock()):
                    streams.wake(cluster)
            await asyncio.sleep(FLUSH_S)
    except Exception:
        # Nobody may go on looking at a picture that does not move.
        _log.exception("publishing failed, all streams are ended")
        streams.close()
        raise


def _add_probes(app: FastAPI, healthy: Check, ready: Check) -> None:
    @app.api_route("/healthz", methods=_PROBED, include_in_schema=False)
    async def health() -> Response:
        return _checked(healthy)

    @app.api_route("/readyz", methods=_PROBED, include_in_schema=False)
    async def readiness() -> Response:
        return _checked(ready)

    @app.api_route("/metrics", methods=_PROBED, include_in_schema=False)
    async def exposed(request: Request) -> Response:
        encode, kind = choose_encoder(request.headers.get("accept", ""))
        return Response(encode(metrics.TOLD), headers={"content-type": kind})


def _checked(check: Check) -> Response:
    reason = check()
    return Response((reason or "ok") + "\n", status_code=503 if reason else 200, media_type="text/plain")
