"""`database-outage` of a real PostgreSQL and a real Redis, seen by their own clients from another host."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from journal_entries import journalled
from lab.databases import Database, postgres, redis
from lab.hosts import Host, cable, host, needs
from lab.waiting import until
from pydantic import ValidationError
from two_hosts import serving

from gpuchaos_agent import clock
from gpuchaos_agent.inject import database_outage, nft
from gpuchaos_agent.inject.base import Env, Evidence, InjectError
from gpuchaos_agent.inject.database_outage import DatabaseOutage, DatabaseOutageParams
from gpuchaos_agent.inject.database_probe import Outcome, verdict, words
from gpuchaos_agent.journal import Journal, JournalEntry, Scalar

pytestmark = pytest.mark.root

NODE = "n1"
TARGET = f"node/{NODE}"
AWAY, AWAY6, HERE = "10.77.1.2", "fd77:1::2", "10.77.1.1"
OTHER = 7000


@dataclass(frozen=True)
class Place:
    """Two databases, the node that uses them, and a host that uses the node's own."""

    node: Host
    away: Host
    databases: dict[str, Database]


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    needs("nft", "ip", "unshare", "setpriv")
    with ExitStack() as stack:
        node, away = stack.enter_context(host("node")), stack.enter_context(host("away"))
        cable(node, away, 1)
        stack.enter_context(serving(away, OTHER))
        databases = {
            "postgres": stack.enter_context(postgres(away, 5432)),
            "redis": stack.enter_context(redis(away, 6379)),
        }
        yield Place(node, away, databases)


@pytest.fixture
def outage(tmp_path: Path) -> DatabaseOutage:
    return make(tmp_path)


def make(state_dir: Path, *brokers: str) -> DatabaseOutage:
    return DatabaseOutage(Env(node=NODE, boot_id=clock.boot_id(), state_dir=state_dir / "state", brokers=brokers))


def entry_of(payload: dict[str, Scalar], params: dict[str, Scalar], fault_id: str = "f-1") -> JournalEntry:
    return journalled(
        "database-outage", TARGET, params, payload, boot_id=clock.boot_id(), fault_id=fault_id, now=clock.now()
    )


def planned(of: DatabaseOutage, at: Host, **params: Scalar) -> JournalEntry:
    with at.inside():
        reason = of.check(TARGET, params)
        assert reason is None, reason
        return entry_of(of.plan(TARGET, params, "f-1"), params)


def injected(of: DatabaseOutage, at: Host, entry: JournalEntry) -> Evidence:
    with at.inside():
        of.inject(entry)
        return of.evidence(entry)


def undone(of: DatabaseOutage, at: Host, entry: JournalEntry) -> bool:
    with at.inside():
        of.undo(entry)
        of.undo(entry)
        return of.verify(entry)


def holders(entry: JournalEntry) -> list[tuple[int, int]]:
    return database_outage._holders(entry)


def client_says(mode: str, engine: str) -> Callable[[str], bool]:
    """Whether a client's own program said what it must in this mode."""
    full = "too many clients" if engine == "postgres" else "max number of clients"
    said = {"refused": "refused", "reset": "refused", "hanging": "silence", "exhausted": full}[mode]
    return lambda words: said in words


@pytest.mark.parametrize("engine", ["postgres", "redis"])
@pytest.mark.parametrize("mode", ["refused", "reset", "hanging", "exhausted"])
def test_a_database_fails_as_asked_and_answers_again(
    place: Place, outage: DatabaseOutage, tmp_path: Path, engine: str, mode: str
) -> None:
    database = place.databases[engine]
    before = place.node.rules()
    assert database.answers(place.node, AWAY)
    entry = planned(outage, place.node, engine=engine, address=f"{AWAY}:{database.port}", mode=mode)
    try:
        evidence = injected(outage, place.node, entry)
        assert evidence.moved, evidence
        assert evidence.detail["before"] == "answered"
        assert evidence.detail["now"] != "answered"
        met = database.ask(place.node, AWAY, 1.5)
        assert client_says(mode, engine)(met), met
        # Another service of the same host, and another database on it, are as they were.
        assert place.node.tcp(AWAY, OTHER) == "answered"
        other = next(found for name, found in place.databases.items() if name != engine)
        assert other.answers(place.node, AWAY)
        with place.node.inside():
            assert not outage.verify(entry)
    finally:
        assert undone(outage, place.node, entry)
    until(lambda: database.answers(place.node, AWAY))
    assert place.node.rules() == before
    assert holders(entry) == []
    assert list((tmp_path / "state").rglob("*")) == []


@pytest.mark.parametrize(("mode", "became"), [("refused", "answered"), ("reset", "reset"), ("hanging", "silence")])
def test_an_open_connection_goes_on_breaks_or_hangs_by_the_mode(
    place: Place, outage: DatabaseOutage, mode: str, became: str
) -> None:
    with place.node.connect(AWAY, 6379, 3) as standing:
        assert pinged(standing) == "answered"
        entry = planned(outage, place.node, engine="redis", address=f"{AWAY}:6379", mode=mode)
        try:
            assert injected(outage, place.node, entry).moved
            assert pinged(standing) == became
        finally:
            assert undone(outage, place.node, entry)


def test_a_client_of_another_host_is_not_touched_by_what_is_for_this_node(place: Place, outage: DatabaseOutage) -> None:
    entry = planned(outage, place.node, engine="redis", address=f"{AWAY}:6379", mode="hanging")
    try:
        assert injected(outage, place.node, entry).moved
        assert place.databases["redis"].answers(place.away, "127.0.0.1")
        assert place.databases["redis"].answers(place.away, AWAY)
    finally:
        assert undone(outage, place.node, entry)


def test_a_database_of_the_node_itself_is_cut_for_its_own_clients_or_for_everybody(
    place: Place, outage: DatabaseOutage
) -> None:
    with redis(place.node, 6390) as database:
        entry = planned(outage, place.node, engine="redis", address=f"{HERE}:6390", mode="refused")
        assert injected(outage, place.node, entry).moved
        assert "refused" in database.ask(place.node, HERE)
        assert database.answers(place.away, HERE)
        assert database.answers(place.node, "127.0.0.1")
        assert undone(outage, place.node, entry)
        entry = planned(outage, place.node, engine="redis", address=f"{HERE}:6390", mode="refused", scope="all")
        assert injected(outage, place.node, entry).moved
        assert "refused" in database.ask(place.node, HERE)
        assert "refused" in database.ask(place.away, HERE)
        assert undone(outage, place.node, entry)
        assert database.answers(place.away, HERE)


def test_an_address_of_ipv6_is_an_address(place: Place, outage: DatabaseOutage) -> None:
    entry = planned(outage, place.node, engine="postgres", address=f"[{AWAY6}]:5432", mode="refused")
    try:
        assert injected(outage, place.node, entry).moved
        assert "refused" in place.databases["postgres"].ask(place.node, AWAY6)
        assert place.databases["postgres"].answers(place.node, AWAY)
    finally:
        assert undone(outage, place.node, entry)


def test_a_place_that_becomes_free_is_taken_again(place: Place, outage: DatabaseOutage) -> None:
    database = place.databases["redis"]
    with place.node.connect(AWAY, 6379, 3) as admin:
        entry = planned(outage, place.node, engine="redis", address=f"{AWAY}:6379", mode="exhausted")
        try:
            assert injected(outage, place.node, entry).moved
            admin.sendall(b"CLIENT KILL TYPE normal\r\n")
            assert int(admin.recv(64)[1:]) >= database.limit - 2  # all but the one that asks for it
            until(lambda: "max number of clients" in database.ask(place.node, AWAY))
        finally:
            assert undone(outage, place.node, entry)
    until(lambda: database.answers(place.node, AWAY))


def test_a_server_that_turns_every_user_away_is_exhausted_all_the_same(place: Place, outage: DatabaseOutage) -> None:
    with postgres(place.away, 5440, turn_everybody_away=True) as database:
        assert "pg_hba.conf" in database.ask(place.node, AWAY)
        entry = planned(outage, place.node, engine="postgres", address=f"{AWAY}:5440", mode="exhausted")
        try:
            evidence = injected(outage, place.node, entry)
            assert evidence.moved, evidence
            assert "too many clients" in database.ask(place.node, AWAY)
        finally:
            assert undone(outage, place.node, entry)
        until(lambda: "pg_hba.conf" in database.ask(place.node, AWAY))


def test_a_server_with_more_connections_than_may_be_opened_is_not_exhausted(
    place: Place, outage: DatabaseOutage, tmp_path: Path
) -> None:
    params: dict[str, Scalar] = {"engine": "redis", "address": f"{AWAY}:6379", "mode": "exhausted", "connections": 3}
    entry = planned(outage, place.node, **params)
    with place.node.inside(), pytest.raises(InjectError, match="took all of 3"):
        outage.inject(entry)
    assert undone(outage, place.node, entry)
    assert place.databases["redis"].answers(place.node, AWAY)
    assert list((tmp_path / "state").rglob("*")) == []


@pytest.mark.parametrize("mode", ["hanging", "exhausted"])
def test_an_agent_killed_right_after_the_effect_is_undone_by_the_next_one_from_the_journal(
    place: Place, tmp_path: Path, mode: str
) -> None:
    before = place.node.rules()
    code = f"""
        import os, signal, sys
        from pathlib import Path
        sys.path[:0] = {sys.path!r}
        from test_inject_database_outage import *
        outage = make(Path({str(tmp_path)!r}))
        params = {{"engine": "redis", "address": "{AWAY}:6379", "mode": {mode!r}}}
        entry = entry_of(outage.plan(TARGET, params, "f-1"), params)
        Journal(Path({str(tmp_path / "journal")!r})).write(entry)
        outage.inject(entry)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    with place.node.inside():
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=60, check=False
        )
    assert done.returncode == -signal.SIGKILL, done.stderr
    (entry,), _ = Journal(tmp_path / "journal").read()
    fresh = make(tmp_path)
    try:
        assert not place.databases["redis"].answers(place.node, AWAY)
        with place.node.inside():
            assert not fresh.verify(entry)
    finally:
        assert undone(fresh, place.node, entry)
    until(lambda: place.databases["redis"].answers(place.node, AWAY))
    assert place.node.rules() == before
    assert holders(entry) == []


def test_a_holder_that_starts_after_the_undo_takes_nothing(place: Place, outage: DatabaseOutage) -> None:
    entry = planned(outage, place.node, engine="redis", address=f"{AWAY}:6379", mode="exhausted")
    assert undone(outage, place.node, entry)
    late = [sys.executable, "-m", database_outage._HOLDER, *database_outage._arguments(entry)]
    with place.node.inside():
        done = subprocess.run(late, capture_output=True, text=True, timeout=30, check=False)
    assert done.stdout == ""
    assert place.databases["redis"].answers(place.node, AWAY)


def test_a_holder_ends_by_itself_with_the_lease_and_stays_for_a_renewed_one(
    place: Place, outage: DatabaseOutage, tmp_path: Path
) -> None:
    entry = planned(outage, place.node, engine="redis", address=f"{AWAY}:6379", mode="exhausted")
    over = entry.model_copy(update={"lease_deadline": clock.now().boot - 2.0})
    (tmp_path / "permit").touch()
    arguments = database_outage._arguments(over)
    arguments[arguments.index("--permit") + 1] = str(tmp_path / "permit")
    Journal(tmp_path).write(entry)
    renewed = [*arguments]
    renewed[renewed.index("--entry") + 1] = str(tmp_path / f"{entry.fault_id}.json")
    with place.node.inside():
        done = subprocess.run([sys.executable, "-m", database_outage._HOLDER, *arguments], timeout=30, check=False)
        assert done.returncode == 0
        holder = subprocess.Popen([sys.executable, "-m", database_outage._HOLDER, *renewed], stdout=subprocess.PIPE)
        with holder:
            assert holder.stdout is not None
            assert holder.stdout.readline() == b"ready\n"
            Journal(tmp_path).write(over)
            assert holder.wait(30) == 0


def test_an_entry_of_another_boot_is_undone_and_never_injected(place: Place, outage: DatabaseOutage) -> None:
    for mode in ("refused", "exhausted"):
        entry = planned(outage, place.node, engine="redis", address=f"{AWAY}:6379", mode=mode)
        old = entry.model_copy(update={"boot_id": "of another boot"})
        with place.node.inside(), pytest.raises(InjectError, match="reboot"):
            outage.inject(old)
        assert undone(outage, place.node, old)


def test_what_cannot_be_an_outage_is_refused(place: Place, outage: DatabaseOutage, tmp_path: Path) -> None:
    def reason(of: DatabaseOutage = outage, target: str = TARGET, **params: Scalar) -> str:
        with place.node.inside():
            return of.check(target, {"engine": "redis", **params}) or ""

    reasons = {
        "another node": reason(target="node/n2", address=f"{AWAY}:6379"),
        "nobody there": reason(address=f"{AWAY}:6999"),
        "no such name": reason(address="cache.invalid:6379"),
        "no route": reason(address="203.0.113.7:6379"),
        "the agent's broker": reason(make(tmp_path, f"{AWAY}:6379"), address=f"{AWAY}:6379"),
    }
    assert [name for name, why in reasons.items() if not why] == []
    assert "does not answer even now: refused" in reasons["nobody there"]


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({}, "engine"),
        ({"engine": "mysql", "address": "db:3306"}, "'postgres' or 'redis'"),
        ({"engine": "redis", "address": "db"}, "not one database"),
        ({"engine": "redis", "address": "10.0.0.0/24:6379"}, "not one database"),
        ({"engine": "redis", "address": "db:6379-6380"}, "not one database"),
        ({"engine": "redis", "address": "db:6379", "mode": "slow"}, "'exhausted'"),
        ({"engine": "redis", "address": "db:6379", "connections": 0}, "greater than or equal to 1"),
    ],
)
def test_parameters_that_mean_nothing_are_named(params: dict[str, Scalar], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        DatabaseOutageParams.model_validate(params)


def test_the_commands_that_are_shown_name_what_is_done(place: Place, outage: DatabaseOutage) -> None:
    cut = outage.commands(planned(outage, place.node, engine="redis", address=f"{AWAY}:6379"))
    assert cut[0].startswith("nft -f -")
    assert cut[1] == f"nft delete table inet {nft.table_name('f-1')}"
    held = outage.commands(planned(outage, place.node, engine="redis", address=f"{AWAY}:6379", mode="exhausted"))
    assert "database_holder" in held[1]


@pytest.mark.parametrize(
    ("engine", "heard", "outcome", "said"),
    [
        ("redis", b"", None, ""),
        ("redis", b"+PON", None, "+PON"),
        ("redis", b"+PONG\r\n", Outcome.ANSWERED, "+PONG"),
        ("redis", b"-NOAUTH Authentication required.\r\n", Outcome.ANSWERED, "-NOAUTH Authentication required."),
        ("redis", b"-ERR max number of clients reached\r\n", Outcome.FULL, "-ERR max number of clients reached"),
        ("postgres", b"R\0\0\0\x08\0\0", None, "asks for a password"),
        ("postgres", b"R\0\0\0\x08\0\0\0\0", Outcome.ANSWERED, "lets in"),
        ("postgres", b"E\0\0\0\x12C53300\0Mfull\0\0", Outcome.FULL, "53300 full"),
        ("postgres", b"E\0\0\0\x12C57P03\0Mwait\0\0", Outcome.UNREACHABLE, "57P03 wait"),
        ("postgres", b"E\0\0\0\x12C28000\0Mnone\0\0", Outcome.ANSWERED, "28000 none"),
    ],
)
def test_a_servers_first_words_are_understood(engine: str, heard: bytes, outcome: Outcome | None, said: str) -> None:
    assert verdict(engine, heard) == outcome  # type: ignore[arg-type]
    if heard:
        assert words(engine, heard) == said  # type: ignore[arg-type]


def pinged(connection: socket.socket) -> str:
    connection.settimeout(0.4)
    try:
        connection.sendall(b"PING\r\n")
        return "answered" if connection.recv(64) == b"+PONG\r\n" else "closed"
    except ConnectionResetError:
        return "reset"
    except OSError:
        return "silence"
