"""PostgreSQL as its clients (libpq, psycopg, asyncpg, JDBC), PgBouncer and its own log tell it.

A server that is out of connections is up: that is capacity, no outage. Formats: PostgreSQL 9.6 to 17, whose libpq
changed its words with 14 (`could not connect to server` became `connection to server at … failed`).
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.wordings import LOOKED_AT, first, wording
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    "connection to server at",
    "could not connect to server",
    "could not translate host name",
    "too many c",
    "connection slots are reserved",
    "no more connections allowed",
    "server closed the connection unexpectedly",
    "terminating connection",
    "the database system is",
    "PSQLException",
    "Is the server running on",
    "read-only transaction",
    'could not write to file "',
    'could not extend file "',
)
WRITERS: Final = frozenset({Writer.PROGRAM})

WORDINGS: Final = (
    wording(
        r"sorry, too many clients already|remaining connection slots are reserved|"
        r"too many connections for (?:role|database)|no more connections allowed",
        "db_connection_limit",
        action="add_connections",
    ),
    wording(
        r"could not (?:write to|extend) file \"(?P<path>[^\"\n]{1,200})\"[^\n]{0,60}: No space left on device",
        "fs_full",
        Severity.CRITICAL,
        "free_space",
        cause="disk_full",
    ),
    wording(r"cannot execute [A-Z ]{3,40} in a read-only transaction", "db_write_refused", action="check_database"),
    wording(
        r"the database system is (?P<cause>starting up|shutting down|in recovery mode|not yet accepting connections)",
        "db_unreachable",
        Severity.WARNING,
        "check_database",
    ),
    wording(
        r"terminating connection because of crash of another server process",
        "db_unreachable",
        action="check_database",
        cause="crashed",
    ),
    wording(
        r"terminating connection due to (?P<cause>administrator command|unexpected postmaster exit|"
        r"conflict with recovery|idle[a-z-]{0,20} timeout)",
        "db_unreachable",
        Severity.WARNING,
        "check_database",
    ),
    wording(
        r"could not translate host name \"(?P<host>[^\"\n]{1,128})\" to address",
        "db_unreachable",
        action="check_database",
        cause="name_not_resolved",
    ),
    wording(r"server closed the connection unexpectedly", "db_unreachable", action="check_database", cause="closed"),
    wording(
        r"(?:connection to server (?:at|on) |could not connect to server|PSQLException: Connection to |"
        r"Is the server running on )[^\n]{0,200}?"
        r"(?P<cause>Connection refused|refused|No route to host|Network is unreachable|[Tt]imeout expired|"
        r"Connection timed out|Connection reset by peer|No such file or directory)",
        "db_unreachable",
        action="check_database",
    ),
    wording(
        r"PSQLException: (?P<cause>The connection attempt failed|Connection attempt timed out)",
        "db_unreachable",
        action="check_database",
    ),
)

_SERVER: Final = (
    re.compile(r"connection to server at \"(?P<host>[^\"\n]{1,128})\"[^\n]{0,60}?port (?P<port>\d{1,5})"),
    re.compile(r"running on host \"(?P<host>[^\"\n]{1,128})\"[^\n]{0,100}?port (?P<port>\d{1,5})"),
    re.compile(r"Connection to (?P<host>[A-Za-z0-9_.-]{1,128}):(?P<port>\d{1,5}) refused"),
)


def read(record: LogRecord) -> Finding | None:
    """What a client or the server says."""
    finding = first(WORDINGS, record, family="postgres")
    if finding is None:
        return None
    text = record.text[:LOOKED_AT]
    place = next((found for pattern in _SERVER if (found := pattern.search(text))), None)
    if place is not None:
        finding.evidence["server"] = f"{place['host']}:{place['port']}"
    elif "host" in finding.evidence:
        finding.evidence["server"] = finding.evidence.pop("host")
    return replace(finding, device=str(finding.evidence.get("server") or ""))


FAMILIES: Final = (Family("postgres", gap_s=60.0),)
