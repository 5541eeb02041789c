"""JUnit XML has the shape that CI systems read, and a run that tested nothing is never green."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from report_help import EVERY, told, xml

from gpuchaos_stream.report.facts import facts
from gpuchaos_stream.report.junit import junit

#: Element → attributes that it must have, that it may have, and its children in their order (Jenkins' xUnit schema).
SHAPE: dict[str, tuple[set[str], set[str], tuple[str, ...]]] = {
    "testsuites": ({"name", "tests", "failures", "errors"}, {"time", "skipped"}, ("testsuite",)),
    "testsuite": (
        {"name", "tests", "failures", "errors", "time"},
        {"skipped", "timestamp", "hostname"},
        ("properties", "testcase"),
    ),
    "properties": (set(), set(), ("property",)),
    "property": ({"name", "value"}, set(), ()),
    "testcase": ({"name", "classname"}, {"time"}, ("skipped", "error", "failure")),
    "skipped": (set(), {"message"}, ()),
    "error": ({"type"}, {"message"}, ()),
    "failure": ({"type"}, {"message"}, ()),
}


def check(element: ET.Element) -> None:
    must, may, children = SHAPE[element.tag]
    assert must <= set(element.attrib) <= must | may, element.tag
    order = [children.index(child.tag) for child in element]
    assert order == sorted(order), element.tag
    for name in {"tests", "failures", "errors", "skipped"} & set(element.attrib):
        assert element.attrib[name].isdigit()
    for name in {"time"} & set(element.attrib):
        assert float(element.attrib[name]) >= 0
    for child in element:
        check(child)


def suite(verdict: str) -> ET.Element:
    one = told(verdict)
    root = xml(junit([facts(one.state, one.story)]))
    (found,) = root
    return found


def outcome(case: ET.Element) -> str:
    return case[0].tag if len(case) else "passed"


@pytest.mark.parametrize("verdict", EVERY)
def test_the_document_has_the_shape_that_is_read_and_its_counts_are_true(verdict: str) -> None:
    one = told(verdict)
    root = xml(junit([facts(one.state, one.story)] * 2))
    assert root.tag == "testsuites"
    check(root)
    for element in (root, *root):
        found = [outcome(case) for case in element.iter("testcase")]
        assert int(element.attrib["tests"]) == len(found)
        for name, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
            assert int(element.attrib[name]) == found.count(tag)
    names = [case.attrib["name"] for case in root[0].iter("testcase")]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("verdict", EVERY)
def test_there_is_a_case_for_each_objective_and_each_limit(verdict: str) -> None:
    names = " / ".join(case.attrib["name"] for case in suite(verdict).iter("testcase"))
    for wanted in ("objective ttd", "objective ttm", "objective ttr", "undo confirmed", "verdict"):
        assert wanted in names
    for level in told(verdict).state.limits:
        assert f"limit {level} at most" in names


def test_only_a_run_that_passed_is_green() -> None:
    for verdict in EVERY:
        attributes = suite(verdict).attrib
        green = attributes["failures"] == attributes["errors"] == "0"
        assert green == (verdict == "passed"), verdict


def test_what_failed_fails_with_its_text() -> None:
    failed = {case.attrib["name"]: case[0] for case in suite("failed").iter("testcase") if outcome(case) == "failure"}
    assert set(failed) == {"verdict", "objective ttm within 5.5 s", "objective ttr within 6.0 s"}
    assert "time to recover" in failed["objective ttr within 6.0 s"].attrib["message"]
    halted = {case.attrib["name"]: case[0] for case in suite("halted").iter("testcase") if outcome(case) == "failure"}
    assert set(halted) == {"verdict", "limit nodes at most 2"}
    assert "reached gpu/n017/0" in (halted["limit nodes at most 2"].text or "")


def test_what_was_not_tested_is_an_error_and_its_goals_are_skipped() -> None:
    outcomes = {case.attrib["name"]: outcome(case) for case in suite("void").iter("testcase")}
    assert outcomes.pop("verdict") == "error"
    assert outcomes.pop("undo confirmed") == "passed"
    assert set(outcomes.values()) == {"skipped"}
