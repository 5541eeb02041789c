"""Recordings that are broken, packed, empty, hostile, or not what they are said to be."""

from __future__ import annotations

import bz2
import contextlib
import gzip
import io
import lzma
import os
import re
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_help import said

from gpuchaos_agent.read import command, guess
from gpuchaos_agent.read.kinds import names
from gpuchaos_stream.errors import UserError

LOST = b"6,1,1000000,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=77, name=py, GPU has fallen off the bus.\n"
READ = [sys.executable, "-m", "gpuchaos_agent.agent", "read"]


def kept(folder: Path, content: bytes, name: str = "recording") -> Path:
    path = folder / name
    path.write_bytes(content)
    return path


def problem(path: Path, *, kind: str | None = None) -> str:
    """What is said of a recording that cannot be read."""
    with pytest.raises(UserError) as raised:
        command.read(path, kind=kind, output="json", out=io.StringIO())
    assert raised.value.fix, "what is to be done?"
    return str(raised.value)


def table(path: Path) -> str:
    out = io.StringIO()
    command.read(path, kind=None, output="table", out=out)
    return out.getvalue()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (os.urandom(20_000), "no text"),
        (Path("/bin/ls").read_bytes(), "no text"),
        ("[    1.000000] usb 1-1: new device\n".encode("utf-16"), "UTF-16"),
        (("[    1.000000] usb 1-1: new device\n" * 9).encode("utf-16-le"), "no text"),
        (b"\0" * 100, "no text"),
        (b"\x28\xb5\x2f\xfd" + b"x" * 50, "zstd"),
        (b"PK\x03\x04" + b"x" * 50, "zip"),
        (b"LPKSHHRH" + b"\0" * 300, "journal"),
        (b"\x1f\x8b\x08" + b"\xff" * 400, "broken"),
        (b"BZh9" + b"\xff" * 400, "broken"),
        (b"\xfd7zXZ\0" + b"\xff" * 400, "broken"),
    ],
)
def test_what_is_no_text_is_refused_with_what_to_do(tmp_path: Path, content: bytes, words: str) -> None:
    text = problem(kept(tmp_path, content))
    assert words in text
    assert str(tmp_path / "recording") in text


def test_a_folder_and_a_file_that_is_not_there_are_refused(tmp_path: Path) -> None:
    assert "directory" in problem(tmp_path)
    assert "No such file" in problem(tmp_path / "none")


def test_a_file_that_cannot_be_read_on_is_refused(tmp_path: Path) -> None:
    locked = kept(tmp_path, LOST)
    locked.chmod(0)
    assert "cannot be read" in problem(Path("/proc/self/mem"))
    if os.geteuid() != 0:
        assert "Permission" in problem(locked)


@pytest.mark.parametrize("content", [b"", b"\n\n  \n"])
def test_what_is_empty_is_said_to_be(tmp_path: Path, content: bytes) -> None:
    path = kept(tmp_path, content)
    (row,) = said(path)
    assert (row["fault"], row["doubt"]) == ("none", "it is empty")


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress])
def test_a_packed_log_is_read_as_it_is(tmp_path: Path, pack: object) -> None:
    assert callable(pack)
    assert [row["xid"] for row in said(kept(tmp_path, pack(LOST)))] == [79]


def test_of_a_packed_log_that_ends_in_the_middle_the_beginning_is_told_and_then_that_it_is_broken(
    tmp_path: Path,
) -> None:
    path = kept(tmp_path, gzip.compress(LOST * 3000 + os.urandom(4000).hex().encode())[:-500])
    out = io.StringIO()
    with pytest.raises(UserError, match="broken"):
        command.read(path, kind=None, output="json", out=out)
    assert '"gpu_lost"' in out.getvalue()


@pytest.mark.parametrize(
    "content",
    [
        LOST.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + LOST,
        b"\0" * 5000 + LOST,
        LOST.rstrip(b"\n"),
        LOST + b"6,2,1000001,-;\xff\xfe not utf-8\n",
    ],
)
def test_ends_of_lines_marks_and_holes_of_other_systems_change_nothing(tmp_path: Path, content: bytes) -> None:
    (row,) = [row for row in said(kept(tmp_path, content)) if row["fault"] != "none"]
    assert (row["kind"], row["fault"], row["device"], row["pid"]) == ("kmsg", "gpu_lost", "0000:3b:00", 77)


def test_a_pipe_is_read_as_a_file_is(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = threading.Thread(target=pipe.write_bytes, args=(LOST * 2000,))
    writer.start()
    rows = said(pipe)
    writer.join()
    assert [(row["fault"], row["count"]) for row in rows] == [("gpu_lost", 2000)]


def test_standard_input_is_a_dash() -> None:
    done = subprocess.run([*READ, "-", "-o", "json"], input=LOST, capture_output=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"gpu_lost"' in done.stdout
    closed = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" <&-', "sh", *READ, "-"], capture_output=True, check=False, timeout=60
    )
    assert closed.returncode == 2
    assert b"standard input" in closed.stderr
    assert b"Traceback" not in closed.stderr


def test_whoever_stops_reading_what_is_printed_makes_no_noise(tmp_path: Path) -> None:
    lines = b"".join(LOST.replace(b"3b:00", b"%02x:%02x" % (n >> 8, n & 255)) for n in range(5000))
    path = kept(tmp_path, lines)
    with subprocess.Popen([*READ, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as reading:
        assert reading.stdout is not None
        assert reading.stderr is not None
        reading.stdout.readline()
        reading.stdout.close()
        assert reading.stderr.read() == b""
        assert reading.wait(60) == 141, "as a shell says of SIGPIPE"


def test_a_full_disk_under_what_is_printed_is_an_error_in_words(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            [*READ, str(kept(tmp_path, LOST))], stdout=full, stderr=subprocess.PIPE, check=False, timeout=60
        )
    assert done.returncode == 2
    assert b"standard output: cannot be written" in done.stderr
    assert b"Traceback" not in done.stderr


def test_a_locale_without_arrows_prints_without_them(tmp_path: Path) -> None:
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    path = kept(tmp_path, LOST, "aufzeichnung-ä")
    done = subprocess.run([*READ, str(path)], capture_output=True, check=False, timeout=60, env=plain)
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"gpu_lost" in done.stdout


def test_an_unknown_kind_ends_with_2_and_the_nearest_name(tmp_path: Path) -> None:
    done = subprocess.run(
        [*READ, str(kept(tmp_path, LOST)), "--kind", "kmgs"], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert b"did you mean 'kmsg'?" in done.stderr


def test_the_help_lists_every_kind() -> None:
    done = subprocess.run([*READ, "--help"], capture_output=True, text=True, check=True, timeout=60)
    assert set(names()) <= set(re.findall(r"[a-z][a-z-]*", re.sub(r"-\n\s+", "-", done.stdout)))


@pytest.mark.parametrize("kind", sorted(set(names()) - {"app", "kmsg"}))
def test_a_log_that_is_certainly_of_another_kind_is_not_read_as_one_that_says_nothing(
    tmp_path: Path, kind: str
) -> None:
    assert "--kind kmsg" in problem(kept(tmp_path, LOST * 3), kind=kind)


def test_a_log_that_is_read_as_a_programs_against_all_likelihood_is_said_to_be_doubtful(tmp_path: Path) -> None:
    (row,) = said(kept(tmp_path, LOST * 3), kind="app")
    assert "/dev/kmsg" in row["doubt"]


@pytest.mark.parametrize("kind", names())
def test_every_kind_reads_nothing_out_of_nothing(tmp_path: Path, kind: str) -> None:
    assert [row["fault"] for row in said(kept(tmp_path, b""), kind=kind) if row["fault"] != "none"] == []


@pytest.mark.parametrize("kind", names())
@given(content=st.binary(max_size=300))
@settings(deadline=None)
def test_no_bytes_make_any_kind_fail(kind: str, content: bytes) -> None:
    chosen = guess.named(kind)
    chosen.likelihood(guess.sample("x", content))
    with contextlib.suppress(UserError):
        for found in chosen.conclude(io.BytesIO(content)):
            command.flat(found, chosen)


@pytest.mark.parametrize(
    "content", [b"[" * 100_000, b'{"path":"/sys/a","content":' + b"[" * 100_000, b'{"a":' * 50_000]
)
def test_json_that_is_nested_without_end_is_a_text_like_any_other(tmp_path: Path, content: bytes) -> None:
    assert [row["fault"] for row in said(kept(tmp_path, content))] == ["none"]


def test_a_journal_that_was_cut_off_tells_what_was_whole(tmp_path: Path) -> None:
    whole = (
        b'{"MESSAGE":"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus.","_TRANSPORT":"kernel",'
        b'"SYSLOG_FACILITY":"0","__REALTIME_TIMESTAMP":"1700000000000000"}\n'
    )
    rows = said(kept(tmp_path, whole + whole[:50]))
    assert (rows[0]["kind"], rows[0]["fault"]) == ("journal", "gpu_lost")


def test_no_text_of_a_recording_drives_the_terminal(tmp_path: Path) -> None:
    evil = (
        b"6,1,1,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=7, name=\\x1b[31m\\x1b]0;t\\x07\\xc2\\x9b2J, Graphics Exception\n"
        b"6,2,2,-;NVRM: Xid (PCI:0000:3c:00): 13, pid=77, name=\xe2\x80\xaetxt, Graphics Exception\n"
    )
    path = kept(tmp_path, evil, "a\x1b[2Jb")
    printed = table(path)
    assert "gpu_engine_exception" in printed
    assert [letter for letter in printed if not letter.isprintable() and letter != "\n"] == []
    out = io.StringIO()
    command.read(path, kind=None, output="json", out=out)
    assert out.getvalue().isascii()
    assert "\x1b" not in out.getvalue()


def test_a_name_without_end_is_cut(tmp_path: Path) -> None:
    line = b"6,1,1,-;NVRM: Xid (PCI:0000:3b:00): 13, pid=77, name=" + b"n" * 20_000 + b", Graphics Exception\n"
    assert max(map(len, table(kept(tmp_path, line)).splitlines())) < 3000


@pytest.mark.parametrize("stamp", ["0001-01-01T00:00:00,000000+14:00", "1950-01-01T00:00:00,000000+00:00",
                                   "9999-12-31T23:59:59,999999-14:00", "9999-99-99T99:99:99,000000+00:00"])  # fmt: skip
def test_a_time_that_no_clock_shows_hides_no_fault(tmp_path: Path, stamp: str) -> None:
    rows = said(kept(tmp_path, f"{stamp} NVRM: Xid (PCI:0000:3b:00): 79, pid=77\n".encode()))
    assert [row["fault"] for row in rows] == ["gpu_lost"]


def test_numbers_of_twenty_digits_are_numbers(tmp_path: Path) -> None:
    line = b"6,99999999999999999999,99999999999999999999,-;NVRM: Xid (PCI:0000:3b:00): 79, pid=77\n"
    assert [row["fault"] for row in said(kept(tmp_path, line * 2))] == ["gpu_lost"]


@pytest.mark.parametrize("head", [b"6,%d,1,-;", b""])
def test_of_more_devices_than_a_story_holds_open_none_is_forgotten(tmp_path: Path, head: bytes) -> None:
    lines = (
        (head % n if head else b"") + b"NVRM: Xid (PCI:%04x:%02x:00): 79, pid=7\n" % (n >> 8, n & 255)
        for n in range(3000)
    )
    rows = said(kept(tmp_path, b"".join(lines)), kind="kmsg" if head else "dmesg")
    assert len({row["device"] for row in rows}) == 3000


def test_a_line_without_end_takes_no_memory() -> None:
    code = (
        "import io\nfrom gpuchaos_agent.read import guess\n"
        "from gpuchaos_stream.errors import UserError\n"
        "class Endless(io.RawIOBase):\n    left = 200\n    def readable(self): return True\n"
        "    def readinto(self, b):\n        self.left -= len(b) / 1e6\n"
        "        n = len(b) if self.left > 0 else 0\n        b[:n] = b'x' * n\n        return n\n"
        "for kind in guess.known().values():\n"
        "    try: list(kind.conclude(io.BufferedReader(Endless())))\n"
        "    except UserError: pass\n"
        # Not ru_maxrss, which begins at what the process that started this one held.
        "print(int(open('/proc/self/status').read().split('VmHWM:')[1].split()[0]) // 1024)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 250
