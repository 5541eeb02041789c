from __future__ import annotations

from pathlib import Path

import pytest
from collect_trees import plant
from rdma_kit import Adapter, faults

from gpuchaos_agent.collect.base import Follower, Sources
from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_stream.events.base import Severity


def test_downs_while_the_agent_was_away_are_told_and_those_before_are_not(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    state = tmp_path / "state/rdma.json"
    RdmaCollector(tmp_path, boot_id="b1", state=state).read(0.0)
    assert RdmaCollector(tmp_path, boot_id="b1", state=state).read(50.0).facts == ()
    adapter.count(link_downed=8)
    (fact,) = RdmaCollector(tmp_path, boot_id="b1", state=state).read(100.0).facts
    assert (fact.fault, fact.severity, fact.evidence["count"]) == ("nic_link_down", Severity.WARNING, 5)


def test_fewer_downs_than_before_are_a_reset_and_no_fact(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    state = tmp_path / "rdma.json"
    RdmaCollector(tmp_path, boot_id="b1", state=state).read(0.0)
    adapter.count(link_downed=0)
    collector = RdmaCollector(tmp_path, boot_id="b1", state=state)
    assert collector.read(100.0).facts == ()
    adapter.count(link_downed=1)
    assert faults(collector.read(110.0).facts) == [("nic_link_down", "mlx5_0", Severity.WARNING)]


def test_a_port_that_went_down_while_the_agent_was_away_is_told(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    state = tmp_path / "rdma.json"
    RdmaCollector(tmp_path, boot_id="b1", state=state).read(0.0)
    adapter.down()
    adapter.count(link_downed=4)
    assert faults(RdmaCollector(tmp_path, boot_id="b1", state=state).read(100.0).facts) == [
        ("port_down", "mlx5_0", Severity.ERROR)
    ]


def test_what_was_told_is_told_again_after_a_restart_only_if_it_was_not_safe(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    state = tmp_path / "rdma.json"
    first = RdmaCollector(tmp_path, boot_id="b1", state=state)
    assert isinstance(first, Follower)
    first.read(0.0)
    adapter.down()
    assert [fact.fault for fact in first.read(1.0).facts] == ["port_down"]
    second = RdmaCollector(tmp_path, boot_id="b1", state=state)
    assert [fact.fault for fact in second.read(2.0).facts] == ["port_down"]
    second.commit()
    third = RdmaCollector(tmp_path, boot_id="b1", state=state)
    assert third.read(3.0).facts == ()
    adapter.up()
    assert faults(third.read(4.0).facts) == [("port_down", "mlx5_0", Severity.INFO)]


def test_a_port_that_does_not_come_back_after_a_reboot_is_told_when_it_has_had_its_time(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    state = tmp_path / "rdma.json"
    RdmaCollector(tmp_path, boot_id="b1", state=state).read(0.0)
    adapter.down()
    adapter.count(link_downed=0)
    collector = RdmaCollector(tmp_path, boot_id="b2", state=state)
    assert collector.read(1000.0).facts == ()
    assert collector.read(1179.0).facts == ()
    assert faults(collector.read(1180.0).facts) == [("port_down", "mlx5_0", Severity.ERROR)]


@pytest.mark.parametrize("content", ["", "[]", "{", '{"ports": 3}', '{"ports": {"mlx5_0": {"downs": "x"}}}', "\0\xff"])
def test_a_damaged_baseline_is_as_none(tmp_path: Path, content: str) -> None:
    Adapter(tmp_path)
    state = plant(tmp_path, {"rdma.json": content}) / "rdma.json"
    collector = RdmaCollector(tmp_path, boot_id="b1", state=state)
    assert collector.read(0.0).facts == ()
    assert collector.read(1.0).facts == ()


def test_a_state_directory_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    Adapter(tmp_path)
    plant(tmp_path, {"file": ""})
    reading = RdmaCollector(tmp_path, state=tmp_path / "file/rdma.json").read(0.0)
    assert "cannot be kept" in reading.absent["rdma.position"]
    assert reading.groups


def test_the_collector_of_the_settings_takes_rails_from_both_and_the_settings_win(tmp_path: Path) -> None:
    Adapter(tmp_path, "mlx5_0")
    Adapter(tmp_path, "mlx5_1")
    place = plant(tmp_path, {"place.yaml": "rails:\n  mlx5_0: rail-a\n  mlx5_1: rail-b\n"}) / "place.yaml"
    collector = RdmaCollector.from_sources(Sources(sysfs=tmp_path, place=place, rails={"mlx5_1": "rail-z"}))
    assert [port.rail for port in collector.read(0.0).places.ports] == ["rail-a", "rail-z"]
    collector.close()
