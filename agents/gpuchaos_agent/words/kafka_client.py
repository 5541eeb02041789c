"""Clients of Kafka: librdkafka, the Java client, aiokafka. What is wrong with certificates is in `tls.py`.

An idle connection that the broker closes (`Disconnected`) is normal and says nothing.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.wordings import first, wording
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    "brokers are down",
    "Broker may not be available",
    "Bootstrap broker",
    "rdkafka#",
    "Unable to bootstrap from",
    "Unable connect to node",
    "NoBrokersAvailable",
)
WRITERS: Final = frozenset({Writer.PROGRAM})

_BROKER: Final = r"(?P<broker>[A-Za-z0-9_.-]{1,128}:\d{1,5})"
WORDINGS: Final = (
    wording(r"(?P<down>\d{1,4}/\d{1,4}) brokers are down", "broker_unreachable", action="check_broker"),
    wording(
        rf"(?:plaintext|ssl|sasl_ssl|sasl_plaintext)://{_BROKER}/\S{{1,40}}: "
        r"(?P<cause>Connect to [^\n]{1,80} failed: [A-Z][^\n(]{2,40}|Connection setup timed out|Failed to resolve)",
        "broker_unreachable",
        action="check_broker",
    ),
    wording(
        r"\|BROKERFAIL\||\|FAIL\|[^\n]{1,400}Local: SSL error", "broker_unreachable", Severity.WARNING, part=Part.DETAIL
    ),
    wording(
        r"Connection to node -?\d{1,10} \((?P<broker>[A-Za-z0-9_.-]{1,128})/[^)\s]{1,64}:(?P<port>\d{1,5})\) "
        r"could not be established",
        "broker_unreachable",
        action="check_broker",
        cause="not_established",
    ),
    wording(
        rf"Bootstrap broker {_BROKER} \(id: -?\d{{1,10}} rack: \w{{1,40}}\) disconnected",
        "broker_unreachable",
        action="check_broker",
        cause="disconnected",
    ),
    wording(
        r"Unable to bootstrap from|NoBrokersAvailable", "broker_unreachable", action="check_broker", cause="bootstrap"
    ),
    wording(r"Unable connect to node with id (?P<node>\d{1,10})", "broker_unreachable", action="check_broker"),
)


def read(record: LogRecord) -> Finding | None:
    """What a client says of its brokers."""
    finding = first(WORDINGS, record, family="kafka")
    if finding is None:
        return None
    evidence = finding.evidence
    if "port" in evidence:
        evidence["broker"] = f"{evidence['broker']}:{evidence.pop('port')}"
    return replace(finding, device=str(evidence.get("broker") or ""))


FAMILIES: Final = (Family("kafka", gap_s=60.0),)
