"""Rules for Prometheus: Prometheus' own tool agrees, each alert is shown firing and not firing, each has its page."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, Final

import docs_alerts
import pytest
import yaml
from docs_blocks import blocks
from docs_tables import ROOT

from gpuchaos_stream.guard.rules import rule_files
from gpuchaos_stream.guard.ruletest import files_of_tests

TESTS: Final = sorted((ROOT / "rules/prometheus/tests").glob("*.yaml"))
ALERTS: Final = docs_alerts.alerting()
NAMES: Final = [rule["alert"] for rule in ALERTS]
#: Sections of every page, in this order.
SECTIONS: Final = ["How bad", "First", "Over"]


def promtool(*words: str) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([program, *words], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def defined() -> set[str]:
    """Every series that the page of metrics defines: those of histograms with what they are made of."""
    text = (ROOT / "docs/metrics.md").read_text()
    found = set(re.findall(r"^\| `([\w:]+)`", text, flags=re.MULTILINE))
    histograms = re.findall(r"^\| `(\w+)` \| histogram", text, flags=re.MULTILINE)
    return found | {f"{name}_{end}" for name in histograms for end in ("bucket", "sum", "count")}


def cases(alert: str) -> list[dict[str, Any]]:
    """What the tests say of an alert."""
    groups = (group for path in TESTS for group in yaml.safe_load(path.read_text())["tests"])
    return [case for group in groups for case in group.get("alert_rule_test", ()) if case["alertname"] == alert]


def test_the_rules_are_rules_of_prometheus() -> None:
    promtool("check", "rules", str(docs_alerts.RULES))


def test_the_rules_do_what_their_tests_say() -> None:
    promtool("test", "rules", *map(str, TESTS))


@pytest.mark.parametrize("alert", NAMES)
def test_an_alert_is_shown_firing_and_not_firing(alert: str) -> None:
    assert {bool(case["exp_alerts"]) for case in cases(alert)} == {True, False}


def test_the_tests_name_no_alert_that_is_none() -> None:
    text = "".join(path.read_text() for path in TESTS)
    assert set(re.findall(r"alertname: (\w+)", text)) == set(NAMES)


def test_every_alert_has_its_page_and_every_page_its_alert() -> None:
    assert {path.stem for path in docs_alerts.RUNBOOKS.glob("*.md")} == set(NAMES)


@pytest.mark.parametrize("rule", ALERTS, ids=NAMES)
def test_an_alert_says_how_bad_it_is_what_it_is_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in {"page", "ticket"}
    assert set(rule["annotations"]) == {"summary", "description", "runbook_url"}
    assert all(rule["annotations"].values())
    page = ROOT / rule["annotations"]["runbook_url"]
    text = page.read_text()
    assert text.startswith(f"# {rule['alert']}\n")
    assert re.findall(r"^## (.+)$", text, flags=re.MULTILINE) == SECTIONS
    assert f"Severity `{rule['labels']['severity']}`." in text


@pytest.mark.parametrize("rule", docs_alerts.rules(), ids=lambda rule: rule.get("alert") or rule["record"])
def test_a_rule_reads_only_what_the_page_of_metrics_defines(rule: dict[str, Any]) -> None:
    read = docs_alerts.series_in(rule["expr"])
    assert read
    assert read - defined() == set()


@pytest.mark.parametrize("page", sorted(docs_alerts.RUNBOOKS.glob("*.md")), ids=lambda page: page.stem)
def test_a_page_names_only_series_that_are_defined(page: Path) -> None:
    named = set(re.findall(r"\b(?:gpuchaos_\w+|\w+(?::\w+){2,})", page.read_text()))
    assert named - defined() == set()


def test_a_query_in_a_page_is_one(tmp_path: Path) -> None:
    queries = [
        line
        for block in blocks()
        if block.page.parent == docs_alerts.RUNBOOKS and block.language == "text"
        for line in block.text.splitlines()
        if "gpuchaos_" in line and "/" not in line.split()[0]
    ]
    assert len(queries) >= 5
    rules = [{"record": f"query:{number}", "expr": query} for number, query in enumerate(queries)]
    path = tmp_path / "queries.yaml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    promtool("check", "rules", str(path))


def test_rules_for_prometheus_are_not_read_as_rules_of_ours() -> None:
    found = [*rule_files([ROOT / "rules"]), *files_of_tests([ROOT / "rules"])]
    assert found
    assert [path for path in found if "prometheus" in path.parts] == []
