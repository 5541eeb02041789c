"""The parameters of `service-latency`, and what they come to in seconds and bytes."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gpuchaos_agent.inject import endpoints
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.inject.endpoints import Selector
from gpuchaos_stream.events.base import Authored

_TIME: Final = re.compile(r"^(\d+(?:\.\d+)?)(us|ms|s)$")
_RATE: Final = re.compile(r"^(\d+(?:\.\d+)?)(kbit|mbit|gbit)$")
_SECONDS: Final = {"us": 1e-6, "ms": 1e-3, "s": 1.0}
_BITS: Final = {"kbit": 1e3, "mbit": 1e6, "gbit": 1e9}
#: Longer than any client waits, seconds.
_LONGEST_S: Final = 60.0


def seconds(text: str | None) -> float:
    """`100ms` in seconds; nothing is none."""
    match = _TIME.match(text or "0s")
    return float(match[1]) * _SECONDS[match[2]] if match else 0.0


def bytes_per_s(text: str | None) -> float | None:
    """`10mbit` (bits of a second) in bytes of a second."""
    match = _RATE.match(text or "")
    return float(match[1]) * _BITS[match[2]] / 8 if match else None


def _time(text: str) -> str:
    if not _TIME.match(text) or not 0 < seconds(text) <= _LONGEST_S:
        raise ValueError(f"a time like 250us, 100ms or 2s, at most {_LONGEST_S:g}s")
    return text


def _rate(text: str) -> str:
    if not _RATE.match(text) or not bytes_per_s(text):
        raise ValueError("a rate like 500kbit, 10mbit or 1gbit")
    return text


def _service(text: str) -> str:
    (end,) = endpoints.checked([endpoints.parse(text)])
    if end.host is None or end.ports is None or not end.ports.isdecimal() or "/" in end.host:
        raise ValueError("one service as host:port")
    return text


class ServiceLatencyParams(Authored):
    r"""`service` is host:port; a name stands for all of its addresses. At least one of delay, loss, bandwidth.

    `direction` out holds back what goes to the service, in what comes from it. `method` auto takes netem where the
    kernel has it and it can do what is asked, else a proxy. `forwarded` takes in traffic that this node only passes
    on (its pods'). `probe` is what to send to get an answer that can be timed: `PING\r\n`. `drain` is how long
    connections through the proxy may go on, without delay, when the fault is undone.
    """

    service: Annotated[str, AfterValidator(_service)]
    delay: Annotated[str, AfterValidator(_time)] | None = None
    jitter: Annotated[str, AfterValidator(_time)] | None = None
    loss_percent: float | None = Field(default=None, gt=0, le=100)
    bandwidth: Annotated[str, AfterValidator(_rate)] | None = None
    direction: Literal["out", "in", "both"] = "out"
    method: Literal["auto", "netem", "proxy"] = "auto"
    protocol: Literal["tcp", "udp"] = "tcp"
    forwarded: bool = False
    probe: str | None = Field(default=None, min_length=1, max_length=500)
    drain: Annotated[str, AfterValidator(_time)] | None = "2s"
    include_brokers: bool = False

    @model_validator(mode="after")
    def _belong_together(self) -> Self:
        if self.delay is None and self.loss_percent is None and self.bandwidth is None:
            raise ValueError("name a delay, a loss_percent or a bandwidth")
        if seconds(self.jitter) > seconds(self.delay):
            raise ValueError("jitter is at most the delay that it varies")
        no_proxy, no_netem = why_no_proxy(self), why_no_netem(self)
        if no_proxy and (self.method == "proxy" or no_netem):
            raise ValueError(no_proxy)
        if no_netem and self.method == "netem":
            raise ValueError(no_netem)
        return self


def why_no_proxy(asked: ServiceLatencyParams) -> str | None:
    """Why a proxy could not do what is asked, or None."""
    if asked.loss_percent is not None:
        return "a proxy cannot lose packets of TCP, which would be sent again below it: loss_percent needs netem"
    if asked.protocol != "tcp":
        return "a proxy carries TCP alone: udp needs netem"
    return None


def why_no_netem(asked: ServiceLatencyParams) -> str | None:
    """Why netem could not do what is asked on any kernel, or None."""
    if asked.direction != "out":
        return f"netem holds back what leaves this node: direction {asked.direction} needs the proxy"
    return None


@dataclass(frozen=True, slots=True)
class Service:
    """A service whose name was resolved."""

    addresses: tuple[str, ...]
    port: int

    @property
    def four(self) -> tuple[str, ...]:
        """Its IPv4 addresses."""
        return tuple(address for address in self.addresses if ":" not in address)

    @property
    def six(self) -> tuple[str, ...]:
        """Its IPv6 addresses."""
        return tuple(address for address in self.addresses if ":" in address)

    def selector(self) -> Selector:
        """As packet rules see it."""
        return Selector(endpoints.merged(map(ipaddress.ip_network, self.addresses)), (str(self.port),))


def resolved(asked: ServiceLatencyParams) -> Service:
    """The service's addresses now.

    Raises:
        InjectError: its name has none.
    """
    end = endpoints.parse(asked.service)
    host = str(end.host)
    try:
        addresses: tuple[str, ...] = (str(ipaddress.ip_address(host)),)
    except ValueError:
        try:
            addresses = endpoints.lookup(host)
        except (OSError, UnicodeError) as error:
            raise InjectError(f"{host} cannot be resolved: {error}") from error
    return Service(addresses, int(end.ports or 0))
