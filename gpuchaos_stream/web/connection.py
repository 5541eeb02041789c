"""A client's connection: one on which no request comes is closed, for each that is open counts against the most."""

from __future__ import annotations

import asyncio
from typing import Final

from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

#: Seconds for the head of a request, the first one too: uvicorn itself would wait for that as long as it takes.
WAIT_S: Final = 30.0


class Connection(H11Protocol):
    """HTTP/1.1 as uvicorn speaks it, to clients that speak."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begins to wait."""
        super().connection_made(transport)
        self._wait()

    def on_response_complete(self) -> None:
        """Begins to wait for the next one."""
        super().on_response_complete()
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Waits no more."""
        super().connection_lost(exc)
        if self._waiting is not None:
            self._waiting.cancel()

    def _wait(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
        self._waiting = self.loop.call_later(WAIT_S, self._look, self.cycle)

    def _look(self, before: RequestResponseCycle | None) -> None:
        if self.cycle is before:
            self.transport.close()
