from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.jobs.heartbeat import PATIENCE, Heartbeat


@pytest.fixture
def beat(tmp_path: Path) -> Path:
    return tmp_path / "heartbeat"


def write(path: Path, text: str, at: float) -> None:
    path.write_text(text)
    os.utime(path, (at, at))


def test_all_fields_are_read(beat: Path) -> None:
    heart = Heartbeat(beat)
    write(beat, '{"step": 10, "time": 99.5, "step_time": 0.5, "loss": 2.25, "tokens": 1000}', 100.0)
    heart.poll(100.0)
    write(beat, '{"step": 12, "time": 101.5, "step_time": 0.5, "loss": 2.0, "tokens": 5000}', 102.0)
    heart.poll(102.0)
    assert (heart.step, heart.step_time, heart.loss) == (12, 0.5, 2.0)
    assert (heart.steps_rate(), heart.tokens_rate()) == (1.0, 2000.0)
    assert heart.progress_age(103.0) == 1.5
    assert heart.problem == ""


@pytest.mark.parametrize(("text", "step"), [("step 123", 123), ("step=5\n", 5), ("77\n", 77), ("STEP: 9", 9)])
def test_plain_words_are_enough(beat: Path, text: str, step: int) -> None:
    heart = Heartbeat(beat)
    write(beat, text, 100.0)
    heart.poll(104.0)
    assert heart.step == step
    assert heart.progress_age(104.0) == 4.0


def test_a_file_without_a_step_lives_by_its_time(beat: Path) -> None:
    heart = Heartbeat(beat)
    for at in (100.0, 105.0):
        write(beat, '{"loss": 1.0}', at)
        heart.poll(at + 1)
        assert heart.progress_age(at + 1) == 1.0


def test_a_job_that_writes_the_same_step_on_and_on_makes_no_progress(beat: Path) -> None:
    heart = Heartbeat(beat)
    for at in range(100, 110):
        write(beat, "step 5", float(at))
        heart.poll(float(at))
    assert heart.progress_age(110.0) == 10.0
    assert heart.steps_rate() == 0.0


def test_a_half_written_file_is_read_again_and_keeps_what_was_known(beat: Path) -> None:
    heart = Heartbeat(beat)
    write(beat, '{"step": 1}', 100.0)
    heart.poll(100.0)
    write(beat, '{"step": 2, "lo', 101.0)
    heart.poll(101.0)
    assert (heart.step, heart.problem) == (1, "")
    write(beat, '{"step": 2, "loss": 1.5}', 101.0)
    heart.poll(102.0)
    assert (heart.step, heart.loss) == (2, 1.5)


def test_a_file_that_never_makes_sense_is_said(beat: Path) -> None:
    heart = Heartbeat(beat)
    write(beat, "hello", 100.0)
    for now in range(PATIENCE):
        heart.poll(100.0 + now)
    assert "no heartbeat" in heart.problem


def test_a_missing_file_is_said_and_found_when_it_comes(beat: Path) -> None:
    heart = Heartbeat(beat)
    heart.poll(1.0)
    assert str(beat) in heart.problem
    assert heart.progress_age(1.0) is None
    write(beat, "step 1", 2.0)
    heart.poll(3.0)
    assert (heart.problem, heart.step) == ("", 1)


def test_a_pipe_is_not_waited_for(beat: Path) -> None:
    os.mkfifo(beat)
    heart = Heartbeat(beat)
    heart.poll(1.0)
    assert "no regular file" in heart.problem


@pytest.mark.parametrize(
    "text",
    ['{"step": "5"}', '{"step": true}', '{"step": NaN}', '{"step": 1e999}', "[1]", '{"step": 1' + "0" * 400 + "}"],
)
def test_what_is_no_number_is_no_step(beat: Path, text: str) -> None:
    heart = Heartbeat(beat)
    write(beat, text, 1.0)
    heart.poll(1.0)
    assert heart.step is None


@given(st.lists(st.binary(max_size=100), max_size=5))
def test_random_bytes_are_no_error(tmp_path_factory: pytest.TempPathFactory, contents: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("beat") / "heartbeat"
    heart = Heartbeat(path)
    for now, content in enumerate(contents):
        path.write_bytes(content)
        heart.poll(float(now))
        rate = heart.steps_rate()
        assert rate is None or rate >= 0
