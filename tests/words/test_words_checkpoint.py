# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import one, said


@pytest.mark.parametrize(
    ("text", "errno", "cause"),
    [
        ("OSError: [Errno 28] No space left on device: '/ckpt/step_200/__1_0.distcp'", 28, "disk_full"),
        ("OSError: [Errno 122] Disk quota exceeded: '/scratch/checkpoints/last.pt'", 122, "quota"),
        ("OSError: [Errno 5] Input/output error: '/ckpt/epoch3/optim.bin'", 5, "io_error"),
        ("OSError: [Errno 30] Read-only file system: '/ckpt/model.safetensors'", 30, "read_only"),
        ("OSError: [Errno 116] Stale file handle: '/nfs/ckpt/rng.pth'", 116, "stale_handle"),
        (
            (
                "safetensors_rust.SafetensorError: Error while serializing: IoError(Os { code: 28, kind: StorageFull, "
                'message: "No space left on device" })'
            ),
            28,
            "disk_full",
        ),
        ("RuntimeError: write(): fd 17 failed with Input/output error", 5, "io_error"),
        (
            "ResourceExhaustedError: {{function_node x}} /ckpt/model_temp/part-0; No space left on device [Op:SaveV2]",
            28,
            "disk_full",
        ),
    ],
)
def test_an_errno_tells_the_cause(text: str, errno: int, cause: str) -> None:
    found = one(text)
    assert (found.fault, found.evidence["errno"], found.evidence["cause"]) == ("checkpoint_write_failed", errno, cause)


@pytest.mark.parametrize(
    "text",
    [
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 1024 vs 918",
        "RuntimeError: [enforce fail at inline_container.cc:783] . PytorchStreamWriter failed writing file data/7: file write failed",
        "RuntimeError: File /ckpt/a b/model.pt cannot be opened.",
    ],
)
def test_without_an_errno_the_cause_is_unknown(text: str) -> None:
    found = one(text)
    assert (found.fault, found.evidence["cause"]) == ("checkpoint_write_failed", "unknown")


def test_the_error_that_knows_the_cause_goes_before_what_comes_of_it() -> None:
    found = one(
        "RuntimeError: [enforce fail at inline_container.cc:603] . unexpected pos 1024 vs 918",
        "OSError: [Errno 28] No space left on device: '/ckpt/step_200/0.distcp'",
    )
    assert (found.evidence["cause"], found.evidence["path"]) == ("disk_full", "/ckpt/step_200/0.distcp")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("OSError: [Errno 28] No space left on device: '/tmp/cache/x.lock'", "fs_full"),
        ("OSError: [Errno 30] Read-only file system: '/var/lib/a'", "fs_readonly"),
        ("OSError: [Errno 116] Stale file handle: '/data/shard-3.tar'", "nfs_stale_handle"),
        ("FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/last.pt'", "none"),
        ("OSError: [Errno 98] Address already in use", "none"),
        ("the attempt failed with no error", "none"),
    ],
)
def test_other_files_are_told_as_their_filesystems(text: str, fault: str) -> None:
    assert said(text) == fault
