"""Local filesystems: errors, forced read-only, shut down, full. A filesystem mounted read-only is none of it.

Wordings: Linux `fs/ext4/{super,inode,page-io}.c`, `fs/jbd2/journal.c`, `fs/xfs/{xfs_fsops,xfs_log,xfs_buf}.c`,
`fs/btrfs/{messages,fs,volumes}.c`, `fs/file_table.c`, 4.14 to 6.14. btrfs puts its state behind the device (`state EA`)
since 5.18; XFS named the cause of a shutdown differently before 5.16 (`Corruption of in-memory data detected`).
errno 28 is ENOSPC: the disk is full, and the rest of the line is what comes of it.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("EXT4-fs", "JBD2: ", "Aborting journal on device ", "XFS (", "BTRFS", "VFS: file-max limit ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("filesystem", gap_s=30.0),)

_DEV: Final = r"(?P<device>[\w.!/-]{1,48})"
_EXT4: Final = rf"EXT4-fs \({_DEV}\): "
_EXT4_AT: Final = rf"\(device {_DEV}\): \w{{1,64}}:\d{{1,6}}: "
_XFS: Final = rf"XFS \({_DEV}\): "
_STATE: Final = r"(?:(?:: | )state \w{1,16})?"
_BTRFS: Final = rf"BTRFS (?:info|error|critical|warning|alert|notice) \(device {_DEV}{_STATE}\): "
_BTRFS_ERROR: Final = rf"BTRFS: error \(device {_DEV}{_STATE}\) in \w{{1,64}}:\d{{1,6}}: errno="

_READONLY: Final = ("fs_readonly", Severity.CRITICAL, "check_filesystem")
_ERROR: Final = ("fs_error", Severity.ERROR, "check_filesystem")
_DEAD: Final = ("fs_error", Severity.CRITICAL, "check_filesystem")
_FULL: Final = ("fs_full", Severity.ERROR, "free_disk_space")


def _rule(words: str, verdict: tuple[str, Severity, str], since: str = "4.14") -> Rule:
    return Rule(re.compile(words), *verdict, since, "filesystem")


RULES: Final = (
    _rule(_EXT4 + r"(?P<cause>Remounting filesystem read-only)", _READONLY, "2.6.28"),
    _rule(_EXT4 + r"Delayed block allocation failed for [^\n]{1,120} with error (?P<errno>28)\b", _FULL, "2.6.28"),
    _rule(_EXT4 + r"(?P<cause>Delayed block allocation failed) for [^\n]{1,120} with error (?P<errno>\d{1,4})", _ERROR),
    _rule(_EXT4 + r"(?P<cause>failed to convert unwritten extents)[^\n]{0,120}", _ERROR, "3.10"),
    _rule(_EXT4 + r"(?P<cause>I/O error while writing superblock|previous I/O error to superblock detected)", _ERROR),
    _rule(r"EXT4-fs error " + _EXT4_AT + r"(?P<cause>[^\n]{1,200})", _ERROR, "2.6.33"),
    _rule(r"EXT4-fs warning " + _EXT4_AT + r"(?P<cause>I/O error) \d{1,4} writing to inode", _ERROR, "3.11"),
    _rule(
        rf"JBD2: (?P<cause>Detected IO errors (?:-?\d{{1,5}} )?while flushing file data) on {_DEV}", _ERROR, "2.6.28"
    ),
    _rule(
        rf"JBD2: (?P<cause>(?:Error -?\d{{1,5}}|I/O error) detected when updating journal superblock) for {_DEV}",
        _ERROR,
    ),
    _rule(rf"(?P<cause>Aborting journal) on device {_DEV}(?::\d{{1,10}})?\.", _DEAD, "2.6.28"),
    _rule(_XFS + r"Filesystem has been shut down due to (?P<cause>[a-z ]{1,60}) \(0x", _DEAD, "5.16"),
    _rule(
        _XFS + r"(?P<cause>(?:Corruption of (?:in-memory|on-disk) |(?:Log )?I/O Error |User initiated shutdown )"
        r"[^\n]{1,100})"
        r"Shutting down filesystem",
        _DEAD,
        "to 5.15; with a place 5.16",
    ),
    _rule(_XFS + r"(?P<cause>log I/O error) (?P<errno>-\d{1,5})", _ERROR, "5.1"),
    _rule(_XFS + r"(?P<cause>metadata I/O error) in ", _ERROR, "4.17; `: block 0x` before"),
    _rule(_XFS + r"(?P<cause>metadata I/O error): block 0x", _ERROR, "to 4.16"),
    _rule(_XFS + r"(?P<cause>Metadata (?:corruption|CRC error) detected) at ", _ERROR, "3.15"),
    _rule(_BTRFS + r"(?P<cause>forced readonly)", _READONLY, "3.2"),
    _rule(_BTRFS_ERROR + r"(?P<errno>-28) ", _FULL, "3.4"),
    _rule(_BTRFS_ERROR + r"(?P<errno>-30) ", _READONLY, "3.4"),
    _rule(_BTRFS_ERROR + r"(?P<errno>-\d{1,5}) (?P<cause>[^\n]{1,60})", _DEAD, "3.4"),
    _rule(
        _BTRFS + r"bdev (?P<path>[^\s]{1,64}) errs: wr (?P<writes>\d{1,10}), rd (?P<reads>\d{1,10}), flush",
        _ERROR,
        "3.3",
    ),
    _rule(rf"BTRFS critical \(device {_DEV}{_STATE}\): (?P<cause>corrupt (?:leaf|node))", _DEAD, "4.11"),
    Rule(
        re.compile(r"VFS: file-max limit (?P<count>\d{1,20}) reached"),
        "file_handles_exhausted",
        Severity.ERROR,
        "raise_file_max",
        "2.6",
    ),
    Rule(
        re.compile(_EXT4 + r"This should not happen!! Data will be lost"),
        NONE,
        since="2.6.28",
        family="filesystem",
        part=Part.DETAIL,
        says={"data_lost": True},
    ),
)
#: jbd2 names a journal by its device and inode (`sda1-8`, `dm-0-8`), an external one by its device (`dm-0`).
_JOURNAL: Final = re.compile(r"(?!dm-\d{1,10}\Z)([\w.!/-]{1,40})-\d{1,10}\Z")


def read(record: LogRecord) -> Finding | None:
    """What a filesystem says of itself; `device` is the block device that it lies on."""
    finding = table.read(RULES, record.text)
    if finding is not None and record.text.startswith(("JBD2: ", "Aborting journal ")):
        journal = _JOURNAL.match(finding.device.rstrip("."))
        if journal is not None:
            return replace(finding, device=journal[1])
    return finding
