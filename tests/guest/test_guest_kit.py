"""The test machine itself: what is in its archive, and that it is what it says."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lab import guest_initrd, guest_kernel
from lab.guest import MODULES, Guest, GuestDiedError


@given(
    st.dictionaries(st.from_regex(r"[a-z]{1,12}(/[a-z]{1,12})?", fullmatch=True), st.binary(max_size=64), max_size=6)
)
def test_archive_holds_every_file_as_it_was_given(files: dict[str, bytes]) -> None:
    archive = guest_initrd.Archive()
    for name, content in files.items():
        archive.file(name, content, executable=True)
    found = list(guest_initrd.entries(archive.finished()))
    assert [(name, content) for name, _, content in found] == [*files.items(), ("TRAILER!!!", b"")]
    assert all(mode == stat.S_IFREG | 0o755 for _, mode, _ in found[:-1])


def test_modules_come_after_all_that_they_depend_on(tmp_path: Path) -> None:
    (tmp_path / "modules.dep").write_text(
        "kernel/fs/9p/9p.ko: kernel/net/9p/9pnet.ko kernel/fs/netfs/netfs.ko\n"
        "kernel/net/9p/9pnet.ko:\nkernel/fs/netfs/netfs.ko: kernel/fs/fscache.ko\nkernel/fs/fscache.ko:\n"
    )
    assert guest_initrd.closure(tmp_path, ["9p", "9p", "built-in"]) == [
        "kernel/net/9p/9pnet.ko",
        "kernel/fs/fscache.ko",
        "kernel/fs/netfs/netfs.ko",
        "kernel/fs/9p/9p.ko",
    ]


def test_program_that_needs_libraries_is_told_from_one_that_does_not() -> None:
    assert not guest_kernel.is_static(Path("/bin/sh").read_bytes())


def test_guest_has_two_numa_nodes_and_the_hosts_files_that_it_cannot_write(guest: Guest) -> None:
    assert guest.check("cat /sys/devices/system/node/online").strip() == "0-1"
    mine = Path(__file__)
    assert guest.check(f"cat {mine}") == mine.read_text()
    guest.check(f"echo changed > {mine}; rm -f {mine.with_name('test_guest_kit.py')}")
    assert mine.read_text() != "changed\n"
    assert mine.with_name("test_guest_kit.py").exists()
    guest.check("echo from inside > /out/note")
    assert (guest.folder / "note").read_text() == "from inside\n"


def test_guest_tells_a_commands_end_and_outlives_one_that_runs_too_long(guest: Guest) -> None:
    assert guest.run("echo out; echo err >&2; exit 3") == (done := guest.run("echo out; echo err >&2; exit 3"))
    assert (done.rc, done.out) == (3, "out\nerr\n")
    assert guest.run("sleep 30", timeout=1).rc == 137
    assert guest.run("printf '\\303\\050'").out == "\ufffd("


@pytest.mark.parametrize("purpose", sorted(MODULES))
def test_every_module_that_is_named_can_be_loaded(guest: Guest, purpose: str) -> None:
    guest.check(f"modprobe -a {' '.join(MODULES[purpose])}")


@pytest.mark.soak
def test_guest_that_dies_says_so_and_leaves_no_process(guest: Guest, tmp_path: Path) -> None:
    with Guest(memory_mb=512, cpus=1, folder=tmp_path) as other:
        process = other._process
        assert process is not None
        with pytest.raises(GuestDiedError, match="ended"):
            other.run("echo b > /proc/sysrq-trigger; sleep 5", timeout=10)
        with pytest.raises(GuestDiedError, match="ended"):
            other.run("true")
    assert process.poll() is not None
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
    assert "Linux version" in (tmp_path / "console.log").read_text()
