"""Every pod of every set of values: what it runs is understood by what it runs, and it may no more than it must."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, Final

import click
import pytest
import yaml
from click.testing import CliRunner
from helm_chart import CHART, ROOT, SETS, Object, containers, of_kind, one, pods, render, rendered

from gpuchaos_agent import config
from gpuchaos_agent.agent import _parser
from gpuchaos_stream.cli import cli

#: The first build takes minutes.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.parametrize("name", SETS)]
#: The most that a ConfigMap may hold, bytes.
LARGEST: Final = 1 << 20


def control_pods(name: str) -> list[tuple[str, Object]]:
    return [(who, spec) for who, spec in pods(rendered(name)) if not who.endswith("-agent")]


def test_a_pod_of_the_control_plane_may_nothing(name: str) -> None:
    for who, spec in control_pods(name):
        told = spec["securityContext"]
        assert (told["runAsNonRoot"], told["runAsUser"], told["seccompProfile"]) == (
            True,
            10001,
            {"type": "RuntimeDefault"},
        ), who
        assert not {"hostPID", "hostNetwork", "hostIPC"} & set(spec), who
        assert [each for each in spec.get("volumes", ()) if "hostPath" in each] == [], who
        for container in containers(spec):
            assert container["securityContext"] == {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            }, who


def test_no_pod_gets_a_token_or_the_addresses_of_services(name: str) -> None:
    for who, spec in pods(rendered(name)):
        assert spec["automountServiceAccountToken"] is False, who
        # A service called `kafka` would set KAFKA_PORT, which is a setting of ours.
        assert spec["enableServiceLinks"] is False, who
    assert all(each["automountServiceAccountToken"] is False for each in of_kind(rendered(name), "ServiceAccount"))


def test_every_container_says_what_it_takes(name: str) -> None:
    for who, spec in pods(rendered(name)):
        for container in containers(spec):
            assert container["resources"]["requests"]["memory"], who
            assert container["resources"]["limits"]["memory"], who


def test_every_image_is_the_charts_and_comes_from_where_it_is_told(name: str) -> None:
    values = yaml.safe_load((CHART / f"ci/{name}-values.yaml").read_text()).get("images", {})
    images = {container["image"] for _, spec in pods(rendered(name)) for container in containers(spec)}
    if name == "airgapped":
        assert images == {
            f"{values['registry']}/gpuchaos-stream/{each}@{values[each]['digest']}" for each in ("worker", "agent")
        }
        assert all(spec["imagePullSecrets"] == [{"name": "mirror-pull"}] for _, spec in pods(rendered(name)))
    else:
        assert images == {"gpuchaos-stream/worker:0.1.0", "gpuchaos-stream/agent:0.1.0"}


def test_secrets_are_named_and_never_made(name: str) -> None:
    assert of_kind(rendered(name), "Secret") == []
    assert "PRIVATE" not in json.dumps(rendered(name))


def test_every_mount_has_its_volume_and_every_volume_its_mount(name: str) -> None:
    for who, spec in pods(rendered(name)):
        mounted = [mount for container in containers(spec) for mount in container.get("volumeMounts", ())]
        assert {mount["name"] for mount in mounted} == {each["name"] for each in spec.get("volumes", ())}, who
        for container in containers(spec):
            paths = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
            assert len(paths) == len(set(paths)), who


def test_a_file_that_is_named_is_mounted(name: str) -> None:
    for who, spec in pods(rendered(name)):
        for container in containers(spec):
            named = [each.partition("=")[2] for each in container.get("args", ()) if "=/" in each]
            named += [each["value"] for each in container.get("env", ()) if str(each.get("value", "")).startswith("/")]
            mounted = [mount["mountPath"] for mount in container.get("volumeMounts", ())]
            for path in named:
                assert any(path == at or path.startswith(f"{at}/") for at in mounted), (who, path)


def test_every_command_line_is_one(name: str) -> None:
    seen = set()
    for who, spec in pods(rendered(name)):
        for container in containers(spec):
            if container["command"] == ["gpuchaos"]:
                seen.add(container["args"][0])
                _understood(container["args"])
            elif container["command"] == ["gpuchaos-agent"]:
                assert isinstance(_parser().parse_args(container["args"]), argparse.Namespace)
            else:
                assert container["command"][0] == "python3", who
    assert {"worker", "serve", "topics"} <= seen


def _understood(args: list[str]) -> None:
    command = cli.get_command(click.Context(cli), args[0])
    assert command is not None, args[0]
    options = {name: option for option in command.params for name in option.opts}
    for each in args[1:]:
        word, equals, value = each.partition("=")
        assert word in options, f"{args[0]} has no {word}"
        option = options[word]
        assert isinstance(option, click.Option)
        assert option.is_flag is not bool(equals), each
        if equals and not isinstance(option.type, click.Path):
            option.type.convert(value, option, None)
    given = {word.partition("=")[0] for word in args}
    assert [option.name for option in options.values() if option.required and not set(option.opts) & given] == []


def test_probes_ask_a_port_that_is_served(name: str) -> None:
    for who, spec in pods(rendered(name)):
        for container in containers(spec):
            ports = {each["name"] for each in container.get("ports", ())}
            for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                if ports:
                    assert container[probe]["httpGet"]["port"] in ports, who


def test_the_agent_takes_the_settings_that_are_made_for_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "agent.yaml"
    path.write_text(one(rendered(name), "ConfigMap", "-agent")["data"]["agent.yaml"])
    settings = config.load(path)
    assert settings.http_port == 9470
    assert str(settings.state_dir) == "/var/lib/gpuchaos-agent"


def mounted(folder: Path, data: dict[str, str]) -> None:
    """Lays a ConfigMap out as a kubelet does: links to links, so that all files change at once."""
    (folder / "..2026_12_01").mkdir()
    (folder / "..data").symlink_to("..2026_12_01")
    for file, text in data.items():
        (folder / "..2026_12_01" / file).write_text(text)
        (folder / file).symlink_to(f"..data/{file}")


def test_the_rules_that_are_made_are_rules(name: str, tmp_path: Path) -> None:
    data = one(rendered(name), "ConfigMap", "-rules")["data"]
    mounted(tmp_path, data)
    done = CliRunner().invoke(cli, ["rules", "check", str(tmp_path)])
    assert done.exit_code == 0, (done.output, done.exception)
    assert set(data) >= {path.name for path in (ROOT / "rules").glob("*.yaml")}


def test_notify_takes_the_configuration_that_is_made_for_it(name: str, tmp_path: Path) -> None:
    for each in of_kind(rendered(name), "ConfigMap", "-notify"):
        path = tmp_path / "notify.yaml"
        path.write_text(each["data"]["notify.yaml"])
        done = CliRunner().invoke(cli, ["notify", "--check", "--config", str(path)])
        assert done.exit_code == 0, (done.output, done.exception)
    assert bool(of_kind(rendered(name), "ConfigMap", "-notify")) is (name != "minimal")


def test_a_worker_starts_anew_when_its_rules_change_and_only_then(name: str) -> None:
    def stamp(**more: Any) -> tuple[str, str]:
        template = one(render(name, more), "Deployment", "-worker")["spec"]["template"]
        return json.dumps(template), template["metadata"]["annotations"]["checksum/rules"]

    plain, changed = stamp(), stamp(rules={"files": {"other.yaml": "safety: {}\n"}})
    assert plain[1] != changed[1]
    assert stamp(web={"replicas": 3}) == plain


def test_every_config_map_fits_into_one(name: str) -> None:
    for each in of_kind(rendered(name), "ConfigMap"):
        assert len(json.dumps(each).encode()) < LARGEST, each["metadata"]["name"]


def test_what_lies_in_the_chart_is_what_lies_in_the_tree(name: str) -> None:
    """`make chart` copies it."""
    for folder, source in (("rules", "rules"), ("prometheus", "rules/prometheus"), ("dashboards", "dashboards")):
        ends = "*.json" if folder == "dashboards" else "*.yaml"
        theirs = {path.name: path.read_bytes() for path in (ROOT / source).glob(ends)}
        ours = {path.name: path.read_bytes() for path in (CHART / "files" / folder).glob("*.*")}
        assert ours == theirs, "make chart"
    made = {
        file: text
        for each in of_kind(rendered(name), "ConfigMap")
        if each["metadata"]["labels"].get("grafana_dashboard") == "1"
        for file, text in each["data"].items()
    }
    wanted = {path.name: json.loads(path.read_text()) for path in (ROOT / "dashboards").glob("*.json")}
    assert {file: json.loads(text) for file, text in made.items()} == (wanted if name != "minimal" else {})


def test_alerts_are_the_shipped_ones_and_link_to_where_the_runbooks_are(name: str) -> None:
    for each in of_kind(rendered(name), "PrometheusRule"):
        shipped = yaml.safe_load((ROOT / "rules/prometheus/gpuchaos.rules.yaml").read_text())
        made = each["spec"]
        links = [
            rule["annotations"].pop("runbook_url")
            for group in made["groups"]
            for rule in group["rules"]
            if "alert" in rule
        ]
        for group in shipped["groups"]:
            for rule in group["rules"]:
                rule.get("annotations", {}).pop("runbook_url", None)
        assert made == shipped
        assert links
        assert all(link.startswith("https://runbooks.example.com/GPUChaos") for link in links)
    assert len(of_kind(rendered(name), "PrometheusRule")) == (name == "full")
