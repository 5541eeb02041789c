"""A real Prometheus scrapes a real worker and a real agent: every rule works, and says something."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from observe_prometheus import RULES, Prometheus, free_port, prometheus, until
from prometheus_client.parser import text_string_to_metric_families

from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import READY, House

pytestmark = pytest.mark.broker

ROOT: Final = Path(__file__).resolve().parents[2]
CLUSTER: Final = "demo"
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


def plan(name: str, target: str, *, nodes: int, params: dict[str, Any]) -> dict[str, Any]:
    job = "train-c0-0"
    return {
        "api_version": "gpuchaos/v1",
        "kind": "Experiment",
        "name": name,
        "description": "a rank is stopped",
        "owner": "tests",
        "fault": {"name": "process-stop", "params": params, "certifies": ["hang-detection"]},
        "targets": {"entities": [target]},
        "duration": "3s",
        "lease": "3s",
        "undo": {"method": "automatic"},
        "limits": {"gpus": 64 * nodes, "nodes": nodes, "jobs": 0, "gpu_seconds": 900},
        "settle": "2s",
        "steady_state": {
            "hold": "2s",
            "checks": [{"name": "up", "telemetry": {"of": f"job/{job}", "metric": "running", "op": ">=", "value": 1}}],
        },
        "objectives": {"ttd": "10s", "ttm": "20s", "ttr": "30s"},
    }


@dataclass
class Site:
    """What runs, and what was tried: the finished experiments by name, as Prometheus has them."""

    prometheus: Prometheus
    worker: int
    agent: int

    def page(self, port: int) -> str:
        return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text


def port_of(child: Child, pattern: str) -> int:
    found = re.search(pattern, child.said())
    assert found is not None, child.tail()
    return int(found[1])


@pytest.fixture(scope="module")
def site(broker_kind: Kind, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    with House(folder, broker=broker_kind) as house:
        job = house.start("job", "sleep", "300")
        own = free_port()
        worker = house.worker("worker", "--status-port", "0")
        sim = house.sim("--cluster", CLUSTER, "--nodes", "16", "--cells", "2")
        agent = house.agent("host-0", "--cluster", CLUSTER, "--job", f"job=toy,pid={job.pid}", "--http-port", str(own))
        for child in (worker, sim, agent):
            child.wait_for(READY, 60)
        at = port_of(worker, r"127\.0\.0\.1:(\d+)/metrics")
        with prometheus(folder / "prometheus", {"gpuchaos-worker": at, "gpuchaos-agent": own}) as running:
            experiment(house, plan("small", "process/n001/4100", nodes=8, params={}))
            until(lambda: running.query('gpuchaos_experiment_info{status="finished"}'), 15, "no finished experiment")
            yield Site(running, at, own)


def experiment(house: House, what: dict[str, Any]) -> None:
    path = house.folder / f"{what['name']}.yaml"
    path.write_text(yaml.safe_dump(what))
    argv = (sys.executable, "-m", "gpuchaos_stream.cli", "experiment", "run", str(path), "--cluster", CLUSTER)
    child = house.start(what["name"], *argv)
    until(lambda: not child.running, 45, f"{what['name']} does not end")
    assert child.status == 0, child.tail()


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
    (info,) = site.prometheus.query("gpuchaos_experiment_info")
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
    assert len(traces) == 1, found
    assert re.fullmatch(r"[0-9a-f]{32}", traces.pop())


def test_nobody_is_paged_where_all_went_well(site: Site) -> None:
    firing = [alert for alert in site.prometheus.api("alerts")["alerts"] if alert["state"] == "firing"]
    assert [alert["labels"] for alert in firing if alert["labels"]["severity"] == "page"] == []
