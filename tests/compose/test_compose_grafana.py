"""What Grafana is given: data sources, where the dashboards are, and that both fit what the dashboards ask for."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final, Literal

import pytest
import yaml
from compose_check import ROOT, project
from pydantic import BaseModel, ConfigDict, Field
from pydantic.alias_generators import to_camel

pytestmark = pytest.mark.timeout(600)

PROVISIONING: Final = ROOT / "deploy/grafana/provisioning"


class Strict(BaseModel):
    """Fields as Grafana 11's documentation of provisioning has them: it would not tell of another one."""

    model_config = ConfigDict(extra="forbid", alias_generator=to_camel)


class ToTrace(Strict):
    name: str
    datasource_uid: str


class JsonData(Strict):
    http_method: Literal["GET", "POST"] | None = None
    time_interval: str | None = None
    implementation: Literal["prometheus", "cortex", "mimir"] | None = None
    exemplar_trace_id_destinations: tuple[ToTrace, ...] = ()


class DataSource(Strict):
    name: str
    uid: str = Field(pattern=r"^[\w-]{1,40}$")
    type: Literal["prometheus", "tempo", "alertmanager"]
    access: Literal["proxy"]
    url: str
    is_default: bool = False
    editable: Literal[False]
    json_data: JsonData = JsonData()


class DataSources(Strict):
    api_version: Literal[1]
    prune: bool = False
    datasources: tuple[DataSource, ...]


class Options(Strict):
    path: str
    folders_from_files_structure: bool


class Provider(Strict):
    name: str
    folder: str
    type: Literal["file"]
    disable_deletion: bool
    allow_ui_updates: Literal[False]
    update_interval_seconds: int = Field(ge=10)
    options: Options


class Providers(Strict):
    api_version: Literal[1]
    providers: tuple[Provider, ...]


@pytest.fixture(scope="module")
def sources() -> dict[str, DataSource]:
    read = DataSources.model_validate(yaml.safe_load((PROVISIONING / "datasources/gpuchaos.yaml").read_text()))
    return {source.uid: source for source in read.datasources}


def grafana() -> dict[str, Any]:
    found: dict[str, Any] = project()["services"]["grafana"]
    return found


def test_prometheus_is_the_default_and_its_exemplars_lead_to_the_traces(sources: dict[str, DataSource]) -> None:
    assert [source.uid for source in sources.values() if source.is_default] == ["prometheus"]
    (to,) = sources["prometheus"].json_data.exemplar_trace_id_destinations
    assert (to.name, sources[to.datasource_uid].type) == ("trace_id", "tempo")


def test_every_address_is_a_service_on_grafanas_network_or_a_variable_that_it_is_given(
    sources: dict[str, DataSource],
) -> None:
    for source in sources.values():
        if variable := re.fullmatch(r"\$\{(\w+)\}", source.url):
            assert variable[1] in grafana()["environment"]
            continue
        host = re.fullmatch(r"http://([a-z]+):(\d+)", source.url)
        assert host is not None, source.url
        service = project()["services"][host[1]]
        assert set(service["networks"]) & set(grafana()["networks"]), source.name
        assert any(f":{host[2]}" in word for word in service["command"]), f"{host[1]} does not listen on {host[2]}"


def mounted(inside: str) -> Path:
    """Where a path of Grafana's container is in the project."""
    (found,) = (
        Path(mount["source"]) / Path(inside).relative_to(mount["target"])
        for mount in grafana()["volumes"]
        if Path(inside).is_relative_to(mount["target"]) and mount["type"] == "bind"
    )
    return found


def test_the_dashboards_are_where_grafana_looks_and_ask_sources_that_are_there(sources: dict[str, DataSource]) -> None:
    read = Providers.model_validate(yaml.safe_load((PROVISIONING / "dashboards/gpuchaos.yaml").read_text()))
    (provider,) = read.providers
    boards = {path.name: path.read_text() for path in mounted(provider.options.path).glob("*.json")}
    assert boards
    uids = [json.loads(text)["uid"] for text in boards.values()]
    assert len(set(uids)) == len(uids)
    home = mounted(grafana()["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert home.name in boards
    for name, text in boards.items():
        asked = set(re.findall(r'"uid": ?"([\w-]+)"', text)) - set(uids)
        assert asked - {"grafana", "-- Grafana --"} <= set(sources), name


def test_grafana_asks_nobody_outside_and_has_no_known_password() -> None:
    given = grafana()["environment"]
    assert given["GF_SECURITY_ADMIN_USER"] != "admin"
    assert "GF_SECURITY_ADMIN_PASSWORD" not in given
    off = {name for name, value in given.items() if value == "false"}
    assert {name for name in given if "ANALYTICS" in name or "NEWS" in name} <= off
    assert given["GF_AUTH_ANONYMOUS_ORG_ROLE"] == "Viewer"
