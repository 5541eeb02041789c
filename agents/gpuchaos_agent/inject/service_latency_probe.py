"""What a service's client waits for: measured by a connection of one's own, never made up.

Behind a proxy the TCP handshake tells nothing, as it ends there. So the first byte (or the end) of an answer is timed:
to what the plan says to send, to nothing where the service speaks first, or to the end of our input.
"""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from typing import Final

#: One question is waited for this long, seconds.
LIMIT_S: Final = 0.45
#: Who speaks first does so within this, seconds.
_BANNER_S: Final = 0.2
#: What is answered, in the order in which it is tried.
_KINDS: Final = ("probe", "banner", "end-of-input")


@dataclass(frozen=True, slots=True)
class Asked:
    """`kind` of answer; `seconds` from the begin of the connection to it, None where it did not come in time."""

    kind: str
    seconds: float | None


def ask(address: str, port: int, kind: str, probe: bytes, limit_s: float = LIMIT_S) -> Asked:
    """One connection. `connect` waits for the handshake alone.

    Raises:
        OSError: the service refused it.
    """
    began = time.monotonic()
    try:
        with socket.create_connection((address, port), timeout=limit_s) as connection:
            if kind != "connect":
                if kind == "probe":
                    connection.sendall(probe)
                elif kind == "end-of-input":
                    connection.shutdown(socket.SHUT_WR)
                connection.settimeout(max(0.001, began + limit_s - time.monotonic()))
                said = connection.recv(1)
                if not said and kind != "end-of-input":
                    return Asked(kind, None)
    except TimeoutError:
        return Asked(kind, None)
    return Asked(kind, time.monotonic() - began)


def baseline(address: str, port: int, probe: bytes) -> Asked | None:
    """The first kind of answer that this service gives, and how soon; None where it gives none.

    Raises:
        OSError: nobody can connect to it.
    """
    for kind in _KINDS:
        if (kind == "probe") is bool(probe):
            asked = ask(address, port, kind, probe, _BANNER_S if kind == "banner" else LIMIT_S)
            if asked.seconds is not None:
                return asked
    return None


def send(address: str, port: int, times: int = 3) -> None:
    """Some datagrams, without an answer: a counter tells whether they went where they should."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as sender:
        for _ in range(times):
            with contextlib.suppress(OSError):
                sender.sendto(b"", (address, port))


def plain(text: str) -> bytes:
    r"""The bytes of a probe as people write it: `PING\r\n`."""
    return text.encode("latin-1", "backslashreplace").decode("unicode_escape").encode("latin-1", "replace")
