"""The agent's devices under OpenTelemetry's hardware conventions, as a real collector gets them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from observe_otlp import Receiver, receiving, run
from opentelemetry.semconv._incubating.metrics import hw_metrics

from gpuchaos_agent.hardware import ROWS
from gpuchaos_stream.events.metrics import METRICS

TICKS = """
from gpuchaos_agent.collect.base import Places
from gpuchaos_agent.hardware import Hardware
from gpuchaos_agent.snapshot import Taken
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout
from gpuchaos_stream.events.node import GpuPlace
from gpuchaos_stream.observe import otlp

cards = GroupLayout(
    kind="gpu",
    ids=("0", "1"),
    metrics=("utilization_ratio", "memory_used_bytes", "memory_total_bytes", "temperature_celsius", "power_watts",
             "ecc_corrected_rate", "remapped_rows_pending", "remapped_rows_failed", "throttle_hw_ratio"),
    labels={"job": ("llama", "")},
)
ports = GroupLayout(kind="rdma", ids=("mlx5_0",), metrics=("port_active", "rate_bits", "rx_bytes_rate"))
places = Places(gpus=(GpuPlace(index="0", uuid="GPU-a"), GpuPlace(index="1")))

def tick(at, power, errors):
    states = ((0.0, 1.0), (0.0, 0.0), (0.0, 0.0))
    of_cards = ((0.5, None), (2e9, 1e9), (8e9, 8e9), (60.0, 61.0), (power, None), (errors, 0.0), *states)
    of_ports = ((1.0,), (4e11,), (1000.0,))
    layout = FrameLayout(groups=(cards, ports))
    return Taken(time=at, layout=layout, values=(of_cards, of_ports), places=places)

hardware = Hardware("n1")
hardware.feed(tick(0.0, 1.0, 1.0))  # nobody asks yet: nothing is held
otlp.configure_metrics("gpuchaos-test", "n1", hardware.add)
hardware.feed(tick(100.0, 300.0, 9.0))  # no time has passed since the first
hardware.feed(tick(101.0, 300.0, 0.0))
hardware.feed(tick(103.0, 200.0, 2.0))
hardware.feed(tick(203.0, 700.0, 9.0))  # a gap: nothing is known of it
"""


Points = dict[str, list[tuple[dict[str, Any], float]]]


@pytest.fixture(scope="module")
def points() -> Points:
    with receiving() as receiver:
        run(TICKS, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, OTEL_TRACES_EXPORTER="none")
        assert receiver.paths == ["/v1/metrics"]
        return receiver.points()


def test_devices_are_exported_under_the_names_and_attributes_of_the_conventions(points: Points) -> None:
    card = {"hw.id": "GPU-a", "hw.name": "GPU 0", "hw.type": "gpu", "gpuchaos.job": "llama", "gpuchaos.node": "n1"}
    other = {"hw.id": "n1/gpu/1", "hw.name": "GPU 1", "hw.type": "gpu", "gpuchaos.node": "n1"}
    assert points["hw.gpu.utilization"] == [({**card, "hw.gpu.task": "general"}, 0.5)], "what was not read is no point"
    assert points["hw.gpu.memory.usage"] == [(card, 2e9), (other, 1e9)]
    assert points["hw.gpu.memory.utilization"] == [(card, 0.25), (other, 0.125)]
    assert points["hw.power"] == [(card, 700.0)]
    ((sensor, celsius), _) = points["hw.temperature"]
    assert (sensor["hw.id"], sensor["hw.parent"], sensor["hw.type"], celsius) == (
        "GPU-a/gpu",
        "GPU-a",
        "temperature",
        60,
    )
    port = {"hw.id": "n1/rdma/mlx5_0", "hw.name": "mlx5_0", "hw.type": "network", "gpuchaos.node": "n1"}
    assert points["hw.network.up"] == [(port, 1.0)]
    assert points["hw.network.bandwidth.limit"] == [(port, 5e10)]


def test_a_rate_is_counted_frame_by_frame_and_nothing_is_made_up_for_a_gap(points: Points) -> None:
    ((_, joules),) = points["hw.energy"]
    assert joules == 300.0 + 2 * 200.0
    errors = {(each["hw.id"], each["error.type"]): value for each, value in points["hw.errors"]}
    assert errors == {("GPU-a", "corrected"): 4.0, ("n1/gpu/1", "corrected"): 0.0}
    ((io, received),) = points["hw.network.io"]
    assert (io["network.io.direction"], received) == ("receive", 3000.0)


def test_a_card_that_will_fail_is_in_that_state_and_in_no_other(points: Points) -> None:
    states = {(each["hw.id"], each["hw.state"]): value for each, value in points["hw.status"]}
    assert {name for name, value in states.items() if value} == {("GPU-a", "ok"), ("n1/gpu/1", "predicted_failure")}


def test_every_name_instrument_and_unit_is_one_of_the_conventions() -> None:
    for row in ROWS:
        constant = row.name.upper().replace(".", "_")
        assert getattr(hw_metrics, constant) == row.name
        lines = [line for line in _said(constant) if line.startswith(("Instrument:", "Unit:"))]
        assert lines == [f"Instrument: {row.instrument}", f"Unit: {row.unit}"]


def test_every_number_comes_from_a_metric_of_the_frame() -> None:
    for row in ROWS:
        assert all((row.kind, name) in METRICS for name in row.source.replace(" / ", ", ").split(", "))


def test_nothing_is_held_or_exported_by_an_agent_that_was_not_told_to(receiver: Receiver) -> None:
    run(TICKS + "assert hardware._taken is None\n", OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=receiver.url)
    assert receiver.paths == []


def _said(constant: str) -> list[str]:
    text = Path(hw_metrics.__file__).read_text()
    return text.split(f'{constant}: Final = "', 1)[1].split('"""')[1].splitlines()
