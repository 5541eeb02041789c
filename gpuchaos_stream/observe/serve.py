"""`/metrics`, `/livez`, `/healthz` and `/readyz` of a process, in a thread of its own.

A thread, so that an event loop that hangs is still seen: `healthz` then says how long it has not moved. `livez` fails
only for what a restart mends, `healthz` also for what needs a person.
"""

from __future__ import annotations

import asyncio
import os
import select
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import REGISTRY, disable_created_metrics
from prometheus_client.exposition import choose_encoder

from gpuchaos_stream.errors import UserError

#: Returns None when all is well, else the reason in words.
Check = Callable[[], str | None]


class Heartbeat:
    """A loop calls `beat`; the health check says when it has not for `limit_s` seconds of `clock`."""

    def __init__(self, limit_s: float, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit = limit_s
        self._clock = clock
        self._last = clock()

    def beat(self) -> None:
        """The loop is alive."""
        self._last = self._clock()

    @asynccontextmanager
    async def kept(self, every_s: float) -> AsyncIterator[None]:
        """Beats by itself each `every_s` seconds meanwhile: for a wait that no restart would make shorter."""

        async def beating() -> None:
            while True:
                self.beat()
                await asyncio.sleep(every_s)

        task = asyncio.create_task(beating())
        try:
            yield
        finally:
            task.cancel()

    def check(self) -> str | None:
        """The reason why it is not healthy, or None."""
        age = self._clock() - self._last
        return f"the main loop has not moved for {age:.1f} s" if age > self._limit else None


class _Listener(ThreadingHTTPServer):
    """One that listens on an IPv6 address as well: that of a pod may be one."""

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        found = socket.getaddrinfo(*address, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        self.address_family = found[0][0]
        super().__init__(address, handler)


class StatusServer:
    """Serves until `close`. `port` 0 takes a free one; `self.port` says which. `alive` is `healthy` where not given.

    Raises:
        UserError: nobody can listen there, as where another does; `option` is what to change.
    """

    def __init__(
        self,
        *,
        host: str,
        port: int,
        healthy: Check,
        ready: Check,
        alive: Check | None = None,
        option: str = "--status-port",
    ) -> None:
        checks = {"/livez": alive or healthy, "/healthz": healthy, "/readyz": ready}
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series a counter, which nobody asks for

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    # OpenMetrics for whoever asks for it: only there a recovery time carries its trace.
                    encode, kind = choose_encoder(self.headers.get("Accept", ""))
                    self._answer(200, encode(REGISTRY), kind)
                elif self.path in checks:
                    reason = checks[self.path]()
                    self._answer(503 if reason else 200, (reason or "ok").encode() + b"\n", "text/plain")
                else:
                    self._answer(404, b"known are /metrics, /livez, /healthz, /readyz\n", "text/plain")

            def _answer(self, status: int, body: bytes, kind: str) -> None:
                self.send_response(status)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it so)
                pass

        try:
            self._server = _Listener((host, port), Handler)
        except (OSError, OverflowError) as error:
            where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            why = getattr(error, "strerror", None) or error
            raise UserError(where, f"cannot listen there ({why})", f"choose another {option}") from error
        self._server.daemon_threads = True
        self._server.timeout = 1.0  # for a caller that left before it was taken
        self.port: int = self._server.server_address[1]
        self._closing, self._close = os.pipe()
        self._thread = threading.Thread(target=self._serve, name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving."""
        if self._thread.is_alive():
            os.write(self._close, b".")
            self._thread.join()
            os.close(self._closing)
            os.close(self._close)
        self._server.server_close()

    def _serve(self) -> None:
        """`serve_forever` without its looking twice a second whether it is to end."""
        while True:
            ready, _, _ = select.select([self._server.fileno(), self._closing], [], [])
            if self._closing in ready:
                return
            self._server.handle_request()
