# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import one, said


@pytest.mark.parametrize(
    ("text", "broker"),
    [
        (
            "%3|1769860800.1|FAIL|rdkafka#producer-1| [thrd:kfk-2:9092/2]: kfk-2:9092/2: x plaintext://kfk-2:9092/2: Connect to ipv4#10.8.0.2:9092 failed: Connection refused (after 0ms in state CONNECT)",
            "kfk-2:9092",
        ),
        ("%3|1769860800.1|ERROR|rdkafka#producer-1| [thrd:kfk-2:9092/2]: 3/3 brokers are down", ""),
        (
            "[Producer clientId=p] Connection to node -1 (kfk-2/10.8.0.2:9092) could not be established. Broker may not be available.",
            "kfk-2:9092",
        ),
        ("[Consumer clientId=c] Bootstrap broker kfk-2:9092 (id: -1 rack: null) disconnected", "kfk-2:9092"),
        ("aiokafka.errors.KafkaConnectionError: KafkaConnectionError: Unable to bootstrap from [('kfk-2', 9092)]", ""),
        ("ConnectionRefusedError: [Errno 111] Connect call failed ('10.8.0.2', 9092)", "10.8.0.2:9092"),
    ],
)
def test_clients_are_read(text: str, broker: str) -> None:
    found = one(text)
    assert (found.fault, found.device) == ("broker_unreachable", broker)


def test_a_connection_that_idled_out_says_nothing() -> None:
    assert (
        said(
            "%6|1769860800.1|FAIL|rdkafka#producer-1| [thrd:kfk-2:9092/2]: kfk-2:9092/2: Disconnected (after 600000ms in state UP)"
        )
        == "none"
    )


@pytest.mark.parametrize(
    ("port", "fault"),
    [
        (5432, "db_unreachable"),
        (6379, "db_unreachable"),
        (2379, "db_unreachable"),
        (9092, "broker_unreachable"),
        (8000, "none"),
    ],
)
def test_a_bare_refusal_is_told_by_a_well_known_port_alone(port: int, fault: str) -> None:
    assert said(f"ConnectionRefusedError: [Errno 111] Connect call failed ('127.0.0.1', {port})") == fault
