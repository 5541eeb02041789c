"""What the two ways to a management controller have in common: orders, what is seen, and how an order fails."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import urlsplit

from gpuchaos_agent.inject.base import Bmc, InjectError, Payload
from gpuchaos_agent.journal import Scalar

ON: Final = "On"
OFF: Final = "Off"


class Order(StrEnum):
    """What a controller can be told. `CYCLE` and `RESTART` come back by themselves, `OFF` stays."""

    CYCLE = "power-cycle"
    OFF = "off"
    ON = "on"
    RESTART = "force-restart"


class BmcError(InjectError):
    """The controller could not be asked, or said no."""


class UnsupportedError(BmcError):
    """Not an order that this controller carries out; another one may do."""


class NotSentError(BmcError):
    """The order did not go out: nothing is on its way."""


class UnansweredError(BmcError):
    """The order went out and no answer came: it may have been carried out, and is not sent twice."""


@dataclass(frozen=True, slots=True)
class Look:
    """The node as its controller sees it. `power` is `On`, `Off` or a word for the way between.

    `reset_mark` is something that changes with every reset, empty where the controller tells no such thing. `able`
    are the orders that the controller says it takes.
    """

    power: str
    reset_mark: str = ""
    able: tuple[Order, ...] = ()


class Driver(Protocol):
    """One way to one controller."""

    def look(self) -> Look:
        """The node now.

        Raises:
            BmcError: the controller does not answer, or not to us.
        """

    def send(self, order: Order) -> None:
        """Returns once the controller has taken the order, which is before it has carried it out.

        Raises:
            BmcError: it did not take it; see the subclasses.
        """

    def typed(self, order: Order) -> str:
        """The order as a person would type it. Holds no password."""


def flat(access: Bmc) -> Payload:
    """The way to a controller as a journal keeps it: the password's file, never the password."""
    return {
        "url": access.url,
        "user": access.user,
        "password_file": str(access.password_file) if access.password_file else None,
        "system": access.system,
        "ca_file": str(access.ca_file) if access.ca_file else None,
        "insecure": access.insecure,
    }


def unflat(payload: Mapping[str, Scalar]) -> Bmc:
    """The way back from `flat`."""
    password_file, ca_file, system = payload.get("password_file"), payload.get("ca_file"), payload.get("system")
    return Bmc(
        url=str(payload["url"]),
        user=str(payload.get("user") or ""),
        password_file=Path(str(password_file)) if password_file else None,
        system=str(system) if system else None,
        ca_file=Path(str(ca_file)) if ca_file else None,
        insecure=payload.get("insecure") is True,
    )


def unfit(access: Bmc) -> str | None:
    """Why the settings of a controller cannot be used, or None. Names no password and no address that holds one."""
    parts = urlsplit(access.url)
    if "@" in parts.netloc:
        return "the BMC's address holds a user or a password; they belong into user and password_file"
    try:
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if parts.scheme not in {"http", "https", "ipmi"} or not host or port == 0:
        return "the BMC's address must be https://HOST[:PORT] or ipmi://HOST[:PORT]"
    if parts.scheme == "http" and access.user and not access.insecure and not _is_loopback(host):
        return "http:// would send the BMC's password in the clear; use https:// (or say insecure)"
    if access.password_file is not None and not access.password_file.is_file():
        return f"the BMC's password file {access.password_file} is not there"
    return None


def password(access: Bmc) -> str:
    """Read anew each time, so that it is nowhere but in its file.

    Raises:
        BmcError: the file cannot be read.
    """
    if access.password_file is None:
        return ""
    try:
        return access.password_file.read_text().rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise BmcError(f"the BMC's password file {access.password_file} cannot be read: {_kind(error)}") from None


def _kind(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or type(error).__name__


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
