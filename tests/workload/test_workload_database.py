from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from workload.postgres import DatabaseError, Postgres
from workload.redis import Redis
from workload_kit import Run, Start, alive, faults, free_port

#: Minutes of real time-outs together; the fast ones are in test_workload_status.py.
pytestmark = pytest.mark.soak

TIMEOUT = 2.0


class Server:
    """A database of the test's own on a free port; `begin` and `end` as often as wanted."""

    def __init__(self, command: list[str], url: str, ready: Callable[[], object], log: Path) -> None:
        self._command = command
        self._log = log
        self._ready = ready
        self.url = url
        self.process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log)
        deadline = time.monotonic() + 30
        while True:
            with contextlib.suppress(DatabaseError):
                self._ready()
                return
            assert time.monotonic() < deadline
            assert self.process.poll() is None, f"ended: {self._log.read_text()[-1500:]}"
            time.sleep(0.05)

    def end(self) -> None:
        if self.process is not None:
            self.process.send_signal(signal.SIGCONT)
            self.process.send_signal(signal.SIGINT)
            self.process.wait(20)

    def everybody(self, number: signal.Signals) -> None:
        """A signal to the server and its children."""
        assert self.process is not None
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        for pid in (self.process.pid, *map(int, children)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


@pytest.fixture
def postgres(tmp_path: Path) -> Iterator[Server]:
    homes = [*os.get_exec_path(), *map(str, sorted(Path("/usr/lib/postgresql").glob("*/bin")))]
    initdb = shutil.which("initdb", path=os.pathsep.join(homes))
    if initdb is None:
        pytest.skip("there is no PostgreSQL server: run `make tools`")
    server_program = str(Path(initdb).with_name("postgres"))
    port = free_port()
    home = tmp_path / "postgres"
    home.mkdir()
    drop: list[str] = []
    if os.geteuid() == 0:
        drop = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"]
        for path in (home, *tmp_path.parents):
            if path == Path("/tmp"):  # noqa: S108  (where pytest's folders lie)
                break
            path.chmod(path.stat().st_mode | 0o011)
        tmp_path.chmod(0o755)
        shutil.chown(home, "postgres", "postgres")
    password = home.parent / "password"
    password.write_text("se'cret\n")
    password.chmod(0o644)
    init = [initdb, "-D", str(home / "data"), "-U", "trainer", "-A", "scram-sha-256", f"--pwfile={password}"]
    subprocess.run([*drop, *init, "--no-sync"], check=True, capture_output=True)
    url = f"postgresql://trainer:se%27cret@127.0.0.1:{port}/postgres"
    settings = ["-c", "fsync=off", "-c", "max_connections=8", "-c", "superuser_reserved_connections=0"]
    where = ["-D", str(home / "data"), "-p", str(port), "-h", "127.0.0.1", "-k", str(home)]
    ready = lambda: Postgres(urlsplit(url), TIMEOUT).close()  # noqa: E731
    server = Server([*drop, server_program, *where, *settings], url, ready, tmp_path / "postgres.log")
    server.begin()
    yield server
    server.end()


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[Server]:
    if shutil.which("redis-server") is None:
        pytest.skip("there is no redis-server: run `make tools`")
    port = free_port()
    home = tmp_path / "redis"
    home.mkdir()
    url = f"redis://:secret@127.0.0.1:{port}/1"
    settings = ["--requirepass", "secret", "--maxclients", "20", "--appendonly", "yes"]
    where = ["--port", str(port), "--bind", "127.0.0.1", "--dir", str(home)]
    command = ["redis-server", *where, *settings]
    ready = lambda: Redis(urlsplit(url), TIMEOUT).command("PING")  # noqa: E731
    server = Server(command, url, ready, tmp_path / "redis.log")
    server.begin()
    yield server
    server.end()


def database(run: Run) -> dict[str, object]:
    """What the run says of its database."""
    found: dict[str, object] = run.status()["database"]
    return found


def goes_through_an_outage(run: Run, server: Server) -> None:
    run.until(lambda: database(run)["state"] == "up", "the database")
    run.until_more(5)
    server.end()
    run.until(lambda: database(run)["state"] == "down", "the outage")
    assert database(run)["answered_by"] == "cache"
    run.until_more(20)
    server.begin()
    run.until(lambda: database(run)["state"] == "up" and database(run)["waiting"] == 0, "the database again")
    run.until_more(5)
    assert run.stop() == 0
    status = run.status()
    assert (status["restarts"], status["steps_lost"], status["data_lost"]) == (0, 0, 0)
    assert "db_unreachable" in faults(run.log())
    assert "metadata database is back" in run.log()


def cached(run: Run) -> tuple[int, int]:
    """Records in the cache, and those of them that wait."""
    with contextlib.closing(sqlite3.connect(run.folder / "metadata.sqlite")) as cache:
        count, sent = cache.execute("SELECT count(*), sum(sent) FROM records").fetchone()
        return count, count - sent


def test_postgres_away_and_back_costs_no_step_and_no_record(start: Start, postgres: Server) -> None:
    run = start("--database", postgres.url)
    goes_through_an_outage(run, postgres)
    client = Postgres(urlsplit(postgres.url), TIMEOUT)
    count, first, last = client.query("SELECT count(*), min(number), max(number) FROM workload_records")[0]
    steps = client.query("SELECT count(*) FROM workload_records WHERE record::json->>'kind' = 'step'")[0][0]
    client.close()
    assert (int(count or 0), cached(run)[1], first) == (cached(run)[0], 0, "1")
    assert last == count
    assert int(steps or 0) == run.status()["step"]
    assert "se'cret" not in run.log() + (run.folder / "metadata.json").read_text()


def test_redis_away_and_back_costs_no_step_and_no_record(start: Start, redis: Server) -> None:
    run = start("--database", redis.url)
    goes_through_an_outage(run, redis)
    client = Redis(urlsplit(redis.url), TIMEOUT)
    name = f"workload:records:{run.state()['run']}"
    assert (client.command("HLEN", name), cached(run)[1]) == (cached(run)[0], 0)
    client.close()


def test_a_database_that_hangs_or_is_out_of_connections_stops_nothing(start: Start, postgres: Server) -> None:
    run = start("--database", postgres.url)
    run.until(lambda: database(run)["state"] == "up", "the database")
    postgres.everybody(signal.SIGSTOP)
    run.until_said("timeout expired")
    run.until_more(10)
    postgres.everybody(signal.SIGCONT)
    run.until(lambda: database(run)["state"] == "up", "the database again")
    held: list[Postgres] = []

    def hold() -> bool:
        with contextlib.suppress(DatabaseError):
            held.append(Postgres(urlsplit(postgres.url), TIMEOUT))
        return "sorry, too many clients already" in run.log()

    run.until(hold, "a refusal")
    for each in held:
        each.close()
    run.until(lambda: database(run)["state"] == "up", "connections")
    assert run.stop() == 0
    assert {"db_unreachable", "db_connection_limit"} <= faults(run.log())
    assert (run.status()["restarts"], cached(run)[1]) == (0, 0)


def test_training_starts_without_its_database_and_ends_without_it(start: Start) -> None:
    run = start("--database", f"redis://127.0.0.1:{free_port()}", "--steps", "20")
    pids = [rank["pid"] for rank in run.state().get("ranks", [])]
    assert run.process.wait(60) == 0
    status = run.status()
    assert (status["step"], status["database"]["state"], status["data_lost"]) == (20, "down", 0)
    assert "db_unreachable" in faults(run.log())
    assert cached(run) == (24, 24)  # the start, two checkpoints, the end
    assert not any(map(alive, pids))


def test_a_setting_in_the_database_is_used_and_kept_while_it_is_away(start: Start, redis: Server) -> None:
    client = Redis(urlsplit(redis.url), TIMEOUT)
    client.command("HSET", "workload:settings", "lr_scale", "0")
    client.close()
    run = start("--database", redis.url)
    run.until(lambda: database(run)["state"] == "up", "the database")

    def digests() -> set[str]:
        lines = (run.folder / "ledger.jsonl").read_text().splitlines()[-10:]
        return {line.split('"loss"')[0].split('"step":')[1].split(",")[0] for line in lines}

    run.until_more(5)
    redis.end()
    run.until(lambda: database(run)["state"] == "down", "the outage")
    run.until_more(5)
    with contextlib.closing(sqlite3.connect(run.folder / "metadata.sqlite")) as cache:
        assert cache.execute("SELECT value FROM settings WHERE name = 'lr_scale'").fetchone() == ("0",)
    assert len(digests()) == 10
    assert run.stop() == 0


@pytest.mark.parametrize("method", ["scram-sha-256", "md5", "password", "trust"])
def test_every_way_to_log_in_works(postgres: Server, tmp_path: Path, method: str) -> None:
    url = urlsplit(postgres.url)
    client = Postgres(url, TIMEOUT)
    if method == "md5":
        client.query("SET password_encryption = 'md5'; ALTER USER trainer PASSWORD 'se''cret'")
    rules = tmp_path / "postgres" / "data" / "pg_hba.conf"
    rules.write_text(f"host all all 127.0.0.1/32 {method}\n")
    client.query("SELECT pg_reload_conf()")
    client.close()
    client = Postgres(url, TIMEOUT)
    assert client.query("SELECT 1, NULL, 'ü'") == [("1", None, "ü")]
    with pytest.raises(DatabaseError, match="does not exist"):
        client.query("SELECT * FROM nothing")
    assert client.query("SELECT 2") == [("2",)]
    client.close()
    if method != "trust":
        wrong = urlsplit(postgres.url.replace("se%27cret", "wrong"))
        with pytest.raises(DatabaseError, match="password authentication failed"):
            Postgres(wrong, TIMEOUT)
