"""The admin queue of EFA: three prefixes, one event; the network driver beside it is another."""

from __future__ import annotations

import pytest
from kernel_words_kit import events, fault, one, said

from gpuchaos_stream.events.base import Severity

WORDS = [
    "Wait for completion (polling) timeout",
    "The device didn't send any completion for admin cmd CREATE_QP(1) status 0 (ctx 0xffff9c, sq producer: 3)",
    "The device sent a completion but the driver didn't receive any MSI-X interrupt for admin cmd REG_MR(7)",
    "Admin queue is closed",
    "Reset indication didn't turn on",
    "Reset indication didn't turn off",
    "Device isn't ready, can't reset device",
    "Device isn't ready, abort com init",
]
PREFIXES = ["efa 0000:a0:1c.0: ", "efa 0000:a0:1c.0 rdmap160s28: ", "infiniband rdmap160s28: "]


@pytest.mark.parametrize("words", WORDS)
@pytest.mark.parametrize("prefix", PREFIXES)
def test_a_silent_admin_queue_is_a_hanging_firmware_behind_each_prefix(prefix: str, words: str) -> None:
    finding = fault(prefix + words)
    assert (finding.fault, finding.severity) == ("nic_fw_hang", Severity.CRITICAL)
    assert finding.device == ("rdmap160s28" if "rdmap" in prefix else "0000:a0:1c.0")
    assert finding.kind == ("port" if "rdmap" in prefix else "node")


def test_lines_before_and_after_registration_are_one_event_of_the_rdma_device() -> None:
    finding = one([prefix + words for prefix, words in zip(PREFIXES, WORDS[:3], strict=True)])
    assert (finding.device, finding.kind, finding.local) == ("rdmap160s28", "port", "rdmap160s28")
    assert finding.evidence["bdf"] == "0000:a0:1c.0"


def test_a_refused_command_is_a_warning() -> None:
    assert fault("infiniband efa_0: Failed to process command CREATE_CQ (opcode 12)").severity is Severity.WARNING


@pytest.mark.parametrize(
    "text",
    [
        "ena 0000:00:05.0: Wait for completion (polling) timeout",
        "ena 0000:00:05.0 eth0: Admin queue is closed",
        "efa 0000:a0:1c.0: enabling device (0000 -> 0002)",
        "infiniband mlx5_0: Admin queue is closed",
        "efa: Elastic Fabric Adapter (EFA) v2.8.0",
    ],
)
def test_another_driver_and_a_driver_that_loads_say_nothing_of_efa(text: str) -> None:
    assert said(text) is None
    assert events([text]) == []
