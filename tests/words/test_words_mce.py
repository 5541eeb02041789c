"""Machine checks: the kernel's line knows little, the detail comes from elsewhere, and all of it is one event."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, events, fault, one, said, without_example

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import mce
from gpuchaos_agent.words.base import NONE, Part
from gpuchaos_stream.events.base import Severity

LOGGED = "mce: [Hardware Error]: Machine check events logged"
#: Bit 61 (uncorrected) of the second status is set: 0xb… = 1011.
STATUS = "mce: [Hardware Error]: CPU 12: Machine Check{}: 0 Bank 8: {}"
FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    (LOGGED, "mce_corrected", {"severity": Severity.WARNING}),
    (
        STATUS.format("", "8c00004000010090"),
        "mce_corrected",
        {"cpu": 12, "bank": 8, "status": "8c00004000010090", "severity": Severity.WARNING},
    ),
    (STATUS.format(" Exception", "be00000000800400"), "mce_uncorrected", {"severity": Severity.CRITICAL, "bank": 8}),
    ("[Hardware Error]: Corrected error, no action required.", "mce_corrected", {"severity": Severity.WARNING}),
    ("[Hardware Error]: Deferred error, no action required.", "mce_corrected", {"cause": "Deferred error"}),
    ("[Hardware Error]: Uncorrected, software restartable error.", "mce_uncorrected", {"severity": Severity.ERROR}),
    ("{4}[Hardware Error]: event severity: corrected", "mce_corrected", {}),
    ("{4}[Hardware Error]: event severity: recoverable", "mce_uncorrected", {"severity": Severity.ERROR}),
    ("{4}[Hardware Error]: event severity: fatal", "mce_uncorrected", {"severity": Severity.CRITICAL}),
    ("CMCI storm detected: switching to poll mode", "mce_corrected_storm", {"severity": Severity.WARNING}),
    ("mce: CPU31 BANK5 CMCI storm detected", "mce_corrected_storm", {"cpu": 31, "bank": 5}),
    (
        "mce: Uncorrected hardware memory error in user-access at 7d1c2a000",
        "mem_ue",
        {"severity": Severity.ERROR, "action": "replace_dimm"},
    ),
]
DETAILS = [
    "[Hardware Error]: CPU:41 (19:1:1) MC18_STATUS[Over|CE|MiscV|AddrV|-|-|SyndV|CECC]: 0xdc2040000000011b",
    "{4}[Hardware Error]:   section_type: memory error",
    "mce: CPU31 BANK5 CMCI storm subsided",
]


@pytest.mark.parametrize(("text", "name", "wanted"), FAULTS)
def test_a_machine_check_is_as_bad_as_its_status_says_and_not_as_its_prefix(
    text: str, name: str, wanted: dict[str, Any]
) -> None:
    finding = fault(text)
    assert finding.fault == name
    agrees(finding, wanted)


def test_every_wording_of_a_machine_check_has_an_example() -> None:
    assert without_example(mce.RULES, [*(text for text, *_ in FAULTS), *DETAILS]) == []


def daemon(text: str) -> LogRecord:
    return LogRecord(text=text, writer=Writer.PROGRAM, tag="mcelog")


def test_mcelog_gives_the_kernels_line_its_cpu_and_bank() -> None:
    lines = [
        LogRecord(text=LOGGED),
        *map(daemon, ("Hardware event. This is not a software error.", "MCE 0", "CPU 3 BANK 9 TSC 5a1b00c2")),
        *map(
            daemon, ("Corrected error", "MCA: MEMORY CONTROLLER RD_CHANNEL1_ERR", "STATUS 9c00004001010091 MCGSTATUS 0")
        ),
    ]
    finding = one(lines)
    assert (finding.fault, finding.severity) == ("mce_corrected", Severity.WARNING)
    agrees(finding, {"cpu": 3, "bank": 9, "status": "9c00004001010091"})


def test_an_uncorrected_error_in_mcelogs_words_is_one() -> None:
    finding = said("Uncorrected error", writer=Writer.PROGRAM, tag="mcelog")
    assert finding is not None
    assert (finding.fault, finding.severity) == ("mce_uncorrected", Severity.ERROR)


def test_mcelog_that_signs_its_own_line_is_understood_and_other_programs_are_not() -> None:
    assert said("mcelog[311]: Uncorrected error", writer=Writer.PROGRAM) is not None
    assert said("Uncorrected error", writer=Writer.PROGRAM, tag="raid-check") is None
    assert said("CPU 3 BANK 9 TSC 1", writer=Writer.PROGRAM) is None
    assert said(LOGGED, writer=Writer.PROGRAM, tag="my-exporter") is None


def test_a_storm_outweighs_the_single_errors_around_it() -> None:
    finding = one([(0.0, LOGGED), (0.1, "CMCI storm detected: switching to poll mode"), (9.0, LOGGED)])
    assert finding.fault == "mce_corrected_storm"
    ended = one(
        [
            (0.0, "CMCI storm detected: switching to poll mode"),
            (9.0, "CMCI storm subsided: switching to interrupt mode"),
        ]
    )
    assert (ended.severity, ended.evidence["subsided"]) == (Severity.WARNING, True)


@pytest.mark.parametrize(
    ("severity", "section", "name"),
    [
        ("corrected", "memory error", "mem_ce"),
        ("recoverable", "memory error", "mem_ue"),
        ("corrected", "PCIe error", "pcie_aer_corrected"),
        ("fatal", "PCIe error", "pcie_aer_fatal"),
        ("corrected", "general processor error", "mce_corrected"),
    ],
)
def test_the_firmwares_section_names_what_erred(severity: str, section: str, name: str) -> None:
    head = "{7}[Hardware Error]: "
    lines = [
        head + "Hardware error from APEI Generic Hardware Error Source: 2",
        head + f"event severity: {severity}",
        head + f" Error 0, type: {severity}",
        head + f"  section_type: {section}",
    ]
    assert one(lines).fault == name


@pytest.mark.parametrize(
    "text",
    [
        "mce: CPU supports 32 MCE banks",
        "mce: CPU0: Thermal monitoring enabled (TM1)",
        "mce: [Hardware Error]: PROCESSOR 0:50657 TIME 1700000000 SOCKET 1 APIC 40 microcode 5003604",
        "[Hardware Error]: IPID: 0x0000009600150f00, Syndrome: 0x0000000000000000",
        "CMCI storm subsided: switching to interrupt mode",
        "MCE: In-kernel MCE decoding enabled.",
        "GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.",
    ],
)
def test_banners_and_details_alone_conclude_nothing(text: str) -> None:
    assert events([text]) == []


def test_details_are_details() -> None:
    for text in DETAILS:
        finding = said(text)
        assert finding is not None
        assert (finding.part, finding.fault) == (Part.DETAIL, NONE)
