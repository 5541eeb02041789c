from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpuchaos_agent.aside import STALE_AFTER_S
from gpuchaos_agent.collect import registry
from gpuchaos_agent.collect.base import Collector, Fact, Follower, Group, JobSource, Places, Reading, Sources
from gpuchaos_agent.snapshot import WAIT_S, Snapshot, fault_event
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import codec
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import FaultPhase, Origin
from gpuchaos_stream.events.frame import GroupLayout, Kind
from gpuchaos_stream.events.node import GpuPlace


class Fixed:
    """Gives the same reading, or raises."""

    kinds: tuple[Kind, ...] = ()

    def __init__(self, name: str, reading: Reading | Exception) -> None:
        self.name = name
        self._reading = reading
        self.closed = 0

    def read(self, now: float) -> Reading:
        if isinstance(self._reading, Exception):
            raise self._reading
        return self._reading

    def close(self) -> None:
        self.closed += 1
        if isinstance(self._reading, Exception):
            raise self._reading


class Following(Fixed):
    """A follower whose drain or commit may fail."""

    def fileno(self) -> int | None:
        return None

    def drain(self, now: float) -> tuple[Fact, ...]:
        return self.read(now).facts

    def commit(self) -> None:
        if isinstance(self._reading, OSError):
            raise self._reading


NUMA = Reading(groups=(Group(GroupLayout(kind="numa", ids=("0",), metrics=("local_rate",)), ((1.0,),)),))


def names() -> dict[str, str]:
    return {"cluster": "c", "cell": "c1", "node": "n1", "boot": "b"}


def test_one_collector_that_fails_is_said_and_counted_and_stops_no_other() -> None:
    snapshot = Snapshot([Fixed("bad", ValueError("no such thing")), Fixed("numa", NUMA)])
    for _ in range(2):
        taken = snapshot.take(5.0)
        assert [group.kind for group in taken.layout.groups] == ["numa"]
    assert "no such thing" in taken.absent["bad"]
    assert snapshot.errors == {"bad": 2}


def test_a_follower_that_fails_stops_no_other() -> None:
    fact = Fact(key="k", fault="gpu_lost", severity=Severity.CRITICAL, time=1.0)
    snapshot = Snapshot([Following("bad", OSError("gone")), Following("good", Reading(facts=(fact,)))])
    assert len(snapshot.followers) == 2
    assert snapshot.drain(1.0) == (fact,)
    snapshot.commit()
    snapshot.close()
    assert snapshot.errors["bad"] == 3


class Hanging(Following):
    """A source that answers when it is let go."""

    kinds: tuple[Kind, ...] = ("rdma",)

    def __init__(self, name: str, reading: Reading) -> None:
        super().__init__(name, reading)
        self.go = threading.Event()
        self.committed = 0
        self._said = False

    def read(self, now: float) -> Reading:
        """The facts of its reading come once, as a source's do."""
        self.go.wait(30)
        reading = super().read(now)
        facts, self._said = (() if self._said else reading.facts), True
        return replace(reading, facts=facts)

    def commit(self) -> None:
        self.committed += 1


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_a_source_that_hangs_is_said_and_delays_no_other() -> None:
    hanging = Hanging("rdma", Reading())
    snapshot = Snapshot([hanging, Fixed("numa", NUMA)])
    began = time.monotonic()
    taken = snapshot.take(1.0)
    assert time.monotonic() - began < WAIT_S + 0.4
    assert [group.kind for group in taken.layout.groups] == ["numa"]
    assert "has not answered" in taken.absent["rdma"]
    hanging.go.set()
    snapshot.close()
    assert hanging.closed == 1


def test_a_source_that_still_hangs_is_not_waited_for_again() -> None:
    hanging = Hanging("app_log", Reading())
    fact = Fact(key="k", fault="gpu_lost", severity=Severity.CRITICAL, time=1.0)
    snapshot = Snapshot([hanging, Following("kernel_log", Reading(facts=(fact,)))])
    snapshot.take(1.0)
    began = time.monotonic()
    assert snapshot.take(2.0).facts == (fact,)
    assert snapshot.drain(3.0) == (fact,)
    assert time.monotonic() - began < WAIT_S / 2
    assert "has not answered" in snapshot.take(4.0).absent["app_log.slow"]
    hanging.go.set()
    snapshot.close()


def test_what_no_entity_may_hold_is_replaced() -> None:
    fact = Fact(key="k", fault="x", severity=Severity.INFO, time=1.0, kind="port", local="a/b c\td\u2028e")
    assert fault_event(fact, cluster="c", node="n1").entity == "port/n1/a_b_c_d_e"


def test_facts_of_a_late_answer_come_with_the_next_tick_and_only_then_may_the_position_be_kept() -> None:
    fact = Fact(key="k", fault="gpu_lost", severity=Severity.CRITICAL, time=1.0)
    hanging = Hanging("rdma", Reading(facts=(fact,)))
    snapshot = Snapshot([hanging])
    assert snapshot.take(1.0).facts == ()
    snapshot.commit()
    assert hanging.committed == 0, "what it will say is not safe anywhere yet"
    hanging.go.set()
    told: tuple[Fact, ...] = ()
    until = time.monotonic() + 10
    while not told and time.monotonic() < until:  # a tick does not wait for it any more: the next ones bring it
        told += snapshot.take(2.0).facts
    assert told == (fact,)
    assert snapshot.take(3.0).facts == ()
    snapshot.commit()
    assert hanging.committed == 1
    snapshot.close()


def test_numbers_that_came_long_ago_are_unknown_and_never_given_again() -> None:
    clock = Clock()
    group = Group(GroupLayout(kind="rdma", ids=("mlx5_0",), metrics=("port_active",)), ((1.0,),))
    hanging = Hanging("rdma", Reading(groups=(group,)))
    hanging.go.set()
    snapshot = Snapshot([hanging], monotonic=clock)
    assert [g.kind for g in snapshot.take(1.0).layout.groups] == ["rdma"]
    hanging.go.clear()
    assert [g.kind for g in snapshot.take(2.0).layout.groups] == ["rdma"], "still fresh"
    clock.now += STALE_AFTER_S + 0.1
    taken = snapshot.take(3.0)
    assert taken.layout.groups == ()
    assert "has not answered for 2.6 s" in taken.absent["rdma"]
    hanging.go.set()
    snapshot.close()


def test_the_layout_is_the_same_object_until_something_changes() -> None:
    snapshot = Snapshot([Fixed("numa", NUMA)])
    assert snapshot.take(1.0).layout is snapshot.take(2.0).layout


def test_a_gpu_named_by_address_becomes_one_named_by_index() -> None:
    places = Places(gpus=(GpuPlace(index="3", pci="00000000:5D:00.0"),))
    fact = Fact(key="k", fault="gpu_lost", severity=Severity.CRITICAL, time=1.0, kind="gpu", local="0000:5d:00")
    other = Fact(key="k", fault="gpu_lost", severity=Severity.CRITICAL, time=1.0, kind="gpu", local="0000:5e:00")
    taken = Snapshot([Fixed("a", Reading(facts=(fact, other))), Fixed("gpu", Reading(places=places))]).take(1.0)
    assert [f.local for f in taken.facts] == ["3", "0000:5e:00"]


def test_a_fact_becomes_an_observed_event_that_belongs_to_no_experiment() -> None:
    fact = Fact(
        key="kmsg/boot/1",
        fault="gpu_ecc_contained",
        severity=Severity.ERROR,
        time=9.0,
        kind="gpu",
        local="0000:5d:00",
        origin=Origin.PROCESS,
        injected_mark=True,
        evidence={"fault_id": "f1"},
    )
    event = fault_event(fact, cluster="c", node="n1", clock_offset_s=0.5)
    assert (event.phase, event.entity, event.injected_mark) == (FaultPhase.OBSERVED, "gpu/n1/0000:5d:00", True)
    assert (event.experiment_id, event.fault_id, event.event_time) == (None, None, 9.5)
    assert event.id == fault_event(fact, cluster="c", node="n1", clock_offset_s=9.0).id
    assert event.id != fault_event(fact, cluster="c", node="n2").id


def test_a_fact_of_the_node_itself_names_the_node() -> None:
    event = fault_event(Fact(key="k", fault="x", severity=Severity.INFO, time=1.0), cluster="c", node="n1")
    assert event.entity == "node/n1"


def test_an_unknown_collector_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="numa"):
        registry.build(Sources(), only=["nuna"])


def test_every_collector_of_the_table_keeps_the_interface(tmp_path: Path) -> None:
    empty = Sources(sysfs=tmp_path, procfs=tmp_path, kmsg=tmp_path / "kmsg", jobs=(JobSource("a", pid=1),))
    for name in registry.collectors():
        (collector,) = registry.build(empty, only=[name])
        assert collector.name == name
        reading = collector.read(1.0)
        assert reading.absent or reading.groups
        assert {group.layout.kind for group in reading.groups} <= set(collector.kinds)
        collector.close()
        collector.close()


def test_a_real_frame_of_this_machine_is_valid_and_travels(tmp_path: Path) -> None:
    snapshot = Snapshot(registry.build(Sources(state_dir=tmp_path)))
    snapshot.take(time.time())
    taken = snapshot.take(time.time())
    frame = taken.frame(**names(), seq=1)  # type: ignore[arg-type]
    packed = codec.unpack(codec.pack(frame))
    assert codec.read_layout(packed) == frame.layout
    assert {"node", "numa"} <= {group.kind for group in frame.layout.groups} | set(frame.absent)
    for kind in ("gpu", "rdma", "process"):
        assert kind in frame.absent or kind in {group.kind for group in frame.layout.groups}
    snapshot.commit()
    snapshot.close()


def test_a_follower_is_told_from_a_plain_collector(tmp_path: Path) -> None:
    made: tuple[Collector, ...] = registry.build(Sources(sysfs=tmp_path, procfs=tmp_path, kmsg=tmp_path / "k"))
    followers = {c.name for c in made if isinstance(c, Follower)}
    assert {"kernel_log", "app_log"} <= followers
    assert not followers & {"node", "numa", "gpu"}


def test_the_collectors_load_nothing_heavy_and_no_nvml_before_the_first_read() -> None:
    code = (
        "import sys\n"
        "from gpuchaos_agent.collect import registry\n"
        "from gpuchaos_agent.collect.base import Sources\n"
        "import gpuchaos_agent.snapshot\n"
        "registry.build(Sources())\n"
        "heavy = {'numpy', 'faust', 'pandas', 'sklearn', 'pynvml', 'aiokafka'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
