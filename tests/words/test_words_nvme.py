"""NVMe controllers: a time-out that was polled away, one that costs a reset, and one that is the end."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, events, fault, one, said, without_example

from gpuchaos_agent.words import nvme
from gpuchaos_stream.events.base import Severity

FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    ("nvme nvme4: I/O 77 QID 9 timeout, completion polled", "nvme_timeout", {"severity": Severity.WARNING}),
    ("nvme nvme4: I/O 77 (I/O Cmd) QID 9 timeout, aborting", "nvme_timeout", {"severity": Severity.WARNING}),
    ("nvme nvme4: I/O 77 QID 9 timeout, reset controller", "nvme_timeout", {"cause": "reset controller"}),
    (
        "nvme nvme4: I/O tag 12 (300c) opcode 0x1 (I/O Cmd) QID 9 timeout, aborting req_op:WRITE(1) size:4096",
        "nvme_timeout",
        {"severity": Severity.WARNING, "queue": "9"},
    ),
    (
        "nvme nvme4: I/O tag 3 (0003) opcode 0x6 (Admin Cmd) QID 0 timeout, reset controller",
        "nvme_timeout",
        {"severity": Severity.ERROR},
    ),
    (
        "nvme nvme4: I/O tag 3 (0003) type 4 opcode 0x2 (Read) QID 2 timeout",
        "nvme_timeout",
        {"severity": Severity.ERROR},
    ),
    ("nvme nvme4: Device not ready; aborting reset, CSTS=0x1", "nvme_timeout", {"severity": Severity.ERROR}),
    (
        "nvme nvme4: controller is down; will reset: CSTS=0xffffffff, PCI_STATUS=0x10",
        "nvme_timeout",
        {"severity": Severity.ERROR},
    ),
    ("nvme nvme4: frozen state error detected, reset controller", "nvme_timeout", {}),
    ("nvme nvme4: Removing after probe failure status: -19", "nvme_lost", {"errno": 19, "severity": Severity.CRITICAL}),
    ("nvme nvme4: Disabling device after reset failure: -5", "nvme_lost", {"errno": 5, "action": "replace_disk"}),
    ("nvme nvme4: starting error recovery", "nvme_path_failure", {"severity": Severity.ERROR}),
]
PATHS = [
    ("block nvme2n1: no available path - failing I/O", Severity.CRITICAL),
    ("block nvme2n1: no usable path - requeuing I/O", Severity.WARNING),
    ("block nvme2n1: no path available - requeuing I/O", Severity.WARNING),
]
REST = [
    "nvme4n1: detected capacity change from 7501476528 to 0",
    "nvme nvme4: Reconnecting in 10 seconds...",
    "nvme nvme4: Successfully reconnected (1 attempt)",
]


@pytest.mark.parametrize(("text", "name", "wanted"), FAULTS)
def test_a_controllers_trouble_is_read_in_old_and_new_wording(text: str, name: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert finding.fault == name
    agrees(finding, {"device": "nvme4", **wanted})


@pytest.mark.parametrize(("text", "severity"), PATHS)
def test_a_multipath_device_without_a_path_fails_or_waits(text: str, severity: Severity) -> None:
    finding = fault(text)
    assert (finding.fault, finding.device, finding.severity) == ("nvme_path_failure", "nvme2n1", severity)


def test_a_dying_controller_is_one_event_from_its_first_time_out_on() -> None:
    finding = one(
        [
            (0.0, "nvme nvme4: I/O 77 QID 9 timeout, reset controller"),
            (26.0, "nvme nvme4: Device not ready; aborting reset"),
            (60.0, "nvme nvme4: Removing after probe failure status: -19"),
            (60.1, "nvme4n1: detected capacity change from 7501476528 to 0"),
        ]
    )
    assert (finding.fault, finding.severity, finding.device) == ("nvme_lost", Severity.CRITICAL, "nvme4")


def test_a_fabric_controller_that_reconnects_has_recovered() -> None:
    finding = one(
        [(0.0, "nvme nvme4: starting error recovery"), (20.0, "nvme nvme4: Successfully reconnected (2 attempt)")]
    )
    assert finding.evidence["cleared"] is True


@pytest.mark.parametrize(
    "text",
    [
        "nvme nvme4: 16/0/0 default/read/poll queues",
        "nvme nvme4: pci function 0000:41:00.0",
        "nvme nvme4: Shutdown timeout set to 8 seconds",
        "nvme nvme4: resetting controller due to user request",
        "nvme4n1: detected capacity change from 0 to 7501476528",
        " nvme4n1: p1 p2",
        "nvme-cli: nvme nvme4: Removing after probe failure status: -19",
        "block nvme2n1: queue depth 1024",
    ],
)
def test_a_healthy_drive_says_nothing(text: str) -> None:
    assert events([text]) == []


def test_a_capacity_of_zero_alone_is_a_detail() -> None:
    assert said(REST[0]) is not None
    assert events([REST[0]]) == []


def test_every_wording_of_nvme_has_an_example() -> None:
    assert without_example(nvme.RULES, [*(f[0] for f in FAULTS), *(p[0] for p in PATHS), *REST]) == []
