from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect import pci, xid
from gpuchaos_agent.collect.messages import read_message
from gpuchaos_stream.events.base import Severity

ADDRESS = re.compile(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}", re.ASCII)

#: One text for each form that the driver has printed since 2012, written anew; what it must be read as.
FORMS: dict[str, tuple[str, dict[str, object]]] = {
    "2012, no PCI": (
        "NVRM: Xid (0000:04:00): 13, 0002 00000000 000050c0 00000368 00000000 00000080",
        {"fault": "gpu_engine_exception", "severity": "error", "local": "0000:04:00", "xid": 13, "pid": None},
    ),
    "pid without name": (
        "NVRM: Xid (PCI:0000:00:07): 31, pid=311, Ch 00000008, intr 10000000. MMU Fault: ENGINE GRAPHICS faulted",
        {"fault": "gpu_mmu_fault", "local": "0000:00:07", "pid": 311, "process": None, "scope": "app"},
    ),
    "pid and name": (
        "NVRM: Xid (PCI:000a:01:00): 43, pid=4242, name=ray::Actor.run(), channel 0x00000010",
        {"fault": "gpu_channel_reset", "local": "000a:01:00", "pid": 4242, "process": "ray::Actor.run()"},
    ),
    "nobody's": (
        "NVRM: Xid (PCI:0000:9d:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        {"fault": "gpu_lost", "severity": "critical", "pid": None, "process": None, "action": "reboot_node"},
    ),
    "MIG, both instances": (
        "NVRM: Xid (PCI:0000:07:00 GPU-I:03 GPU-CI:01): 94, pid=5, name=py, Contained: SM (0x1). RST: No, D-RST: No",
        {"fault": "gpu_ecc_contained", "gpu_instance": 3, "compute_instance": 1, "reset_required": False},
    ),
    "table full": (
        "NVRM: Xid (PCI:0000:07:00): 64, Row Remapper Error: (0x0000000000000abc) - Row Remapping table is full",
        {"fault": "gpu_row_remap_failure", "severity": "critical", "action": "replace_gpu"},
    ),
    "waits for a reset": (
        "NVRM: Xid (PCI:0000:07:00): 64, Row Remapper Error: (0x0000000000000abc) - row is already pending remapping",
        {"fault": "gpu_row_remap_pending", "severity": "error", "action": "reset_gpu"},
    ),
    "page retirement": (
        "NVRM: Xid (PCI:0000:07:00): 64, Dynamic Page Retirement: Blacklisting failed.",
        {"fault": "gpu_retirement_failure", "action": "replace_gpu"},
    ),
    "recovery action": (
        "NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (OS Reboot)",
        {"fault": "gpu_recovery_action", "severity": "critical", "recovery_action": 2, "action": "reboot_node"},
    ),
    "recovered": (
        "NVRM: Xid (PCI:0000:07:00): 154, GPU recovery action changed from 0x2 (OS Reboot) to 0x0 (None)",
        {"fault": "gpu_recovery_action", "severity": "info", "recovery_action": 0, "recovered": True},
    ),
    "link down below": (
        "NVRM: Xid (PCI:0000:07:00): 74, pid=<unknown>, name=<unknown>, NVLink: fatal error on link 9(0x10000)",
        {"fault": "gpu_nvlink_error", "severity": "critical", "nvlink": 9},
    ),
    "address taken out": (
        "NVRM: Xid (PCI:...): 137, RLW_RXPIPE interrupt hit on link 4 on GPU2: PRIV Error",
        {"fault": "gpu_nvlink_error", "local": "", "nvlink": 4, "gpu_index": 2},
    ),
    "lost while probed, no Xid": (
        "NVRM: The NVIDIA GPU 0000:c1:00.0\nNVRM: (PCI ID: 10de:2330) installed\nNVRM: fallen off the bus and",
        {"fault": "gpu_lost", "severity": "critical", "local": "0000:c1:00", "pci_id": "10de:2330"},
    ),
    "reset required, no Xid": (
        "NVRM: nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x00000062)",
        {"fault": "gpu_reset_required", "severity": "critical", "local": "", "action": "reset_gpu"},
    ),
    "lost, no Xid": (
        "NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: paramsStatus=0x00000000; status=0x0000000f",
        {"fault": "gpu_lost", "severity": "critical"},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_form_of_the_driver_is_read(form: str) -> None:
    text, wanted = FORMS[form]
    message = read_message(text, by_process=False)
    assert message is not None
    found = message.finding
    said = {"fault": found.fault, "severity": found.severity.value, "local": found.local}
    assert {name: said.get(name, found.evidence.get(name)) for name in wanted} == wanted


def test_a_channel_torn_down_names_the_xid_that_caused_it() -> None:
    found = xid.parse("NVRM: Xid (PCI:0000:dc:00): 45, pid=1, name=python3, Ch 00000001 caused by previous Xid 79")
    assert found is not None
    assert (found.fault, found.evidence["root_xid"], found.evidence["xid"]) == ("gpu_lost", 79, 45)


def test_an_xid_that_the_table_does_not_hold_is_still_a_fact() -> None:
    found = xid.parse("NVRM: Xid (PCI:0000:dc:00): 999, something new")
    assert found is not None
    assert (found.fault, found.severity, found.local) == ("gpu_unknown_xid", Severity.WARNING, "0000:dc:00")


@pytest.mark.parametrize(
    ("words", "severity"),
    [
        ("NETIR_BER_EVENT Fatal XC0 i0 Link 03 (0x0)", Severity.CRITICAL),
        ("NETIR_BER_EVENT Nonfatal XC0 i0 Link 03 (0x0)", Severity.WARNING),
        ("RLW_RXPIPE Nonfatal XC1 i0 Link 03 (0x0)", Severity.ERROR),
        ("", Severity.CRITICAL),
    ],
)
def test_severity_of_an_nvlink5_error_is_in_its_words_and_silence_counts_as_fatal(
    words: str, severity: Severity
) -> None:
    found = xid.parse(f"NVRM: Xid (PCI:0018:01:00): 149, {words}")
    assert found is not None
    assert found.severity is severity


def test_a_hardware_test_injection_is_told_but_not_taken_for_ours() -> None:
    message = read_message("NVRM: Xid (PCI:0018:01:00): 145, RLW_CTRL Fatal XC0 i1 Link 00 (0x0)", by_process=False)
    assert message is not None
    assert message.finding.evidence["hardware_injected"] is True
    assert message.fault_id is None


def test_a_user_cannot_smuggle_a_code_or_a_device_through_a_process_name() -> None:
    found = xid.parse("NVRM: Xid (PCI:0000:01:00): 31, pid=7, name=x): 79, (PCI:00, Ch 00000001, intr 0")
    assert found is not None
    assert (found.evidence["xid"], found.local) == (31, "0000:01:00")


def test_our_mark_is_believed_of_a_process_and_never_of_the_kernel() -> None:
    text = "NVRM: Xid (PCI:0000:01:00): 94, pid=7, name=x, Contained: SM (0x1). RST: No, D-RST: No gpuchaos-injected=f1"
    ours, kernels = read_message(text, by_process=True), read_message(text, by_process=False)
    assert ours is not None
    assert kernels is not None
    assert (ours.fault_id, kernels.fault_id) == ("f1", None)


@pytest.mark.parametrize(
    "text",
    [
        'gpud[1]: {"line":"NVRM: Xid (PCI:0000:cb:00): 109, pid=1"}',
        "a word before NVRM: Xid (PCI:0000:cb:00): 79, x",
        "NVRM: Xid",
        "NVRM: Xid (PCI:0000:cb:00): ",
        "XidCriticalError: Xid=999 on Device=GPU-0",
    ],
)
def test_what_only_mentions_an_xid_is_no_fact_whoever_wrote_it(text: str) -> None:
    assert read_message(text, by_process=True) is None
    assert read_message(text, by_process=False) is None


def test_a_wrapped_repeat_is_unwrapped_and_counted() -> None:
    message = read_message(
        "message repeated 9 times: [block nvme0n1: no available path - failing I/O]", by_process=False
    )
    assert message is not None
    assert (message.finding.fault, message.finding.evidence["count"]) == ("nvme_path_failure", 9)
    assert message.finding.severity is Severity.CRITICAL


@pytest.mark.parametrize("address", ["00000000:1A:00.0", "0000:1a:00.0", "0000:1a:00", " 0000:1A:00 "])
def test_all_ways_to_write_a_pci_address_are_one(address: str) -> None:
    assert pci.normal(address) == "0000:1a:00"


def test_a_five_digit_pci_domain_is_kept() -> None:
    assert pci.normal("10003:00:00.0") == "10003:00:00"


def test_every_xid_of_the_table_has_a_known_fault_name() -> None:
    names = catalogue.fault_names()
    assert {entry.fault for entry in catalogue.xids().values()} <= set(names)
    assert len(catalogue.xids()) > 150
    assert "none" not in {entry.fault for entry in catalogue.xids().values()}


def test_every_rule_and_refinement_uses_a_known_fault_name() -> None:
    from gpuchaos_agent.collect.messages import RULES

    used = {rule.fault for rule in RULES} | {r.fault for r in xid.REFINEMENTS if r.fault}
    assert used <= set(catalogue.fault_names())


@given(st.text(max_size=400), st.booleans())
def test_random_text_is_never_a_fact_and_never_an_error(text: str, by_process: bool) -> None:
    assert read_message(text, by_process=by_process) is None


@given(st.text(max_size=200), st.booleans())
def test_whatever_follows_an_xid_head_is_read_without_an_error(tail: str, by_process: bool) -> None:
    message = read_message("NVRM: Xid (PCI:0000:01:00): 13, " + tail, by_process=by_process)
    assert message is not None
    assert message.finding.evidence["xid"] == 13
    assert message.finding.fault in catalogue.fault_names()


@given(st.integers(0, 99999), st.sampled_from(["", "PCI:"]), st.from_regex(ADDRESS, fullmatch=True))
def test_every_code_and_address_comes_back_as_it_was_written(code: int, prefix: str, address: str) -> None:
    found = xid.parse(f"NVRM: Xid ({prefix}{address}): {code}, x")
    assert found is not None
    assert (found.evidence["xid"], found.local) == (code, address)
