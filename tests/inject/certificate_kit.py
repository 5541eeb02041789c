"""An authority, a server's certificate, and real TLS servers that read it again when they are told."""

from __future__ import annotations

import datetime as dt
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID
from lab.waiting import until

from gpuchaos_agent import clock
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.certificate_expiry import CertificateExpiry
from gpuchaos_agent.inject.tls_look import Address
from gpuchaos_agent.journal import JournalEntry, Scalar

NODE = "n1"
TARGET = f"node/{NODE}"
NAME = "service.test"
_CHAINED = {"rsa": lambda: rsa.generate_private_key(65537, 2048), "ed25519": ed25519.Ed25519PrivateKey.generate}


def fault(folder: Path, **env: Any) -> CertificateExpiry:
    return CertificateExpiry(Env(node=NODE, boot_id=clock.boot_id(), state_dir=folder / "state", **env))


def entry(of: CertificateExpiry, params: dict[str, Scalar], fault_id: str = "f1") -> JournalEntry:
    return JournalEntry(
        fault_id=fault_id,
        experiment_id="e1",
        command_id="c1",
        fault="certificate-expiry",
        entity=TARGET,
        params=params,
        payload=of.plan(TARGET, params, fault_id),
        boot_id=clock.boot_id(),
        order=0,
        created=0,
        lease_s=10,
        lease_expires=10,
        lease_deadline=10,
    )


@dataclass
class Authority:
    """A CA in two files, and a server's key and certificate in two more."""

    folder: Path
    key: Any
    certificate: x509.Certificate

    @property
    def ca_file(self) -> Path:
        return self.folder / "ca.pem"

    @property
    def ca_key_file(self) -> Path:
        return self.folder / "ca.key"

    @property
    def cert_file(self) -> Path:
        return self.folder / "server.pem"

    @property
    def key_file(self) -> Path:
        return self.folder / "server.key"

    def issue(self, *, days: float = 30) -> bytes:
        """A certificate for the server's key, in PEM, new each time."""
        key = serialization.load_pem_private_key(self.key_file.read_bytes(), None)
        now = dt.datetime.now(dt.UTC)
        made = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, NAME)]))
            .issuer_name(self.certificate.subject)
            .public_key(key.public_key())  # type: ignore[arg-type]
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName(NAME)]), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([x509.ObjectIdentifier("1.3.6.1.5.5.7.3.1")]), critical=False)
            .sign(self.key, None if isinstance(self.key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
        )
        return made.public_bytes(serialization.Encoding.PEM)

    def params(self, port: int, **fields: Scalar) -> dict[str, Scalar]:
        """Parameters of the fault for a server at `port`."""
        files = {name: str(getattr(self, name)) for name in ("cert_file", "ca_file", "ca_key_file")}
        return {**files, "address": f"127.0.0.1:{port}", **fields}


def authority(folder: Path, kind: str = "ec") -> Authority:
    key: Any = _CHAINED[kind]() if kind in _CHAINED else ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
    now = dt.datetime.now(dt.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=365))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256())
    )
    made = Authority(folder, key, certificate)
    made.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    made.ca_key_file.write_bytes(pem_of(key))
    made.key_file.write_bytes(pem_of(ec.generate_private_key(ec.SECP256R1())))
    made.key_file.chmod(0o600)
    # The chain, a comment and an odd mode stay as they are.
    made.cert_file.write_bytes(b"# server\n" + made.issue() + made.ca_file.read_bytes() + b"# end\n")
    made.cert_file.chmod(0o640)
    return made


def pem_of(key: Any) -> bytes:
    form = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    return bytes(key.private_bytes(serialization.Encoding.PEM, *form))


_SERVER = """
import signal, socket, ssl, sys, threading
cert, key, pidfile, how = sys.argv[1:5]
lock = threading.Lock()
def make():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    return context
context = make()
def again(*_):
    global context
    context = make()
if how == "signal":
    signal.signal(signal.SIGHUP, again)
listener = socket.create_server(("127.0.0.1", int(sys.argv[5])))
print(listener.getsockname()[1], flush=True)
while True:
    plain, _ = listener.accept()
    if how == "watch":
        again()
    try:
        plain.settimeout(2)
        context.wrap_socket(plain, server_side=True).close()
    except OSError:
        pass
    finally:
        plain.close()
"""


@dataclass
class Server:
    """A TLS server that runs: told by SIGHUP, watching its file, or doing neither."""

    process: subprocess.Popen[str]
    port: int
    pidfile: Path


@contextmanager
def server(of: Authority, how: str = "signal", port: int = 0) -> Iterator[Server]:
    pidfile = of.folder / "server.pid"
    argv = [sys.executable, "-c", _SERVER, str(of.cert_file), str(of.key_file), str(pidfile), how, str(port)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = int(process.stdout.readline())
            pidfile.write_text(f"{process.pid}\n")
            yield Server(process, found, pidfile)
        finally:
            process.kill()


@contextmanager
def postgres(of: Authority) -> Iterator[Server]:
    """A real PostgreSQL with TLS on a port of its own."""
    found = [shutil.which(name) or _debian(name) for name in ("initdb", "postgres")]
    if None in found:
        pytest.skip("needs PostgreSQL's server (initdb, postgres): run `make tools`")
    initdb, binary = (str(name) for name in found)
    user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    # Not below pytest's folder, which only root may enter.
    with tempfile.TemporaryDirectory(prefix="gpuchaos-postgres-") as name:
        home = Path(name)
        for file in (of.key_file, of.cert_file):
            shutil.copy(file, home)
        if user:
            for path in (home, *home.iterdir()):
                shutil.chown(path, "postgres", "postgres")
        of.folder = _with_authority(of, home)
        subprocess.run([*user, initdb, "-D", home / "data", "-A", "trust", "-N"], check=True, capture_output=True)
        port = free_port()
        argv = [*user, binary, "-D", str(home / "data"), "-p", str(port), "-k", str(home), "-h", "127.0.0.1"]
        for setting in ("ssl=on", f"ssl_cert_file={of.cert_file}", f"ssl_key_file={of.key_file}", "fsync=off"):
            argv += ["-c", setting]
        with (home / "log").open("wb") as log, subprocess.Popen(argv, stdout=log, stderr=log, text=True) as process:
            pidfile = home / "data" / "postmaster.pid"
            try:
                until(lambda: process.poll() is not None or (pidfile.exists() and "ready" in pidfile.read_text()), 30)
                assert process.poll() is None, (home / "log").read_text()[-600:]
                yield Server(process, port, pidfile)
            finally:
                process.send_signal(signal.SIGINT)
                process.wait(20)


def _with_authority(of: Authority, home: Path) -> Path:
    for file in (of.ca_file, of.ca_key_file):
        shutil.copy(file, home)
    return home


def _debian(name: str) -> str | None:
    return next((str(path) for path in sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))), None)


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


_UNDO = """
import sys
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.certificate_expiry import CertificateExpiry
from gpuchaos_agent.inject.tls_look import Address
from gpuchaos_agent.journal import JournalEntry
entry = JournalEntry.model_validate_json(open(sys.argv[1]).read())
fault = CertificateExpiry(Env(node='n1', boot_id=sys.argv[2]))
fault.undo(entry)
fault.undo(entry)
sys.exit(not fault.verify(entry))
"""


def at(ca: Authority, port: int, **fields: Any) -> Address:
    return Address("127.0.0.1", port, NAME, ca.ca_file, **fields)


def signalled(ca: Authority, running: Server, **fields: Any) -> dict[str, Any]:
    return ca.params(running.port, reload="signal", pidfile=str(running.pidfile), **fields)


def state(folder: Path) -> dict[str, tuple[bytes, int, int, int]]:
    """Every file below: bytes, mode, owner, time of the last change."""
    found = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            stat = path.stat()
            found[str(path.relative_to(folder))] = (path.read_bytes(), stat.st_mode, stat.st_uid, stat.st_mtime_ns)
    return found


def undo_elsewhere(standing: JournalEntry, folder: Path, boot: str | None = None) -> None:
    """In another process, from the journal's file alone; twice."""
    file = folder / "entry.json"
    file.write_text(standing.model_dump_json())
    subprocess.run([sys.executable, "-c", _UNDO, file, boot or clock.boot_id()], check=True)
    file.unlink()
