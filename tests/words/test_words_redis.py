# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import one, said


@pytest.mark.parametrize(
    ("text", "fault", "server"),
    [
        (
            "redis.exceptions.ConnectionError: Error 111 connecting to cache-2:6379. Connection refused.",
            "db_unreachable",
            "cache-2:6379",
        ),
        (
            "redis.exceptions.ConnectionError: Error -2 connecting to cache-2:6379. Name or service not known.",
            "db_unreachable",
            "cache-2:6379",
        ),
        ("Could not connect to Redis at 10.8.0.6:6379: Connection refused", "db_unreachable", "10.8.0.6:6379"),
        ("panic: dial tcp 10.8.0.6:6379: connect: connection refused", "db_unreachable", "10.8.0.6:6379"),
        ("redis.exceptions.ConnectionError: max number of clients reached", "db_connection_limit", ""),
        ("redis.exceptions.BusyLoadingError: LOADING Redis is loading the dataset in memory", "db_unreachable", ""),
        (
            "redis.exceptions.ResponseError: MISCONF Redis is configured to save RDB snapshots, but it's currently unable to persist to disk.",
            "db_write_refused",
            "",
        ),
        (
            "redis.exceptions.ReadOnlyError: READONLY You can't write against a read only replica.",
            "db_write_refused",
            "",
        ),
        (
            "redis.exceptions.OutOfMemoryError: OOM command not allowed when used memory > 'maxmemory'.",
            "db_write_refused",
            "",
        ),
        ("redis.exceptions.ClusterDownError: CLUSTERDOWN The cluster is down", "db_unreachable", ""),
    ],
)
def test_clients_are_read(text: str, fault: str, server: str) -> None:
    found = one(text)
    assert (found.fault, found.device) == (fault, server)


@pytest.mark.parametrize("text", ["connecting to cache-2:6379", "LOADING model weights", "READONLY mode is off"])
def test_ordinary_lines_say_nothing(text: str) -> None:
    assert said(text) == "none"
