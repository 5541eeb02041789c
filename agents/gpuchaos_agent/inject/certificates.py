"""Certificates that are wrong in one way and right in every other: same subject, key, names, extensions and issuer."""

from __future__ import annotations

import base64
import datetime as dt
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, cast

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes

from gpuchaos_agent.inject.base import InjectError

Kind = Literal["expired", "not-yet-valid", "wrong-name"]

#: `.invalid` is nobody's (RFC 2606).
WRONG_NAME: Final = "wrong-name.gpuchaos.invalid"
#: How long the wrong certificate is, was or will be valid, and how far that is from now: more than clocks may differ.
_VALID: Final = dt.timedelta(days=1)
_AWAY: Final = dt.timedelta(hours=1)
_BLOCK: Final = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)
#: PEM files are small; what is larger is something else.
_MOST: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Issuer:
    """The authority that signed the server's certificate, with its key."""

    certificate: x509.Certificate
    key: CertificateIssuerPrivateKeyTypes


def leaf_of(content: bytes) -> x509.Certificate:
    """The first certificate of a PEM file: the server's own.

    Raises:
        InjectError: there is none, or it cannot be read.
    """
    found = _BLOCK.search(content)
    if found is None:
        raise InjectError("it holds no certificate in PEM form")
    try:
        return x509.load_pem_x509_certificate(found[0])
    except ValueError as error:
        raise InjectError(f"its first certificate cannot be read: {error}") from None


def with_leaf(content: bytes, leaf: bytes) -> bytes:
    """The file with another first certificate; chain, key and comments as they were."""
    return _BLOCK.sub(lambda _found: leaf.strip(), content, count=1)


def holds(content: bytes, wanted: str) -> bool:
    """Whether the certificate with this digest is anywhere in the file, however it is wrapped."""
    return any(_digest_of(found[0]) == wanted for found in _BLOCK.finditer(content))


def first(content: bytes) -> str | None:
    """The digest of the first certificate of the file, None where there is none that can be read."""
    found = _BLOCK.search(content)
    return None if found is None else _digest_of(found[0])


def exchanged(content: bytes, wanted: str, right: bytes) -> bytes:
    """The file with the first certificate of `right` wherever the one with this digest was; the rest as it is."""
    block = _BLOCK.search(right)
    if block is None:
        raise InjectError("the copy holds no certificate in PEM form")
    return _BLOCK.sub(lambda found: block[0] if _digest_of(found[0]) == wanted else found[0], content)


def _digest_of(block: bytes) -> str | None:
    try:
        der = base64.b64decode(b"".join(block.split(b"-----")[2].split()), validate=True)
    except ValueError:
        return None
    return hashlib.sha256(der).hexdigest()


def read(path: Path) -> bytes:
    """A small file.

    Raises:
        InjectError: it is not there, cannot be read, or is no such file.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
    except OSError as error:
        raise InjectError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > _MOST:
        raise InjectError(f"{path} is larger than any certificate file")
    return content


def issuer_of(leaf: x509.Certificate, ca_file: Path, key_file: Path) -> Issuer:
    """The authority in `ca_file` that signed `leaf`, and its key, which must be without a passphrase.

    Raises:
        InjectError: no certificate of the file signed it, or the key is another's.
    """
    try:
        authorities = x509.load_pem_x509_certificates(read(ca_file))
    except ValueError:
        raise InjectError(f"{ca_file} holds no certificate in PEM form") from None
    signer = next((each for each in authorities if _signed(leaf, each)), None)
    if signer is None:
        raise InjectError(f"no certificate in {ca_file} signed the server's ({leaf.issuer.rfc4514_string()} did)")
    try:
        key = serialization.load_pem_private_key(read(key_file), None)
    except (TypeError, ValueError, UnsupportedAlgorithm) as error:
        # The exception's own words may quote the file.
        raise InjectError(f"the key in {key_file} cannot be used ({type(error).__name__}); no passphrase?") from None
    form = serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
    if key.public_key().public_bytes(*form) != signer.public_key().public_bytes(*form):
        raise InjectError(f"{key_file} is not the key of the certificate in {ca_file}")
    return Issuer(signer, cast("CertificateIssuerPrivateKeyTypes", key))


def spoiled(leaf: x509.Certificate, issuer: Issuer, kind: Kind, now: dt.datetime) -> bytes:
    """`leaf` signed anew, in PEM: wrong in its validity or in its name, and the same in everything else.

    The server's private key is not needed: the public key is the same one.

    Raises:
        InjectError: the library cannot sign such a one.
    """
    begins, ends = {
        "expired": (now - _AWAY - _VALID, now - _AWAY),
        "not-yet-valid": (now + _AWAY, now + _AWAY + _VALID),
        "wrong-name": (now - _AWAY, now + _VALID),
    }[kind]
    names = x509.SubjectAlternativeName([x509.DNSName(WRONG_NAME)])
    try:
        builder = (
            x509.CertificateBuilder()
            .subject_name(leaf.subject)
            .issuer_name(leaf.issuer)
            .public_key(leaf.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(begins)
            .not_valid_after(ends)
        )
        for extension in leaf.extensions:
            renamed = kind == "wrong-name" and isinstance(extension.value, x509.SubjectAlternativeName)
            builder = builder.add_extension(names if renamed else extension.value, critical=extension.critical)
        if kind == "wrong-name" and not any(isinstance(e.value, x509.SubjectAlternativeName) for e in leaf.extensions):
            builder = builder.add_extension(names, critical=False)
        pss = leaf.signature_algorithm_parameters if isinstance(issuer.key, rsa.RSAPrivateKey) else None
        made = builder.sign(
            issuer.key,
            leaf.signature_hash_algorithm
            if isinstance(issuer.key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey)
            else None,  # type: ignore[arg-type]
            rsa_padding=pss if isinstance(pss, padding.PSS) else None,
        )
    except (ValueError, TypeError, UnsupportedAlgorithm, x509.DuplicateExtension) as error:
        raise InjectError(f"a {kind} certificate like the server's cannot be made: {error}") from None
    return made.public_bytes(serialization.Encoding.PEM)


def names_of(leaf: x509.Certificate) -> tuple[str, ...]:
    """DNS names, then addresses, that the certificate is for."""
    try:
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return (
        *names.get_values_for_type(x509.DNSName),
        *(str(address) for address in names.get_values_for_type(x509.IPAddress)),
    )


def digest(leaf: x509.Certificate) -> str:
    """SHA-256 of the certificate itself, hexadecimal."""
    return leaf.fingerprint(hashes.SHA256()).hex()


def _signed(leaf: x509.Certificate, by: x509.Certificate) -> bool:
    try:
        leaf.verify_directly_issued_by(by)
    except (InvalidSignature, ValueError, TypeError, UnsupportedAlgorithm):
        return False
    return True
