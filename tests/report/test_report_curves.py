"""The curves of a report are what recovery was timed by: they leave their bound with the fault and are back at TTR."""

from __future__ import annotations

import pytest
from report_help import told, xml

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.command import Command
from gpuchaos_stream.events.observation import CellSummary, CheckState, ProbeResult
from gpuchaos_stream.report.curves import MOST_POINTS, curves
from gpuchaos_stream.report.facts import facts
from gpuchaos_stream.report.html import html
from gpuchaos_stream.report.model import Curve
from gpuchaos_stream.report.sheet import sheet

_SVG = "{http://www.w3.org/2000/svg}"


def observed(verdict: str) -> list[Event]:
    return [event for _, event in told(verdict).inputs if not isinstance(event, Command)]


def pace(verdict: str) -> Curve:
    (found,) = curves(told(verdict).state, observed(verdict))
    return found


def test_the_pace_is_below_its_bound_under_the_fault_and_above_it_for_the_hold_from_ttr_on() -> None:
    record, found = told("passed").state.recovery, pace("passed")
    assert found.bound is not None
    assert record.ttr is not None
    assert record.confirm is not None
    held = [value for time, value in found.points if record.ttr <= time <= record.confirm]
    assert len(held) >= 3
    assert all(value is not None and value >= found.bound for value in held)
    just_before = [value for time, value in found.points if record.ttr - 2 <= time < record.ttr]
    assert any(value is None or value < found.bound for value in just_before)


def test_before_the_fault_it_keeps_its_bound_and_the_bound_is_a_share_of_that() -> None:
    found = pace("passed")
    before = [value for time, value in found.points if time < 0 and value is not None]
    assert before
    assert found.bound == pytest.approx(0.8 * sorted(before)[len(before) // 2], rel=0.05)


def test_of_many_points_the_worst_are_kept() -> None:
    one = told("passed")
    (last,) = [e for e in observed("passed") if isinstance(e, CellSummary) and "train-c2-0" in e.jobs][-1:]
    state = one.state.model_copy(update={"finished": last.time + 2000})
    job = dict(last.jobs["train-c2-0"])
    many = [
        last.model_copy(
            update={"time": last.time + n, "jobs": {"train-c2-0": {**job, "steps_rate": 0.1 if n == 777 else 1.0}}}
        )
        for n in range(1, 1800)
    ]
    (found,) = curves(state, [*observed("passed"), *many])
    assert len(found.points) <= MOST_POINTS
    late = [value for time, value in found.points if time > 100 and value is not None]
    assert min(late) == pytest.approx(0.1)


def test_a_probe_that_asks_outside_is_a_curve_of_ones_and_noughts() -> None:
    one = told("passed")
    check = {"name": "web", "http": {"url": "http://127.0.0.1/health"}}
    steady = {"hold": 3.0, "checks": [check]}
    state = one.state.model_copy(update={"plan": {**one.state.plan, "steady_state": steady}})
    answers = [CheckState.OK, CheckState.BAD, CheckState.UNKNOWN]
    said = [
        ProbeResult(
            id=f"p{n}",
            time=state.started + n,
            cluster=state.cluster,
            experiment_id=state.id,
            check="web",
            state=answer,
        )
        for n, answer in enumerate(answers, 1)
    ]
    (found,) = curves(state, said)
    assert [value for _, value in found.points] == [1.0, 0.0, None]
    assert (found.op, found.bound) == (">=", 1.0)


def test_a_plan_that_cannot_be_read_has_no_curves_and_still_a_report() -> None:
    one = told("void")
    state = one.state.model_copy(update={"plan": {"fault": "nonsense"}})
    assert curves(state, observed("void")) == ()
    assert facts(state, one.story).verdict is state.verdict


def test_the_picture_has_a_line_for_each_curve_and_gaps_where_nothing_was_known() -> None:
    one, found = told("passed"), pace("passed")
    hole = found.model_copy(update={"points": tuple((t, None if 2 < t < 5 else v) for t, v in found.points)})
    for curve, pieces in ((found, 1), (hole, 2)):
        report = facts(one.state, one.story, (curve,))
        tree = xml(html(sheet(report)).removeprefix("<!DOCTYPE html>\n"))
        (picture,) = [svg for svg in tree.iter(f"{_SVG}svg") if svg.get("class") == "curves"]
        assert len(list(picture.iter(f"{_SVG}polyline"))) == pieces
        assert len([line for line in picture.iter(f"{_SVG}line") if line.get("class") == "bound"]) == 1
