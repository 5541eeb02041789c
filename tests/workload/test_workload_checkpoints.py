from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from workload_kit import Run, Start, faults

#: Minutes of real time-outs together; the fast ones are in test_workload_status.py.
pytestmark = pytest.mark.soak

STEPS = ("--checkpoint-every", "10", "--keep", "4")


def flip(run: Run, name: str, *, at: int = -2000) -> tuple[Path, int, bytes]:
    """Turns one high bit of a weight over; returns what puts it back."""
    path = run.folder / "checkpoints" / name / "model.safetensors"
    content = bytearray(path.read_bytes())
    offset = len(content) // 3 if at == -2000 else at
    before = bytes(content[offset : offset + 1])
    content[offset] ^= 0x40
    path.write_bytes(content)
    return path, offset, before


def stopped_at_three_checkpoints(start: Start, *words: str) -> Run:
    run = start("--steps", "30", *STEPS, *words)
    assert run.process.wait(60) == 0
    assert sorted(path.name for path in (run.folder / "checkpoints").iterdir()) == [
        "step-00000010",
        "step-00000020",
        "step-00000030",
    ]
    return run


def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_taken(start: Start) -> None:
    run = stopped_at_three_checkpoints(start)
    flip(run, "step-00000030")
    checkpoints = run.status()["checkpoints"]
    assert (checkpoints["good"], checkpoints["bad"], checkpoints["newest_good"]) == (2, 1, "step-00000020")
    again = start("--steps", "40", *STEPS)
    assert again.process.wait(60) == 0
    status = again.status()
    assert (status["refused"], status["resumed_from"]) == (["step-00000030"], "step-00000020")
    assert (status["steps_lost"], status["data_lost"], status["bad_weights_loaded"]) == (10, 0, 0)
    assert (status["checkpoints"]["bad"], status["step"], status["replayed_otherwise"]) == (0, 40, 0)
    assert re.search(r"checkpoint step-00000030 refused: sha256 of [\w.]+ differs; taking the one before", again.log())
    assert "checkpoint_corrupt" in faults(again.log())


def test_without_checksums_the_damaged_weights_are_loaded_and_the_status_shows_it(start: Start) -> None:
    run = stopped_at_three_checkpoints(start)
    flip(run, "step-00000030")
    again = start("--steps", "40", *STEPS, "--no-checksums")
    assert again.process.wait(60) == 0
    status = again.status()
    assert (status["refused"], status["resumed_from"]) == ([], "step-00000030")
    assert status["bad_weights_loaded"] == 1


def test_damaged_while_it_runs_and_then_a_rank_killed(start: Start) -> None:
    run = start(*STEPS, "--pause", "0.05")
    run.until_said("saved checkpoint step-00000020")
    flip(run, "step-00000020")
    os.kill(run.pid(1), signal.SIGKILL)
    run.until_said("resumed from checkpoint step-00000010")
    run.until_said("saved checkpoint step-00000030")
    assert run.stop() == 0
    status = run.status()
    assert status["refused"] == ["step-00000020"]
    assert (status["data_lost"], status["bad_weights_loaded"], status["checkpoints"]["bad"]) == (0, 0, 0)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A volume of 2 MiB, as a mount of its own."""
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    path = tmp_path / "volume"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "workload-test", str(path)], check=True)
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


@pytest.mark.root
def test_training_goes_on_while_the_disk_is_full(start: Start, small: Path) -> None:
    run = start(*STEPS, "--checkpoints", str(small))
    run.until_said("saved checkpoint step-00000010")
    ballast = small / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while file.write(b"\0" * 65536):
            pass
    run.until_said("[Errno 28] No space left on device")
    run.until_more()
    assert {"checkpoint_write_failed"} <= faults(run.log())
    ballast.unlink()
    run.until_said("that failed)")
    assert run.stop() == 0
    status = run.status()
    assert (status["restarts"], status["data_lost"], status["checkpoints"]["bad"]) == (0, 0, 0)
    assert status["checkpoints"]["failed"] >= 1
    assert not [path for path in small.iterdir() if not path.name.startswith("step-")]


@pytest.mark.root
def test_training_goes_on_while_the_volume_is_read_only(start: Start, small: Path) -> None:
    run = start(*STEPS, "--checkpoints", str(small))
    run.until_said("saved checkpoint step-00000010")
    subprocess.run(["mount", "-o", "remount,ro", str(small)], check=True)
    run.until_said("[Errno 30] Read-only file system")
    run.until_more()
    subprocess.run(["mount", "-o", "remount,rw", str(small)], check=True)
    run.until_said("that failed)")
    assert run.stop() == 0
    assert (run.status()["restarts"], run.status()["data_lost"]) == (0, 0)
    assert "checkpoint_write_failed" in faults(run.log())


def test_training_goes_on_while_the_volume_hangs(start: Start) -> None:
    run = start(*STEPS, "--storage-timeout", "1", "--checkpoint-every", "20")
    run.until_said("saved checkpoint step-00000020")
    (storage,) = storage_of(run.pid(0))
    os.kill(storage, signal.SIGSTOP)  # as a process that waits for a volume: it answers nothing
    run.until_said("TimeoutError: [Errno 110] Connection timed out")
    run.until_more()
    run.until_said("that failed)")
    assert run.stop() == 0
    assert (run.status()["restarts"], run.status()["data_lost"]) == (0, 0)
    assert "checkpoint_write_failed" in faults(run.log())


def storage_of(rank_pid: int) -> list[int]:
    """Storage processes of a rank."""
    children = Path(f"/proc/{rank_pid}/task").glob("*/children")
    pids = [int(pid) for each in children for pid in each.read_text().split()]
    return [pid for pid in pids if b"workload.storage" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.root
def test_a_frozen_filesystem_holds_nobody_and_a_killed_rank_comes_back_after_it(start: Start, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting needs root")
    image, path = tmp_path / "image", tmp_path / "frozen"
    path.mkdir()
    image.touch()
    os.truncate(image, 16 << 20)
    subprocess.run(["mkfs.ext4", "-q", str(image)], check=True)
    subprocess.run(["mount", "-o", "loop", str(image), str(path)], check=True)
    try:
        run = start(*STEPS, "--checkpoints", str(path), "--storage-timeout", "1")
        run.until_said("saved checkpoint step-00000010")
        subprocess.run(["fsfreeze", "-f", str(path)], check=True)
        try:
            run.until_said("TimeoutError: [Errno 110] Connection timed out")
            run.until_more()
            os.kill(run.pid(2), signal.SIGKILL)
            run.until(lambda: run.state()["restarts"] == 1, "a restart")
            run.until_more(5)
        finally:
            subprocess.run(["fsfreeze", "-u", str(path)], check=True)
        run.until_said("that failed)")
        assert run.stop() == 0
        status = run.status()
        assert (status["data_lost"], status["bad_weights_loaded"], status["checkpoints"]["bad"]) == (0, 0, 0)
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)
