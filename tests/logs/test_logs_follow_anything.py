"""Whatever is done to a log between two readings, every line comes once."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gpuchaos_agent.logs.follow import FileFollower

OPS = st.lists(
    st.sampled_from(["line", "line", "line", "half", "read", "rotate", "copytruncate", "recreate", "restart"]),
    max_size=40,
)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class _Writer:
    """A program and its log's keeper, on a clock of its own so that each change has a time of its own."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "app.log"
        self.path.write_bytes(b"")
        self.clock = 2_000_000_000
        self.numbers = 0
        self.rotated = 0
        self.open = b""
        self.written: list[str] = []
        self.unread: list[str] = []
        self.lost: set[str] = set()
        self.touch()

    def touch(self) -> None:
        self.clock += 1
        os.utime(self.path, (self.clock, self.clock))

    def write(self, data: bytes) -> None:
        with self.path.open("ab") as file:
            file.write(data)
        self.touch()

    def half(self) -> None:
        if not self.open:
            self.open = f"line {self.numbers:06d}.".encode()
            self.numbers += 1
            self.write(self.open[:7])
            self.open = self.open[7:]

    def line(self) -> None:
        self.half()
        self.write(self.open + b"\n")
        self.open = b""
        text = f"line {self.numbers - 1:06d}."
        self.written.append(text)
        self.unread.append(text)

    def whole(self) -> None:
        if self.open:
            self.line()

    def rotate(self) -> None:
        self.whole()
        self.rotated += 1
        self.path.rename(self.path.with_name(f"app.log.{self.rotated}"))
        self.path.write_bytes(b"")
        self.touch()

    def copytruncate(self) -> None:
        """What was not read by now may be in no file that we know."""
        self.whole()
        self.rotated += 1
        copy = self.path.with_name(f"app.log.{self.rotated}")
        copy.write_bytes(self.path.read_bytes())
        self.clock += 1
        os.utime(copy, (self.clock, self.clock))
        self.lost |= set(self.unread)
        os.truncate(self.path, 0)
        self.touch()

    def recreate(self) -> None:
        self.whole()
        self.lost |= set(self.unread)
        self.path.unlink()
        self.path.write_bytes(b"")
        self.touch()


@settings(max_examples=150, deadline=None)
@given(OPS, st.sampled_from([7, 40, 10_000]))
@example(["recreate", "line", "rotate", "restart"], 7)
@example(["line", "read", "line", "copytruncate", "line", "restart"], 10_000)
def test_every_line_comes_once_whatever_is_done_to_the_file(
    tmp_path_factory: pytest.TempPathFactory, ops: list[str], per_call: int
) -> None:
    writer = _Writer(tmp_path_factory.mktemp("follow"))
    state = writer.path.parent / "state.json"
    open_before = open_files()
    follower = FileFollower(writer.path, start="start", per_call_bytes=per_call, state=state)
    follower.begin()
    seen: list[str] = []

    def read() -> None:
        nonlocal seen
        seen += [line.text for line in follower.read()]
        if not follower.behind:
            writer.unread.clear()

    for op in ops:
        if op == "read":
            read()
        elif op == "restart":
            follower.commit()
            follower.close()
            follower = FileFollower(writer.path, start="start", per_call_bytes=per_call, state=state)
        else:
            getattr(writer, op)()
    writer.whole()
    for _ in range(4000 if per_call == 7 else 200):
        read()
        if not follower.behind:
            break
    read()
    whole = [text for text in seen if text.endswith(".")]
    assert len(whole) == len(set(whole))
    assert set(writer.written) - set(whole) <= writer.lost
    assert set(whole) <= set(writer.written)
    follower.close()
    assert open_files() == open_before
