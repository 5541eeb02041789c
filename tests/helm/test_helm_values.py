"""What the chart takes, refuses, and says of it: real Helm lints and renders it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

import pytest
import yaml
from helm_chart import CHART, ROOT, SETS, helm, of_kind, refused, render, values_of

from gpuchaos_agent.config import AgentSettings

#: The first build takes minutes.
pytestmark = pytest.mark.timeout(1800)

SCHEMA: Final = json.loads((CHART / "values.schema.json").read_text())
DEFAULTS: Final = yaml.safe_load((CHART / "values.yaml").read_text())
ENOUGH: Final = yaml.safe_load(values_of("minimal").read_text())


def leaves(values: Any, schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any] | None]]:
    """Every value with what the schema says of it; what is free to the user is not looked into."""
    for name, value in values.items():
        known = schema.get("properties", {}).get(name)
        here = f"{path}.{name}" if path else name
        yield here, known
        if isinstance(value, dict) and known is not None and known.get("additionalProperties") is False:
            yield from leaves(value, known, here)


@pytest.mark.parametrize("name", SETS)
def test_the_chart_passes_a_strict_lint_with_every_set_of_values(name: str) -> None:
    done = helm("lint", "--strict", str(CHART), "-f", str(values_of(name)))
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_value_is_in_the_schema_and_described_there() -> None:
    found = dict(leaves(DEFAULTS, SCHEMA))
    assert [path for path, known in found.items() if known is None] == []
    plain = {path: known for path, known in found.items() if known and known.get("additionalProperties") is not False}
    assert len(plain) > 100
    assert [path for path, known in plain.items() if not known.get("description")] == []


def test_the_schema_knows_no_value_that_is_not_there() -> None:
    def names(schema: dict[str, Any], values: Any, path: str = "") -> Iterator[str]:
        for name, known in schema.get("properties", {}).items():
            if name not in values:
                yield f"{path}{name}"
            elif known.get("additionalProperties") is False:
                yield from names(known, values[name], f"{path}{name}.")

    # What Helm itself sets for a chart that is part of another one.
    assert list(names(SCHEMA, DEFAULTS)) == ["global"]


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        ("wroker", {"replicas": 3}, "wroker"),
        ("worker.replica", 3, "replica"),
        ("worker.replicas", "three", "/worker/replicas"),
        ("agent.faults", ["network-partiton"], "/agent/faults/0"),
        ("agent.collectors", [], "/agent/collectors"),
        ("agent.stateDir", "var/lib/x", "/agent/stateDir"),
        ("images.worker.digest", "sha256:abc", "/images/worker/digest"),
        ("kafka.bootstrapServers", "https://kafka:9092", "/kafka/bootstrapServers"),
        ("kafka.securityProtocol", "TLS", "/kafka/securityProtocol"),
        ("networkPolicy.kafkaPorts", [70000], "/networkPolicy/kafkaPorts/0"),
        ("worker.terminationGracePeriodSeconds", 5, "/worker/terminationGracePeriodSeconds"),
        ("agent.settings", {"longest_leese": 60}, "invalid propertyName 'longest_leese'"),
    ],
)
def test_a_wrong_value_is_refused_with_its_path(path: str, value: Any, said: str) -> None:
    given: Any = value
    for word in reversed(path.split(".")):
        given = {word: given}
    assert said in refused(_merged(ENOUGH, given))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "kafka.bootstrapServers is empty"),
        ({"kafka": {"bootstrapServers": "k:9092"}}, "keys.control.secretName is empty"),
        ({"kafka": {"bootstrapServers": "k:9092"}, "keys": {"control": {"secretName": "c"}}}, "keys.keyring is empty"),
        ({**ENOUGH, "kafka": {"bootstrapServers": "k:9092", "securityProtocol": "SASL_SSL"}}, "kafka.sasl.secretName"),
        ({**ENOUGH, "web": {"tokens": {"secretName": "t"}}}, "keys.operator.secretName is empty"),
        ({**ENOUGH, "notify": {"enabled": True}}, "notify.config is empty"),
        ({**ENOUGH, "rules": {"files": {"safety.yaml": "x"}}}, "rules.files.safety.yaml: a shipped file has that name"),
        ({**ENOUGH, "rules": {"shipped": False}}, "without rules nothing halts"),
        ({**ENOUGH, "agent": {"faults": ["storage-disconnect/full"]}}, "agent.hostPaths, with readOnly: false"),
        ({**ENOUGH, "agent": {"faults": ["memory-corruption/file"]}}, "needs agent.corruptible"),
        ({**ENOUGH, "agent": {"corruptible": ["/ckpt"]}}, "memory-corruption/file is not in agent.faults"),
        ({**ENOUGH, "agent": {"settings": {"cluster": "x"}}}, "agent.settings.cluster: the chart sets it"),
        ({**ENOUGH, "web": {"ingress": {"enabled": True}}}, "web.ingress.host is empty"),
        ({**ENOUGH, "worker": {"replicas": 9}}, "worker.replicas is 9 and topics.telemetryPartitions 8"),
        ({**ENOUGH, "worker": {"autoscaling": {"enabled": True, "maxReplicas": 9}}}, "maxReplicas is 9"),
        ({**ENOUGH, "worker": {"autoscaling": {"enabled": True, "maxReplicas": 1}}}, "minReplicas is 2"),
    ],
)
def test_what_is_missing_or_contradicts_is_refused_in_words(given: dict[str, Any], said: str) -> None:
    assert said in refused(given)


def test_more_workers_than_the_charts_own_partitions_are_taken_where_others_made_the_topics() -> None:
    assert render(given={**ENOUGH, "worker": {"replicas": 9}, "topics": {"enabled": False}})


def test_what_is_not_kept_of_agents_is_dropped_where_they_are_scraped_and_nowhere_else() -> None:
    monitors = {"podMonitors": {"enabled": True, "agentDrop": "DCGM_FI_.*"}}
    made = of_kind(render(given={**ENOUGH, "monitoring": monitors}), "PodMonitor")
    found = {each["metadata"]["name"]: each["spec"]["podMetricsEndpoints"][0].get("metricRelabelings") for each in made}
    dropped = [{"sourceLabels": ["__name__"], "regex": "DCGM_FI_.*", "action": "drop"}]
    assert found == {"r-gpuchaos-worker": None, "r-gpuchaos-agent": dropped}


def test_an_upgrade_of_agents_silences_fewer_than_what_freezes_experiments_and_pages() -> None:
    at_once = int(DEFAULTS["agent"]["updateStrategy"]["rollingUpdate"]["maxUnavailable"].removesuffix("%"))
    assert "cluster.silent_nodes * 20 > cluster.nodes" in (ROOT / "rules/breaker.yaml").read_text()
    assert "gpuchaos_nodes_silent:ratio > 0.05" in (ROOT / "rules/prometheus/gpuchaos.rules.yaml").read_text()
    assert at_once < 5


def test_the_page_answers_under_the_names_that_it_has_and_no_others() -> None:
    given = {**ENOUGH, "web": {"ingress": {"enabled": True, "host": "chaos.example.com"}, "allowHosts": ["10.0.0.9"]}}
    (page,) = (each for each in of_kind(render(given=given), "Deployment") if each["metadata"]["name"].endswith("-web"))
    words = [each.partition("=") for each in page["spec"]["template"]["spec"]["containers"][0]["args"]]
    name = "r-gpuchaos-web"
    inside = [name, f"{name}.chaos", f"{name}.chaos.svc", f"{name}.chaos.svc.cluster.local"]
    assert [value for word, _, value in words if word == "--allow-host"] == [*inside, "chaos.example.com", "10.0.0.9"]


@pytest.mark.parametrize(("base", "found"), [("", "/docs"), ("https://wiki.example.com/", "https://wiki.example.com")])
def test_links_of_panels_to_runbooks_lead_to_where_the_pages_are_served(base: str, found: str) -> None:
    given = {**ENOUGH, "monitoring": {"dashboards": {"enabled": True, "docsBase": base}}}
    made = [each for each in render(given=given) if each["metadata"]["labels"].get("grafana_dashboard")]
    assert len(made) == 5
    for each in made:
        (text,) = each["data"].values()
        (docs,) = [known for known in json.loads(text)["templating"]["list"] if known["name"] == "docs"]
        assert (docs["query"], docs["current"]["value"]) == (found, found)


def test_the_schema_knows_the_agents_own_settings() -> None:
    known = SCHEMA["properties"]["agent"]["properties"]["settings"]["propertyNames"]["enum"]
    assert known == sorted(AgentSettings.model_fields)


def examples() -> list[str]:
    """Values in the page of the chart."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    return re.findall(r"^```yaml helm\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("text", examples(), ids=lambda text: text.splitlines()[0])
def test_the_values_in_the_page_are_taken(text: str) -> None:
    assert render(given=_merged(ENOUGH, yaml.safe_load(text)))


def test_two_releases_can_keep_workers_and_agents_apart() -> None:
    workers = render(given={**ENOUGH, "agent": {"enabled": False}})
    assert not [each for each in workers if each["metadata"]["name"].endswith("-agent")]
    off = {"enabled": False}
    agents = render(
        given={"kafka": ENOUGH["kafka"], "worker": off, "web": off, "topics": off, "agent": ENOUGH["agent"]}
    )
    assert {each["kind"] for each in agents} == {"ServiceAccount", "ConfigMap", "DaemonSet"}


def _merged(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    both = dict(one)
    for name, value in other.items():
        both[name] = (
            _merged(both[name], value) if isinstance(both.get(name), dict) and isinstance(value, dict) else value
        )
    return both
