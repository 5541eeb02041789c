"""Whom everybody tells in the half hour: an HTTP server that is up, refuses connections, hangs, or answers 503."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from enum import StrEnum
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gpuchaos_stream.notify.receivers.webhook import sign


class Mode(StrEnum):
    """How it behaves."""

    UP = "up"
    REFUSES = "refuses connections"
    HANGS = "hangs"
    ANSWERS_503 = "answers 503"


@dataclass(frozen=True)
class Arrival:
    """A request that was answered with 200: what the receiver knows. `at` is epoch seconds."""

    at: float
    path: str
    headers: dict[str, str]
    body: Any


@dataclass
class FailingReceiver:
    """The receiver. What it did not answer with 200 it does not know: `turned_away` counts those by mode."""

    secret: str
    port: int = 0
    mode: Mode = Mode.REFUSES
    arrivals: list[Arrival] = field(default_factory=list)
    turned_away: dict[Mode, int] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    _web: ThreadingHTTPServer | None = None

    def be(self, mode: Mode) -> None:
        """Behaves so from now on. A request that hangs is dropped unanswered when the mode changes."""
        with self.changed:
            self.mode = mode
            self.changed.notify_all()
        if mode is Mode.REFUSES:
            self._close()
        elif self._web is None:
            self._web = _Web(("127.0.0.1", self.port), _handler(self))
            self.port = self._web.server_address[1]
            threading.Thread(target=self._web.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()

    def take(self, path: str, headers: dict[str, str], content: bytes) -> int | None:
        """The status of its answer to a request, None: it does not answer."""
        with self.changed:
            mode = self.mode
            if mode is not Mode.UP:
                self.turned_away[mode] = self.turned_away.get(mode, 0) + 1
            if mode is Mode.HANGS:
                self.changed.wait_for(lambda: self.mode is not mode)
            if mode is not Mode.UP:
                return 503 if mode is Mode.ANSWERS_503 else None
            if path == "/hook" and not self._signed(headers, content):
                return 401
            self.arrivals.append(Arrival(time.time(), path, headers, json.loads(content)))
            self.changed.notify_all()
            return 200

    def _signed(self, headers: dict[str, str], content: bytes) -> bool:
        wanted = sign(self.secret, headers["webhook-id"], headers["webhook-timestamp"], content)
        return wanted in headers["webhook-signature"].split(" ")

    def _close(self) -> None:
        web, self._web = self._web, None
        if web is not None:
            web.shutdown()
            web.server_close()


class _Web(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True


def _handler(endpoint: FailingReceiver) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            status = endpoint.take(self.path, headers, content)
            if status is not None:
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    return Handler
