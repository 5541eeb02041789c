"""Block devices that answer with errors, and the paths to them."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, events, fault, said, without_example

from gpuchaos_agent.words import disk
from gpuchaos_stream.events.base import Severity

FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    ("I/O error, dev sdq, sector 7814037 op 0x0:(READ) flags 0x80700 phys_seg 1", "disk_io_error", {"device": "sdq"}),
    ("blk_update_request: I/O error, dev sdq, sector 7814037 op 0x1:(WRITE)", "disk_io_error", {"device": "sdq"}),
    ("end_request: I/O error, dev sdq, sector 7814037", "disk_io_error", {"cause": "I/O"}),
    ("device offline error, dev sdq, sector 99 op 0x0:(READ) flags 0x0", "disk_io_error", {"cause": "device offline"}),
    ("critical medium error, dev sdq, sector 99 op 0x0:(READ)", "disk_io_error", {"cause": "critical medium"}),
    ("Buffer I/O error on dev dm-3, logical block 4096, lost async page write", "disk_io_error", {"device": "dm-3"}),
    (
        "nvme3n1: Read(0x2) @ LBA 8192, 8 blocks, Unrecovered Read Error (sct 0x2 / sc 0x81) DNR",
        "disk_io_error",
        {"device": "nvme3n1", "cause": "Unrecovered Read Error"},
    ),
    ("sd 6:0:4:0: rejecting I/O to offline device", "disk_io_error", {"severity": Severity.CRITICAL}),
    (
        "sd 6:0:4:0: [sdq] Device offlined - not ready after error recovery",
        "disk_io_error",
        {"device": "6:0:4:0", "disk": "sdq"},
    ),
    ("critical space allocation error, dev dm-7, sector 80 op 0x1:(WRITE)", "fs_full", {"device": "dm-7"}),
    ("device-mapper: thin: 252:6: switching pool to out-of-data-space (queue IO) mode", "fs_full", {"device": "252:6"}),
    (
        " connection3:0: ping timeout of 5 secs expired, recv timeout 5, last rx 43",
        "disk_path_failure",
        {"device": "3:0"},
    ),
    (" connection3:0: detected conn error (1022)", "disk_path_failure", {"errno": 1022}),
    (" session3: session recovery timed out after 120 secs", "disk_path_failure", {"severity": Severity.ERROR}),
    (
        " rport-7:0-2: blocked FC remote port time out: removing target and saving binding",
        "disk_path_failure",
        {"device": "7:0-2"},
    ),
    ("device-mapper: multipath: 253:5: Failing path 65:32.", "disk_path_failure", {"device": "65:32"}),
]


@pytest.mark.parametrize(("text", "name", "wanted"), FAULTS)
def test_an_error_names_its_device_and_kind(text: str, name: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert finding.fault == name
    agrees(finding, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0",
        "blk_update_request: I/O error, dev sr0, sector 0",
        "Buffer I/O error on dev sr0, logical block 0, async page read",
        "sd 6:0:4:0: [sdq] Attached SCSI disk",
        "sd 6:0:4:0: [sdq] Synchronizing SCSI cache",
        "device-mapper: multipath round-robin: version 1.2.0 loaded",
        "backup: I/O error, dev sdq, sector 7814037",
        "EXT4-fs (sda1): recovery complete, I/O error handling is remount-ro",
    ],
)
def test_empty_drives_attachments_and_quotations_say_nothing(text: str) -> None:
    assert said(text) is None


def test_a_path_that_is_back_clears_what_it_had_said() -> None:
    fails, back = FAULTS[-1][0], "device-mapper: multipath: 253:5: Reinstating path 65:32."
    (event,) = events([(0.0, fails), (8.0, back)])
    assert event.finding.evidence["cleared"] is True


def test_every_wording_of_disks_has_an_example() -> None:
    back = "device-mapper: multipath: 253:5: Reinstating path 65:32."
    assert without_example(disk.RULES, [*(text for text, *_ in FAULTS), back]) == []
