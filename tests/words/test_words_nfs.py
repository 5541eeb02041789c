"""NFS: an outage lasts from the first complaint to OK; locks and handles that it costs."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, events, fault, one, said, without_example

from gpuchaos_agent.words import nfs
from gpuchaos_stream.events.base import Severity

HARD = "nfs: server filer-3.cluster.example not responding, still trying"
SOFT = "nfs: server 198.51.100.8 not responding, timed out"
BACK = "nfs: server filer-3.cluster.example OK"
STATE: list[tuple[str, str, dict[str, Any]]] = [
    ("nfs4_reclaim_open_state: Lock reclaim failed!", "nfs_lock_lost", {"severity": Severity.ERROR}),
    ("NFS: __nfs4_reclaim_open_state: Lock reclaim failed!", "nfs_lock_lost", {"cause": "Lock reclaim failed"}),
    ("NFS: nfs4_reclaim_open_state: unhandled error -512", "nfs_lock_lost", {"errno": 512}),
    ("NFSv4: state recovery failed for open file a b/ckpt.pt, error = -116", "nfs_lock_lost", {"path": "a b/ckpt.pt"}),
    (
        "NFS: state manager: lease expired failed on NFSv4 server 198.51.100.8 with error 10022",
        "nfs_lock_lost",
        {"server": "198.51.100.8", "errno": 10022},
    ),
    ("NFS: state manager failed on NFSv4 server fs1 with error 5", "nfs_lock_lost", {"device": "fs1"}),
    ("NFS: server fs1 error: fileid changed", "nfs_stale_handle", {"server": "fs1"}),
    ("NFS: nfs4_discover_server_trunking unhandled error -116. Exiting with error EIO", "nfs_stale_handle", {}),
]


def test_a_silent_server_is_critical_and_the_mount_says_what_programs_see() -> None:
    hard, soft = fault(HARD), fault(SOFT)
    assert {hard.fault, soft.fault} == {"nfs_unresponsive"}
    assert hard.severity is soft.severity is Severity.CRITICAL
    assert (hard.evidence["server"], hard.evidence["cause"]) == ("filer-3.cluster.example", "hard_mount_waits")
    assert (soft.evidence["server"], soft.evidence["cause"]) == ("198.51.100.8", "soft_mount_gave_up")


def test_complaints_a_quarter_of_an_hour_apart_are_one_outage() -> None:
    (event,) = events([(0.0, HARD), (900.0, HARD), (905.0, HARD)])
    assert event.count == 3
    assert "cleared" not in event.finding.evidence


def test_ok_ends_the_outage_of_that_server_alone() -> None:
    found = {event.finding.device: event.finding for event in events([(0.0, HARD), (1.0, SOFT), (30.0, BACK)])}
    assert found["filer-3.cluster.example"].evidence["cleared"] is True
    assert "cleared" not in found["198.51.100.8"].evidence


def test_the_lock_daemon_speaks_for_the_same_server() -> None:
    finding = one([(0.0, HARD), (2.0, HARD.replace("nfs:", "lockd:"))])
    assert finding.evidence["count"] == 2


@pytest.mark.parametrize(("text", "name", "wanted"), STATE)
def test_lost_locks_leases_and_handles_are_read(text: str, name: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert finding.fault == name
    agrees(finding, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "NFS: Registering the id_resolver key type",
        "nfs: Unknown parameter 'nosuch'",
        "RPC: Registered named UNIX socket transport module.",
        "NFSD: Using nfsdcld client tracking operations.",
        "ntp: server 198.51.100.8 not responding, still trying",
        "automount: nfs: server fs1 not responding, still trying",
        "NFS: nfs4_discover_server_trunking unhandled error -512. Exiting with error EIO",
    ],
)
def test_a_client_that_loads_and_other_servers_say_nothing(text: str) -> None:
    assert said(text) is None


def test_every_wording_of_nfs_has_an_example() -> None:
    assert without_example(nfs.RULES, [HARD, SOFT, BACK, *(text for text, *_ in STATE)]) == []
