"""Local filesystems: forced read-only is a fault, mounted read-only is a wish."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, fault, one, said, without_example

from gpuchaos_agent.words import filesystem
from gpuchaos_stream.events.base import Severity

FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    (
        "EXT4-fs (dm-2): Remounting filesystem read-only",
        "fs_readonly",
        {"device": "dm-2", "severity": Severity.CRITICAL},
    ),
    (
        "EXT4-fs error (device sdb3): ext4_lookup:1787: inode #131: comm python3: iget: checksum invalid",
        "fs_error",
        {"device": "sdb3", "severity": Severity.ERROR},
    ),
    (
        "EXT4-fs warning (device sdb3): ext4_end_bio:344: I/O error 10 writing to inode 131 starting block 7)",
        "fs_error",
        {},
    ),
    (
        "EXT4-fs (vb): Delayed block allocation failed for inode 7 at logical offset 8 with max blocks 9 with error 28",
        "fs_full",
        {"device": "vb", "errno": 28},
    ),
    (
        "EXT4-fs (vb): Delayed block allocation failed for inode 7 at logical offset 8 with max blocks 9 with error 5",
        "fs_error",
        {"errno": 5},
    ),
    ("EXT4-fs (sdb3): failed to convert unwritten extents to written extents -- potential data loss!", "fs_error", {}),
    ("EXT4-fs (sdb3): I/O error while writing superblock", "fs_error", {}),
    ("JBD2: Detected IO errors while flushing file data on sdb3-8", "fs_error", {"device": "sdb3"}),
    ("JBD2: Error -5 detected when updating journal superblock for sdb3-8.", "fs_error", {"device": "sdb3"}),
    ("JBD2: Detected IO errors -5 while flushing file data on dm-0-8", "fs_error", {"device": "dm-0"}),
    ("JBD2: I/O error detected when updating journal superblock for sdb3:8.", "fs_error", {"device": "sdb3"}),
    ("JBD2: Detected IO errors while flushing file data on dm-4", "fs_error", {"device": "dm-4"}),
    ("Aborting journal on device sdb3:8.", "fs_error", {"device": "sdb3"}),
    ("Aborting journal on device nvme1n1p2-8.", "fs_error", {"device": "nvme1n1p2", "severity": Severity.CRITICAL}),
    ("XFS (md12): Filesystem has been shut down due to log error (0x2).", "fs_error", {"cause": "log error"}),
    (
        "XFS (md12): Corruption of in-memory data detected.  Shutting down filesystem",
        "fs_error",
        {"device": "md12", "severity": Severity.CRITICAL},
    ),
    ("XFS (md12): log I/O error -5", "fs_error", {"errno": 5}),
    ('XFS (md12): metadata I/O error in "xfs_buf_ioend+0x1c7/0x4f0 [xfs]" at daddr 0x10 len 8 error 5', "fs_error", {}),
    ('XFS (md12): metadata I/O error: block 0x1f00 ("xlog_iodone") error 5 numblks 64', "fs_error", {}),
    (
        "XFS (md12): Metadata corruption detected at xfs_agf_read_verify+0x5c/0xc0 [xfs], xfs_agf block 0x1",
        "fs_error",
        {},
    ),
    ("BTRFS info (device sdd: state EA): forced readonly", "fs_readonly", {"device": "sdd"}),
    ("BTRFS info (device sdd): forced readonly", "fs_readonly", {"device": "sdd"}),
    ("BTRFS: error (device sdd: state A) in btrfs_run_delayed_refs:2150: errno=-28 No space left", "fs_full", {}),
    (
        "BTRFS: error (device sdd) in btrfs_commit_transaction:2418: errno=-5 IO failure",
        "fs_error",
        {"cause": "IO failure"},
    ),
    ("BTRFS: error (device sdd) in cleanup_transaction:1846: errno=-30 Readonly filesystem", "fs_readonly", {}),
    (
        "BTRFS error (device sdd): bdev /dev/sdd errs: wr 3, rd 0, flush 0, corrupt 0, gen 0",
        "fs_error",
        {"writes": "3"},
    ),
    ("BTRFS critical (device sdd): corrupt leaf: root=5 block=30408704 slot=0", "fs_error", {}),
    ("VFS: file-max limit 65536 reached", "file_handles_exhausted", {"count": 65536}),
]
LOST = "EXT4-fs (vb): This should not happen!! Data will be lost"


@pytest.mark.parametrize(("text", "name", "wanted"), FAULTS)
def test_a_filesystems_fault_names_its_block_device(text: str, name: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert finding.fault == name
    agrees(finding, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "EXT4-fs (sda2): mounted filesystem 11111111-2222-3333-4444-555555555555 ro with ordered data mode.",
        "EXT4-fs (sda2): re-mounted 11111111-2222-3333-4444-555555555555 ro.",
        "EXT4-fs (sda2): re-mounted. Opts: errors=remount-ro",
        "EXT4-fs (sda2): error count since last fsck: 4",
        "EXT4-fs (sda2): initial error at time 1690000000: ext4_find_entry:1455",
        "XFS (md12): Mounting V5 Filesystem 11111111-2222-3333-4444-555555555555",
        "XFS (md12): Ending clean mount",
        "XFS (md12): Starting recovery (logdev: internal)",
        "BTRFS info (device sdd): using crc32c (crc32c-intel) checksum algorithm",
        "BTRFS: device fsid 1111 devid 1 transid 7 /dev/sdd scanned by mount (311)",
        "agent: EXT4-fs (dm-2): Remounting filesystem read-only",
    ],
)
def test_mounts_as_they_were_asked_for_say_nothing(text: str) -> None:
    assert said(text) is None


def test_an_aborted_journal_and_the_remount_are_one_event_that_is_read_only() -> None:
    finding = one(
        [
            (0.0, "EXT4-fs error (device sdb3): ext4_journal_check_start:83: comm python3: Detected aborted journal"),
            (0.1, "EXT4-fs (sdb3): Remounting filesystem read-only"),
        ]
    )
    assert (finding.fault, finding.device) == ("fs_readonly", "sdb3")


def test_lost_data_is_added_to_the_full_disk_that_lost_it() -> None:
    assert one([(0.0, FAULTS[3][0]), (0.0, LOST)]).evidence["data_lost"] is True


def test_every_wording_of_filesystems_has_an_example() -> None:
    assert without_example(filesystem.RULES, [*(text for text, *_ in FAULTS), LOST]) == []
