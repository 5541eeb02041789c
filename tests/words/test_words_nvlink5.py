from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent import catalogue
from gpuchaos_agent.words import xid
from gpuchaos_agent.words.base import Finding
from gpuchaos_stream.events.base import Severity


def read(code: int, words: str) -> Finding:
    found = xid.parse(f"NVRM: Xid (PCI:0018:01:00): {code}, {words}")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("words", "severity"),
    [
        ("NETIR_BER_EVENT Fatal XC0 i0 Link 03 (0x0)", Severity.CRITICAL),
        ("NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x0)", Severity.WARNING),
        ("RLW_RXPIPE Nonfatal XC1 i0 Link 03 (0x0)", Severity.ERROR),
        ("", Severity.CRITICAL),
    ],
)
def test_severity_is_in_the_words_and_silence_counts_as_fatal(words: str, severity: Severity) -> None:
    assert read(149, words).severity is severity


def test_a_program_dies_although_the_link_goes_on() -> None:
    found = read(145, "RLW_TAGSTATE Nonfatal XC1 i0 Link 07 (0x00000008 0x00000001 0x0 0x0 0x0 0x0)")
    assert (found.severity, found.evidence["action"]) == (Severity.ERROR, "restart_app")


def test_a_hardware_test_injection_is_told_but_not_taken_for_ours() -> None:
    found = read(145, "RLW_CTRL Fatal XC0 i1 Link 00 (0x0)")
    assert found.evidence["hardware_injected"] is True
    assert "fault_id" not in found.evidence


@pytest.mark.parametrize(
    ("words", "fault", "action"),
    [
        # The bit error rate of a link: a warning that names the cable. 0x00000013 is the unit in the form of R575.
        (
            "NETIR_BER_EVENT Nonfatal XC0 i0 Link 05 (0x00000013 0x00000002 0x0)",
            "gpu_nvlink_ber",
            "check_cable_if_repeated",
        ),
        # The same unit as older drivers number it (0x226).
        (
            "NETIR_BER_EVENT Nonfatal XC0 i0 Link 05 (0x00000226 0x00000000 0x0)",
            "gpu_nvlink_ber",
            "check_cable_if_repeated",
        ),
        ("NETIR_LINK_EVT Fatal XC0 i0 Link 05 (0x000001c6 0x00000000 0x0)", "gpu_nvlink_error", "reset_gpu"),
        ("NETIR_LINK_DOWN Fatal XC0 i0 Link 05 (0x00000011 0x00000000 0x0)", "gpu_nvlink_error", "reset_gpu"),
    ],
)
def test_link_events_of_both_numberings_are_told_apart(words: str, fault: str, action: str) -> None:
    found = read(149, words)
    assert (found.fault, found.evidence["action"], found.evidence["nvlink"]) == (fault, action, 5)


def test_two_numbers_say_why_a_link_went_down() -> None:
    # Bits 25 to 20 of intrinfo are 0b101010: a general fault of the link, which the table follows up at the cable.
    why = 0b101010 << 20 | 0b10001
    found = read(149, f"NETIR_LINK_DOWN Fatal XC0 i0 Link 11 ({why:#010x} 0x00000000 0x0)")
    assert found.evidence["follow_up"] == "investigate_link_si_and_cables"


def test_an_error_that_waits_for_the_recovery_action_says_so_while_it_is_not_fatal() -> None:
    found = read(145, "RLW_REMAP Nonfatal XC0 i0 Link 02 (0x00000082 0x00000001 0x0)")
    assert (found.severity, found.evidence["action"]) == (Severity.WARNING, "follow_other_xid")


def test_numbers_that_no_rule_holds_leave_the_words() -> None:
    found = read(146, "TLW_CTRL Nonfatal XC0 i0 Link 02 (0x00000009 0x40000000 0x0)")
    assert (found.severity, found.evidence["action"]) == (Severity.WARNING, "none")
    assert "follow_up" not in found.evidence


def test_every_rule_fits_a_record_that_it_describes() -> None:
    rules = catalogue.nvlink5_rules()
    assert len(rules) > 90
    assert {rule.code for rule in rules} == set(range(144, 151))
    for rule in rules:
        for unit in rule.units:
            for _, value in rule.forms:
                assert rule.fits(rule.code, unit, value, rule.status)
                assert catalogue.nvlink5_rule(rule.code, unit, value, rule.status) is not None


def test_every_action_of_a_rule_has_its_sentence() -> None:
    assert {rule.action for rule in catalogue.nvlink5_rules()} <= set(catalogue.actions())


@given(
    st.integers(144, 150),
    st.sampled_from(["SAW_MVB", "RLW_REMAP", "TLW_RX", "NETIR_LINK_EVT", "NEW_UNIT"]),
    st.sampled_from(["Fatal", "Nonfatal"]),
    st.integers(0, 1),
    st.integers(0, 2**32 - 1),
    st.integers(0, 2**32 - 1),
)
def test_a_fatal_error_is_critical_and_no_other_is(
    code: int, unit: str, word: str, contained: int, intrinfo: int, status: int
) -> None:
    found = read(code, f"{unit} {word} XC{contained} i0 Link 01 ({intrinfo:#010x} {status:#010x} 0x0)")
    assert (found.severity is Severity.CRITICAL) == (word == "Fatal")
    assert (found.severity is Severity.ERROR) == (word == "Nonfatal" and contained == 1)
    assert found.evidence["action"] in catalogue.actions()
