from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.collect.base import Places, Sources
from gpuchaos_agent.collect.place import LOOK_ANEW_S, PlaceCollector, PlaceFile, find, labels, load
from gpuchaos_agent.collect.registry import build, collectors
from gpuchaos_agent.snapshot import Snapshot
from gpuchaos_stream.errors import UserError


def written(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_place_file_names_rack_leaf_domain_and_rails(tmp_path: Path) -> None:
    file = written(
        tmp_path / "place.yaml", "rack: r12\nleaf: leaf-3\ndomain: nvl-7\nrails:\n  mlx5_0: rail-0\n  mlx5_1: rail-1\n"
    )
    place = load(file)
    assert place.rails == {"mlx5_0": "rail-0", "mlx5_1": "rail-1"}
    assert find(place, {}, {}) == Places(rack="r12", leaf="leaf-3", nvlink_domain="nvl-7")


@pytest.mark.parametrize(
    ("text", "where", "says"),
    [
        ("rack: r1\nleef: x\n", ":2", "leaf"),
        ("rails:\n  mlx5_0: 'two words'\n", ":2", "rails"),
        ("rack: [a]\n", ":1", "rack"),
        ("rack: 'a\n", ":2", "YAML"),
        ("- a\n", ":1", ""),
    ],
)
def test_a_mistake_in_the_place_file_is_named_by_line_when_the_agent_starts(
    tmp_path: Path, text: str, where: str, says: str
) -> None:
    file = written(tmp_path / "place.yaml", text)
    with pytest.raises(UserError) as caught:
        build(Sources(place=file), only=["place"])
    assert f"{file}{where}" in str(caught.value)
    assert says in str(caught.value)


def test_a_place_file_that_is_not_there_is_a_mistake_as_well(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read"):
        load(tmp_path / "nowhere.yaml")


def test_the_file_wins_over_variables_those_over_labels_and_those_over_slurm() -> None:
    environ = {
        "GPUCHAOS_LEAF": "leaf-of-variable",
        "SLURM_TOPOLOGY_ADDR": "core.leaf-of-slurm.n001",
        "SLURM_TOPOLOGY_ADDR_PATTERN": "switch.switch.node",
    }
    labelled = {"network.topology.nvidia.com/leaf": "leaf-of-label"}
    assert find(PlaceFile(leaf="leaf-of-file"), environ, labelled).leaf == "leaf-of-file"
    assert find(PlaceFile(), environ, labelled).leaf == "leaf-of-variable"
    del environ["GPUCHAOS_LEAF"]
    assert find(PlaceFile(), environ, labelled).leaf == "leaf-of-label"
    assert find(PlaceFile(), environ, {}).leaf == "leaf-of-slurm"


@pytest.mark.parametrize(
    ("address", "pattern", "leaf", "domain"),
    [
        ("spine1.leaf4.n017", "switch.switch.node", "leaf4", None),
        (".spine1.leaf4.n017", "switch.switch.switch.node", "leaf4", None),
        ("n017", "node", None, None),
        ("leaf4.n017.example.org", "switch.node", None, None),
        ("block3.n017", "block.node", None, "block3"),
        ("spine1.leaf4.n017", "", None, None),
        (".n017", "switch.node", None, None),
    ],
)
def test_slurms_address_is_read_by_its_pattern(
    address: str, pattern: str, leaf: str | None, domain: str | None
) -> None:
    found = find(PlaceFile(), {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern}, {})
    assert (found.leaf, found.nvlink_domain) == (leaf, domain)


def test_a_pods_labels_tell_rack_and_nvlink_domain(tmp_path: Path) -> None:
    file = written(
        tmp_path / "labels",
        'app="gpuchaos-agent"\nnvidia.com/gpu.clique="2f0c7c1e-58aa-4c4f-9d56-0a1b2c3d4e5f.3"\n'
        'topology.kubernetes.io/rack="rack-9"\ntopology.kubernetes.io/zone="z1"\n',
    )
    reading = PlaceCollector(PlaceFile(), labels_file=file, environ={}).read(0.0)
    assert reading.places.rack == "rack-9"
    assert reading.places.nvlink_domain == "2f0c7c1e-58aa-4c4f-9d56-0a1b2c3d4e5f.3"
    assert "leaf" in reading.absent["place"]
    assert "rack" not in reading.absent["place"]


def test_labels_that_change_are_seen_when_they_are_looked_at_anew(tmp_path: Path) -> None:
    file = written(tmp_path / "labels", 'topology.kubernetes.io/rack="rack-1"\n')
    collector = PlaceCollector(PlaceFile(), labels_file=file, environ={})
    collector.read(0.0)
    written(file, 'topology.kubernetes.io/rack="rack-2"\n')
    assert collector.read(1.0).places.rack == "rack-1"
    assert collector.read(LOOK_ANEW_S).places.rack == "rack-2"


def test_the_place_reaches_the_nodes_description(tmp_path: Path) -> None:
    snapshot = Snapshot([PlaceCollector(PlaceFile(rack="r1", domain="d1"), labels_file=tmp_path / "none", environ={})])
    places = snapshot.take(0.0).places
    snapshot.close()
    assert (places.rack, places.leaf, places.nvlink_domain) == ("r1", None, "d1")


def test_place_is_a_source_found_by_its_file() -> None:
    assert collectors()["place"] is PlaceCollector
    assert PlaceCollector.kinds == ()


@given(st.text(max_size=200), st.text(max_size=60), st.text(max_size=60))
def test_whatever_stands_there_is_a_name_or_nothing(content: str, address: str, pattern: str) -> None:
    environ = {"SLURM_TOPOLOGY_ADDR": address, "SLURM_TOPOLOGY_ADDR_PATTERN": pattern, "GPUCHAOS_RACK": content}
    found = find(PlaceFile(), environ, labels(content) | {"network.topology.nvidia.com/leaf": content})
    for name in (found.rack, found.leaf, found.nvlink_domain):
        assert name is None or (0 < len(name) <= 100 and name.isascii() and not any(c.isspace() for c in name))
