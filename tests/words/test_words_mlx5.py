"""Adapters of the mlx5 driver: what is a fault of theirs, in old and new wording, and what is a monitor's noise."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, events, fault, one, said, without_example

from gpuchaos_agent.words import mlx5
from gpuchaos_stream.events.base import Severity

AT = "mlx5_core 0000:c1:00.1: "
FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    (
        AT + "wait_func:1021:(pid 4242): QUERY_COUNTERS(0x773) timeout. Will cause a leak of a command resource",
        "nic_fw_cmd_timeout",
        {"device": "0000:c1:00.1", "bdf": "0000:c1:00.1", "op": "QUERY_COUNTERS", "action": "replace_nic"},
    ),
    (
        AT + "cb_timeout_handler:887:(pid 7): cmd[3]: CREATE_MKEY(0x200) Async, timeout. "
        "Will cause a leak of a command resource",
        "nic_fw_cmd_timeout",
        {"op": "CREATE_MKEY", "severity": Severity.CRITICAL},
    ),
    (
        AT + "2RST_QP(0x50a) No done completion timeout. Will cause a leak of a command resource",
        "nic_fw_cmd_timeout",
        {"op": "2RST_QP"},
    ),
    (AT + "poll_health:823:(pid 0): device's health compromised - reached miss count", "nic_fw_hang", {}),
    (AT + "device's health compromised", "nic_fw_hang", {"severity": Severity.CRITICAL}),
    (AT + "poll_health:834:(pid 0): Fatal error 3 detected", "nic_fatal", {"cause": "3"}),
    (
        AT
        + "print_health_info:431:(pid 0): Health issue observed, unrecoverable hardware error, severity(2) CRITICAL:",
        "nic_fatal",
        {"cause": "unrecoverable hardware error", "severity": Severity.CRITICAL},
    ),
    (
        AT + "print_health_info:431:(pid 0): Health issue observed, FFSER error, severity(4) WARNING:",
        "nic_fatal",
        {"severity": Severity.WARNING},
    ),
    (
        AT + "print_health_info:431:(pid 0): Health issue observed, High temperature, severity(3) ERROR:",
        "nic_high_temp",
        {"severity": Severity.ERROR},
    ),
    (AT + "print_health_info:355:(pid 0): synd 0x1: firmware internal error", "nic_fatal", {}),
    (AT + "print_health_info:355:(pid 0): synd 0x10: High temperature", "nic_high_temp", {}),
    (
        AT + "health_recover_work:511:(pid 9): health recovery flow aborted, PCI reads still not working",
        "nic_fatal",
        {},
    ),
    (AT + "temp_warn:168:(pid 0): High temperature on sensors with bit set 0x0 0x1", "nic_high_temp", {}),
    (
        AT + "Port module event[error]: module 1, Cable error, High Temperature",
        "nic_module_high_temp",
        {"port": 1, "severity": Severity.WARNING},
    ),
    (
        AT + "port_module:266:(pid 0): Port module event[error]: module 0, Cable error, Power budget exceeded",
        "nic_module_error",
        {"cause": "Power budget exceeded", "port": 0},
    ),
    (
        AT + "mlx5_pcie_event:305:(pid 812): Detected insufficient power on the PCIe slot (25W).",
        "nic_pcie_power",
        {"watts": 25, "severity": Severity.WARNING},
    ),
]
QUIET = [
    AT + "mlx5_cmd_out_err:829:(pid 77): ACCESS_REG(0x805) op_mod(0x0) failed, status bad parameter(0x3), err(-22)",
    AT + "mlx5_cmd_out_err:829:(pid 77): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), err(-22)",
    AT + "cb_timeout_handler:880:(pid 7): cmd[3]: CREATE_MKEY(0x200) Async, recovered after timeout",
    AT + "firmware version: 28.40.1000",
    AT + "Port module event: module 0, Cable plugged",
    AT + "PCIe slot advertised sufficient power (75W).",
    AT + "PCIe slot power capability was not advertised.",
    AT + "print_health_info:355:(pid 0): synd 0x0: unrecognized error",
    AT + "E-Switch: Total vports 2, per vport: max uc(128) max mc(2048)",
    "mlx4_core 0000:c1:00.1: device's health compromised",
    "exporter: " + AT + "device's health compromised",
]


@pytest.mark.parametrize(("text", "name", "wanted"), FAULTS)
def test_an_adapters_fault_is_named_with_its_address(text: str, name: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert finding.fault == name
    agrees(finding, {"device": "0000:c1:00.1", **wanted})


@pytest.mark.parametrize("text", QUIET)
def test_noise_of_the_driver_and_of_its_monitors_says_nothing(text: str) -> None:
    assert said(text) is None


def test_every_wording_of_the_driver_has_an_example() -> None:
    recovered = AT + "mlx5_health_try_recover:340:(pid 9): health recovery succeeded"
    assert without_example(mlx5.RULES, [*(text for text, *_ in FAULTS), recovered]) == []


def test_a_dying_firmware_is_one_event_with_its_reason() -> None:
    finding = one(
        [
            (10.0, AT + "poll_health:823:(pid 0): device's health compromised - reached miss count"),
            (
                10.0,
                AT + "print_health_info:431:(pid 0): Health issue observed, irisc not responding, severity(3) ERROR:",
            ),
            (70.0, AT + "health_recover_work:511:(pid 9): health recovery flow aborted, PCI reads still not working"),
        ]
    )
    assert (finding.fault, finding.severity) == ("nic_fw_hang", Severity.CRITICAL)


def test_two_adapters_are_two_events() -> None:
    texts = [f"mlx5_core 0000:{bus}:00.0: device's health compromised" for bus in ("1a", "3b")]
    assert [event.finding.device for event in events(texts)] == ["0000:1a:00.0", "0000:3b:00.0"]
