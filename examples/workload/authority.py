"""A small certificate authority in the run's folder, and what keeps the ranks' certificates good."""

from __future__ import annotations

import datetime as dt
import ipaddress
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from workload.identity import name_of
from workload.lines import launcher, say

_YEAR: Final = dt.timedelta(days=365)
#: A clock may be this much behind ours.
_BEHIND: Final = dt.timedelta(minutes=5)


class Authority:
    """Makes and renews `rank<N>.pem` and `.key` in `folder`, each good for `lifetime` seconds."""

    def __init__(self, folder: Path, lifetime: float) -> None:
        self._folder = folder
        self._lifetime = dt.timedelta(seconds=lifetime)
        folder.mkdir(parents=True, exist_ok=True)
        cert, key = folder / "ca.pem", folder / "ca.key"
        if not (cert.exists() and key.exists()):
            self._make_ca(cert, key)
        self._cert = x509.load_pem_x509_certificate(cert.read_bytes())
        loaded = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(loaded, ec.EllipticCurvePrivateKey):
            raise TypeError(f"{key} is of another kind")
        self._key = loaded

    def keep(self, rank: int, host: str) -> str:
        """Issues a certificate where the one there is bad, or two thirds of its time are over.

        Returns:
            Why; empty where nothing was done.
        """
        why = self.fault(rank)
        if why:
            self._issue(rank, host)
        return why

    def fault(self, rank: int) -> str:
        """Why a rank's certificate must be renewed; empty where it is good."""
        path = self._folder / f"{name_of(rank)}.pem"
        try:
            cert = x509.load_pem_x509_certificate(path.read_bytes())
            key = serialization.load_pem_private_key(path.with_suffix(".key").read_bytes(), None)
            cert.verify_directly_issued_by(self._cert)
            names = cert.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        except FileNotFoundError:
            return "none yet"
        except InvalidSignature:
            return "not signed by this authority"
        except (OSError, ValueError, TypeError, x509.ExtensionNotFound) as error:
            return f"unreadable: {error}"
        now = dt.datetime.now(dt.UTC)
        if cert.not_valid_before_utc > now:
            return f"not valid before {_stamp(cert.not_valid_before_utc)}"
        if cert.not_valid_after_utc <= now:
            return f"expired at {_stamp(cert.not_valid_after_utc)}"
        if name_of(rank) not in names.get_values_for_type(x509.DNSName):
            return f"for another name than {name_of(rank)}"
        if key.public_key() != cert.public_key():
            return "of another key"
        if cert.not_valid_after_utc - now < self._lifetime / 3:
            return f"expires at {_stamp(cert.not_valid_after_utc)}"
        return ""

    def _make_ca(self, cert_file: Path, key_file: Path) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "workload CA")])
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BEHIND)
            .not_valid_after(now + 10 * _YEAR)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        _write(key_file, _pem(key), 0o600)
        _write(cert_file, made.public_bytes(serialization.Encoding.PEM), 0o644)

    def _issue(self, rank: int, host: str) -> None:
        key = ec.generate_private_key(ec.SECP256R1())
        name = name_of(rank)
        now = dt.datetime.now(dt.UTC)
        names: list[x509.GeneralName] = [x509.DNSName(name), x509.DNSName("localhost")]
        try:
            names.append(x509.IPAddress(ipaddress.ip_address(host)))
        except ValueError:
            names.append(x509.DNSName(host))
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(self._cert.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - min(_BEHIND, self._lifetime))
            .not_valid_after(now + self._lifetime)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write(self._folder / f"{name}.key", _pem(key), 0o600)
        _write(self._folder / f"{name}.pem", made.public_bytes(serialization.Encoding.PEM), 0o644)


def renew(authority: Authority, hosts: dict[int, str], reload: Callable[[int], None]) -> None:
    """Looks at every certificate once, renews what must be, and has its rank reload it."""
    for rank, host in hosts.items():
        try:
            why = authority.keep(rank, host)
        except OSError as error:
            say(launcher(f"certificate of {name_of(rank)} not renewed: {error}", "E"))
            continue
        if why:
            say(launcher(f"certificate of {name_of(rank)} renewed: the one before was {why}"))
            reload(rank)


def not_after(folder: Path, rank: int) -> float | None:
    """When a rank's certificate ends, seconds since the epoch; None where it cannot be read."""
    try:
        cert = x509.load_pem_x509_certificate((folder / f"{name_of(rank)}.pem").read_bytes())
    except (OSError, ValueError):
        return None
    return cert.not_valid_after_utc.timestamp()


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    beside = path.with_name(f".{path.name}.new")
    beside.unlink(missing_ok=True)
    fd = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    try:
        os.write(fd, content)
    finally:
        os.close(fd)
    beside.replace(path)


def _stamp(at: dt.datetime) -> str:
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")
