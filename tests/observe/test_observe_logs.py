"""Logs: one JSON object a line, and the same three keys everywhere."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from typing import Any

from aiokafka.errors import GroupAuthorizationFailedError, GroupCoordinatorNotAvailableError

from gpuchaos_stream.observe import logs

PROGRAM = """
import logging
import structlog
from gpuchaos_stream.observe import logs

logs.configure(level={level!r}, json={json})
log = logs.logger("test")
{body}
"""


def said(body: str, *, level: str = "INFO", json: bool | None = None) -> list[str]:
    """Lines on stderr of a process that logs: its own, so that no other test's logging is set up anew."""
    code = PROGRAM.format(level=level, json=json, body=body)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "", "logs go to stderr alone; stdout is for results"
    return done.stderr.splitlines()


def objects(body: str, **options: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in said(body, **options)]


def test_a_line_is_one_json_object_with_time_level_and_the_three_keys() -> None:
    (line,) = objects('log.warning("halt requested", experiment_id="e1", fault_id="f1", node="n003")')
    assert line["event"] == "halt requested"
    assert line["level"] == "warning"
    assert (line["experiment_id"], line["fault_id"], line["node"]) == ("e1", "f1", "n003")
    assert line["time"].endswith("Z")


def test_a_text_of_several_lines_stays_one_line() -> None:
    assert len(objects('log.info("first\\nsecond", reason="a\\nb")')) == 1


def test_an_exception_is_one_line_with_its_trace() -> None:
    (line,) = objects('try:\n    1 / 0\nexcept ZeroDivisionError:\n    log.exception("survived", node="n1")')
    assert "ZeroDivisionError" in line["exception"]
    assert line["node"] == "n1"


def test_a_library_that_uses_the_standard_logging_speaks_json_too() -> None:
    (line,) = objects('logging.getLogger("aiokafka").error("no broker at %s", "b1")')
    assert (line["event"], line["level"]) == ("no broker at b1", "error")


def test_what_is_bound_once_is_in_every_line_after() -> None:
    first, second = objects(
        'structlog.contextvars.bind_contextvars(experiment_id="e7")\nlog.info("a")\nlogging.getLogger("x").warning("b")'
    )
    assert first["experiment_id"] == second["experiment_id"] == "e7"


def test_what_is_below_the_level_is_not_said() -> None:
    assert [line["event"] for line in objects('log.info("a")\nlog.error("b")', level="WARNING")] == ["b"]


def test_plain_lines_are_for_people() -> None:
    (line,) = said('log.info("ready", node="n1")', json=False)
    assert not line.startswith("{")
    assert "ready" in line
    assert "n1" in line


def test_the_start_of_a_librarys_services_is_kept_out_and_their_warnings_are_not() -> None:
    (line,) = objects(
        'log = logging.getLogger("gpuchaos_stream.stream.watchdog")\nlog.info("[^--Watchdog]: Starting...")\n'
        'log.warning("[^--Watchdog]: stands still")'
    )
    assert line["event"] == "[^--Watchdog]: stands still"


def test_a_coordinator_that_a_new_kafka_does_not_have_yet_is_an_error_only_when_it_lasts() -> None:
    clock = iter((0.0, 0.1, 5.0, 9.9, 10.0, 15.0, 60.0, 65.0))
    worth = logs._WorthReading(lambda: next(clock))

    def said(error: Exception) -> bool:
        text = "Group Coordinator Request failed: %s"
        return bool(worth.filter(logging.LogRecord("aiokafka", logging.ERROR, "", 0, text, (error,), None)))

    passing, lasting = GroupCoordinatorNotAvailableError(), GroupAuthorizationFailedError()
    assert said(lasting), "nothing that is tried again"
    seen = [said(passing) for _ in range(8)]
    assert seen == [False, False, False, False, True, True, False, False], "a minute later it is a new one"
