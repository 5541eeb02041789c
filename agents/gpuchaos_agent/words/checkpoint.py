"""Writing checkpoints: errors that carry an errno, and those of PyTorch's writer that carry none.

Formats: Python's OSError, `inline_container.cc` and `serialization.py` of torch 1.5 to 2.9, safetensors (Rust's
io::Error), TensorFlow. Without an errno the cause is unknown: a full disk, a quota and a storage server that was
away for a moment look the same.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.wordings import LOOKED_AT, first, made, meaning, wording

HINTS: Final = (
    "[Errno ",
    "cannot be opened.",
    "PytorchStreamWriter",
    "inline_container.cc",
    "Os { code: ",
    "failed with ",
    "; No space left on device",
    "Parent directory ",
)
WRITERS: Final = frozenset({Writer.PROGRAM})

_OS_ERROR: Final = re.compile(
    r"\[Errno (?P<errno>\d{1,3})\] (?P<words>[A-Z][^:'\n]{2,60})(?:: ?['\"](?P<path>[^'\"\n]{1,300})['\"])?"
)
_RUST: Final = re.compile(r"Os \{ code: (?P<errno>\d{1,3}), kind: \w{1,40}, message: ")
_FD: Final = re.compile(r"(?:write|fsync|fwrite)\w{0,8}\(\): fd \d{1,7} failed with (?P<words>[A-Z][^\n]{2,60})")
_TENSORFLOW: Final = re.compile(r"(?P<path>/[^\s;]{1,300}); No space left on device")

#: errno (asm-generic/errno.h, Linux) → what stands behind it, and the fault where the path is no checkpoint's.
_CAUSES: Final = {
    5: ("io_error", ""),
    28: ("disk_full", "fs_full"),
    30: ("read_only", "fs_readonly"),
    107: ("storage_unreachable", ""),
    110: ("storage_unreachable", ""),
    116: ("stale_handle", "nfs_stale_handle"),
    122: ("quota", "fs_full"),
}
_ERRNO_OF: Final = {
    "No space left on device": 28,
    "Input/output error": 5,
    "Disk quota exceeded": 122,
    "Read-only file system": 30,
    "Stale file handle": 116,
}
_ACTIONS: Final = {"disk_full": "free_space", "quota": "free_space", "read_only": "check_storage_path"}
#: What names of checkpoints and of their files have in common.
CHECKPOINT: Final = re.compile(
    r"(?i)ckpt|checkpoint|\.(?:pt|pth|distcp|safetensors|bin|tmp|metadata|index)\b|/(?:global_)?step[_-]?\d|snapshot|optim"
)

_FAILED: Final = meaning("checkpoint_write_failed")
WORDINGS: Final = (
    wording(
        r"PytorchStreamWriter failed (?:writing|finalizing|closing)[^\n]{0,200}",
        "checkpoint_write_failed",
        action="check_storage_path",
        cause="unknown",
    ),
    wording(
        r"inline_container\.cc:\d{1,6}\] ?\. unexpected pos \d{1,20} vs \d{1,20}",
        "checkpoint_write_failed",
        action="check_storage_path",
        cause="unknown",
    ),
    wording(
        r"RuntimeError: File (?P<path>[^\n]{1,300}) cannot be opened\.",
        "checkpoint_write_failed",
        action="check_storage_path",
        cause="unknown",
    ),
    wording(
        r"RuntimeError: Parent directory (?P<path>[^\n]{1,300}) does not exist",
        "checkpoint_write_failed",
        action="check_storage_path",
        cause="no_directory",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """What a failed write says. An error of another file than a checkpoint is told as its filesystem's."""
    finding = _with_errno(record.text[:LOOKED_AT], record) or first(WORDINGS, record)
    return None if finding is None else replace(finding, family="checkpoint")


def _with_errno(text: str, record: LogRecord) -> Finding | None:
    match = _OS_ERROR.search(text) or _RUST.search(text) or _FD.search(text) or _TENSORFLOW.search(text)
    if match is None:
        return None
    groups = match.groupdict()
    words = groups.pop("words", None) or ""
    errno = int(groups["errno"]) if groups.get("errno") else _ERRNO_OF.get(words.strip() or "No space left on device")
    if errno is None or errno not in _CAUSES:
        return None
    cause, otherwise = _CAUSES[errno]
    saves = match.re is not _OS_ERROR or CHECKPOINT.search(groups.get("path") or text) is not None
    if not saves and not otherwise:
        return None
    row = replace(_FAILED, action=_ACTIONS.get(cause, "check_storage_path"))
    finding = made(row, {**groups, "errno": str(errno), "cause": cause}, record)
    return finding if saves else replace(finding, fault=otherwise)


def conclude(parts: Sequence[Finding]) -> Finding:
    """The part that knows the cause: torch's writer fails again while the first error is being told."""
    return next((part for part in parts if part.evidence.get("cause") != "unknown"), parts[0])


FAMILIES: Final = (Family("checkpoint", gap_s=30.0, any_device=True, conclude=conclude),)
