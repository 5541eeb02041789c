"""Every example in the documentation works: YAML is checked by the command that will read it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest
import yaml
from click.testing import CliRunner
from docs_blocks import Block, anchors, blocks, links
from docs_tables import ROOT

from gpuchaos_agent import config as agent_config
from gpuchaos_agent.collect.place import load as load_place
from gpuchaos_stream.cli import cli
from gpuchaos_stream.sim.script import load as load_failures
from gpuchaos_stream.stream import settings as kafka_settings

#: What an example may name as a file on somebody's machine; the test puts an empty file there.
FILES: Final = "/etc/gpuchaos/"


def _cli(*words: str) -> None:
    result = CliRunner().invoke(cli, words)
    assert result.exit_code == 0, result.output


def _rules(path: Path) -> None:
    _cli("rules", "check", str(path))


def _rule_test(path: Path) -> None:
    """Runs beside the rules that it names; the page shows them before it."""
    content = yaml.safe_load(path.read_text())
    by_name = {block.info.split()[1]: block for block in blocks() if block.info.startswith("rules ")}
    for name in content["rule_files"]:
        beside = path.parent / name
        beside.write_text(by_name[Path(name).name].text)
    _cli("rules", "test", str(path))


def _agent(path: Path) -> None:
    agent_config.load(path)


def _kafka(path: Path) -> None:
    kafka_settings.load(path)


def _failures(path: Path) -> None:
    load_failures(path)


def _prometheus(path: Path) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed (Debian: prometheus)")
    done = subprocess.run([promtool, "check", "config", "--syntax-only", str(path)], capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()


def _grafana(path: Path) -> None:
    """Provisioning as Grafana reads it: data sources with an uid, or a folder of dashboards."""
    content = yaml.safe_load(path.read_text())
    assert content.pop("apiVersion") == 1
    ((kind, entries),) = content.items()
    needed = {"datasources": {"name", "uid", "type", "url"}, "providers": {"name", "type", "options"}}[kind]
    assert all(needed <= set(entry) for entry in entries)


def _helm(path: Path) -> None:
    """Values of the chart, by their first names; the real Helm renders these blocks in tests/helm."""
    known = yaml.safe_load((ROOT / "helm/gpuchaos-stream/values.yaml").read_text())
    assert set(yaml.safe_load(path.read_text())) <= set(known)


#: Second word of a YAML block → what reads such a file.
READERS: Final[dict[str, Callable[[Path], object]]] = {
    "experiment": lambda path: _cli("experiment", "check", str(path)),
    "rules": _rules,
    "notify": lambda path: _cli("notify", "--check", "--config", str(path)),
    "rule-test": _rule_test,
    "agent": _agent,
    "kafka": _kafka,
    "failures": _failures,
    "place": load_place,
    "prometheus": _prometheus,
    "grafana": _grafana,
    "helm": _helm,
}
YAML: Final = [block for block in blocks() if block.language in ("yaml", "yml")]


def test_there_is_an_example_of_each_kind() -> None:
    assert {block.info.split()[0] for block in YAML} == set(READERS)


@pytest.mark.parametrize("block", YAML, ids=lambda block: block.where)
def test_a_yaml_example_is_what_its_reader_takes(block: Block, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The machine that runs this has settings of its own, maybe; the example must do without.
    for name in ("KAFKA_BOOTSTRAP_SERVERS", "KAFKA_SECURITY_PROTOCOL", "KAFKA_SASL_USERNAME", "KAFKA_SASL_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "gpuchaos"
    folder.mkdir()
    for name in ("ca.pem", "client.pem", "client.key"):
        (folder / name).touch()
    path = tmp_path / "tests" / "example.yaml"  # as the page says of rule tests; the others may lie anywhere
    path.parent.mkdir()
    path.write_text(block.text.replace(FILES, f"{folder}/"))
    READERS[block.info.split()[0]](path)


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_shipped_experiment_can_be_run(path: Path) -> None:
    _cli("experiment", "check", str(path))


def test_no_link_leads_nowhere() -> None:
    wrong = []
    for page, target in links():
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        if not there.exists() or (anchor and anchor not in anchors(there)):
            wrong.append(f"{page.relative_to(ROOT)}: {target}")
    assert wrong == []
