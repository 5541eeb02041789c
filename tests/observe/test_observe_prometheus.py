"""A real Prometheus scrapes worker, agent and notify: every rule and every query of a dashboard says something."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml
from observe_dashboards import ASKED, NEEDS_KAFKA, NOTHING, answer, values_of
from observe_prometheus import RULES, until
from observe_site import SMALL, Site, running_site
from prometheus_client.parser import text_string_to_metric_families

from gpuchaos_dashboards import PAGES
from gpuchaos_dashboards.queries import Asked, choices, filled
from gpuchaos_stream.stream.brokers import Kind

# The site takes a minute to be there, on a busy machine two.
pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

ROOT: Final = Path(__file__).resolve().parents[2]
#: What a page or a dashboard asks first, each of which must answer with a number while the loop runs.
OVERVIEW: Final = (
    "cluster:gpuchaos_experiments_running:sum",
    "cluster:gpuchaos_nodes_silent:ratio",
    "cluster_experiment_id_level:gpuchaos_experiment_blast_radius:limit_ratio",
    "topic:gpuchaos_commit_lag_records:sum",
    "fault_phase:gpuchaos_recovery_seconds:mean7d",
    "cluster_fault_target_kind_objective:gpuchaos_objective_misses:ratio7d",
    "slo:sli_error:ratio_rate5m",
    "slo:objective:ratio",
    "slo:error_budget:ratio",
    "slo:current_burn_rate:ratio",
    "slo:period_burn_rate:ratio",
    "slo:period_error_budget_remaining:ratio",
    "slo_period_error_budget_remaining_ratio",
    'gpuchaos_nodes{state="fresh"} > 0',
    "gpuchaos_cell_nodes",
    "gpuchaos_telemetry_age_seconds",
    "gpuchaos_anomalies_open",
    "gpuchaos_breaker_tripped == 0",
    'gpuchaos_halts_open{state="escalated"} == 0',
    "histogram_quantile(0.99, sum by (le) (rate(gpuchaos_decision_seconds_bucket[1m])))",
    "gpuchaos_cell_gpu_utilization_ratio",
    "gpuchaos_cell_gpu_power_watts",
    "gpuchaos_cell_gpu_temperature_celsius",
    'gpuchaos_cell_rdma_port_active{over="min"} == 1',
    "gpuchaos_cell_rdma_receive_bytes_per_second",
    "gpuchaos_cell_numa_remote_pages_per_second",
    "gpuchaos_cell_numa_misaligned_ratio",
    "gpuchaos_job_step_time_seconds",
    "gpuchaos_job_steps_per_second",
    "gpuchaos_job_progress_age_seconds",
    'gpuchaos_job_processes{state="running"} / ignoring (state) gpuchaos_job_processes{state="all"}',
    "gpuchaos_node_cpu_busy_ratio",
    "gpuchaos_numa_memory_free_bytes",
    "gpuchaos_process_running == 1",
    "gpuchaos_agent_frames_total * on (job, instance) group_left (node) gpuchaos_agent_info",
)


@pytest.fixture(scope="module")
def site(broker_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with running_site(tmp_path_factory.mktemp("site"), broker_kind) as running:
        yield running


def families(text: str) -> set[str]:
    """Names as the page of metrics has them: ours, with `_total` where it is a counter."""
    found = {each.name + ("_total" if each.type == "counter" else "") for each in text_string_to_metric_families(text)}
    return {name for name in found if not name.startswith(("python_", "process_"))}


def defined(*tables: str) -> set[str]:
    text = (ROOT / "docs/metrics.md").read_text()
    rows = [re.search(rf"<!-- table: {name} -->\n(.*?)<!-- end -->", text, re.DOTALL) for name in tables]
    return {name for found in rows if found for name in re.findall(r"^\| `(\w+)`", found[1], re.MULTILINE)}


def test_a_worker_exports_what_the_page_defines_and_nothing_else(site: Site) -> None:
    assert families(site.page(site.worker)) == defined("worker-metrics", "watchdog-metrics")


def test_an_agent_exports_what_the_page_defines_and_nothing_else(site: Site) -> None:
    found = families(site.page(site.agent))
    assert defined("agent-metrics") - found == set()
    # Of devices only what this machine has: it need be neither a GPU nor an RDMA port.
    assert found - defined("agent-metrics", "device-metrics", "dcgm-metrics") == set()
    assert "gpuchaos_node_cpu_busy_ratio" in found


@pytest.mark.parametrize("who", ["worker", "agent"])
def test_promtool_has_nothing_to_say_about_what_is_exported(site: Site, who: str) -> None:
    promtool = shutil.which("promtool")
    assert promtool is not None
    text = "\n".join(line for line in site.page(getattr(site, who)).splitlines() if "gpuchaos" in line) + "\n"
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_rule_is_evaluated_without_an_error(site: Site) -> None:
    def all_well() -> bool:
        found = [rule for group in site.prometheus.api("rules")["groups"] for rule in group["rules"]]
        errors = [f"{rule['name']}: {rule['lastError']}" for rule in found if rule.get("lastError")]
        assert errors == []
        return len(found) == len(wanted) and all(rule["health"] == "ok" for rule in found)

    wanted = [rule for group in yaml.safe_load(RULES.read_text())["groups"] for rule in group["rules"]]
    until(all_well, 30, "not every rule was evaluated")


@pytest.mark.parametrize("expr", OVERVIEW)
def test_what_is_asked_first_has_an_answer(site: Site, expr: str) -> None:
    found = until(lambda: site.prometheus.query(expr), 15, f"{expr}: no data")
    assert all(sample["value"][1] not in {"NaN", "+Inf", "-Inf"} for sample in found), found


def test_an_experiment_is_told_with_its_times_its_limits_and_its_objectives(site: Site) -> None:
    (info,) = site.prometheus.query(f'gpuchaos_experiment_info{{experiment_id="{SMALL}"}}')
    one = info["metric"]
    said = [one[name] for name in ("name", "owner", "fault", "target_kind", "status", "verdict")]
    assert said == ["small", "tests", "process-stop", "process", "finished", "passed"]
    mine = f'{{experiment_id="{one["experiment_id"]}"}}'

    def by(label: str, name: str) -> dict[str, float]:
        found = site.prometheus.query(f"{name}{mine}")
        return {sample["metric"][label]: float(sample["value"][1]) for sample in found}

    assert by("level", "gpuchaos_experiment_blast_limit") == {"gpus": 512, "nodes": 8, "jobs": 0}
    recovery = by("phase", "gpuchaos_experiment_recovery_seconds")
    assert 0 < recovery["ttd"] < recovery["ttm"] < recovery["ttr"], recovery
    times = by("event", "gpuchaos_experiment_timestamp_seconds")
    assert times["started"] < times["injected"] < times["ends"] <= times["finished"], times
    assert site.prometheus.values(f"gpuchaos_experiment_faults_present{mine}") == [0]
    assert site.prometheus.values(f"sum(gpuchaos_experiment_objective_missed{mine})") == [0]


def test_the_error_budget_is_whole_under_the_names_of_sloth(site: Site) -> None:
    series = "slo:period_error_budget_remaining:ratio"
    found = until(lambda: site.prometheus.query(series), 15, "no budget is told")
    labels = {tuple(each["metric"][f"sloth_{name}"] for name in ("service", "slo", "id")) for each in found}
    assert labels == {("process-stop", slo, f"process-stop-{slo}") for slo in ("ttd", "ttm", "ttr")}
    assert {each["value"][1] for each in found} == {"1"}


def test_a_recovery_time_carries_the_trace_of_its_experiment(site: Site) -> None:
    found = site.prometheus.api(
        "query_exemplars", query="gpuchaos_recovery_seconds_bucket", start="0", end="9999999999"
    )
    traces = {exemplar["labels"]["trace_id"] for series in found for exemplar in series["exemplars"]}
    told = {info["metric"]["trace_id"] for info in site.prometheus.query("gpuchaos_experiment_info")}
    assert traces
    assert traces <= told, "the page of an experiment leads to its trace"
    assert all(re.fullmatch(r"[0-9a-f]{32}", trace) for trace in told)


def test_nobody_is_paged_where_all_went_well(site: Site) -> None:
    firing = [alert for alert in site.prometheus.api("alerts")["alerts"] if alert["state"] == "firing"]
    assert [alert["labels"] for alert in firing if alert["labels"]["severity"] == "page"] == []


@pytest.mark.parametrize("uid", PAGES)
def test_what_a_dashboard_lets_choose_can_be_chosen(site: Site, uid: str) -> None:
    values = values_of(site.prometheus, uid)
    assert set(values) >= {name for name, _, _ in choices(PAGES[uid]().render())}


@pytest.mark.parametrize("asked", [each for each in ASKED if str(each) not in NOTHING], ids=str)
def test_a_query_of_a_dashboard_has_an_answer(site: Site, broker_kind: Kind, asked: Asked) -> None:
    if broker_kind == "embedded" and str(asked) in NEEDS_KAFKA:
        pytest.skip(NEEDS_KAFKA[str(asked)])
    until(lambda: answer(site.prometheus, asked), 10, f"{asked.expr}: no data")


@pytest.mark.parametrize("asked", [each for each in ASKED if str(each) in NOTHING], ids=str)
def test_a_query_that_has_no_answer_here_still_has_none(site: Site, asked: Asked) -> None:
    assert not answer(site.prometheus, asked), f"{asked}: take it from the list"


@pytest.mark.parametrize("asked", [each for each in ASKED if each.exemplars], ids=str)
def test_a_panel_that_shows_traces_has_some(site: Site, asked: Asked) -> None:
    chosen = {name: values[0] for name, values in values_of(site.prometheus, asked.dashboard).items()}
    expr = filled(asked.expr, chosen)
    found = site.prometheus.api("query_exemplars", query=expr, start="0", end="9999999999")
    assert any(exemplar["labels"].get("trace_id") for series in found for exemplar in series["exemplars"])
