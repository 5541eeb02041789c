from __future__ import annotations

import datetime as dt
import os
import signal
import socket
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from workload_kit import Run, Start, faults

#: Minutes of real time-outs together; the fast ones are in test_workload_status.py.
pytestmark = pytest.mark.soak


def replace(run: Run, rank: int, *, start_h: float, end_h: float, name: str = "") -> None:
    """A certificate by the run's own CA in the place of a rank's, good from and to so many hours from now."""
    folder = run.folder / "tls"
    path = folder / f"rank{rank}.pem"
    ca = x509.load_pem_x509_certificate((folder / "ca.pem").read_bytes())
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    old = x509.load_pem_x509_certificate(path.read_bytes())
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(ca.subject)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now + dt.timedelta(hours=start_h))
        .not_valid_after(now + dt.timedelta(hours=end_h))
    )
    for each in old.extensions:
        value = each.value
        if name and isinstance(value, x509.SubjectAlternativeName):
            value = x509.SubjectAlternativeName([x509.DNSName(name)])
        made = made.add_extension(value, each.critical)
    path.write_bytes(made.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    os.kill(int((run.folder / "pids" / f"rank{rank}.pid").read_text()), signal.SIGHUP)


def served(run: Run, rank: int) -> x509.Certificate:
    """What a rank presents to whoever asks."""
    host, _, port = run.state()["ranks"][rank]["address"].rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    with socket.create_connection((host, int(port)), 5) as plain, context.wrap_socket(plain) as made:
        return x509.load_der_x509_certificate(made.getpeercert(binary_form=True) or b"")


def valid(certificate: x509.Certificate) -> bool:
    return certificate.not_valid_before_utc <= dt.datetime.now(dt.UTC) < certificate.not_valid_after_utc


BAD = {
    "expired": ({"start_h": -2.0, "end_h": -1.0}, "cert_expired", "certificate has expired"),
    "not yet valid": ({"start_h": 1.0, "end_h": 2.0}, "clock_skew", "certificate is not yet valid"),
    "wrong name": ({"start_h": -1.0, "end_h": 1.0, "name": "other"}, "tls_ca_config", "Hostname mismatch"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_certificate_breaks_training_until_it_is_put_right(start: Start, kind: str) -> None:
    how, fault, words = BAD[kind]
    run = start("--tls", "--no-renew", "--relink-every", "5")
    run.until_step(8)
    good = (run.folder / "tls" / "rank2.pem").read_bytes()
    replace(run, 2, **how)  # type: ignore[arg-type]
    run.until_said(words)
    assert valid(served(run, 2)) == (kind == "wrong name")
    run.until(lambda: run.state()["restarts"] >= 1, "a restart")
    (run.folder / "tls" / "rank2.pem").write_bytes(good)
    run.until_more(5)
    assert valid(served(run, 2))
    assert run.stop() == 0
    assert fault in faults(run.log())
    assert run.status()["data_lost"] == 0


@pytest.mark.parametrize("kind", BAD)
def test_renewal_heals_a_bad_certificate_without_a_restart(start: Start, kind: str) -> None:
    run = start("--tls", "--watchdog", "20", "--relink-every", "5")
    run.until_step(8)
    replace(run, 1, **BAD[kind][0])  # type: ignore[arg-type]
    run.until_said("certificate of rank1 renewed: the one before was")
    run.until_more(20)
    assert valid(served(run, 1))
    assert run.stop() == 0
    status = run.status()
    assert (status["restarts"], status["steps_lost"], status["data_lost"]) == (0, 0, 0)
    assert status["certificates"][1]["seconds_left"] > 300


def test_certificates_are_renewed_before_they_end(start: Start) -> None:
    run = start("--tls", "--cert-lifetime", "6", "--relink-every", "5", "--watchdog", "20")
    run.until_step(1)
    first = served(run, 0).serial_number
    run.until_said("certificate of rank0 renewed: the one before was expires at")
    run.until(lambda: served(run, 0).serial_number != first, "another certificate")
    run.until_more(10)
    assert run.stop() == 0
    assert run.status()["restarts"] == 0
    assert faults(run.log()) == set()


def test_nobody_without_a_certificate_of_the_ca_gets_in(start: Start, tmp_path: Path) -> None:
    run = start("--tls")
    run.until_step(3)
    host, _, port = run.state()["ranks"][0]["address"].rpartition(":")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(run.folder / "tls" / "ca.pem")
    with socket.create_connection((host, int(port)), 5) as plain:
        made = context.wrap_socket(plain, server_hostname="rank0")
        with pytest.raises(ssl.SSLError):
            made.recv(1)
        made.close()
    assert (run.folder / "tls" / "ca.key").stat().st_mode & 0o077 == 0
    run.until_more(3)
    assert run.stop() == 0
