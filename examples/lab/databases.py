"""A real PostgreSQL and a real Redis on a host of the laboratory, each with few connections to give."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lab.hosts import Host
from lab.missing import MissingError
from lab.waiting import DEADLINE_S, until

PASSWORD = "open-sesame"  # noqa: S105  (of a server that lives for one test)
_DEBIAN = "/usr/lib/postgresql"


@dataclass(frozen=True)
class Database:
    """A running server; `limit` is how many connections it gives."""

    engine: str
    host: Host
    port: int
    limit: int
    environment: dict[str, str] = field(default_factory=dict)

    def ask(self, client: Host, address: str, timeout: float = 3.0) -> str:
        """What a client's own program gets: `1`, `PONG`, or its complaint; `silence` where it waits in vain."""
        if self.engine == "postgres":
            argv = ["psql", "-h", address, "-p", str(self.port), "-U", "postgres", "-d", "postgres", "-tAc", "select 1"]
        else:
            argv = ["redis-cli", "-h", address, "-p", str(self.port), "PING"]
        with client.inside():
            try:
                done = subprocess.run(
                    argv,
                    capture_output=True,
                    text=True,
                    timeout=timeout,
                    check=False,
                    env={**os.environ, **self.environment},
                )
            except subprocess.TimeoutExpired:
                return "silence"
        return (done.stdout + done.stderr).strip()

    def answers(self, client: Host, address: str) -> bool:
        return self.ask(client, address) in ("1", "PONG")


@contextlib.contextmanager
def postgres(at: Host, port: int, *, limit: int = 10, turn_everybody_away: bool = False) -> Iterator[Database]:
    """A cluster in a folder of its own, on all addresses of the host, with a password."""
    initdb, server = _server("initdb"), _server("postgres")
    if initdb is None or server is None or shutil.which("psql") is None:
        raise MissingError("PostgreSQL is not here: run `make tools`")
    with _folder("postgres") as folder:
        (folder / "password").write_text(PASSWORD)
        as_user = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        made = [initdb, "-D", f"{folder}/data", "-A", "scram-sha-256", "--pwfile", f"{folder}/password", "--no-sync"]
        _give(folder, "postgres")
        subprocess.run([*as_user, *made], check=True, capture_output=True, timeout=60)
        how = "reject" if turn_everybody_away else "scram-sha-256"
        (folder / "data/pg_hba.conf").write_text(f"host all all all {how}\n")
        options = {
            "max_connections": limit,
            "superuser_reserved_connections": 1,
            "max_wal_senders": 1,
            "autovacuum_max_workers": 1,
            "max_worker_processes": 1,
            "listen_addresses": "*",
            "unix_socket_directories": "",
            "fsync": "off",
            "shared_buffers": "1MB",
        }
        argv = [server, "-D", f"{folder}/data", "-p", str(port)]
        argv += [word for name, value in options.items() for word in ("-c", f"{name}={value}")]
        database = Database("postgres", at, port, limit, {"PGPASSWORD": PASSWORD, "PGCONNECT_TIMEOUT": "0"})
        with _running(at, [*as_user, *argv], folder / "log"):
            until(lambda: at.tcp("127.0.0.1", port) != "refused")
            if not turn_everybody_away:
                until(lambda: database.answers(at, "127.0.0.1"))
            yield database


@contextlib.contextmanager
def redis(at: Host, port: int, *, limit: int = 40) -> Iterator[Database]:
    """A server without a password and without a disk."""
    if shutil.which("redis-server") is None or shutil.which("redis-cli") is None:
        raise MissingError("Redis is not here: run `make tools`")
    with _folder("redis") as folder:
        argv = ["redis-server", "--port", str(port), "--bind", "* -::*", "--save", "", "--maxclients", str(limit)]
        argv += ["--protected-mode", "no", "--dir", str(folder)]
        database = Database("redis", at, port, limit)
        with _running(at, argv, folder / "log"):
            until(lambda: database.answers(at, "127.0.0.1"))
            yield database


def _server(name: str) -> str | None:
    places = sorted(Path(_DEBIAN).glob(f"*/bin/{name}"))
    return shutil.which(name) or (str(places[-1]) if places else None)


@contextlib.contextmanager
def _folder(name: str) -> Iterator[Path]:
    """Outside pytest's own, which other users may not enter."""
    folder = Path(tempfile.mkdtemp(prefix=f"gpuchaos-{name}-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def _give(folder: Path, user: str) -> None:
    entry = pwd.getpwnam(user)
    for path in (folder, *folder.iterdir()):
        os.chown(path, entry.pw_uid, entry.pw_gid)


@contextlib.contextmanager
def _running(at: Host, argv: list[str], log: Path) -> Iterator[None]:
    with at.inside(), log.open("wb") as out:
        server = subprocess.Popen(argv, stdout=out, stderr=out)
    try:
        yield
    finally:
        server.send_signal(signal.SIGINT)  # PostgreSQL would wait for its clients at SIGTERM
        try:
            server.wait(DEADLINE_S)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()
