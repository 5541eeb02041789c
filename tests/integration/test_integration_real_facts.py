"""Real failures on this machine, each told on a real broker by a running agent within two seconds of its effect.

What needs another kernel (two NUMA nodes, an NFS server that stops, machine checks) is tried in the guest:
`tests/guest/test_guest_real_facts.py`.
"""

from __future__ import annotations

import datetime as dt
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from integration_watch import Watch, real_node, write_job

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import from_value
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.house import House

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]

CLUSTER: Final = "facts"
#: From the effect to the append of its fact at the broker, seconds.
SOON_S: Final = 2.0
KERNEL: Final = tuple(int(part) for part in re.findall(r"\d+", os.uname().release)[:2])


@dataclass(frozen=True, slots=True)
class Place:
    """One agent and what it watches: a worker by its pidfile, and logs that the tests' clients write."""

    house: House
    worker: subprocess.Popen[bytes]
    tls_log: Path
    database_log: Path
    small: Path | None


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory, broker_kind: Kind) -> Iterator[Place]:
    """The house of all tests of this file, its agent watching."""
    folder = tmp_path_factory.mktemp("facts")
    logs = {name: folder / f"{name}.log" for name in ("tls", "database")}
    for log in logs.values():
        log.touch()
    with House(folder / "house", broker=broker_kind) as house, small_filesystem(folder / "small") as small:
        job = [sys.executable, str(write_job(folder / "worker.py")), str(folder / "worker.log")]
        worker = subprocess.Popen(job)
        (folder / "worker.pid").write_text(f"{worker.pid}\n")
        jobs = [{"job": "doomed", "pidfile": str(folder / "worker.pid"), "log": str(folder / "worker.log")}]
        if small is not None:
            (small / "train.log").write_text("step=1\n")
            jobs.append({"job": "writer", "pidfile": str(folder / "none.pid"), "log": str(small / "train.log")})
        try:
            real_node(house, cluster=CLUSTER, jobs=jobs, app_logs={name: str(log) for name, log in logs.items()})
            yield Place(house, worker, logs["tls"], logs["database"], small)
        finally:
            worker.kill()
            worker.wait()


@contextmanager
def small_filesystem(at: Path) -> Iterator[Path | None]:
    """A filesystem of 4 MiB in memory, None where it may not be mounted."""
    at.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(at)], check=False).returncode:
        yield None
        return
    try:
        yield at
    finally:
        subprocess.run(["umount", "-l", str(at)], check=True)


async def told(place: Place, faults: set[str], since: float, *, local: str = "") -> FaultEvent:
    """The first observed fact of one of those names after `since`; it reached the broker within `SOON_S`."""
    async with Watch(place.house.settings) as watch:

        def look() -> tuple[FaultEvent, float] | None:
            for raw in watch.seen[topics.FAULTS.name]:
                event = from_value(raw.topic, raw.value)
                if (
                    isinstance(event, FaultEvent)
                    and event.phase is FaultPhase.OBSERVED
                    and event.fault in faults
                    and event.entity.endswith(local)
                    and raw.timestamp / 1000 >= since
                ):
                    return event, raw.timestamp / 1000
            return None

        event, at = await watch.until(look, " or ".join(faults), 15.0)
    assert isinstance(event, FaultEvent)
    assert at - since < SOON_S, f"{event.fault} came {at - since:.2f} s after its effect"
    assert event.experiment_id is None, "observed, not injected"
    assert not event.injected_mark
    return event


async def test_worker_killed_by_a_signal_is_told_with_its_job(place: Place) -> None:
    async with Watch(place.house.settings) as watch:
        await watch.until(lambda: watch.frames(CLUSTER), "the agent has looked at the worker")
        assert not [e for e in watch.faults() if e.fault in ("worker_failed", "worker_killed")]
    since = time.time()
    os.kill(place.worker.pid, signal.SIGKILL)
    place.worker.wait()
    event = await told(place, {"worker_killed", "worker_failed"}, since, local=f"/{place.worker.pid}")
    assert event.evidence["job"] == "doomed"
    # Not its parent, the agent is told the signal since Linux 6.15; before, it may know no more than that it is gone.
    if event.fault == "worker_killed" or KERNEL >= (6, 15):
        assert (event.fault, event.evidence["cause"]) == ("worker_killed", "SIGKILL")


@pytest.mark.root
async def test_filesystem_that_fills_up_is_told(place: Place) -> None:
    if place.small is None:
        pytest.skip("no filesystem can be mounted here: needs root")
    since = time.time()
    with (place.small / "checkpoint").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 65536)
    event = await told(place, {"fs_full"}, since)
    assert str(place.small) in str(event.evidence.get("path"))


@contextmanager
def tls_server(folder: Path, *, ended: dt.timedelta) -> Iterator[tuple[int, Path]]:
    """A server on loopback whose certificate ended so long ago; its port, and the certificate as its own authority."""
    now = dt.datetime.now(dt.UTC)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=90))
        .not_valid_after(now - ended)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = folder / "server.pem"
    pem.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + certificate.public_bytes(serialization.Encoding.PEM)
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(30)

        def serve() -> None:
            with suppress(OSError):  # the client breaks off, and the listener is closed at the end
                connection, _ = listener.accept()
                with connection, suppress(OSError), context.wrap_socket(connection, server_side=True) as secure:
                    secure.recv(1)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listener.getsockname()[1], pem
        finally:
            with suppress(OSError):
                listener.shutdown(socket.SHUT_RDWR)
            thread.join()


#: A client as programs have it: it trusts the authority, connects, and logs what goes wrong.
CLIENT: Final = """
import logging, socket, ssl, sys
logging.basicConfig(format="%(asctime)s %(name)s %(levelname)s %(message)s")
context = ssl.create_default_context(cafile=sys.argv[2])
try:
    with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as plain:
        context.wrap_socket(plain, server_hostname="localhost")
except OSError as error:
    logging.getLogger("metrics.push").error("push to localhost:%s failed: %s", sys.argv[1], error)
"""


def log_of(command: list[str], log: Path) -> float:
    """Runs a client whose output is its log; when it began, epoch seconds."""
    since = time.time()
    with log.open("ab") as out:
        subprocess.run(command, stdout=out, stderr=out, timeout=30, check=False)
    return since


async def test_certificate_that_has_ended_is_told_from_a_real_clients_log(place: Place, tmp_path: Path) -> None:
    with tls_server(tmp_path, ended=dt.timedelta(hours=1)) as (port, authority):
        log_of([sys.executable, "-c", CLIENT, str(port), str(authority)], place.tls_log)
    said = place.tls_log.read_text()
    assert "certificate has expired" in said, said
    event = await told(place, {"cert_expired"}, place.tls_log.stat().st_mtime)
    assert event.origin is Origin.APPLICATION


async def test_refused_database_connection_is_told_from_a_real_clients_log(place: Place) -> None:
    if shutil.which("psql") is None:
        pytest.skip("no psql here: run `make tools`")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    server = f"host=127.0.0.1 port={port} user=trainer dbname=runs connect_timeout=5"
    log_of(["psql", "--no-password", "-c", "select 1", server], place.database_log)
    said = place.database_log.read_text()
    assert "Connection refused" in said, said
    event = await told(place, {"db_unreachable"}, place.database_log.stat().st_mtime)
    assert event.origin is Origin.APPLICATION
    assert event.evidence["server"] == f"127.0.0.1:{port}"
