"""The mount of a `storage-disconnect` is not where it was when the undo runs: the filesystem is found all the same."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest
from storage_kit import mounted, planned, strategy, wait_until

from gpuchaos_agent import steps
from gpuchaos_agent.inject import storage_mounts, storage_reach
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.inject.storage_mounts import Mount

pytestmark = pytest.mark.root

#: What happens to a mount, with another folder that is free, while its fault stands; as before afterwards.
Away = Callable[[Path, Path], AbstractContextManager[None]]
#: Mode → the filesystem that it is tried on.
MODES = {"readonly": "ext4", "hanging": "ext4", "full": "tmpfs"}


def run(*words: str | Path) -> None:
    subprocess.run([str(word) for word in words], check=True)


@pytest.fixture
def area(tmp_path: Path) -> Iterator[Path]:
    """A folder in which mounts may be moved: of a mount that nobody shares."""
    where = tmp_path / "area"
    where.mkdir()
    run("mount", "-t", "tmpfs", "none", where)
    run("mount", "--make-private", where)
    try:
        yield where
    finally:  # the kernel gives an image back in its own time
        wait_until(lambda: subprocess.run(["umount", str(where)], check=False).returncode == 0, "it is unmounted")


@contextmanager
def covered(volume: Path, other: Path) -> Iterator[None]:
    """Another filesystem is mounted on it."""
    del other
    run("mount", "-t", "tmpfs", "none", volume)
    try:
        yield
    finally:
        run("umount", volume)


@contextmanager
def hidden(volume: Path, other: Path) -> Iterator[None]:
    """Another filesystem is mounted on the folder above, and a second one on that."""
    del other
    run("mount", "-t", "tmpfs", "none", volume.parent)
    run("mount", "-t", "tmpfs", "none", volume.parent)
    try:
        yield
    finally:
        run("umount", volume.parent)
        run("umount", volume.parent)


@contextmanager
def moved(volume: Path, other: Path) -> Iterator[None]:
    run("mount", "--move", volume, other)
    try:
        yield
    finally:
        run("mount", "--move", other, volume)


@contextmanager
def one_of_two_unmounted(volume: Path, other: Path) -> Iterator[None]:
    run("mount", "--bind", volume, other)
    run("umount", volume)
    try:
        yield
    finally:
        run("mount", "--bind", other, volume)
        run("umount", other)


@contextmanager
def in_another_namespace_alone(volume: Path, other: Path) -> Iterator[None]:
    del other
    script = 'mount --make-rprivate / && echo there && read -r line && umount "$0"'
    with subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", script, str(volume)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as there:
        assert there.stdin is not None
        assert there.stdout is not None
        assert there.stdout.readline() == b"there\n"
        source = next(each for each in storage_mounts.mounts(Path("/proc")) if each.path == str(volume))
        run("umount", volume)
        try:
            yield
        finally:
            again = (
                ["mount", source.source, volume] if source.kind == "ext4" else ["mount", "-t", "tmpfs", "none", volume]
            )
            run(*again)
            there.stdin.write(b"\n")
            there.stdin.flush()


#: Nobody can unmount what a guard holds open, so what hangs has been moved or covered.
CASES = [
    (mode, away)
    for mode in MODES
    for away in (covered, hidden, moved, one_of_two_unmounted, in_another_namespace_alone)
    if mode != "hanging" or away in (covered, hidden, moved)
]


@pytest.mark.parametrize(("mode", "away"), CASES)
def test_a_filesystem_whose_mount_is_not_where_it_was_is_undone_all_the_same(
    tmp_path: Path, area: Path, mode: str, away: Away
) -> None:
    state = tmp_path / "state"
    (area / "up").mkdir()
    (area / "other").mkdir()
    with mounted(area / "up", MODES[mode], size_mb=16) as volume:
        fault = strategy(state)
        entry = planned(fault, state, {"mode": mode, "path": str(volume)})
        fault.inject(entry)
        with away(volume, area / "other"):
            assert not fault.verify(entry)
            assert [steps.undo(strategy(state), entry) for _ in range(2)] == [None, None]
        (volume / "weights").write_bytes(b"x" * 4096)
        assert not list(volume.glob(".gpuchaos-*"))


def test_a_read_only_filesystem_that_is_unmounted_but_held_is_not_called_undone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with mounted(tmp_path) as volume:
        fault = strategy(state)
        entry = planned(fault, state, {"mode": "readonly", "path": str(volume)})
        fault.inject(entry)
        holder = os.open(volume, os.O_RDONLY)
        run("umount", "--lazy", volume)
        try:
            assert "is in use where it cannot be reached" in (steps.undo(strategy(state), entry) or "")
        finally:
            os.close(holder)
        wait_until(lambda: steps.undo(strategy(state), entry) is None, "its disk is free")
        run("mount", "-o", "loop", tmp_path / "image", volume)


def test_a_ballast_on_a_disk_that_is_unmounted_stays_not_undone(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with mounted(tmp_path) as volume:
        fault = strategy(state)
        entry = planned(fault, state, {"mode": "full", "path": str(volume)})
        fault.inject(entry)
        source = str(entry.payload["source"])
        holder = os.open(source, os.O_RDONLY)  # keeps the loop device
        run("umount", volume)
        try:
            with pytest.raises(InjectError, match="is on it"):
                fault.undo(entry)
            assert not fault.verify(entry)
        finally:
            run("mount", source, volume)
            os.close(holder)
        assert steps.undo(strategy(state), entry) is None
        assert sorted(path.name for path in volume.iterdir()) == ["lost+found"]


def test_what_covers_a_mount_is_told_by_what_it_is_mounted_on() -> None:
    def at(number: int, on: int, path: str) -> Mount:
        return Mount(path, "ext4", "7:0", "/dev/loop0", "/", "rw", "rw", number, on)

    root, data, volume = at(1, 0, "/"), at(2, 1, "/data"), at(3, 2, "/data/volume")
    plain = [root, data, volume]
    assert storage_reach.covers(plain, volume) == []
    beside, on_it, above = at(4, 1, "/data/vol"), at(5, 3, "/data/volume"), at(6, 2, "/data")
    assert storage_reach.covers([*plain, beside], volume) == []
    assert storage_reach.covers([*plain, on_it, above], volume) == [on_it, above]
    assert storage_reach.covers([*plain, on_it, above], on_it) == [above]
