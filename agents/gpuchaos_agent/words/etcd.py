"""etcd as its clients and its own log tell it (3.3 to 3.6): no leader, time-outs, a full backend.

A request that took too long is a slow disk, a connection that a member rejected is mostly a probe: neither is told.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.wordings import first, wording
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("etcdserver: ", "database space exceeded", ":2379", "lost leader", "lost the TCP streaming connection")
WRITERS: Final = frozenset({Writer.PROGRAM})

WORDINGS: Final = (
    wording(
        r"(?:etcdserver: )?mvcc: database space exceeded|alarm:NOSPACE",
        "db_write_refused",
        action="check_database",
        cause="space_exceeded",
    ),
    wording(r"etcdserver: too many requests", "db_connection_limit", Severity.WARNING, "add_connections"),
    wording(
        r"etcdserver: leader changed", "db_unreachable", Severity.WARNING, "check_database", cause="leader_changed"
    ),
    wording(
        r"etcdserver: (?P<cause>no leader|request timed out(?:, [a-z ]{1,60})?|server stopped)",
        "db_unreachable",
        action="check_database",
    ),
    wording(r"lost leader \S{1,40} at term", "db_unreachable", action="check_database", cause="no leader"),
    wording(
        r"(?:dial tcp |https?://|\")(?P<server>[A-Za-z0-9_.\[\]:-]{1,128}:2379)\"?[^\n]{0,200}?"
        r"(?P<cause>connection refused|context deadline exceeded|no route to host|i/o timeout)",
        "db_unreachable",
        action="check_database",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """What a client or a member says."""
    finding = first(WORDINGS, record, family="etcd")
    return None if finding is None else replace(finding, device=str(finding.evidence.get("server") or ""))


FAMILIES: Final = (Family("etcd", gap_s=60.0),)
