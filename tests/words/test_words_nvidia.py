from __future__ import annotations

from time import perf_counter

import pytest

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import nvidia, registry
from gpuchaos_agent.words.base import Part

GONE = (
    "NVRM: The NVIDIA GPU 0000:c1:00.0\n"
    "NVRM: (PCI ID: 10de:2330) installed in this system has\n"
    "NVRM: fallen off the bus and is not responding to commands."
)

FORMS: dict[str, tuple[str, dict[str, object]]] = {
    "lost while probed": (
        GONE,
        {"fault": "gpu_lost", "severity": "critical", "local": "0000:c1:00", "pci_id": "10de:2330"},
    ),
    "lost while probed, lines joined by blanks": (
        GONE.replace("\n", "\n               "),
        {"fault": "gpu_lost", "local": "0000:c1:00", "pci_id": "10de:2330"},
    ),
    "lost while probed, last line alone": (
        "NVRM: fallen off the bus and is not responding to commands.",
        {"fault": "gpu_lost", "local": ""},
    ),
    "lost, beside its Xid": (
        "NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
        {"fault": "gpu_lost", "local": "0000:c1:00", "action": "reboot_node"},
    ),
    "lost, an old driver": (
        "NVRM: GPU at 0000:c1:00.0 has fallen off the bus.",
        {"fault": "gpu_lost", "local": "0000:c1:00"},
    ),
    "lost, a call that failed": (
        (
            "NVRM: GPU1 rpcRmApiFree_GSP: GspRmFree failed: hClient=0xc1d0000a; hObject=0x1; paramsStatus=0x00000000; "
            "status=0x0000000f"
        ),
        {"fault": "gpu_lost", "local": "", "gpu_index": 1},
    ),
    "lost, by name": (
        "NVRM: nvAssertFailedNoLog: Assertion failed: GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000f)",
        {"fault": "gpu_lost", "gpu_index": None},
    ),
    "reset required, by number": (
        "NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: hClient=0xc1d00001; paramsStatus=0x00000062; status=0x00000062",
        {"fault": "gpu_reset_required", "severity": "critical", "local": "", "action": "reset_gpu"},
    ),
    "reset required, by name": (
        "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED]",
        {"fault": "gpu_reset_required", "gpu_index": 0},
    ),
    "unified memory gave up": (
        "NVRM: nvGpuOpsReportFatalError: uvm encountered global fatal error 0x60, requiring os reboot to recover.",
        {"fault": "gpu_needs_reset", "action": "reboot_node"},
    ),
    "did not start": (
        "NVRM: GPU 0000:0b:00.0: RmInitAdapter failed! (0x25:0x65:1468)",
        {"fault": "gpu_init_failed", "severity": "critical", "local": "0000:0b:00", "code": "0x25:0x65:1468"},
    ),
    "did not start, the second line": (
        "NVRM: GPU 0000:0b:00.0: rm_init_adapter failed, device minor number 3",
        {"fault": "gpu_init_failed", "local": "0000:0b:00", "minor": 3},
    ),
    "did not start, nobody named": (
        "NVRM: RmInitAdapter failed! (0x62:0x65:2028)",
        {"fault": "gpu_init_failed", "local": ""},
    ),
    "no room on the bus": (
        (
            "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\n"
            "NVRM: BAR0 is 0M @ 0x0 (PCI:0000:57:00.0)"
        ),
        {"fault": "gpu_init_failed", "local": "0000:57:00", "action": "check_firmware_settings"},
    ),
    "versions": (
        (
            "NVRM: API mismatch: the client has the version 545.29.06, but\n"
            "NVRM: this kernel module has the version 550.54.14.  Please\nNVRM: make sure that this kernel module"
        ),
        {"fault": "gpu_driver_mismatch", "severity": "error", "client": "545.29.06", "module": "550.54.14"},
    ),
    "versions, first line alone": (
        "NVRM: API mismatch: the client has the version 545.29.06, but",
        {"fault": "gpu_driver_mismatch", "client": "545.29.06", "module": None},
    ),
    "versions, with the client's name": (
        (
            "NVRM: API mismatch: the client 'nvidia-smi' (pid 411)\nNVRM: has the version 570.86.10, but\n"
            "NVRM: this kernel module has the version 570.124.06.  Please"
        ),
        {"fault": "gpu_driver_mismatch", "name": "nvidia-smi", "pid": 411, "module": "570.124.06"},
    ),
    "links that do not train": (
        "NVRM: knvlinkDiscoverPostRxDetLinks_GH100: Getting peer3's postRxDetLinkMask failed!",
        {"fault": "gpu_nvlink_training", "severity": "warning", "peer": 3, "local": ""},
    ),
    "links that do not train, the other line": (
        "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
        {"fault": "gpu_nvlink_training", "peer": None},
    ),
    "peer memory of a process that ended": (
        "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further processing",
        {"fault": "gpu_peermem_invalid_context", "severity": "info"},
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_each_wording_without_an_xid_is_read(form: str) -> None:
    text, wanted = FORMS[form]
    found = registry.read(LogRecord(text))
    assert found is not None
    assert found.part is Part.FAULT
    fields = {"fault": found.fault, "severity": found.severity.value, "local": found.local}
    assert {name: fields.get(name, found.evidence.get(name)) for name in wanted} == wanted


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        (
            "NVRM: GPU at PCI:0000:0b:00: GPU-11111111-2222-4333-8444-555555555555",
            "uuid",
            "GPU-11111111-2222-4333-8444-555555555555",
        ),
        ("NVRM: GPU 0000:0b:00.0: GPU serial number is 1234567890123.", "serial", "1234567890123"),
        (
            "NVRM: kgspHealthCheck_TU102: ************************** GSP-CrashCat Report **************************",
            "dump",
            "GSP-CrashCat Report",
        ),
        ("NVRM: The NVIDIA GPU 0000:c1:00.0", "pci", "0000:c1:00"),
    ],
)
def test_lines_that_only_add_are_details(text: str, name: str, value: str) -> None:
    found = registry.read(LogRecord(text))
    assert found is not None
    assert (found.part, found.evidence[name]) == (Part.DETAIL, value)


@pytest.mark.parametrize(
    "text",
    [
        "NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  570.158.01  Release Build",
        "NVRM: Persistence mode is deprecated and will be removed in a future release. Please use nvidia-persistenced",
        "NVRM: No NVIDIA GPU found.",
        "NVRM: GPU1 kbifCacheVFInfo_GB100: Unable to read NV_PF0_INITIAL_AND_TOTAL_VFS",
        "NVRM: This PCI I/O region assigned to your NVIDIA device is invalid:\nNVRM: BAR1 is 0M @ 0x0 (PCI:0:57:00.0)",
        "NVRM: rpcRmApiAlloc_GSP: GspRmAlloc failed: paramsStatus=0x00000000; status=0x0000001f",
        "NVRM: kgspHealthCheck_TU102: GSP is well",
        "NVRM:         sstatus:0x0000000200000020  sscratch:0xffffffffa30114e0",
        "nvidia-peermem: loaded",
        "nvidia 0000:c1:00.0: enabling device (0000 -> 0002)",
        "the log said NVRM: GPU 0000:c1:00.0: GPU has fallen off the bus.",
    ],
)
def test_the_drivers_other_lines_say_nothing(text: str) -> None:
    assert registry.read(LogRecord(text)) is None


@pytest.mark.parametrize("form", FORMS)
def test_a_program_that_prints_it_is_not_the_driver(form: str) -> None:
    assert registry.read(LogRecord(FORMS[form][0], writer=Writer.PROGRAM)) is None


def test_every_rule_has_known_names() -> None:
    assert {rule.fault for rule in nvidia.RULES} <= set(catalogue.fault_names())
    assert {rule.action for rule in nvidia.RULES} <= set(catalogue.actions())
    assert {rule.family for rule in nvidia.RULES} <= set(registry.families())


@pytest.mark.parametrize(
    "piece",
    ["NVRM: ", "GPU0 ", "status=0x0000000", "NV_ERR_", "*", " ", "\n", "a", "NVRM: The NVIDIA GPU 0000:c1:00.0\n"],
)
@pytest.mark.parametrize("head", ["NVRM: ", "NVRM: GPU0 ", "nvidia-peermem ", "NVRM: API mismatch: the client '"])
def test_the_longest_text_is_read_in_time_whatever_it_repeats(head: str, piece: str) -> None:
    text = head + piece * (16 * 1024 // len(piece))
    fastest = 1.0
    for _ in range(5):  # the machine may be busy with something else; the pattern is not
        began = perf_counter()
        registry.read(LogRecord(text))
        fastest = min(fastest, perf_counter() - began)
    assert fastest < 0.01
