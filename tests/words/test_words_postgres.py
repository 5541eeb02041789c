# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import one, said

AT = 'connection to server at "db-1" (10.8.0.5), port 6432 failed: '


@pytest.mark.parametrize(
    ("text", "fault", "server"),
    [
        (f"psycopg.OperationalError: {AT}FATAL:  sorry, too many clients already", "db_connection_limit", "db-1:6432"),
        (
            f"{AT}FATAL:  remaining connection slots are reserved for roles with the SUPERUSER attribute",
            "db_connection_limit",
            "db-1:6432",
        ),
        ("FATAL:  no more connections allowed (max_client_conn)", "db_connection_limit", ""),
        (f"{AT}Connection refused", "db_unreachable", "db-1:6432"),
        (f"{AT}timeout expired", "db_unreachable", "db-1:6432"),
        (f"{AT}FATAL:  the database system is starting up", "db_unreachable", "db-1:6432"),
        ("psycopg2.OperationalError: could not connect to server: Connection refused", "db_unreachable", ""),
        ('could not translate host name "db-9" to address: Name or service not known', "db_unreachable", "db-9"),
        ("psycopg2.OperationalError: server closed the connection unexpectedly", "db_unreachable", ""),
        ("FATAL:  terminating connection due to administrator command", "db_unreachable", ""),
        ("WARNING:  terminating connection because of crash of another server process", "db_unreachable", ""),
        (
            "org.postgresql.util.PSQLException: Connection to db-1:5432 refused. Check that the hostname and port are correct",
            "db_unreachable",
            "db-1:5432",
        ),
        ("asyncpg.exceptions.TooManyConnectionsError: sorry, too many clients already", "db_connection_limit", ""),
        (
            "psycopg2.errors.ReadOnlySqlTransaction: cannot execute INSERT in a read-only transaction",
            "db_write_refused",
            "",
        ),
        ('PANIC:  could not write to file "pg_wal/xlogtemp.77": No space left on device', "fs_full", ""),
    ],
)
def test_clients_and_server_are_read(text: str, fault: str, server: str) -> None:
    found = one(text)
    assert (found.fault, found.device) == (fault, server)


@pytest.mark.parametrize(
    "text",
    [
        'connection to server at "db-1" established',
        "too many cooks",
        "the database system is ready to accept connections",
    ],
)
def test_ordinary_lines_say_nothing(text: str) -> None:
    assert said(text) == "none"


def test_many_refused_connections_of_one_server_are_one_event() -> None:
    assert one(*([AT + "Connection refused"] * 50)).evidence["count"] == 50
