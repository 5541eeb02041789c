from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import registry, sxid
from gpuchaos_agent.words.base import Finding, Part
from gpuchaos_stream.events.base import Severity


def line(code: int, body: str, switch: int = 0, address: str = "0000:c4:00.0") -> str:
    return f"nvidia-nvswitch{switch}: SXid (PCI:{address}): {code}, {body}"


def read(text: str) -> Finding:
    found = registry.read(LogRecord(text))
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "fault", "severity", "link"),
    [
        (line(20034, "Fatal, Link 17 LTSSM Fault Up"), "nvswitch_link_fatal", "critical", 17),
        (line(20034, "Non-fatal, Link 17 LTSSM Fault Up"), "nvswitch_link_error", "warning", 17),
        (
            line(24007, "Fatal, Link 28 sourcetrack timeout error (First)"),
            "nvswitch_sourcetrack_timeout",
            "critical",
            28,
        ),
        (line(11004, "Non-fatal, Link 40 ingress invalid ACL (First)"), "nvswitch_invalid_acl", "warning", 40),
        (line(20012, "Correctable, Link 03 RX CRC error"), "nvswitch_link_error", "warning", 3),
        (line(26006, "SOE HALTED"), "nvswitch_soe_failure", "critical", None),
        (line(10003, "Fatal, unhandled interrupt in f(1)"), "nvswitch_error", "critical", None),
        (line(12021, "Non-fatal, Link 62 egress header ECC limit"), "nvswitch_link_error", "warning", 62),
        (line(99999, "Link 01 something new"), "nvswitch_link_error", "error", 1),
    ],
)
def test_each_form_of_the_switch_driver_is_read(text: str, fault: str, severity: str, link: int | None) -> None:
    found = read(text)
    assert (found.fault, found.severity.value, found.evidence.get("link")) == (fault, severity, link)
    assert (found.device, found.evidence["bdf"]) == ("0000:c4:00", "0000:c4:00.0")


@pytest.mark.parametrize(
    "body",
    [
        "Severity 1 Engine instance 60 Sub-engine instance 00",
        "Data {0x10000000, 0x10000000, 0x00000000, 0x10000000, 0x0, 0x0, 0x0, 0x0, 0x0}",
        "SOE HALT data[0] = 0x               0",
    ],
)
def test_dumps_are_details_of_the_error_beside_them(body: str) -> None:
    assert read(line(20034, body)).part is Part.DETAIL


@pytest.mark.parametrize(
    "text",
    [
        "nvidia-nvswitch0: using MSI",
        "nvidia-nvswitch0: open (major=509)",
        "fabricmanager: nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): 20034, Fatal, Link 17 LTSSM Fault Up",
        "nvidia-nvswitch0: SXid (PCI:0000:c4:00.0): ",
        "SXid (PCI:0000:c4:00.0): 20034, Fatal",
    ],
)
def test_what_is_no_record_of_a_switch_says_nothing(text: str) -> None:
    assert registry.read(LogRecord(text)) is None


def test_a_program_that_prints_it_is_not_the_switch() -> None:
    assert registry.read(LogRecord(line(20034, "Fatal, Link 17 x"), writer=Writer.PROGRAM)) is None


def test_several_switches_are_one_event_that_names_each_with_its_links() -> None:
    made = sxid.conclude(
        [
            read(line(20034, "Fatal, Link 48 LTSSM Fault Up", 1, "0000:86:00.0")),
            read(line(20034, "Fatal, Link 63 LTSSM Fault Up", 0, "0000:85:00.0")),
            read(line(20034, "Severity 1 Engine instance 60 Sub-engine instance 00", 2, "0000:87:00.0")),
            read(line(20034, "Fatal, Link 62 LTSSM Fault Up", 0, "0000:85:00.0")),
        ]
    )
    assert made.fault == "nvswitch_link_fatal"
    assert made.evidence["devices"] == "0000:86:00.0(link48),0000:85:00.0(links63,62)"
    assert made.evidence["switches"] == 2
    assert "sxids" not in made.evidence


def test_the_worst_of_several_codes_names_the_fault_and_all_are_listed() -> None:
    made = sxid.conclude(
        [
            read(line(20012, "Non-fatal, Link 03 RX CRC")),
            read(line(26007, "SOE EXTERR")),
            read(line(26006, "SOE HALTED")),
        ]
    )
    assert (made.fault, made.severity, made.evidence["sxids"]) == (
        "nvswitch_soe_failure",
        Severity.CRITICAL,
        "20012,26006,26007",
    )


def test_every_entry_of_the_table_has_a_known_fault_name_and_an_advice() -> None:
    entries = catalogue.sxids().values()
    assert len(entries) == 420
    assert {entry.fault for entry in entries} <= set(catalogue.fault_names()) - {"none"}
    assert {entry.action for entry in entries} <= set(catalogue.actions())
    assert {entry.fatal for entry in entries} == {"always", "maybe", "no", "unknown"}


def test_what_the_guide_calls_always_fatal_is_critical_and_what_it_calls_never_is_a_warning() -> None:
    for entry in catalogue.sxids().values():
        if entry.fatal == "always":
            assert entry.severity is Severity.CRITICAL, entry
        if entry.fatal == "no":
            assert entry.severity is Severity.WARNING, entry


@given(st.integers(0, 99999), st.text(max_size=300))
def test_whatever_follows_the_head_is_read_without_an_error(code: int, tail: str) -> None:
    found = read(line(code, tail))
    assert found.evidence["sxid"] == code
    assert found.fault in catalogue.fault_names()
    assert sxid.conclude([found, found]).evidence["sxid"] == code
