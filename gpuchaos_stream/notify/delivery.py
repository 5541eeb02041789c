"""One HTTP request to a receiver, and what its answer means.

No redirect is followed, no proxy is taken from the environment, and the address that was judged is the one that is
connected to, under the name that its certificate must bear.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx

from gpuchaos_stream import __version__
from gpuchaos_stream.notify.address import RefusedAddressError, resolve
from gpuchaos_stream.notify.backoff import retry_after
from gpuchaos_stream.notify.message import clean
from gpuchaos_stream.notify.receivers.base import Receiver, Request
from gpuchaos_stream.notify.secret import SecretError

#: Bytes of an answer that are read; the rest is of no interest.
_ANSWER: Final = 65_536
#: Client errors that pass by themselves: a timeout, too early, too many.
_PASSING: Final = frozenset({408, 425, 429})


class Result(StrEnum):
    """What became of an attempt."""

    DELIVERED = "delivered"
    FAILED = "failed"  # to be tried again
    REFUSED = "refused"  # will never be taken
    GONE = "gone"  # the receiver wants nothing any more


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result, why in words without secrets, the patience that was asked for in seconds, and the answer."""

    result: Result
    reason: str = ""
    asked: float | None = None
    answer: bytes = b""
    status: int | None = None


class Sender:
    """Sends requests, each on a connection of its own: there are few, and an old one may lead elsewhere."""

    def __init__(self) -> None:
        self._contexts: dict[Path | None, ssl.SSLContext] = {}

    async def send(self, receiver: Receiver, request: Request, now: float) -> Outcome:
        """Sends and judges. Never raises for what a receiver, a network or a name server does."""
        try:
            async with asyncio.timeout(receiver.timeout):
                return _judge(*await self._exchange(receiver, request), request, now)
        except TimeoutError:
            return Outcome(Result.FAILED, f"no answer within {receiver.timeout:g} s")
        except (RefusedAddressError, SecretError) as error:
            return Outcome(Result.FAILED, str(error))
        except ssl.SSLError as error:
            return Outcome(Result.FAILED, f"TLS: {error.reason or type(error).__name__}")
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
            return Outcome(Result.FAILED, _masked(f"{type(error).__name__}: {error}", request))
        except (OSError, UnicodeError, ValueError) as error:
            return Outcome(Result.FAILED, _masked(f"{type(error).__name__}: {error}", request))

    async def _exchange(self, receiver: Receiver, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        parts = urlsplit(request.url)
        host = parts.hostname or ""
        port = parts.port or (443 if parts.scheme == "https" else 80)
        if parts.scheme != "https" and not receiver.allow_private:
            raise RefusedAddressError("without TLS nothing is sent, unless allow_private: true")
        address = await resolve(host, port, allow_private=receiver.allow_private)
        shown = f"[{host}]" if ":" in host else host
        headers = {
            "User-Agent": f"gpuchaos-stream/{__version__}",
            **request.headers,
            "Host": shown if parts.port is None else f"{shown}:{parts.port}",
        }
        url = httpx.URL(request.url).copy_with(host=address)
        async with (
            httpx.AsyncClient(
                verify=self._context(receiver.ca_file) if parts.scheme == "https" else False,
                trust_env=False,
                follow_redirects=False,
                timeout=httpx.Timeout(receiver.timeout),
            ) as client,
            client.stream(
                request.method, url, headers=headers, content=request.body, extensions={"sni_hostname": host}
            ) as response,
        ):
            answer = b""
            try:
                # It has taken the message by its status: were the rest waited for, and missed, it would be told twice.
                async with asyncio.timeout(receiver.timeout / 3 if 200 <= response.status_code < 300 else None):
                    async for chunk in response.aiter_raw():
                        answer += chunk
                        if len(answer) >= _ANSWER:
                            break
            except (httpx.HTTPError, TimeoutError):
                if not 200 <= response.status_code < 300:
                    raise
            return response.status_code, response.headers, answer[:_ANSWER]

    def _context(self, ca_file: Path | None) -> ssl.SSLContext:
        if ca_file not in self._contexts:
            self._contexts[ca_file] = ssl.create_default_context(cafile=ca_file)
        return self._contexts[ca_file]


def _judge(status: int, headers: Mapping[str, str], answer: bytes, request: Request, now: float) -> Outcome:
    if 200 <= status < 300:
        return Outcome(Result.DELIVERED, answer=answer, status=status)
    said = clean(_masked(answer.decode("utf-8", "replace"), request), 200)
    reason = f"status {status}" + (f": {said}" if said else "")
    if status == 410:
        return Outcome(Result.GONE, reason, status=status)
    if 400 <= status < 500 and status not in _PASSING:
        return Outcome(Result.REFUSED, reason, status=status)
    if 300 <= status < 400:
        reason = f"status {status}: a redirect, which is not followed"
    return Outcome(Result.FAILED, reason, retry_after(headers.get("retry-after"), now), status=status)


def _masked(text: str, request: Request) -> str:
    for secret in request.secrets:
        text = text.replace(secret, "…")
    return text
