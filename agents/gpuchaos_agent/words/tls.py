"""Certificates that are refused: past their time, not yet valid (a clock that is off), or of an unknown issuer.

`expired or is not yet valid` (Go) is two things: `is after` means expired, `is before` means that a clock is wrong.
Formats: Go crypto/x509 and crypto/tls, OpenSSL 1.0 to 3.x (Python's ssl, libpq, curl, librdkafka, Node), Java PKIX.
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
    "certificate",
    "CERTIFICATE",
    "Certificate",
    "CERT_HAS_EXPIRED",
    "PKIX path",
    "alert unknown ca",
)
WRITERS: Final = frozenset({Writer.PROGRAM})

_STAMP: Final = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:Z|[+-]\d\d:?\d\d)"
WORDINGS: Final = (
    wording(
        rf"current time {_STAMP} is after (?P<not_after>{_STAMP})",
        "cert_expired",
        Severity.CRITICAL,
        "renew_certificate",
    ),
    wording(rf"current time {_STAMP} is before (?P<not_before>{_STAMP})", "clock_skew", action="check_clocks"),
    wording(
        r"(?:alert certificate expired|tls: expired certificate|SSLV3_ALERT_CERTIFICATE_EXPIRED|"
        r"Received fatal alert: certificate_expired)",
        "cert_expired",
        Severity.CRITICAL,
        "renew_certificate",
        side="client_cert",
    ),
    wording(
        r"CertificateExpiredException: NotAfter: (?P<not_after>[^\n]{10,40}?)(?=$|\n|\))",
        "cert_expired",
        Severity.CRITICAL,
        "renew_certificate",
    ),
    wording(r"CertificateNotYetValidException|[Cc]ertificate is not yet valid", "clock_skew", action="check_clocks"),
    wording(
        r"[Cc]ertificate has expired(?! or)|CERT_HAS_EXPIRED|CertificateExpiredException",
        "cert_expired",
        Severity.CRITICAL,
        "renew_certificate",
    ),
    wording(
        r"certificate has expired or is not yet valid",
        "cert_expired",
        action="check_clocks",
        cause="expired_or_not_yet_valid",
    ),
    wording(
        r"(?:alert unknown ca|tls: unknown certificate authority|alert bad certificate|tls: bad certificate)",
        "tls_ca_config",
        action="check_issuer",
        side="client_cert",
    ),
    wording(
        r"(?P<cause>self[- ]signed certificate|unable to get (?:local )?issuer certificate|"
        r"signed by unknown authority|unable to find valid certification path|PKIX path building failed|"
        r"broker certificate could not be verified|unable to verify the first certificate|"
        r"Hostname mismatch|certificate is valid for [^\n]{1,80}, not |doesn't contain any IP SANs)",
        "tls_ca_config",
        action="check_issuer",
    ),
    wording(r"(?P<cause>certificate verify failed|CERTIFICATE_VERIFY_FAILED)", "tls_ca_config", action="check_issuer"),
)

#: Whose certificate, where the text says it.
_CLIENT: Final = re.compile(r"verify client certificate|client certificate|client didn't provide")
#: Who was spoken to, the most exact first.
_PLACES: Final = (
    re.compile(r"(?:sasl_)?ssl://(?P<broker>[A-Za-z0-9_.-]{1,128}(?:\\)?:\d{1,5})"),
    re.compile(r"\"remote-addr\": ?\"(?P<peer>[0-9A-Fa-f.:\[\]]{2,60}?):\d{1,5}\""),
    re.compile(r"host='(?P<host>[^'\s]{1,128})', port=(?P<port>\d{1,5})"),
    re.compile(r"connection to server at \"(?P<host>[^\"\s]{1,128})\"[^\n]{0,60}?port (?P<port>\d{1,5})"),
    re.compile(r"dial tcp (?P<server>[A-Za-z0-9_.\[\]:-]{1,128}:\d{1,5})"),
    re.compile(r"https://(?P<server>[A-Za-z0-9_.-]{1,128}(?::\d{1,5})?)"),
)


def read(record: LogRecord) -> Finding | None:
    """What is wrong with a certificate, and whose it is."""
    finding = first(WORDINGS, record, family="tls")
    if finding is None:
        return None
    text = record.text[:LOOKED_AT]
    evidence = finding.evidence
    place = next((found for pattern in _PLACES if (found := pattern.search(text))), None)
    groups = place.groupdict() if place is not None else {}
    if "host" in groups:
        groups = {"server": f"{groups['host']}:{groups['port']}"}
    evidence |= {name: value.replace("\\", "") for name, value in groups.items() if value}
    if _CLIENT.search(text):
        evidence["side"] = "client_cert"
    elif groups and "peer" not in groups:
        evidence.setdefault("side", "server_cert")
    device = str(evidence.get("broker") or evidence.get("server") or evidence.get("peer") or "")
    return replace(finding, device=device)


FAMILIES: Final = (Family("tls", gap_s=60.0),)
