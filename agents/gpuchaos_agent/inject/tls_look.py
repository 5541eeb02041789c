"""What a TLS server presents to those who connect, and whether they would trust it."""

from __future__ import annotations

import hashlib
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from gpuchaos_agent.inject.base import InjectError

Protocol = Literal["tls", "postgres"]

#: One handshake may take this long, seconds.
_HANDSHAKE_S: Final = 2.0
#: SSLRequest of PostgreSQL's protocol (protocol-message-formats): length 8, code 80877103.
_SSL_REQUEST: Final = b"\x00\x00\x00\x08\x04\xd2\x16\x2f"


class NobodyError(InjectError):
    """Nobody listens at the address: nothing is presented."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server listens, the name that its clients ask for, and the authority that they trust."""

    host: str
    port: int
    name: str
    ca_file: Path
    protocol: Protocol = "tls"


def presented(at: Address) -> str:
    """SHA-256 of the certificate that is presented, hexadecimal; it is not verified.

    Raises:
        InjectError: no handshake; `NobodyError` where nobody listens.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    try:
        with _handshake(at, context) as connection:
            found = connection.getpeercert(binary_form=True)
    except OSError as error:
        raise InjectError(f"{at.host}:{at.port}: no TLS handshake: {error}") from None
    if found is None:
        raise InjectError(f"{at.host}:{at.port} presents no certificate")
    return hashlib.sha256(found).hexdigest()


def distrust(at: Address) -> str | None:
    """Why a client that trusts the authority would refuse what is presented; None where it accepts.

    Raises:
        InjectError: no handshake for another reason; `NobodyError` where nobody listens.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # The authority may be an intermediate one: trusted by itself, as it is here.
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    try:
        context.load_verify_locations(cafile=at.ca_file)
    except (OSError, ssl.SSLError) as error:
        raise InjectError(f"{at.ca_file} cannot be used: {error}") from None
    try:
        with _handshake(at, context):
            return None
    except ssl.SSLCertVerificationError as error:
        return error.verify_message
    except OSError as error:
        raise InjectError(f"{at.host}:{at.port}: no TLS handshake: {error}") from None


def _handshake(at: Address, context: ssl.SSLContext) -> ssl.SSLSocket:
    try:
        plain = socket.create_connection((at.host, at.port), timeout=_HANDSHAKE_S)
    except ConnectionRefusedError:
        raise NobodyError(f"nobody listens at {at.host}:{at.port}") from None
    except OSError as error:
        raise InjectError(f"{at.host}:{at.port} cannot be reached: {error.strerror or error}") from None
    try:
        if at.protocol == "postgres":
            plain.sendall(_SSL_REQUEST)
            _expect(plain.recv(1), b"S", f"{at.host}:{at.port} speaks PostgreSQL without TLS")
        return context.wrap_socket(plain, server_hostname=at.name)
    except BaseException:
        plain.close()
        raise


def _expect(said: bytes, wanted: bytes, otherwise: str) -> None:
    if said != wanted:
        raise InjectError(otherwise)
