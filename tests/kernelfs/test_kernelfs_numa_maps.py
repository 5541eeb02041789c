from __future__ import annotations

import mmap
import os
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs import numa_maps
from gpuchaos_agent.kernelfs.numa_maps import Samples, bytes_by_node, parse

PAGE = 4096


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("default", "default"),
        ("bind:2-3", "bind:2-3"),
        ("bind=static:0", "bind=static:0"),
        ("prefer:1", "prefer:1"),
        ("prefer (many):0,4", "prefer (many):0,4"),
        ("weighted interleave:0-5", "weighted interleave:0-5"),
        ("local", "local"),
    ],
)
def test_a_policy_is_read_with_its_blanks_and_flags(text: str, policy: str) -> None:
    line = parse(f"7fa0c0000000 {text} anon=3 dirty=3 active=0 N1=2 N4=1 kernelpagesize_kB=4")
    assert line is not None
    assert line.policy == policy
    assert line.pages == {1: 2, 4: 1}
    assert line.anon == 3


@pytest.mark.parametrize("kind", ["heap", "stack", "stack:881", "huge", "file=/srv/a\\040b"])
def test_what_stands_after_the_policy_is_none_of_it(kind: str) -> None:
    line = parse(f"55e0 weighted interleave:0-1 {kind} N0=1 kernelpagesize_kB=4")
    assert line is not None
    assert line.policy == "weighted interleave:0-1"
    assert line.huge == (kind == "huge")
    assert line.path == ("/srv/a b" if "file" in kind else "")


def test_a_mapping_without_pages_is_a_line_and_holds_nothing() -> None:
    assert parse("7fa0c0000000 default") == numa_maps.MapLine(policy="default")
    assert bytes_by_node(["7fa0c0000000 default"]) == {}


@pytest.mark.parametrize("line", ["", "no", "xyz default N0=1", "7f default\tN0", " ", "-1 default N0=1"])
def test_what_is_no_mapping_holds_nothing(line: str) -> None:
    assert bytes_by_node([line]) == {}


def test_pages_are_of_the_size_at_the_lines_end() -> None:
    lines = [
        "7f0000000000 default anon=2 dirty=2 N0=2 kernelpagesize_kB=4",
        "7f0010000000 bind:1 file=/anon_hugepage\\040(deleted) huge anon=3 dirty=3 N1=3 kernelpagesize_kB=2048",
        "7f0020000000 default anon=1 N1=1 kernelpagesize_kB=64",
    ]
    assert bytes_by_node(lines) == {0: 2 * PAGE, 1: 3 * 2048 * 1024 + 64 * 1024}


def test_clean_pages_of_a_library_are_nobodys_doing() -> None:
    library = "7f0000000000 default file=/opt/libx.so mapped=90 mapmax=30 N0=60 N1=30 kernelpagesize_kB=4"
    written = "7f0000100000 default file=/opt/libx.so anon=10 dirty=10 N0=10 kernelpagesize_kB=4"
    mixed = "7f0000200000 default file=/opt/libx.so anon=5 dirty=5 mapped=10 N0=4 N1=6 kernelpagesize_kB=4"
    assert bytes_by_node([library]) == {}
    assert bytes_by_node([written]) == {0: 10 * PAGE}
    assert bytes_by_node([mixed]) == {0: 2 * PAGE, 1: 3 * PAGE}


@pytest.mark.parametrize(
    "path", ["/dev/hugepages/torch_1", "/memfd:pinned\\040(deleted)", "/dev/zero\\040(deleted)", "/SYSV0"]
)
def test_shared_memory_looks_like_a_file_and_is_the_processs_own(path: str) -> None:
    assert bytes_by_node([f"7f00 default file={path} dirty=8 N1=8 kernelpagesize_kB=4"]) == {1: 8 * PAGE}


def test_a_node_named_in_a_path_is_not_counted() -> None:
    line = "7f00 default file=/srv/N0=5\\040N1=7 anon=2 dirty=2 N3=2 kernelpagesize_kB=4"
    assert bytes_by_node([line]) == {3: 2 * PAGE}


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    parse(text)
    assert all(size >= 0 for size in bytes_by_node([text, f"7f00 {text}"]).values())


def test_own_memory_of_this_process_is_found_on_a_node() -> None:
    if not Path("/proc/self/numa_maps").exists():
        assert Samples(Path("/proc")).pages("a", os.getpid(), 0.0, None)[0] is None
        return
    before = sum(numa_maps.read(Path("/proc/self/numa_maps")).values())
    with mmap.mmap(-1, 64 * 2**20) as block:
        block.write(b"x" * len(block))
        after = sum(numa_maps.read(Path("/proc/self/numa_maps")).values())
    assert after - before == pytest.approx(64 * 2**20, rel=0.1)


def plant(root: Path, pid: int, pages: int) -> None:
    (root / str(pid)).mkdir(exist_ok=True)
    (root / str(pid) / "numa_maps").write_text(f"7f00 default anon={pages} N0={pages} kernelpagesize_kB=4\n")


def test_a_process_is_read_again_only_after_its_rest(tmp_path: Path) -> None:
    samples = Samples(tmp_path, monotonic=lambda: 0.0)
    plant(tmp_path, 7, 1)
    assert settled(samples, 7, 0.0) == {0: PAGE}
    plant(tmp_path, 7, 2)
    assert samples.pages("k", 7, numa_maps.EVERY_S - 1, None)[0] == {0: PAGE}
    assert settled(samples, 7, numa_maps.EVERY_S, want={0: 2 * PAGE}) == {0: 2 * PAGE}


def settled(samples: Samples, pid: int, now: float, want: dict[int, float] | None = None) -> dict[int, float] | None:
    """The reading has a thread of its own: asks until it is there, or says what it is not."""
    done = threading.Event()
    for _ in range(500):
        found, problem = samples.pages("k", pid, now, None)
        if problem or (found is not None and (want is None or found == want)):
            return found
        done.wait(0.01)
    raise AssertionError("the map was not read")


def test_what_takes_long_is_read_more_seldom(tmp_path: Path) -> None:
    clock = iter((0.0, 0.2))
    samples = Samples(tmp_path, monotonic=lambda: next(clock, 0.2))
    plant(tmp_path, 7, 1)
    settled(samples, 7, 0.0)
    plant(tmp_path, 7, 2)
    # 0.2 s for all of them: read again after 500 times that.
    assert samples.pages("k", 7, 99.0, None)[0] == {0: PAGE}
    assert settled(samples, 7, 100.0, want={0: 2 * PAGE}) == {0: 2 * PAGE}


def test_a_process_too_large_is_not_read_and_said(tmp_path: Path) -> None:
    plant(tmp_path, 7, 1)
    found, problem = Samples(tmp_path).pages("k", 7, 0.0, 65 * 2.0**30)
    assert found is None
    assert "65 GiB" in problem


def test_a_map_that_is_not_ours_to_read_is_said(tmp_path: Path) -> None:
    samples = Samples(tmp_path)
    assert settled(samples, 7, 0.0) is None
    assert "numa_maps: No such file" in samples.pages("k", 7, 1.0, None)[1]


def test_a_map_that_hangs_is_said_and_holds_up_no_other(tmp_path: Path) -> None:
    (tmp_path / "7").mkdir()
    os.mkfifo(tmp_path / "7/numa_maps")
    plant(tmp_path, 8, 1)
    samples = Samples(tmp_path)
    assert samples.pages("hung", 7, 0.0, None) == (None, "")
    assert settled(samples, 8, 0.0) == {0: PAGE}
    assert samples.pages("hung", 7, 31.0, None) == (None, "numa_maps has not answered for 31 s")
    with (tmp_path / "7/numa_maps").open("wb"):
        pass  # lets the reading end
    samples.keep(())
