"""A web page, fetched by a thread of its own: whoever asks never waits, a server that hangs is said."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Callable
from typing import Final
from urllib.parse import urlsplit

#: For connecting, for each answer, and for the whole, seconds.
TIMEOUT_S: Final = 2.0
#: Read at most this much, bytes.
LARGEST: Final = 8 * 1024 * 1024

_CHUNK: Final = 64 * 1024


class PageError(Exception):
    """The page could not be had; the text says why."""


class Page:
    """Fetches `url` each time it is asked for, one fetch at a time. `ask` and `answer` never wait."""

    def __init__(
        self, url: str, *, timeout_s: float = TIMEOUT_S, fetch: Callable[[str, float], bytes] | None = None
    ) -> None:
        self.url = url
        self._timeout_s = timeout_s
        self._fetch = fetch or get
        self._changed = threading.Condition()
        self._asked = False
        self._busy = False
        self._closed = False
        self._answer: bytes | str | None = None
        self._thread: threading.Thread | None = None

    def ask(self) -> None:
        """Has the page fetched, unless that is being done."""
        with self._changed:
            if self._closed or self._busy:
                return
            self._asked = self._busy = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"page {self.url}", daemon=True)
                self._thread.start()
            self._changed.notify_all()

    def answer(self) -> bytes | str | None:
        """What came since the last call: the page, or as a text why there is none; None where nothing came."""
        with self._changed:
            found, self._answer = self._answer, None
            return found

    def wait(self, timeout_s: float) -> bool:
        """Waits until an answer is there: whether it is. For those who read a page once."""
        with self._changed:
            return self._changed.wait_for(lambda: self._answer is not None, timeout_s)

    def close(self) -> None:
        """Ends the thread, once it has finished what it is at. May be called twice."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._asked or self._closed)
                if self._closed:
                    return
                self._asked = False
            try:
                found: bytes | str = self._fetch(self.url, self._timeout_s)
            except Exception as error:  # noqa: BLE001  (whatever it is, it is an absent page and no end of the thread)
                found = str(error) or type(error).__name__
            with self._changed:
                self._answer, self._busy = found, False
                self._changed.notify_all()


def get(url: str, timeout_s: float = TIMEOUT_S) -> bytes:
    """The page at `url` (http or https).

    Raises:
        PageError: no answer, another answer than 200, or too large or slow.
    """
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname:
        raise PageError(f"{url}: is no address of a page")
    made = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    until = time.monotonic() + timeout_s
    try:
        connection = made(parts.hostname, parts.port, timeout=timeout_s)
        try:
            path = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            connection.request("GET", path, headers={"Accept": "text/plain"})
            response = connection.getresponse()
            if response.status != http.HTTPStatus.OK:
                raise PageError(f"{url}: answered {response.status}")
            return _body(response, url, until)
        finally:
            connection.close()
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise PageError(f"{url}: {error or type(error).__name__}") from error


def _body(response: http.client.HTTPResponse, url: str, until: float) -> bytes:
    body = b""
    while chunk := response.read1(_CHUNK):
        body += chunk
        if len(body) > LARGEST:
            raise PageError(f"{url}: is larger than {LARGEST >> 20} MiB")
        if time.monotonic() > until:
            raise PageError(f"{url}: took too long")
    return body
