"""`memory-corruption` of a file that moves, grows, is deleted, or whose volume goes away while the bits are flipped.

Undone is what is measured to be gone: a file that cannot be looked at stays not undone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from journal_entries import journalled
from storage_kit import needs

from gpuchaos_agent.inject import file_handle, lost_file
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.memory_corruption import MemoryCorruption
from gpuchaos_agent.journal import JournalEntry, Scalar

NODE = "node/n1"
WEIGHTS = np.arange(4096, dtype=np.float32)


def strategy(folder: Path, boot_id: str = "b") -> MemoryCorruption:
    return MemoryCorruption(Env(node="n1", boot_id=boot_id, corruptible=(folder,)))


def weights(path: Path) -> bytes:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.save(file, WEIGHTS)
    return path.read_bytes()


def planned(folder: Path, path: Path, fault_id: str = "f1", **params: Scalar) -> JournalEntry:
    given: dict[str, Scalar] = {"plane": "file", "path": str(path), **params}
    assert strategy(folder).check(NODE, given) is None
    payload = strategy(folder).plan(NODE, given, fault_id)
    return journalled("memory-corruption", NODE, given, payload, boot_id="b", fault_id=fault_id)


def injected(folder: Path, path: Path, fault_id: str = "f1", **params: Scalar) -> JournalEntry:
    entry = planned(folder, path, fault_id, **params)
    strategy(folder).inject(entry)
    assert strategy(folder).evidence(entry).moved
    return entry


def undone(entry: JournalEntry, folder: Path, boot_id: str = "b") -> None:
    """Twice, and seen to be gone."""
    for _ in range(2):
        strategy(folder, boot_id).undo(entry)
        assert strategy(folder, boot_id).verify(entry)


def is_not_undone(entry: JournalEntry, folder: Path, words: str) -> None:
    for step in (strategy(folder).undo, strategy(folder).verify):
        with pytest.raises(InjectError, match=words):
            step(entry)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "checkpoints").mkdir()
    return tmp_path / "checkpoints"


@pytest.fixture(params=["by handle", "by search"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Files are found by handle, or, as on filesystems without and by agents that may not ask, by a search."""
    if request.param == "by search":
        monkeypatch.setattr(file_handle, "of", lambda _: None)
    elif os.geteuid() != 0:
        pytest.skip("opening by handle needs CAP_DAC_READ_SEARCH: run as root")
    return str(request.param)


@contextmanager
def volume(folder: Path, kind: str) -> Iterator[tuple[Path, Path]]:
    """A filesystem in an image, not mounted, and a folder to mount it on."""
    needs(kind)
    image, where = folder / "image", folder / "volume"
    where.mkdir()
    with image.open("wb") as file:
        file.truncate((320 if kind == "xfs" else 32) << 20)
    subprocess.run([f"mkfs.{kind}", "-q", str(image)], check=True)
    yield image, where
    while os.path.ismount(where):
        subprocess.run(["umount", str(where)], check=True)


def mount(image: Path, where: Path, options: str = "loop") -> None:
    subprocess.run(["mount", "-o", options, str(image), str(where)], check=True)


def umount(where: Path) -> None:
    subprocess.run(["umount", str(where)], check=True)


# The volume


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.usefixtures("way")
def test_volume_that_is_away_leaves_it_not_undone_until_it_is_back_on_whatever_device(
    tmp_path: Path, kind: str
) -> None:
    (tmp_path / "2").mkdir()
    with volume(tmp_path, kind) as (image, where), volume(tmp_path / "2", kind) as other:
        mount(image, where)
        before = weights(where / "run/step-1/model.npy")
        entry = injected(where, where / "run/step-1/model.npy")
        umount(where)
        is_not_undone(entry, where, "may still be damaged.*not mounted")
        mount(other[0], where)  # another one in its place, on the device that it had if no other test took that
        is_not_undone(entry, where, "may still be damaged.*not mounted")
        umount(where)
        mount(other[0], other[1])  # which takes the first loop device
        mount(image, where)
        undone(entry, where)
        assert (where / "run/step-1/model.npy").read_bytes() == before
        (where / "run/step-1/model.npy").unlink()
        undone(entry, where)


@pytest.mark.root
def test_volume_that_is_mounted_elsewhere_is_looked_into_there(tmp_path: Path) -> None:
    with volume(tmp_path, "ext4") as (image, where):
        mount(image, where)
        before = weights(where / "model.npy")
        entry = injected(where, where / "model.npy")
        umount(where)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        mount(image, elsewhere)
        try:
            undone(entry, where)
            assert (elsewhere / "model.npy").read_bytes() == before
        finally:
            umount(elsewhere)


@pytest.mark.root
def test_read_only_mount_of_the_volume_does_not_stand_in_the_way_of_a_writable_one(tmp_path: Path) -> None:
    with volume(tmp_path, "ext4") as (image, where):
        mount(image, where)
        before = weights(where / "model.npy")
        entry = injected(where, where / "model.npy")
        second = tmp_path / "second"
        second.mkdir()
        subprocess.run(["mount", "--bind", str(where), str(second)], check=True)
        try:
            subprocess.run(["mount", "-o", "remount,bind,ro", str(where)], check=True)
            (second / "model.npy").rename(second / "other.npy")
            undone(entry, where)
            assert (second / "other.npy").read_bytes() == before
            strategy(where).undo(entry)
        finally:
            umount(second)


@pytest.mark.root
def test_without_handles_a_volume_that_is_mounted_elsewhere_is_not_taken_for_searched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_handle, "of", lambda _: None)
    with volume(tmp_path, "ext4") as (image, where):
        mount(image, where)
        weights(where / "model.npy")
        entry = injected(where, where / "model.npy")
        umount(where)
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        mount(image, elsewhere)
        try:
            is_not_undone(entry, where, "is not on its filesystem now")
        finally:
            umount(elsewhere)


@pytest.mark.root
def test_memory_that_nobody_has_mounted_any_more_is_gone_and_a_reboot_ends_it_too(tmp_path: Path) -> None:
    # In a mount namespace of its own: those that other tests make would hold a copy of the mount.
    program = f"import sys; sys.path[:0] = {sys.path!r}; import {__name__} as it; it.memory(it.Path({str(tmp_path)!r}))"
    argv = ["unshare", "--mount", "--propagation", "private", sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def memory(folder: Path) -> None:
    """What is in a memory filesystem, while it has two mounts, one, and none."""
    where, second = folder / "volume", folder / "second"
    where.mkdir()
    second.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", str(where)], check=True)
    weights(where / "model.npy")
    entry = injected(where, where / "model.npy")
    subprocess.run(["mount", "--bind", str(where), str(second)], check=True)
    umount(where)
    assert strategy(where).evidence(entry).moved, "it is still there, in its other mount"
    umount(second)
    if Path("/proc/self/ns/pid").readlink() == Path("pid:[4026531836]"):
        undone(entry, where)
    else:  # somebody outside of this container may still have it
        is_not_undone(entry, where, "not mounted")
    undone(entry, where, boot_id="the next boot")


# The file


@pytest.mark.parametrize("length", [64, 20_000])
def test_file_that_was_appended_to_is_put_right_and_keeps_what_was_appended(folder: Path, length: int) -> None:
    path = folder / "model"
    before = bytes(at % 251 for at in range(length))  # in the small one, what is appended is next to flipped bytes
    path.write_bytes(before)
    entry = injected(folder, path, bits=64, region="any")
    with path.open("ab") as file:
        file.write(b"a" * 40)
    undone(entry, folder)
    assert path.read_bytes() == before + b"a" * 40


def test_file_cut_short_is_put_right_as_far_as_it_goes(folder: Path) -> None:
    path = folder / "model.npy"
    before = weights(path)
    entry = injected(folder, path)
    offset = json.loads(str(entry.payload["flips"]))[0][0]
    os.truncate(path, offset + 1)  # the byte is still there, and what was after it is not
    undone(entry, folder)
    assert path.read_bytes() == before[: offset + 1]
    os.truncate(path, offset)
    undone(entry, folder)


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("to", ["run/best/final.npy", "archive/2026/a.npy", "model.npy"])
def test_file_that_was_moved_anywhere_in_the_folder_is_found(folder: Path, to: str) -> None:
    path = folder / "run/step-1/model.npy"
    before = weights(path)
    entry = injected(folder, path)
    (folder / to).parent.mkdir(parents=True, exist_ok=True)
    path.rename(folder / to)
    weights(path)  # a new one at the old place
    undone(entry, folder)
    assert (folder / to).read_bytes() == before


@pytest.mark.root
def test_file_that_was_moved_out_of_the_folder_is_found_by_its_handle(folder: Path, tmp_path: Path) -> None:
    before = weights(folder / "model.npy")
    entry = injected(folder, folder / "model.npy")
    if entry.payload["handle"] is None:
        pytest.skip("this filesystem has no file handles (a matter of the filesystem, not of a GPU)")
    away = tmp_path / "archive"
    away.mkdir()
    (folder / "model.npy").rename(away / "model.npy")
    undone(entry, folder)
    assert (away / "model.npy").read_bytes() == before


@pytest.mark.usefixtures("way")
def test_checkpoint_that_was_rotated_away_is_gone_with_its_folder(folder: Path) -> None:
    path = folder / "run/step-1/model.npy"
    weights(path)
    entry = injected(folder, path)
    shutil.rmtree(path.parent)
    kept = weights(folder / "run/step-2/model.npy")
    undone(entry, folder)
    assert (folder / "run/step-2/model.npy").read_bytes() == kept


def test_search_that_did_not_end_proves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_handle, "of", lambda _: None)
    monkeypatch.setattr(lost_file, "_SEARCH_S", -1.0)
    path = folder / "model.npy"
    weights(path)
    entry = injected(folder, path)
    path.rename(folder / "other.npy")
    is_not_undone(entry, folder, "may still be damaged")


def test_search_of_a_folder_that_is_not_there_proves_nothing(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_handle, "of", lambda _: None)
    before = weights(folder / "model.npy")
    entry = injected(folder, folder / "model.npy")
    folder.rename(folder.with_name("renamed"))
    is_not_undone(entry, folder, "may still be damaged")
    folder.with_name("renamed").rename(folder)
    undone(entry, folder)
    assert (folder / "model.npy").read_bytes() == before


# Two faults


@contextmanager
def without_attributes(folder: Path) -> Iterator[Path]:
    where = folder / "ramfs"
    where.mkdir()
    subprocess.run(["mount", "-t", "ramfs", "none", str(where)], check=True)
    try:
        yield where
    finally:
        umount(where)


def _second_is_refused(folder: Path) -> None:
    path = folder / "model.npy"
    before = weights(path)
    raced = planned(folder, path, "f2", seed=7)  # before the first one is there
    entry = injected(folder, path, seed=7)
    reason = strategy(folder).check(NODE, {"plane": "file", "path": str(path)}) or ""
    assert "flipped by fault f1" in reason
    with pytest.raises(InjectError, match="flipped by fault f1"):
        strategy(folder).inject(raced)
    with pytest.raises(InjectError, match="flipped by fault f1"):
        strategy(folder).undo(raced)
    assert strategy(folder).evidence(entry).moved, "the other's undo does not take it back"
    undone(entry, folder)
    undone(raced, folder)
    assert path.read_bytes() == before
    assert list(folder.iterdir()) == [path]
    assert not os.listxattr(path)
    undone(injected(folder, path, "f3"), folder)


def test_two_faults_do_not_flip_bits_of_one_file_though_their_journals_know_nothing_of_each_other(
    folder: Path,
) -> None:
    _second_is_refused(folder)


@pytest.mark.root
def test_two_faults_do_not_flip_bits_of_one_file_where_files_have_no_attributes(tmp_path: Path) -> None:
    with without_attributes(tmp_path) as folder:
        with pytest.raises(OSError, match="not supported"):
            os.setxattr(folder, "user.any", b"")
        _second_is_refused(folder)
        entry = injected(folder, folder / "model.npy", "f4")
        assert [path.name for path in folder.iterdir() if path.name.startswith(".gpuchaos-")]
        (folder / "model.npy").unlink()
        undone(entry, folder)
        assert list(folder.iterdir()) == []


def test_copy_of_a_marked_file_is_not_marked(folder: Path) -> None:
    weights(folder / "model.npy")
    entry = injected(folder, folder / "model.npy")
    subprocess.run(["cp", "-a", folder / "model.npy", folder / "copy.npy"], check=True)
    undone(injected(folder, folder / "copy.npy", "f2"), folder)
    undone(entry, folder)


def test_flips_that_another_fault_made_unmarked_are_not_called_gone(folder: Path) -> None:
    path = folder / "model.npy"
    before = weights(path)
    first = injected(folder, path, seed=7)
    offset = json.loads(str(first.payload["flips"]))[0][0]
    told = path.stat()
    with path.open("r+b") as file:  # as a fault that knows no marks would, beside ours
        os.pwrite(file.fileno(), bytes([before[offset + 1] ^ 1]), offset + 1)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    with pytest.raises(InjectError, match="another fault's flips"):
        strategy(folder).undo(first)
    assert not strategy(folder).verify(first)
    with path.open("r+b") as file:
        os.pwrite(file.fileno(), before[offset + 1 : offset + 2], offset + 1)
    os.utime(path, ns=(told.st_atime_ns, told.st_mtime_ns))
    undone(first, folder)
    assert path.read_bytes() == before


# By hand


def test_dry_run_of_a_path_with_blanks_can_be_typed_and_says_which_bits_are_drawn(folder: Path) -> None:
    path = folder / "my run" / "it's $HOME.npy"
    before = weights(path)
    commands = strategy(folder).commands(planned(folder, path, bits=2))
    assert all("# drawn for this fault" in command for command in commands)
    for command in commands[:2]:
        subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert sum((a ^ b).bit_count() for a, b in zip(before, path.read_bytes(), strict=True)) == 2
    for command in commands[2:]:
        subprocess.run(["bash", "-c", command], check=True, capture_output=True)
    assert path.read_bytes() == before
    told = planned(folder, path, bits=2).payload["seed"]
    assert planned(folder, path, "f2", bits=2, seed=told).payload["seed"] == told
    assert not any("#" in command for command in strategy(folder).commands(planned(folder, path, seed=7)))
