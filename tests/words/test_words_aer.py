"""PCIe errors: many lines are one, the reporter is not the culprit, and the words changed."""

from __future__ import annotations

import pytest
from kernel_words_kit import events, fault, one, said

from gpuchaos_stream.events.base import Severity

CORRECTED = [
    "pcieport 0000:40:01.1: AER: Corrected error received: 0000:41:00.0",
    "nvme 0000:41:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
    "nvme 0000:41:00.0:   device [144d:a80a] error status/mask=00000041/0000e000",
    "nvme 0000:41:00.0:    [ 0] RxErr                  (First)",
    "nvme 0000:41:00.0:    [ 6] BadTLP",
]


def test_the_lines_of_a_corrected_error_are_one_event_of_the_device_that_erred() -> None:
    finding = one([(1.0, text) for text in CORRECTED])
    assert (finding.fault, finding.severity) == ("pcie_aer_corrected", Severity.WARNING)
    assert finding.device == finding.evidence["bdf"] == "0000:41:00.0"
    assert finding.evidence["reporter"] == "0000:40:01.1"
    assert (finding.evidence["bits"], finding.evidence["errors"]) == ("0,6", "RxErr,BadTLP")
    assert finding.evidence["pci_id"] == "144d:a80a"
    assert finding.kind == "node"


@pytest.mark.parametrize(
    ("words", "name", "severity"),
    [
        ("Corrected", "pcie_aer_corrected", Severity.WARNING),
        ("Correctable", "pcie_aer_corrected", Severity.WARNING),
        ("Uncorrected (Non-Fatal)", "pcie_aer_nonfatal", Severity.ERROR),
        ("Uncorrectable (Non-Fatal)", "pcie_aer_nonfatal", Severity.ERROR),
        ("Uncorrected (Fatal)", "pcie_aer_fatal", Severity.CRITICAL),
        ("Uncorrectable (Fatal)", "pcie_aer_fatal", Severity.CRITICAL),
    ],
)
def test_the_severity_is_in_the_words_of_old_and_new_kernels(words: str, name: str, severity: Severity) -> None:
    for text in (
        f"nvidia 0000:b3:00.0: PCIe Bus Error: severity={words}, type=Transaction Layer, (Requester ID)",
        f"nvidia 0000:b3:00.0: AER: PCIe Bus Error: severity={words}, type=Transaction Layer, (Requester ID)",
        f"pcieport 0000:b0:00.0: AER: {words} error received: 0000:b3:00.0",
        f"pcieport 0000:b0:00.0: AER: Multiple {words} error message received from 0000:b3:00.0",
    ):
        finding = fault(text)
        assert (finding.fault, finding.severity, finding.device) == (name, severity, "0000:b3:00.0"), text


def test_the_old_id_names_a_bus_and_is_not_taken_for_an_address() -> None:
    finding = fault("pcieport 10001:00:02.0: AER: Multiple Corrected error received: id=ae00")
    assert (finding.device, finding.evidence["reporter"]) == ("10001:00:02.0", "10001:00:02.0")


def test_the_device_with_the_worst_error_is_named_and_the_others_beside_it() -> None:
    finding = one(
        [
            "a 0000:21:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
            "b 0000:22:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
        ]
    )
    assert (finding.fault, finding.device) == ("pcie_aer_fatal", "0000:22:00.0")
    assert finding.evidence["devices"] == "0000:21:00.0,0000:22:00.0"


def test_a_failed_recovery_is_fatal_and_a_successful_one_is_noted() -> None:
    error = (
        "nvme 0000:41:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)"
    )
    good = one([error, "pcieport 0000:40:01.1: AER: device recovery successful"])
    bad = one([error, "pcieport 0000:40:01.1: AER: device recovery failed"])
    assert (good.fault, good.evidence["recovered"]) == ("pcie_aer_nonfatal", True)
    assert (bad.severity, bad.evidence["recovered"]) == (Severity.CRITICAL, False)


def test_a_contained_port_is_fatal_for_what_is_below_it() -> None:
    finding = one(["pcieport 0000:60:01.0: DPC: containment event, status:0x1f01 source:0x0000"])
    assert (finding.fault, finding.evidence["reporter"]) == ("pcie_aer_fatal", "0000:60:01.0")


@pytest.mark.parametrize(
    "text",
    [
        "pcieport 0000:00:1c.0: AER: enabled with IRQ 122",
        "pcieport 0000:40:01.1: DPC: enabled with IRQ 41",
        "pcieport 0000:40:01.1: DPC: error containment capabilities: Int Msg #0, RPExt+ PoisonedTLP+ SwTrigger+",
        "acpi PNP0A08:00: _OSC: platform does not support [AER]",
        "nvme 0000:41:00.0:    [ 6] BadTLP",
        "nvme 0000:41:00.0:   device [144d:a80a] error status/mask=00000041/0000e000",
        "watcher: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer",
    ],
)
def test_banners_details_alone_and_quotations_conclude_nothing(text: str) -> None:
    assert events([text]) == []


def test_a_detail_is_no_fault_by_itself() -> None:
    detail = said(CORRECTED[2])
    assert detail is not None
    assert detail.evidence["bits"] == "0,6"
