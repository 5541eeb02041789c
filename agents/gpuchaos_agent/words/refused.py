"""Python's bare `ConnectionRefusedError` and its like: who it was can be told from a well-known port alone."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.wordings import LOOKED_AT, made, meaning

HINTS: Final = ("Connect call failed",)
WRITERS: Final = frozenset({Writer.PROGRAM})

_CALL: Final = re.compile(
    r"(?:\[Errno (?P<errno>\d{1,3})\] )?Connect call failed \('(?P<host>[^'\s]{1,128})', (?P<port>\d{1,5})"
)
#: Ports of the services' own documentation.
_DATABASES: Final = {3306: "mysql", 5432: "postgres", 6379: "redis", 2379: "etcd", 27017: "mongodb"}
_BROKERS: Final = frozenset({9092, 9093, 9094})


def read(record: LogRecord) -> Finding | None:
    """A database or a broker that does not answer at its port; nothing of other ports."""
    match = _CALL.search(record.text[:LOOKED_AT])
    if match is None:
        return None
    port, server = int(match["port"]), f"{match['host']}:{match['port']}"
    groups = {"errno": match["errno"], "cause": "connect_failed"}
    if port in _DATABASES:
        row = meaning("db_unreachable", action="check_database")
        finding = made(row, {**groups, "server": server}, record, family=_DATABASES[port])
    elif port in _BROKERS:
        row = meaning("broker_unreachable", action="check_broker")
        finding = made(row, {**groups, "broker": server}, record, family="kafka")
    else:
        return None
    return replace(finding, device=server)


FAMILIES: Final[tuple[Family, ...]] = ()
