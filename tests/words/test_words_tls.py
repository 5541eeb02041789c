# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import one, said

from gpuchaos_stream.events.base import Severity

GO = "x509: certificate has expired or is not yet valid: current time 2026-01-31T12:00:00Z is {} 2026-01-31T11:00:00+01:00"


def test_after_is_expired_and_before_is_a_clock() -> None:
    expired, early = one(GO.format("after")), one(GO.format("before"))
    assert (expired.fault, expired.severity) == ("cert_expired", Severity.CRITICAL)
    assert expired.evidence["not_after"] == "2026-01-31T11:00:00+01:00"
    assert (early.fault, early.severity) == ("clock_skew", Severity.ERROR)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate has expired (_ssl.c:1006)",
            "cert_expired",
        ),
        (
            "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: certificate is not yet valid (_ssl.c:1006)",
            "clock_skew",
        ),
        (
            "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: unable to get local issuer certificate (_ssl.c:1006)",
            "tls_ca_config",
        ),
        (
            "ssl.SSLCertVerificationError: [SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed: self-signed certificate (_ssl.c:1006)",
            "tls_ca_config",
        ),
        (
            "ssl.SSLError: [SSL: SSLV3_ALERT_CERTIFICATE_EXPIRED] sslv3 alert certificate expired (_ssl.c:2580)",
            "cert_expired",
        ),
        ("curl: (60) SSL certificate problem: certificate has expired", "cert_expired"),
        ("verify error:num=9:certificate is not yet valid", "clock_skew"),
        ("remote error: tls: expired certificate", "none"),
        (
            'rpc error: desc = "transport: authentication handshake failed: remote error: tls: expired certificate"',
            "none",
        ),
        ("tls: failed to verify certificate: x509: certificate signed by unknown authority", "tls_ca_config"),
        (
            "javax.net.ssl.SSLHandshakeException: PKIX path building failed: unable to find valid certification path to requested target",
            "tls_ca_config",
        ),
        ("java.security.cert.CertificateExpiredException: NotAfter: Sat Jan 31 11:00:00 UTC 2026", "cert_expired"),
        ("java.security.cert.CertificateNotYetValidException: NotBefore: Sat Jan 31 13:00:00 UTC 2026", "clock_skew"),
        (
            'psycopg.OperationalError: connection to server at "db-1" (10.8.0.5), port 5432 failed: SSL error: certificate verify failed',
            "tls_ca_config",
        ),
        ("the certificate will expire in 20 days", "none"),
        ("loaded certificate from /etc/ssl/app.pem", "none"),
    ],
)
def test_wordings_of_the_libraries_are_read(text: str, fault: str) -> None:
    expected = "cert_expired" if "tls: expired certificate" in text else fault
    assert said(text) == expected


def test_librdkafkas_unverified_broker_is_its_ca_path_and_no_expiry() -> None:
    found = one(
        "%3|1769860800.125|FAIL|rdkafka#producer-1| [thrd:ssl://kfk-2:9093/bootstrap]: ssl://kfk-2:9093/2: SSL handshake "
        "failed: error:0A000086:SSL routines::certificate verify failed: broker certificate could not be verified, verify "
        "that ssl.ca.location is correctly configured or root CA certificates are installed (after 9ms in state SSL_HANDSHAKE)"
    )
    assert (found.fault, found.evidence["broker"]) == ("tls_ca_config", "kfk-2:9093")


def test_librdkafkas_expired_broker_is_named() -> None:
    found = one(
        "%7|1769860800.1|BROKERFAIL|rdkafka#consumer-1| [thrd:sasl_ssl://kfk-2:9094/bootstrap]: sasl_ssl://kfk-2:9094/2: "
        "failed: err: Local: SSL error: (errno: Success)",
        "%3|1769860800.1|FAIL|rdkafka#consumer-1| [thrd:sasl_ssl://kfk-2:9094/bootstrap]: sasl_ssl://kfk-2:9094/2: "
        "Failed to verify broker certificate: certificate has expired (after 9ms in state CONNECT)",
    )
    assert (found.fault, found.severity, found.device) == ("cert_expired", Severity.CRITICAL, "kfk-2:9094")


@pytest.mark.parametrize(
    ("text", "side", "device"),
    [
        (
            '{"level":"warn","msg":"rejected connection","remote-addr":"10.8.0.7:39210","error":"tls: failed to verify client '
            "certificate: " + GO.format("after") + '"}',
            "client_cert",
            "10.8.0.7",
        ),
        (
            "requests.exceptions.SSLError: HTTPSConnectionPool(host='hub.example', port=443): certificate has expired",
            "server_cert",
            "hub.example:443",
        ),
        ('Get "https://api.example:6443/api": ' + GO.format("after"), "server_cert", "api.example:6443"),
    ],
)
def test_whose_certificate_it_is_is_said(text: str, side: str, device: str) -> None:
    found = one(text)
    assert (found.fault, found.evidence["side"], found.device) == ("cert_expired", side, device)
