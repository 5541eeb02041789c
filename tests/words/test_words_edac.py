"""Memory errors with their module: counted over lines, and the module with most of them is named."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernel_words_kit import events, fault, one, said

from gpuchaos_agent.words.mce import conclude_machine_check
from gpuchaos_stream.events.base import Severity

LINE = "EDAC MC{mc}: {count} {kind} {words}on {dimm} (channel:1 slot:0 page:{page} offset:0x0 grain:64 syndrome:0x0)"


def line(
    count: int = 1, dimm: str = "DIMM_B2", kind: str = "CE", words: str = "memory read error ", page: str = "0x1f00"
) -> str:
    return LINE.format(mc=2, count=count, kind=kind, words=words, dimm=dimm, page=page)


def test_a_corrected_error_names_its_module_and_waits_for_maintenance() -> None:
    finding = fault(line())
    assert (finding.fault, finding.severity) == ("mem_ce", Severity.WARNING)
    assert (finding.evidence["dimm"], finding.evidence["page"]) == ("DIMM_B2", "0x1f00")
    assert finding.evidence["action"] == "replace_dimm_at_maintenance"
    assert finding.evidence["cause"] == "memory read error"


def test_an_uncorrected_error_does_not_wait() -> None:
    finding = one([line(kind="UE")])
    assert (finding.fault, finding.severity) == ("mem_ue", Severity.ERROR)
    assert (finding.evidence["action"], finding.evidence["ue_count"]) == ("replace_dimm", 1)


def test_page_zero_is_an_unknown_address() -> None:
    assert "page" not in fault(line(page="0x0")).evidence


@pytest.mark.parametrize("label", ["any memory", "unknown memory"])
def test_a_label_that_names_nothing_is_no_module(label: str) -> None:
    assert "dimm" not in fault(line(dimm=label)).evidence


def test_the_number_in_front_is_summed_over_lines_and_modules_are_told_apart() -> None:
    finding = one([(float(n), line(count, dimm)) for n, (count, dimm) in enumerate([(3, "A1"), (4, "B1"), (2, "A1")])])
    assert (finding.evidence["ce_count"], finding.evidence["dimm"], finding.device) == (9, "A1", "A1")
    assert finding.evidence["dimms"] == "A1,B1"


def test_the_lines_of_one_decoded_machine_check_are_one_error() -> None:
    finding = one(
        [
            "mce: [Hardware Error]: Machine check events logged",
            "EDAC skx MC2: HANDLING MCE MEMORY ERROR",
            "EDAC skx MC2: CPU 24: Machine Check Event: 0 Bank 13: 8c00004200800090",
            "EDAC skx MC2: TSC 0",
            "EDAC skx MC2: ADDR 1f00a4c40",
            "EDAC skx MC2: MISC 9001041041e28c86",
            "EDAC skx MC2: PROCESSOR 0:50654 TIME 1700000001 SOCKET 1 APIC 40",
            line(dimm="CPU_SrcID#1_MC#0_Chan#1_DIMM#0"),
        ]
    )
    assert (finding.fault, finding.device) == ("mem_ce", "CPU_SrcID#1_MC#0_Chan#1_DIMM#0")
    assert (finding.evidence["cpu"], finding.evidence["bank"], finding.evidence["ce_count"]) == (24, 13, 1)


def test_the_wording_before_kernel_3_5_is_read() -> None:
    text = 'EDAC MC0: CE page 0x283a, offset 0xce0, grain 8, row 0, channel 1, label "DIMM_C1": amd64_edac'
    finding = fault(text)
    assert (finding.fault, finding.evidence["dimm"]) == ("mem_ce", "DIMM_C1")


@pytest.mark.parametrize(
    "text",
    [
        "EDAC MC: Ver: 3.0.0",
        "EDAC MC0: Giving out device to module skx_edac controller Skylake Socket#0 IMC#0: DEV 0000:3a:0a.0",
        "EDAC DEBUG: skx_init: enabled",
        "EDAC skx MC2: HANDLING MCE MEMORY ERROR",
        "rasdaemon: " + line(),
    ],
)
def test_banners_and_quotations_conclude_nothing(text: str) -> None:
    assert events([text]) == []


@given(st.lists(st.tuples(st.integers(1, 999), st.sampled_from(["A1", "B1", "C1"])), min_size=1, max_size=30))
def test_no_error_is_lost_in_the_sum_and_the_named_module_has_most(errors: list[tuple[int, str]]) -> None:
    findings = [finding for count, dimm in errors if (finding := said(line(count, dimm))) is not None]
    made = conclude_machine_check(findings)
    assert made.evidence["ce_count"] == sum(count for count, _ in errors)
    by_dimm = {dimm: sum(count for count, other in errors if other == dimm) for _, dimm in errors}
    assert by_dimm[str(made.evidence["dimm"])] == max(by_dimm.values())
