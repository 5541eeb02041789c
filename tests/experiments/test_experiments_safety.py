"""What may not be hit: protected nodes, the control plane's own, a failure domain that is hit already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from experiments_help import plan, start

from gpuchaos_stream.errors import UserErrors
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.experiment import ExperimentState, Status, Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.node import NodeInfo, PortPlace
from gpuchaos_stream.events.observation import CellSummary, NodeSeen, Tick
from gpuchaos_stream.experiments.safety import HOST_S, Gate, SafetyRules
from gpuchaos_stream.guard.rules import RuleSet, load
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.topology.topology import Topology

T0 = 1_000.0


def node(name: str, **fields: Any) -> NodeInfo:
    body = {"rack": f"r-{name}", "nvlink_domain": f"d-{name}", "jobs": ("llama",)} | fields
    return NodeInfo(id=f"{name}-{len(fields)}", time=T0, cluster="c", node=name, cell="c0", **body)


def gate(*nodes: NodeInfo, **rules: Any) -> Gate:
    topology = Topology()
    for each in nodes:
        topology.apply(each)
    return Gate(SafetyRules.model_validate(rules), topology)


def tick(host: str, at: float = T0) -> Tick:
    return Tick(id=f"t{host}{at}", time=at, cluster="c", host=host)


def one(entity: str = "process/n1/10", **changes: Any) -> Any:
    return plan(targets={"entities": [entity]}, **changes)


NODE_PLAN = {"fault": {"name": "network-partition", "certifies": ["node-isolation"]}}
PORT_PLAN = {"fault": {"name": "rdma-link", "certifies": ["rdma-failure"]}}


def test_what_nothing_speaks_against_may_begin() -> None:
    assert gate(node("n1"), node("n2")).refusal(plan(), [("other", "process/n3/1")], T0) == ""
    assert gate().refusal(plan(), [], T0) == "", "an unknown target is not this one's matter"


def test_a_node_with_the_label_is_protected() -> None:
    asked = gate(node("n1", labels={"gpuchaos.protected": "true"}))
    assert asked.refusal(one(), [], T0) == "refused: process/n1/10: node n1 has the label gpuchaos.protected"
    assert gate(node("n1", labels={"gpuchaos.protected": "no"})).refusal(one(), [], T0) == ""


@pytest.mark.parametrize(("pattern", "refused"), [("n1", True), ("n*", True), ("process/*/10", True), ("n2", False)])
def test_names_in_the_rules_are_protected(pattern: str, refused: bool) -> None:
    said = gate(node("n1"), protected=[pattern]).refusal(one(), [], T0)
    assert bool(said) == refused
    assert not refused or f"is protected by the rules ({pattern})" in said


def test_the_node_of_the_control_plane_is_refused_unless_forced_and_while_its_worker_lives() -> None:
    asked = gate(node("n1"), node("n2"))
    asked.feed(tick("n1"))
    said = asked.refusal(one(), [], T0 + 1)
    assert "the control plane itself runs on node n1; safety.force: true allows it" in said
    assert asked.refusal(one(safety={"force": True}), [], T0 + 1) == ""
    assert asked.refusal(one("process/n2/1"), [], T0 + 1) == ""
    assert asked.refusal(one(), [], T0 + HOST_S + 1) == ""


def test_where_the_control_plane_runs_survives_a_kill_and_is_not_saved_with_every_tick() -> None:
    asked = gate(node("n1"))
    asked.feed(tick("n1"))
    saved = asked.dirty()
    for step in range(40):
        asked.feed(tick("n1", T0 + step / 4))
        assert asked.dirty() == {}
    other = gate(node("n1"))
    other.load({key: value for key, value in saved.items() if value is not None})
    assert "control plane" in other.refusal(one(), [], T0 + 1)


def test_a_fault_that_the_agent_says_is_impossible_there_is_refused_with_the_agent_s_reason() -> None:
    asked = gate(node("n1", faults_impossible={"process-stop": "no pidfd_open"}), node("n2"))
    assert "n1/10: its agent cannot do process-stop: no pidfd_open" in asked.refusal(one(), [], T0)
    power = one("node/n1", fault={"name": "power-cycle", "params": {"driver": "n2"}, "certifies": ["node-loss"]})
    assert asked.refusal(power, [], T0) == ""
    cannot = gate(node("n1"), node("n2", faults_impossible={"power-cycle": "no BMC"}))
    assert "its agent cannot do power-cycle: no BMC" in cannot.refusal(power, [], T0), "the driver's, not the target's"


@pytest.mark.parametrize(
    ("mine", "theirs", "other", "words"),
    [
        ({}, {}, "gpu/n1/0", "in node n1"),
        ({"nvlink_domain": "d"}, {"nvlink_domain": "d"}, "process/n2/1", "in NVLink domain d"),
        ({"rack": "r"}, {"rack": "r"}, "process/n2/1", "in rack r"),
    ],
)
def test_two_experiments_do_not_meet_in_one_failure_domain(
    mine: dict[str, Any], theirs: dict[str, Any], other: str, words: str
) -> None:
    asked = gate(node("n1", **mine), node("n2", **theirs))
    said = asked.refusal(one(), [("first", other)], T0)
    assert said.startswith("refused: 2 faults at once ")
    assert words in said
    assert said.endswith("with first; at most 1 may be")


def test_a_rail_counts_for_ports_and_nodes_and_not_for_processes() -> None:
    ports = {"ports": (PortPlace(name="m0", rail="r0"),)}
    asked = gate(node("n1", **ports), node("n2", **ports))
    assert "in rail r0" in asked.refusal(one("port/n1/m0", **PORT_PLAN), [("first", "port/n2/m0")], T0)
    assert "in rail r0" in asked.refusal(one("node/n1", **NODE_PLAN), [("first", "port/n2/m0")], T0)
    assert asked.refusal(one(), [("first", "port/n2/m0")], T0) == ""


def test_one_experiment_alone_may_have_all_the_targets_it_declares_and_the_rules_may_allow_more_to_meet() -> None:
    nodes = [node(name, rack="r") for name in ("n1", "n2", "n3")]
    assert gate(*nodes).refusal(plan(), [], T0) == ""
    other = [("first", "process/n3/1")]
    three = gate(*nodes, most_faults={"rack": 3})
    assert three.refusal(plan(), other, T0) == ""
    assert "4 faults at once in rack r" in three.refusal(plan(), [*other, ("first", "process/n3/2")], T0)


# -- in the loop ----------------------------------------------------------------------------------------------


class Loop:
    """A control loop of two nodes of one rack, with telemetry that is always good."""

    def __init__(self, **rules: Any) -> None:
        self.loop = ClusterLoop("c", RuleSet((), SafetyRules.model_validate(rules)))
        self.now = T0
        self.sent: list[CommandKind] = []
        for name in ("n1", "n2"):
            self.loop.feed(node(name, rack="r"))

    def start(self, name: str, entity: str, **changes: Any) -> None:
        self.loop.command(start(name, at=self.now, targets={"entities": [entity]}, **changes), now=self.now)

    def until(self, seconds: float) -> None:
        while self.now < T0 + seconds:
            self.now += 0.5
            seen = {name: NodeSeen(last=self.now) for name in ("n1", "n2")}
            jobs: dict[str, dict[str, float | None]] = {"llama": {"steps_rate": 1.0}}
            body = {"nodes": seen, "order": (), "columns": {}, "jobs": jobs}
            self.loop.feed(CellSummary(id=f"s{self.now}", time=self.now, cluster="c", cell="c0", **body))
            self.sent += [command.kind for command, _ in self.loop.settle(self.now).commands]

    def say(self, phase: FaultPhase, name: str) -> None:
        """The agent's word on the one fault of an experiment."""
        (fault,) = self.state(name).faults
        event = FaultEvent(
            id=f"{phase}-{name}",
            time=self.now,
            cluster="c",
            phase=phase,
            fault=fault.fault,
            node=fault.node,
            entity=fault.entity,
            fault_id=fault.fault_id,
            experiment_id=name,
        )
        self.loop.feed(event)

    def state(self, name: str) -> ExperimentState:
        state = self.loop.machine.state(name)
        assert state is not None
        return state


def test_an_experiment_that_meets_another_is_void_at_its_start_with_the_reason_and_injects_nothing() -> None:
    world = Loop()
    world.start("first", "process/n1/10")
    world.until(2)
    world.start("second", "process/n2/20")
    world.until(2.5)
    assert world.state("second").verdict is Verdict.VOID
    assert "2 faults at once in rack r, with first; at most 1 may be" in world.state("second").reason
    assert world.state("first").verdict is None
    assert world.sent == []


def test_of_two_that_are_started_at_once_the_older_one_goes_on() -> None:
    world = Loop()
    world.start("b", "process/n2/20")
    world.start("a", "process/n1/10")
    world.until(6)
    assert world.state("a").verdict is None
    assert world.state("b").verdict is Verdict.VOID
    assert set(world.sent) == {CommandKind.INJECT}


def test_a_fault_that_is_gone_is_in_nobody_s_way_though_its_experiment_still_recovers() -> None:
    world = Loop()
    world.start("first", "process/n1/10")
    world.until(6)
    world.say(FaultPhase.INJECTED, "first")
    world.until(8)
    assert world.loop.machine.before("first") == []
    world.start("refused", "process/n2/20")
    world.until(9)
    assert "with first" in world.state("refused").reason
    world.say(FaultPhase.UNDONE, "first")
    world.until(10)
    assert world.state("first").status is Status.RECOVERING
    world.start("second", "process/n2/21")
    world.until(15)
    assert world.state("second").status is Status.INJECTING


def test_what_was_safe_at_the_start_is_looked_at_again_until_the_injection() -> None:
    world = Loop()
    world.start("first", "process/n1/10")
    world.until(2)
    world.loop.feed(node("n1", rack="r", labels={"gpuchaos.protected": "true"}).model_copy(update={"time": world.now}))
    world.until(10)
    assert world.state("first").verdict is Verdict.VOID
    assert "gpuchaos.protected" in world.state("first").reason
    assert world.sent == []


def test_a_fault_that_is_there_is_not_taken_back_because_a_label_came_late() -> None:
    world = Loop()
    world.start("first", "process/n1/10")
    world.until(6)
    assert CommandKind.INJECT in world.sent
    world.loop.feed(node("n1", rack="r", labels={"gpuchaos.protected": "true"}).model_copy(update={"time": world.now}))
    world.until(8)
    assert world.state("first").verdict is None


def test_a_worker_s_own_node_is_refused_in_the_loop_and_after_a_kill() -> None:
    world = Loop()
    world.loop.feed(tick("n1"))
    saved = {key: value for key, value in world.loop.dirty().items() if value is not None}
    other = Loop()
    other.loop.load(saved)
    for each in (world, other):
        each.start("first", "process/n1/10")
        each.until(1)
        assert "the control plane itself runs on node n1" in each.state("first").reason


def test_the_agent_of_the_driver_gets_the_orders_for_a_node_without_power() -> None:
    world = Loop()
    power = {"name": "power-cycle", "params": {"driver": "n2"}, "certifies": ["node-loss"]}
    world.start("first", "node/n1", fault=power)
    world.until(5)
    (fault,) = world.state("first").faults
    assert (fault.entity, fault.node) == ("node/n1", "n2")
    world.start("second", "node/n1", fault=power | {"params": {"driver": "n9"}}, safety={"force": True})
    world.until(12)
    assert world.state("second").verdict is Verdict.VOID


# -- in rule files --------------------------------------------------------------------------------------------


def test_the_shipped_rules_say_what_holds_without_any() -> None:
    assert load([shipped_rules()]).safety == SafetyRules()


def test_a_file_may_hold_safety_alone_and_only_one_file_may(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("safety: {protected: [login-*], most_faults: {rack: 2}}\n")
    assert load([tmp_path]).safety.most_faults.rack == 2
    (tmp_path / "b.yaml").write_text("safety: {}\n")
    with pytest.raises(UserErrors, match=r"b\.yaml:1: safety is also at .*a\.yaml:1"):
        load([tmp_path])


def test_a_typo_in_safety_is_named_with_its_line(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("safety:\n  most_faults: {nvlink: 2}\n")
    with pytest.raises(UserErrors, match=r"a\.yaml:2: unknown field 'safety\.most_faults\.nvlink'"):
        load([tmp_path])
