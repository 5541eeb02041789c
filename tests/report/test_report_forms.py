"""Every form of a report stands alone, says the same, and lets no name become markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from report_help import EVERY, told, xml

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import AnomalyLine, ExperimentState, Status
from gpuchaos_stream.events.incident import RecoveryRecord
from gpuchaos_stream.report.facts import facts
from gpuchaos_stream.report.html import html
from gpuchaos_stream.report.junit import junit
from gpuchaos_stream.report.markdown import markdown, text
from gpuchaos_stream.report.markup import clean, escape
from gpuchaos_stream.report.model import Report
from gpuchaos_stream.report.page import Page
from gpuchaos_stream.report.period import period, period_sheet
from gpuchaos_stream.report.sheet import sheet

_XHTML = "{http://www.w3.org/1999/xhtml}"
_SVG = "{http://www.w3.org/2000/svg}"

#: What people have put into names to become part of a page.
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='alert(1)'>",
    "</title></style></svg><svg onload=alert(1)>",
    "]]> --> <!-- & &lt; &#x3c;",
    "[x](javascript:alert(1)) | `a` **b** <b>",
    "\x00\x1b[31m\u202egnp.exe\ufffe\ud800",
    "line one\n# line two\n| a | b |",
    "# a heading",
    "- an item",
    "1. a number",
    "=====",
)
anything = st.one_of(st.sampled_from(HOSTILE), st.text(max_size=40))


def report(verdict: str) -> Report:
    one = told(verdict)
    return facts(one.state, one.story)


def parse(page: str) -> ET.Element:
    """The page as XML, so that a tag that is not closed or an attribute that is not quoted fails."""
    assert page.startswith("<!DOCTYPE html>\n")
    return xml(page.removeprefix("<!DOCTYPE html>\n"))


def named(name: str, reason: str, owner: str) -> Report:
    """A report of an experiment whose every free text is given."""
    one = told("halted")
    line = AnomalyLine(
        metric=name or "m",
        entity="gpu/n017/0",
        after_s=1.0,
        count=1,
        entities=1,
        severity=Severity.ERROR,
        score=0.5,
        sentence=reason,
    )
    faults = tuple(f.model_copy(update={"reason": reason, "fault": name, "phase": owner}) for f in one.state.faults)
    halts = tuple(h.model_copy(update={"reason": reason, "cause": name}) for h in one.state.halts)
    changed: dict[str, object] = {
        "name": name,
        "owner": owner,
        "reason": reason,
        "faults": faults,
        "halts": halts,
        "charged": (line,),
        "unexplained": (line,),
        "unattributed": 1,
        "steady": {name: reason},
        "plan": {**one.state.plan, "description": reason, "fault": {"name": name, "certifies": [name, owner]}},
    }
    state: ExperimentState = one.state.model_copy(update=changed)
    return facts(state, one.story)


def every_page(verdict: str) -> tuple[Page, ...]:
    state = told(verdict).state
    return (sheet(report(verdict)), period_sheet(period([state], state.started, state.time, state.cluster)))


@pytest.mark.parametrize("verdict", EVERY)
def test_html_is_well_formed_and_fetches_nothing(verdict: str) -> None:
    for page in every_page(verdict):
        written = html(page)
        tree = parse(written)
        assert tree.tag == f"{_XHTML}html"
        tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
        assert not tags & {"script", "link", "img", "iframe", "object", "embed", "base", "form", "a", "use", "image"}
        for element in tree.iter():
            assert not {name for name in element.attrib if name.lower().startswith("on") or "href" in name}
            assert not {name for name in element.attrib if name in {"src", "style", "action"}}
        assert "url(" not in written
        assert "@import" not in written
        assert "://" not in re.sub(r'xmlns="[^"]+"', "", written)
        policy = next(meta for meta in tree.iter(f"{_XHTML}meta") if "http-equiv" in meta.attrib)
        assert "default-src 'none'" in policy.attrib["content"]


@pytest.mark.parametrize("verdict", EVERY)
def test_a_browser_reads_the_same_elements_as_an_xml_parser(verdict: str) -> None:
    """An HTML parser ignores the slash of `<p/>` and reads a style to its end: neither may be relied on."""
    for page in every_page(verdict):
        written = html(page)
        outside = re.sub(r"<svg.*?</svg>", "", written, flags=re.DOTALL)
        assert set(re.findall(r"<(\w+)[^<>]*/>", outside)) == {"meta"}
        assert not set("<&") & set(re.findall(r"<style>(.*?)</style>", written, flags=re.DOTALL)[0])
        reader = _Elements()
        reader.feed(written)
        assert reader.open == []
        assert reader.seen == [element.tag.rpartition("}")[2].lower() for element in parse(written).iter()]


class _Elements(HTMLParser):
    """Elements in the order in which an HTML parser meets them, and those that were never closed."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)
        self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("verdict", EVERY)
def test_html_can_be_read_without_eyes_in_the_dark_and_on_paper(verdict: str) -> None:
    tree = parse(html(sheet(report(verdict))))
    assert tree.attrib["lang"] == "en"
    titles = [title.text for title in tree.iter(f"{_XHTML}title")]
    assert titles == [f"Experiment {told(verdict).state.id}"]
    levels = [int(e.tag[-1]) for e in tree.iter() if re.fullmatch(re.escape(_XHTML) + "h[1-6]", e.tag)]
    assert levels[0] == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    for table in tree.iter(f"{_XHTML}table"):
        assert (table.findtext(f"{_XHTML}caption") or "").strip()
        assert all((head.text or "").strip() for head in table.iter(f"{_XHTML}th"))
        assert all(head.attrib["scope"] in {"col", "row"} for head in table.iter(f"{_XHTML}th"))
    drawn = [svg for svg in tree.iter(f"{_SVG}svg") if svg.attrib.get("aria-hidden") != "true"]
    ids = [element.attrib["id"] for element in tree.iter() if "id" in element.attrib]
    assert len(ids) == len(set(ids))
    for svg in drawn:
        assert svg.attrib["role"] == "img"
        assert svg.attrib["aria-labelledby"] in ids
        assert svg.find(f"{_SVG}title") is not None
    style = "".join(element.text or "" for element in tree.iter(f"{_XHTML}style"))
    assert "prefers-color-scheme:dark" in style
    assert "@media print" in style


def test_the_pictures_of_a_halted_run_show_timeline_recovery_and_the_way_of_the_harm() -> None:
    tree = parse(html(sheet(report("halted"))))
    pictures = {svg.attrib["class"]: svg for svg in tree.iter(f"{_SVG}svg")}
    assert {"timeline", "recovery", "spread"} <= set(pictures)
    said = " ".join(pictures["spread"].itertext())
    assert "process/n016/4100" in said
    assert "job train-c1-0" in said
    assert "gpu/n017/0" in said
    assert {"fault", "halt", "charged"} <= set(
        " ".join(r.get("class", "") for r in pictures["timeline"].iter()).split()
    )
    bars = [r for r in pictures["recovery"].iter(f"{_SVG}rect") if "bar" in r.get("class", "")]
    widths = [float(bar.attrib["width"]) for bar in bars]
    times = told("halted").state.recovery
    assert times.ttr is not None
    assert times.ttm is not None
    # Bars are drawn to scale: all begin at the injection.
    assert widths[2] / widths[1] == pytest.approx(times.ttr / times.ttm, rel=0.02)


@settings(max_examples=60, deadline=None)
@given(name=anything, reason=anything, owner=anything)
def test_no_name_or_reason_becomes_markup(name: str, reason: str, owner: str) -> None:
    found = named(name, reason, owner)
    page = html(sheet(found))
    tree = parse(page)
    plain = parse(html(sheet(named("name", "reason", "owner"))))
    assert {e.tag for e in tree.iter()} <= {e.tag for e in plain.iter()}
    assert clean(owner).split() == [] or " ".join(clean(owner).split()) in " ".join("".join(tree.itertext()).split())
    written = junit([found])
    cases = xml(written).iter("testcase")
    assert len(list(cases)) == len(list(xml(junit([named("n", "r", "o")])).iter("testcase")))


@settings(max_examples=100, deadline=None)
@given(value=anything)
def test_escaped_text_reads_back_as_what_can_be_shown(value: str) -> None:
    root = xml(f'<a b="{escape(value)}">{escape(value)}</a>')
    assert (root.text or "") == clean(value).replace("\r\n", "\n").replace("\r", "\n")
    assert not set(clean(value)) & set("\x00\x1b\u202e\ud800")


@settings(max_examples=60, deadline=None)
@given(name=anything, reason=anything, owner=anything)
def test_markdown_keeps_its_tables_whatever_the_names(name: str, reason: str, owner: str) -> None:
    lines = markdown(sheet(named(name, reason, owner))).splitlines()
    cells = [len(re.findall(r"(?<!\\)\|", line)) for line in lines]
    table: list[int] = []
    for line, count in zip(lines, cells, strict=True):
        if line.startswith("|"):
            table.append(count)
            assert count == table[0], line
        else:
            table = []
            assert not count or line.startswith("    "), line
    shown = [line for line in lines if not line.startswith("    ")]
    assert not any(re.search(r"(?<!\\)[<\[`]", line) for line in shown)
    assert [line for line in shown if line.startswith("# ")] == [shown[0]]
    assert not any(re.match(r"[-+=]|\d+[.)] ", line) for line in shown)


def test_markdown_escapes_what_would_be_markup_and_nothing_else() -> None:
    assert text("[x](y) <b> `c` *d* a|b") == r"\[x\](y) \<b\> \`c\` \*d\* a\|b"
    assert text("gpu_ecc_contained on gpu/n034/2") == "gpu_ecc_contained on gpu/n034/2"
    assert text("_a_ & b") == r"\_a\_ &amp; b"


@pytest.mark.parametrize("verdict", EVERY)
def test_markdown_and_html_say_the_same_facts(verdict: str) -> None:
    found = report(verdict)
    seen = " ".join(" ".join(parse(html(sheet(found))).itertext()).split())
    written = markdown(sheet(found))
    for goal in found.goals:
        assert f"{goal.objective:.1f} s" in seen
        assert f"{goal.objective:.1f} s" in written
    for advice in found.advice:
        assert " ".join(clean(advice.change).split()) in seen
        assert text(advice.change) in written


@pytest.mark.parametrize("verdict", EVERY)
def test_the_same_events_give_the_same_bytes(verdict: str) -> None:
    for make in (lambda r: html(sheet(r)), lambda r: markdown(sheet(r)), lambda r: junit([r])):
        assert make(report(verdict)) == make(report(verdict))


def test_a_time_that_is_not_known_is_left_out() -> None:
    bare = report("halted").model_copy(update={"recovery": RecoveryRecord(injected=1.0, hold_s=3.0)})
    page = markdown(sheet(bare))
    assert "\nEach check has to hold for 3.0 s.\n" in page
    assert re.search(
        r"\nConfirmed after 1\d\.\d s; held for 3\.0 s(; clock skew .*)?\.\n", markdown(sheet(report("halted")))
    )


def test_what_was_never_there_is_neither_undone_nor_open() -> None:
    page = markdown(sheet(report("void")))
    assert "| undo | nothing to undo: no fault took effect |" in page
    assert "| not measured |" in page
    assert not re.search(r"undone\.|\| open \||held for|was unknown", page)


def test_of_a_thousand_targets_and_more_hurt_than_are_named_the_page_says_so() -> None:
    one = told("halted")
    (fault,) = one.state.faults
    faults = tuple(fault.model_copy(update={"fault_id": f"f{n}", "entity": f"process/n{n}/1"}) for n in range(1000))
    radius = one.state.blast_radius.model_copy(update={"entities": tuple(f"gpu/n{n:03}/0" for n in range(200))})
    found = facts(one.state.model_copy(update={"faults": faults, "blast_radius": radius}), one.story)
    page = html(sheet(found))
    assert "Beyond the targets 200 entities or more broke with it." in page
    assert "At most 200 are named; how many were hurt is in the blast radius." in page
    assert "; 960 more faults below" in page
    assert page.count('<rect class="bar fault"') == 40


def test_a_fault_that_is_meant_to_be_there_is_no_alarm() -> None:
    fault = report("halted").injected[0]
    running = {"status": Status.ACTIVE, "verdict": None, "finished": None, "undo_confirmed": False}
    there = report("halted").model_copy(update={**running, "undo_open": (f"on {fault.entity}: injected",)})
    page = markdown(sheet(there))
    assert "| undo | not yet: on" in page
    assert "Not every fault is undone yet." in page
    assert "NOT CONFIRMED" in markdown(sheet(there.model_copy(update={"status": Status.FINISHED})))
