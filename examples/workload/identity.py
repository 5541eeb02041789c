"""A rank's certificate: TLS contexts made of its files, again whenever it is told to."""

from __future__ import annotations

import ssl
from pathlib import Path

from workload.lines import say


class Identity:
    """Mutual TLS. Files of `folder`: `ca.pem`, `rank<N>.pem`, `rank<N>.key`."""

    def __init__(self, folder: Path, rank: int) -> None:
        self._folder = folder
        self._rank = rank
        self.server, self.client = self._contexts()

    def reload(self) -> None:
        """Takes the files as they are now; what cannot be read changes nothing."""
        try:
            self.server, self.client = self._contexts()
        except (OSError, ssl.SSLError) as error:
            say(f"[rank{self._rank}]: certificate not reloaded: {error}")

    def _contexts(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.verify_mode = ssl.CERT_REQUIRED
        server.num_tickets = 0  # unread at the client, they would make its close a reset
        client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_verify_locations(self._folder / "ca.pem")
            context.load_cert_chain(self._folder / f"rank{self._rank}.pem", self._folder / f"rank{self._rank}.key")
        return server, client


def name_of(rank: int) -> str:
    """The name that a rank's certificate must bear."""
    return f"rank{rank}"
