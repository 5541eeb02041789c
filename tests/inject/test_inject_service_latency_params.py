"""What `service-latency` may be asked for, and what it comes to."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from gpuchaos_agent.inject.proxy import Pace
from gpuchaos_agent.inject.service_latency_params import ServiceLatencyParams, bytes_per_s, seconds


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({}, "name a delay"),
        ({"delay": "100"}, "a time like"),
        ({"delay": "2m"}, "a time like"),
        ({"delay": "61s"}, "a time like"),
        ({"delay": "10ms", "jitter": "20ms"}, "jitter is at most"),
        ({"bandwidth": "10"}, "a rate like"),
        ({"loss_percent": 101}, "loss_percent"),
        ({"loss_percent": 1, "method": "proxy"}, "needs netem"),
        ({"loss_percent": 1, "direction": "both"}, "needs netem"),
        ({"delay": "10ms", "protocol": "udp", "method": "proxy"}, "needs netem"),
        ({"delay": "10ms", "direction": "in", "method": "netem"}, "needs the proxy"),
        ({"delay": "10ms", "service": "db.local"}, "host:port"),
        ({"delay": "10ms", "service": "10.0.0.0/8:53"}, "service"),
    ],
)
def test_parameters_that_mean_nothing_are_named(params: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        ServiceLatencyParams.model_validate({"service": "10.0.0.7:53", **params})


def test_times_and_rates_are_read_in_their_units() -> None:
    assert (seconds("250us"), seconds("100ms"), seconds("1.5s"), seconds(None)) == (0.00025, 0.1, 1.5, 0.0)
    assert (bytes_per_s("8kbit"), bytes_per_s("10mbit"), bytes_per_s(None)) == (1000, 1.25e6, None)


def test_a_pace_is_shared_and_saves_up_next_to_nothing() -> None:
    pace = Pace(1000.0)
    assert pace.take(500, 10.0) == pytest.approx(10.45)
    assert pace.take(500, 10.1) == pytest.approx(10.95)
    assert pace.take(100, 20.0) == pytest.approx(20.05)
    assert Pace(None).take(10**9, 5.0) == 5.0
