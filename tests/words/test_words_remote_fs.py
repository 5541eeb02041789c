"""Lustre, Ceph and SMB clients that lose their servers."""

from __future__ import annotations

import pytest
from kernel_words_kit import events, fault, one, said, without_example

from gpuchaos_agent.words import remote_fs
from gpuchaos_stream.events.base import Severity

LOST = (
    "Lustre: scratch-OST000a-osc-ffff9d01c8: Connection to scratch-OST000a (at 198.51.100.31@o2ib) was lost; "
    "in progress operations using this service will wait for recovery to complete"
)
RESTORED = "Lustre: scratch-OST000a-osc-ffff9d01c8: Connection restored to scratch-OST000a (at 198.51.100.31@o2ib)"
EVICTED = (
    "LustreError: 167-0: scratch-MDT0000-mdc-ffff9d01c8: This client was evicted by scratch-MDT0000; "
    "in progress operations using this service will fail."
)
REST = [
    ("libceph: osd12 down", "osd12"),
    ("ceph: mds0 hung", "mds0"),
    ("ceph: [b1c2a3d4-0000-1111-2222-333344445555 4711]: mds1 reconnect denied", "mds1"),
    (r"CIFS: VFS: \\filer9 has not responded in 180 seconds. Reconnecting...", "filer9"),
]


def test_a_lost_target_waits_and_a_restored_one_clears() -> None:
    finding = one([(0.0, LOST), (45.0, RESTORED)])
    assert (finding.fault, finding.device) == ("remote_fs_unresponsive", "scratch-OST000a")
    assert finding.evidence["cleared"] is True
    assert one([LOST]).evidence["server"] == "198.51.100.31@o2ib"


def test_an_eviction_costs_the_work_in_progress() -> None:
    assert fault(EVICTED).severity is Severity.CRITICAL


@pytest.mark.parametrize(("text", "device"), REST)
def test_other_network_filesystems_name_the_server_that_is_silent(text: str, device: str) -> None:
    finding = fault(text)
    assert (finding.fault, finding.device, finding.severity) == ("remote_fs_unresponsive", device, Severity.ERROR)


@pytest.mark.parametrize(
    "text",
    [
        "Lustre: Lustre: Build Version: 2.15.3",
        "Lustre: Mounted scratch-client",
        "libceph: mon1 (1)198.51.100.4:6789 session established",
        "libceph: osd12 up",
        "ceph: loaded (mds proto 32)",
        "CIFS: Attempting to mount //filer9/share",
    ],
)
def test_a_client_that_mounts_concludes_nothing(text: str) -> None:
    assert events([text]) == []


def test_a_target_that_is_restored_is_a_clearing() -> None:
    assert said(RESTORED) is not None


def test_every_wording_of_network_filesystems_has_an_example() -> None:
    texts = [LOST, RESTORED, EVICTED, *(text for text, _ in REST), "libceph: osd12 up"]
    assert without_example(remote_fs.RULES, texts) == []
