"""Nothing is sent to an address that nobody meant: what a name leads to is judged, and then connected to."""

from __future__ import annotations

import ipaddress
import socket
import time
from typing import Any

import pytest
from notify_cases import Server, serving

from gpuchaos_stream.notify.address import RefusedAddressError, refusal, resolve
from gpuchaos_stream.notify.delivery import Outcome, Result, Sender
from gpuchaos_stream.notify.receivers.base import Request
from gpuchaos_stream.notify.receivers.webhook import Webhook


@pytest.mark.parametrize("text", ["8.8.8.8", "2001:4860:4860::8888", "64:ff9b::808:808"])
def test_a_public_address_is_allowed(text: str) -> None:
    assert refusal(ipaddress.ip_address(text), allow_private=False) is None


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "100.64.0.1",
        "::1",
        "fd00::1",
        "::ffff:10.0.0.1",
        "64:ff9b::a00:1",
        "2002:a00:1::",
    ],
)
def test_a_private_address_is_refused_unless_it_is_allowed(text: str) -> None:
    address = ipaddress.ip_address(text)
    assert "allow_private" in str(refusal(address, allow_private=False))
    assert refusal(address, allow_private=True) is None


@pytest.mark.parametrize("text", ["169.254.169.254", "::ffff:169.254.169.254", "fe80::1", "224.0.0.1", "0.0.0.0"])  # noqa: S104
def test_a_clouds_metadata_service_is_refused_whatever_is_allowed(text: str) -> None:
    assert refusal(ipaddress.ip_address(text), allow_private=True) is not None


async def test_a_name_with_one_private_address_among_public_ones_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def answer(*_: Any, **__: Any) -> list[Any]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (ip, 443)) for ip in ("8.8.8.8", "10.0.0.1")]

    monkeypatch.setattr(socket, "getaddrinfo", answer)
    with pytest.raises(RefusedAddressError, match=r"10\.0\.0\.1"):
        await resolve("both.example", 443, allow_private=False)


async def test_the_address_that_was_judged_is_the_one_connected_to(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def answer(host: Any, port: Any, *_: Any, **__: Any) -> list[Any]:
        name = host.decode() if isinstance(host, bytes) else host
        asked.append(name)
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    with serving(Server()) as server:
        monkeypatch.setattr(socket, "getaddrinfo", answer)
        outcome = await send(f"http://rebinding.example:{server.port}/hook", allow_private=True)
    assert outcome.result is Result.DELIVERED
    assert asked.count("rebinding.example") == 1, "a second look-up could lead elsewhere"
    assert server.seen[0].headers["Host"] == f"rebinding.example:{server.port}"


async def test_a_private_receiver_is_not_even_connected_to() -> None:
    with serving(Server()) as server:
        outcome = await send(server.url.replace("http:", "https:"), allow_private=False)
        assert outcome.result is Result.FAILED
        assert "private address" in outcome.reason
        assert server.seen == []


async def send(url: str, *, allow_private: bool) -> Outcome:
    receiver = Webhook.model_validate(
        {"name": "it", "type": "webhook", "url": url, "timeout": "3s", "allow_private": allow_private}
    )
    return await Sender().send(receiver, Request(url, b"{}"), time.time())
