"""`certificate-expiry` by the clock: a client under libfaketime, with a real TLS server."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificate_kit import (
    NAME,
    TARGET,
    Authority,
    Server,
    authority,
    entry,
    fault,
    server,
    state,
    undo_elsewhere,
)


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path)


@pytest.fixture
def running(ca: Authority) -> Iterator[Server]:
    with server(ca) as made:
        yield made


@pytest.fixture
def faked(ca: Authority, tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], Path, Path]]:
    """A client of the server under libfaketime: it says what it thinks of the server's certificate when asked."""
    found = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if found is None or shutil.which("faketime") is None:
        pytest.skip("needs libfaketime (package faketime): run `make tools`")
    offset = tmp_path / "offset"
    offset.write_text("+0\n")
    code = (
        "import socket, ssl, sys\n"
        "for line in sys.stdin:\n"
        "    context = ssl.create_default_context(cafile=sys.argv[1])\n"
        "    try:\n"
        "        with socket.create_connection(('127.0.0.1', int(line))) as plain:\n"
        f"            context.wrap_socket(plain, server_hostname={NAME!r}).close()\n"
        "        print('trusted', flush=True)\n"
        "    except ssl.SSLCertVerificationError as error:\n"
        "        print(error.verify_message, flush=True)\n"
    )
    environ = {**os.environ, "LD_PRELOAD": str(found), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1"}
    argv = [sys.executable, "-c", code, str(ca.ca_file)]
    pidfile = tmp_path / "client.pid"
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environ) as client:
        pidfile.write_text(str(client.pid))
        yield client, pidfile, offset
        client.kill()


def ask(client: subprocess.Popen[str], port: int) -> str:
    assert client.stdin is not None
    assert client.stdout is not None
    client.stdin.write(f"{port}\n")
    client.stdin.flush()
    return client.stdout.readline().strip()


@pytest.mark.parametrize(("kind", "words"), [("expired", "expired"), ("not-yet-valid", "not yet valid")])
def test_under_a_shifted_clock_a_running_client_refuses_a_good_certificate(
    running: Server, faked: tuple[subprocess.Popen[str], Path, Path], tmp_path: Path, kind: str, words: str
) -> None:
    client, pidfile, offset = faked
    assert ask(client, running.port) == "trusted"
    before = state(tmp_path)
    expiry = fault(tmp_path)
    params: dict[str, Any] = {"method": "clock", "pidfile": str(pidfile), "kind": kind}
    assert expiry.check(TARGET, params) is None
    standing = entry(expiry, params)
    expiry.inject(standing)
    evidence = expiry.evidence(standing)
    assert evidence.moved, evidence
    assert words in ask(client, running.port)
    assert not expiry.verify(standing)
    assert str(offset) in expiry.commands(standing)[0]
    undo_elsewhere(standing, tmp_path)
    assert ask(client, running.port) == "trusted"
    assert expiry.verify(standing)
    assert state(tmp_path) == before


def test_the_clock_of_a_process_that_was_started_without_it_is_not_shifted(running: Server, tmp_path: Path) -> None:
    reason = fault(tmp_path).check(TARGET, {"method": "clock", "pidfile": str(running.pidfile)})
    assert "was not started under libfaketime" in (reason or "")
