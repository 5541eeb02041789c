"""Redis and Valkey as their clients tell it: redis-py, go-redis, Lettuce, redis-cli; error replies of 4 to 8."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.wordings import LOOKED_AT, first, wording
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    "max number of clients reached",
    "MISCONF ",
    "LOADING ",
    "CLUSTERDOWN",
    "MASTERDOWN",
    "READONLY ",
    "OOM command not allowed",
    "NOREPLICAS",
    "connecting to ",
    "connect to Redis",
    ":6379",
    "Connection closed by server",
)
WRITERS: Final = frozenset({Writer.PROGRAM})

WORDINGS: Final = (
    wording(r"max number of clients reached", "db_connection_limit", action="add_connections"),
    wording(r"MISCONF (?:Redis|Valkey|Errors)\b", "db_write_refused", action="free_space", cause="snapshot_failed"),
    wording(
        r"OOM command not allowed when used memory", "db_write_refused", action="check_database", cause="maxmemory"
    ),
    wording(r"READONLY You can't write against", "db_write_refused", action="check_database", cause="replica"),
    wording(r"NOREPLICAS Not enough good replicas", "db_write_refused", action="check_database", cause="replicas"),
    wording(
        r"LOADING (?:Redis|Valkey) is loading the dataset",
        "db_unreachable",
        Severity.WARNING,
        "check_database",
        cause="loading",
    ),
    wording(r"(?:CLUSTERDOWN|MASTERDOWN) ", "db_unreachable", action="check_database", cause="cluster_down"),
    wording(
        r"Error (?P<errno>-?\d{1,4}) connecting to (?P<server>[^\s]{1,128}:\d{1,5})\. ?(?P<cause>[A-Z][^.\n]{2,60})",
        "db_unreachable",
        action="check_database",
    ),
    wording(
        r"(?:connect to Redis at |RedisConnectionException: Unable to connect to )(?P<server>\S{1,128}:\d{1,5})"
        r"(?:: (?P<cause>[A-Z][^\n]{2,60}))?",
        "db_unreachable",
        action="check_database",
    ),
    wording(
        r"dial tcp (?P<server>[A-Za-z0-9_.\[\]:-]{1,128}:6379): [^\n]{0,40}?"
        r"(?P<cause>connection refused|i/o timeout|no route to host)",
        "db_unreachable",
        action="check_database",
    ),
    wording(
        r"redis\.exceptions\.(?:ConnectionError|TimeoutError): (?P<cause>Connection closed by server|"
        r"Timeout (?:connecting to|reading from)[^\n]{0,80})",
        "db_unreachable",
        action="check_database",
    ),
)
_TIMEOUT_OF: Final = re.compile(r"reading from (?P<server>[^\s]{1,128}:\d{1,5})")


def read(record: LogRecord) -> Finding | None:
    """What a client says of its server."""
    finding = first(WORDINGS, record, family="redis")
    if finding is None:
        return None
    place = _TIMEOUT_OF.search(record.text[:LOOKED_AT])
    if place is not None:
        finding.evidence.setdefault("server", place["server"])
    return replace(finding, device=str(finding.evidence.get("server") or ""))


FAMILIES: Final = (Family("redis", gap_s=60.0),)
