"""Why a broker does not let us in, or does not let us do something, in words."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from dataclasses import dataclass
from typing import Final

from aiokafka.conn import create_conn
from aiokafka.errors import (
    AuthenticationFailedError,
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    KafkaError,
    SaslAuthenticationFailed,
    TopicAuthorizationFailedError,
    UnsupportedSaslMechanismError,
)

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: Where the rights that each part needs are.
GRANTS: Final = "docs/operating.md#users-and-what-each-may-do"
#: A refusal for want of a right.
FORBIDDEN: Final = (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    TopicAuthorizationFailedError,
)
#: Seconds that one broker may take to show why it does not let us in.
_ASK_S: Final = 3.0


class BrokerAwayError(UserError):
    """No broker answers now: whoever runs always may wait for one."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a server does not let us in: what is wrong, what to check, and whether it lasts until somebody changes it."""

    server: str
    problem: str
    fix: str
    lasting: bool = False

    def said(self) -> dict[str, str]:
        """As fields of a line of a log."""
        return {"server": self.server, "error": self.problem, "fix": self.fix}

    def error(self, since: str = "") -> UserError:
        """As an error that ends a command; `since` begins it."""
        kind = UserError if self.lasting else BrokerAwayError
        return kind(self.server, since + self.problem, self.fix)


async def why_not(settings: KafkaSettings) -> Refusal:
    """Knocks at each broker once more and says why none opened: the first that will not, or the last.

    The client library tells its log why it failed, not its caller.
    """
    for server in settings.servers:
        refusal = await _knock(settings, server)
        if refusal.lasting:
            break
    return refusal


def unseen(settings: KafkaSettings, topic: str) -> UserError:
    """A topic that the broker does not show: it is not there, or this user has no right to see it."""
    if settings.security_protocol == "PLAINTEXT":
        return UserError(f"topic {topic}", "does not exist on this broker", "make it: gpuchaos topics")
    return UserError(
        f"topic {topic}",
        f"does not exist on this broker, or {who(settings)} may not see it",
        f"make it: gpuchaos topics; or grant what {GRANTS} lists",
    )


def forbidden(settings: KafkaSettings, what: str, doing: str) -> UserError:
    """A thing of the broker's that this user has no right to do: read or write a topic, join a group."""
    return UserError(what, f"{who(settings)} has no right to {doing}", f"grant what {GRANTS} lists")


def who(settings: KafkaSettings) -> str:
    """The user as whom we come, for a message."""
    return "this client" if settings.sasl_username is None else f"user {settings.sasl_username!r}"


async def _knock(settings: KafkaSettings, server: str) -> Refusal:
    host, _, port = server.rpartition(":")
    address = host.strip("[]"), int(port)
    options = {name: value for name, value in aiokafka_options(settings).items() if name != "bootstrap_servers"}
    try:
        async with asyncio.timeout(_ASK_S):
            connection = await create_conn(*address, **options, request_timeout_ms=int(_ASK_S * 1000))
    except (KafkaError, OSError, TimeoutError) as error:
        refusal = _in_words(settings, server, error)
    else:
        connection.close()
        refusal = Refusal(server, "lets us in and answers nothing", "is it ready? look at its log")
    if not refusal.lasting and not settings.uses_tls and await _speaks_tls(*address):
        return Refusal(
            server,
            f"speaks TLS, and security_protocol {settings.security_protocol} does not",
            "check KAFKA_SECURITY_PROTOCOL",
            lasting=True,
        )
    return refusal


def _in_words(settings: KafkaSettings, server: str, error: Exception) -> Refusal:
    if isinstance(error, (SaslAuthenticationFailed, AuthenticationFailedError)):
        return Refusal(
            server,
            f"does not take {who(settings)} with this password ({settings.sasl_mechanism})",
            "check KAFKA_SASL_USERNAME, KAFKA_SASL_PASSWORD and KAFKA_SASL_MECHANISM",
            lasting=True,
        )
    if isinstance(error, UnsupportedSaslMechanismError):
        return Refusal(server, f"does not know {settings.sasl_mechanism}", "check KAFKA_SASL_MECHANISM", lasting=True)
    if isinstance(error, ssl.SSLCertVerificationError):
        return Refusal(
            server,
            f"its certificate is not believed ({error.verify_message})",
            "check KAFKA_CA_FILE, and that the certificate is for the name in KAFKA_BOOTSTRAP_SERVERS",
            lasting=True,
        )
    if isinstance(error, (ssl.SSLError, ConnectionResetError, TimeoutError)) and settings.uses_tls:
        reason = getattr(error, "reason", None) or type(error).__name__
        return Refusal(
            server,
            f"no TLS with it ({reason})",
            "does it speak TLS? does it want a client's certificate? check KAFKA_SECURITY_PROTOCOL and KAFKA_CERT_FILE",
            lasting=isinstance(error, ssl.SSLError),
        )
    if isinstance(error, socket.gaierror):
        return Refusal(server, f"the name is not known ({error.strerror})", "check KAFKA_BOOTSTRAP_SERVERS")
    if isinstance(error, TimeoutError):
        return Refusal(server, f"does not answer in {_ASK_S:g} s", "is it running? does a firewall stand before it?")
    said = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return Refusal(server, said, "is it running? check KAFKA_BOOTSTRAP_SERVERS and KAFKA_SECURITY_PROTOCOL")


async def _speaks_tls(host: str, port: int) -> bool:
    anybody = ssl.create_default_context()
    anybody.check_hostname = False
    anybody.verify_mode = ssl.CERT_NONE
    with contextlib.suppress(OSError, TimeoutError):
        async with asyncio.timeout(_ASK_S):
            _, writer = await asyncio.open_connection(host, port, ssl=anybody)
        writer.close()
        return True
    return False
