from __future__ import annotations

import os
from pathlib import Path

import pytest

from gpuchaos_agent.collect.base import JobSource
from gpuchaos_agent.jobs.rates import WINDOW_S, Rate
from gpuchaos_agent.jobs.watch import JobWatch
from gpuchaos_stream.errors import UserError


def test_a_job_without_any_way_tells_nothing() -> None:
    watch = JobWatch(JobSource("a"))
    watch.poll(1.0)
    assert (watch.step, watch.step_time, watch.loss, watch.steps_rate(), watch.tokens_rate()) == (None,) * 5
    assert (watch.progress_age(1.0), watch.problem, watch.records()) == (None, "", [])
    watch.close()


def test_the_heartbeat_goes_before_the_log_and_the_log_fills_in(tmp_path: Path) -> None:
    log, beat = tmp_path / "log", tmp_path / "beat"
    log.write_text("step=7 loss=2.5\n")
    os.utime(log, (90.0, 90.0))
    beat.write_text("step 9")
    os.utime(beat, (95.0, 95.0))
    watch = JobWatch(JobSource("a", log=log, heartbeat=beat))
    watch.poll(100.0)
    assert (watch.step, watch.loss) == (9, 2.5)
    assert watch.progress_age(100.0) == 5.0
    watch.close()


def test_every_problem_is_said(tmp_path: Path) -> None:
    watch = JobWatch(JobSource("a", log=tmp_path / "log", heartbeat=tmp_path / "beat"))
    watch.poll(1.0)
    assert str(tmp_path / "log") in watch.problem
    assert str(tmp_path / "beat") in watch.problem


def test_a_log_is_read_once_for_progress_and_words(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("")
    watch = JobWatch(JobSource("llama", log=log))
    watch.poll(0.0)
    log.write_text("step=1\nRuntimeError: no\n")
    watch.poll(1.0)
    assert [record.text for record in watch.records()] == ["step=1", "RuntimeError: no"]
    assert watch.records()[0].tag == "llama"
    watch.poll(2.0)
    assert watch.records() == []


def test_a_pattern_that_cannot_work_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="step_pattern"):
        JobWatch(JobSource("a", log=tmp_path / "log", step_pattern="("))


def test_a_rate_needs_two_readings_and_begins_anew_where_a_count_falls() -> None:
    rate = Rate()
    assert rate.per_second() is None
    for now, count in ((0.0, 0), (1.0, 2), (2.0, 4)):
        rate.see(now, count)
    assert rate.per_second() == 2.0
    rate.see(3.0, 1)
    assert rate.per_second() is None


def test_a_rate_is_that_of_its_window() -> None:
    rate = Rate()
    for now in range(100):
        rate.see(float(now), 10.0 * min(now, 50))
    assert rate.per_second() == 0.0
    assert len(rate._samples) <= WINDOW_S + 2
