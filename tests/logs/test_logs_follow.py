from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from gpuchaos_agent.logs.follow import LINGER, LONGEST_LINE, TAIL, FileFollower


def texts(follower: FileFollower) -> list[str]:
    return [line.text for line in follower.read()]


def append(path: Path, text: str) -> None:
    with path.open("a") as file:
        file.write(text)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "app.log"
    path.write_text("")
    return path


def test_lines_are_handed_out_once_and_when_they_are_whole(log: Path) -> None:
    follower = FileFollower(log, start="start")
    append(log, "one\ntw")
    assert texts(follower) == ["one"]
    append(log, "o\nthree\n")
    assert texts(follower) == ["two", "three"]
    assert texts(follower) == []


@pytest.mark.parametrize(("start", "seen"), [("start", ["old", "new"]), ("end", ["new"]), ("tail", ["old", "new"])])
def test_where_the_first_reading_begins_can_be_chosen(log: Path, start: str, seen: list[str]) -> None:
    append(log, "old\n")
    follower = FileFollower(log, start=start)  # type: ignore[arg-type]
    follower.begin()
    append(log, "new\n")
    assert texts(follower) == seen


def test_a_tail_begins_with_a_whole_line(log: Path) -> None:
    append(log, "x" * TAIL + "\nlast\n")
    assert texts(FileFollower(log, start="tail")) == ["last"]


def test_a_line_that_was_open_at_the_start_is_left_out_whole(log: Path) -> None:
    append(log, "before ")
    follower = FileFollower(log, start="end")
    follower.begin()
    append(log, "after\nnext\n")
    assert texts(follower) == ["next"]
    assert follower.cut == 0


def test_a_file_that_comes_later_is_read_from_its_beginning(tmp_path: Path) -> None:
    path = tmp_path / "later.log"
    follower = FileFollower(path, start="end")
    assert texts(follower) == []
    assert "No such file" in follower.problem
    path.write_text("first\n")
    assert texts(follower) == ["first"]
    assert follower.problem == ""


def test_a_renamed_file_is_read_to_its_end_before_the_new_one(log: Path) -> None:
    follower = FileFollower(log, start="start")
    append(log, "1\n")
    assert texts(follower) == ["1"]
    append(log, "2\n")
    log.rename(log.with_name("app.log.1"))
    log.write_text("3\n")
    assert texts(follower) == ["2", "3"]


def test_a_writer_that_has_not_heard_of_the_rotation_is_still_read(log: Path) -> None:
    follower = FileFollower(log, start="start")
    with log.open("a") as writer:
        follower.read()
        log.rename(log.with_name("app.log.1"))
        log.write_text("new\n")
        assert texts(follower) == ["new"]
        writer.write("late\n")
        writer.flush()
        assert texts(follower) == ["late"]


def test_files_that_came_and_went_between_two_calls_are_found(log: Path) -> None:
    follower = FileFollower(log, start="start")
    append(log, "1\n")
    follower.read()
    for number, age in ((2, 30), (3, 20)):
        log.rename(log.with_name(f"app.log.{number}"))
        log.write_text(f"{number}\n")
        os.utime(log, (10_000_000_000 - age, 10_000_000_000 - age))
    log.with_name("app.log.err").write_text("another's\n")
    log.with_name("app.log.1.gz").write_bytes(b"\x1f\x8b\n\n")
    assert texts(follower) == ["2", "3"]


def test_rotated_files_of_before_are_not_read(log: Path) -> None:
    old = log.with_name("app.log.1")
    old.write_text("ancient\n")
    os.utime(old, (1000, 1000))
    follower = FileFollower(log, start="start")
    follower.read()
    log.rename(log.with_name("app.log.2"))
    log.write_text("new\n")
    assert texts(follower) == ["new"]


def test_a_rotated_file_whose_writer_never_lets_go_is_not_read_twice(log: Path) -> None:
    follower = FileFollower(log, start="start")
    writer = log.open("a")
    append(log, "1\n")
    follower.read()
    log.rename(log.with_name("app.log.1"))
    log.write_text("")
    for _ in range(LINGER + 3):
        follower.read()
    writer.write("late\n")
    writer.close()
    os.utime(log, (1000, 1000))
    log.rename(log.with_name("app.log.2"))
    log.write_text("2\n")
    assert texts(follower) == ["late", "2"]


def test_a_truncated_file_is_read_from_its_beginning(log: Path) -> None:
    follower = FileFollower(log, start="start")
    append(log, "one\ntwo\nthr")
    follower.read()
    log.write_text("4\n")
    (line,) = follower.read()
    assert (line.text, line.offset, line.generation) == ("4", 0, 1)


def test_a_file_that_was_truncated_and_has_grown_beyond_is_noticed(log: Path) -> None:
    follower = FileFollower(log, start="start")
    append(log, "one\n")
    follower.read()
    log.write_text("three\nfour\n")
    assert texts(follower) == ["three", "four"]


def test_the_hole_that_a_writer_leaves_after_a_truncation_is_skipped(log: Path) -> None:
    follower = FileFollower(log, start="start")
    with log.open("w") as writer:  # not for appending: it keeps its own position
        writer.write("a" * 100_000 + "\n")
        writer.flush()
        follower.read()
        os.truncate(log, 0)
        writer.write("after\n")
        writer.flush()
    assert texts(follower) == ["after"]


def test_a_deleted_file_is_let_go_and_found_when_it_returns(log: Path) -> None:
    follower = FileFollower(log, start="start")
    append(log, "1\n")
    follower.read()
    append(log, "2\n")
    log.unlink()
    assert texts(follower) == ["2"]
    assert follower.problem
    follower.read()
    assert follower.where == (0, 0, 0)
    log.write_text("3\n")
    assert texts(follower) == ["3"]
    assert not follower.problem


def test_a_swapped_link_is_followed(tmp_path: Path) -> None:
    link = tmp_path / "containers/app.log"
    link.parent.mkdir()
    for number in (0, 1):
        (tmp_path / f"{number}.log").write_text(f"{number}\n")
    link.symlink_to(tmp_path / "0.log")
    follower = FileFollower(link, start="start")
    assert texts(follower) == ["0"]
    fresh = link.with_name("fresh")
    fresh.symlink_to(tmp_path / "1.log")
    fresh.replace(link)
    assert texts(follower) == ["1"]


def test_a_flood_is_read_in_pieces_and_nothing_is_left_out(log: Path) -> None:
    follower = FileFollower(log, start="start", per_call_bytes=1000)
    append(log, "".join(f"line {number}\n" for number in range(1000)))
    seen = texts(follower)
    assert len(seen) < 200
    assert follower.behind > 0
    while follower.behind:
        seen += texts(follower)
    assert seen == [f"line {number}" for number in range(1000)]


def test_a_flood_that_is_rotated_away_while_we_are_behind_is_read_to_its_end(log: Path) -> None:
    follower = FileFollower(log, start="start", per_call_bytes=100)
    append(log, "".join(f"{number}\n" for number in range(100)))
    seen = texts(follower)
    log.rename(log.with_name("app.log.1"))
    log.write_text("100\n")
    for _ in range(10):
        seen += texts(follower)
    assert seen == [str(number) for number in range(101)]


def test_the_end_can_be_looked_at_without_moving_on(log: Path) -> None:
    follower = FileFollower(log, start="start", per_call_bytes=10)
    append(log, "".join(f"{number}\n" for number in range(100)))
    follower.read()
    assert [line.text for line in follower.peek_end(9)] == ["98", "99"]
    assert texts(follower)[0] == "5"


def test_a_line_without_end_is_cut_and_memory_stays_small(log: Path) -> None:
    follower = FileFollower(log, start="start")
    for _ in range(5):
        append(log, "x" * LONGEST_LINE)
        follower.read()
    append(log, "\nnext\n")
    assert texts(follower) == ["next"]
    assert follower.cut == 4 * LONGEST_LINE


def test_a_progress_bar_is_read_before_its_line_ends(log: Path) -> None:
    follower = FileFollower(log, start="start")
    append(log, "\r 1%\r 2%\r 3%")
    assert texts(follower) == [" 1%", " 2%"]
    append(log, "\r\nwindows\r\n")
    assert texts(follower) == [" 3%", "windows"]


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_what_is_no_regular_file_is_said_and_never_waited_for(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    follower = FileFollower(path)
    assert follower.read() == []
    assert "no regular file" in follower.problem


def test_a_position_is_kept_over_a_restart(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "state/app.json"
    first = FileFollower(log, start="start", state=state)
    append(log, "1\n2\nunfini")
    assert texts(first) == ["1", "2"]
    first.commit()
    append(log, "shed\n")
    first.read()
    first.close()
    again = FileFollower(log, start="end", state=state)
    assert texts(again) == ["unfinished"]


def test_what_was_rotated_while_we_were_away_is_read_on(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "app.json"
    first = FileFollower(log, start="start", state=state)
    append(log, "1\n")
    first.read()
    first.commit()
    first.close()
    append(log, "2\n")
    log.rename(log.with_name("app.log.1"))
    log.write_text("3\n")
    assert texts(FileFollower(log, state=state)) == ["2", "3"]


def test_an_inode_that_is_used_again_is_another_file(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "app.json"
    append(log, "1\n")
    first = FileFollower(log, start="start", state=state)
    (line,) = first.read()
    first.commit()
    first.close()
    log.write_text("7\n8\n")  # the same inode with other bytes
    again = FileFollower(log, state=state).read()
    assert [one.text for one in again] == ["7", "8"]
    assert line.key not in {one.key for one in again}


def test_a_line_has_the_same_key_when_it_is_read_again(log: Path) -> None:
    append(log, "1\n2\n")
    keys = [[line.key for line in FileFollower(log, start="start").read()] for _ in range(2)]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == 2


@pytest.mark.parametrize(
    "content", ["", "{", "[[1]]", '[[1, 2, 3, "zz", 4]]', '{"a": 1}', "[1]", '[[1, 0, -5, "", 0]]']
)
def test_a_position_that_cannot_be_read_is_none(log: Path, tmp_path: Path, content: str) -> None:
    state = tmp_path / "app.json"
    state.write_text(content)
    append(log, "old\n")
    follower = FileFollower(log, start="end", state=state)
    follower.begin()
    append(log, "new\n")
    assert "new" in texts(follower)


def test_a_position_beyond_a_file_begins_it_anew(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "app.json"
    append(log, "1\n")
    state.write_text(json.dumps([[log.stat().st_ino, 0, 500, "61", 0]]))
    assert texts(FileFollower(log, state=state)) == ["1"]


def test_what_was_copied_and_truncated_while_we_were_away_is_read_on_in_the_copy(log: Path, tmp_path: Path) -> None:
    state = tmp_path / "app.json"
    first = FileFollower(log, start="start", state=state)
    append(log, "1\n")
    os.utime(log, (1000, 1000))
    first.read()
    first.commit()
    first.close()
    append(log, "2\n")
    log.with_name("app.log.1").write_text(log.read_text())
    log.write_text("3\n")
    assert texts(FileFollower(log, state=state)) == ["2", "3"]
