"""Settings of Kafka: where they come from, and which combinations are refused with the way to mend them."""

from __future__ import annotations

import ssl
import subprocess
from pathlib import Path

import pytest

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options, environment, load, misspelt


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in KafkaSettings.model_fields:
        monkeypatch.delenv(f"KAFKA_{name.upper()}", raising=False)
    monkeypatch.chdir(tmp_path)  # `.env` is read from here


@pytest.fixture(scope="session")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("tls")
    cert, key = folder / "cert.pem", folder / "key.pem"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
            *("-days", "1", "-subj", "/CN=localhost", "-keyout", str(key), "-out", str(cert)),
        ],
        check=True,
        capture_output=True,
    )
    return cert, key


def test_command_line_beats_environment_beats_dotenv_beats_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "kafka.yaml"
    file.write_text("bootstrap_servers: file:1\nsession_timeout_s: 11\nheartbeat_interval_s: 1\n")
    assert load(file).servers == ("file:1",)
    (tmp_path / ".env").write_text("KAFKA_BOOTSTRAP_SERVERS=dotenv:2\nKAFKA_SESSION_TIMEOUT_S=12\n")
    assert load(file).servers == ("dotenv:2",)
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "env:3")
    assert load(file).servers == ("env:3",)
    settings = load(file, bootstrap_servers="line:4, line:5", sasl_username=None)
    assert settings.servers == ("line:4", "line:5")
    assert (settings.session_timeout_s, settings.heartbeat_interval_s) == (12, 1)


def test_without_anything_it_is_plain_text_on_loopback() -> None:
    options = aiokafka_options(load())
    assert options == {
        "bootstrap_servers": ["127.0.0.1:9092"],
        "security_protocol": "PLAINTEXT",
        "ssl_context": None,
    }


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"bootstrap_servers": "broker"}, "'broker' is not host:port"),
        ({"bootstrap_servers": "broker:99999"}, "'broker:99999' is not host:port"),
        ({"bootstrap_servers": " , "}, "no broker is named"),
        ({"security_protocol": "TLS"}, "security_protocol"),
        ({"security_protocol": "SASL_SSL"}, "needs sasl_username and sasl_password"),
        ({"sasl_username": "u", "sasl_password": "p"}, "PLAINTEXT never sends them"),
        ({"ca_file": "/nowhere.pem"}, "PLAINTEXT does not encrypt"),
        ({"security_protocol": "SSL", "ca_file": "/nowhere.pem"}, "ca_file '/nowhere.pem' is no file"),
        ({"security_protocol": "SSL", "cert_file": "/nowhere.pem"}, "cert_file and key_file go together"),
        ({"session_timeout_s": "3", "heartbeat_interval_s": "2"}, "at most half of session_timeout_s"),
    ],
)
def test_what_cannot_work_is_refused_with_the_reason(given: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        load(**given)


def test_a_wrong_value_in_the_environment_names_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_SESSION_TIMEOUT_S", "soon")
    with pytest.raises(UserError, match="KAFKA_SESSION_TIMEOUT_S"):
        load()


def test_an_unknown_field_in_the_file_is_named_with_line_and_nearest(tmp_path: Path) -> None:
    file = tmp_path / "kafka.yaml"
    file.write_text("security_protocol: PLAINTEXT\nbootstrap_server: b:1\n")
    with pytest.raises(UserError, match=r"kafka\.yaml:2: unknown field 'bootstrap_server'; did you mean 'boots"):
        load(file)


def test_mutual_tls_and_scram_become_a_checking_context_and_credentials(certificate: tuple[Path, Path]) -> None:
    cert, key = certificate
    settings = load(
        security_protocol="SASL_SSL",
        ca_file=cert,
        cert_file=cert,
        key_file=key,
        sasl_mechanism="SCRAM-SHA-512",
        sasl_username="u",
        sasl_password="secret",  # noqa: S106  (of this test)
    )
    options = aiokafka_options(settings)
    context = options["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert (options["sasl_mechanism"], options["sasl_plain_password"]) == ("SCRAM-SHA-512", "secret")
    assert "secret" not in repr(settings)


def test_faust_gets_the_same_credentials(certificate: tuple[Path, Path]) -> None:
    from faust.transport.drivers.aiokafka import credentials_to_aiokafka_auth

    from gpuchaos_stream.stream.app_factory import faust_credentials

    cert, _ = certificate
    for given in (
        {"security_protocol": "SSL", "ca_file": cert},
        {"security_protocol": "SASL_SSL", "ca_file": cert, "sasl_username": "u", "sasl_password": "p"},
        {"security_protocol": "SASL_PLAINTEXT", "sasl_username": "u", "sasl_password": "p"},
        {},
    ):
        settings = load(**given)
        ours, theirs = aiokafka_options(settings), credentials_to_aiokafka_auth(faust_credentials(settings))
        for name in ("security_protocol", "sasl_mechanism", "sasl_plain_username", "sasl_plain_password"):
            assert ours.get(name) == theirs.get(name)
        assert (ours["ssl_context"] is None) == (theirs.get("ssl_context") is None)


def test_a_file_that_is_no_certificate_is_named(tmp_path: Path) -> None:
    file = tmp_path / "ca.pem"
    file.write_text("hello")
    with pytest.raises(UserError, match=r"ca\.pem: no PEM certificate"):
        aiokafka_options(load(security_protocol="SSL", ca_file=file))


def test_a_childs_environment_leads_to_equal_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = load(
        bootstrap_servers="a:1,b:2",
        security_protocol="SASL_PLAINTEXT",
        sasl_username="u",
        sasl_password="p",  # noqa: S106  (of this test)
        session_timeout_s=7,
    )
    for name, value in environment(settings).items():
        monkeypatch.setenv(name, value)
    assert load().model_dump() == settings.model_dump()


def test_a_variable_that_is_nearly_one_of_ours_is_told_once_and_others_are_left_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Those of Kafka's own scripts, and what Kubernetes sets for a service of the name `kafka`.
    others = ("KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_LOG4J_OPTS", "KAFKA_SERVICE_HOST", "KAFKA_PORT_9092_TCP", "PATH")
    assert misspelt([*others, "KAFKA_CA_FILE"]) == []
    monkeypatch.setenv("KAFKA_SASL_MECHANIZM", "PLAIN")
    load()
    load()
    assert capsys.readouterr().err == "KAFKA_SASL_MECHANIZM is not read; did you mean KAFKA_SASL_MECHANISM?\n"
