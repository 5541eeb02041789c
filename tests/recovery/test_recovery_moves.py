"""The work's move off its targets: what counts as one, that silence never does, and that order does not matter."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recovery_help import EXPERIMENT, T0, fault, plan

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.incident import Mitigation, RecoveryRecord
from gpuchaos_stream.events.observation import CellSummary, NodeSeen
from gpuchaos_stream.recovery.recovery import Recovery

#: Where a job's processes are: pids by node. Each job of the tests has four, two a node.
Where = dict[str, tuple[str, ...]]
HOME: Where = {"n1": ("10", "11"), "n2": ("20", "21")}
ELSEWHERE: Where = {"n2": ("20", "21"), "n3": ("30", "31")}
NODES = ("n1", "n2", "n3")
STALLED = 99.0


def begun(*targets: str, jobs: Iterable[str] = ("llama",)) -> Recovery:
    base = plan()
    recovery = Recovery()
    aimed = base.model_copy(update={"targets": base.targets.model_copy(update={"entities": targets})})
    recovery.begin(EXPERIMENT, aimed, T0 - 60, jobs)
    return recovery


def tick(
    at: float,
    where: Where,
    *,
    age: float | None = 0.3,
    silent: Iterable[str] = (),
    still: Iterable[str] = (),
    gpus: dict[str, str] | None = None,
    job: str = "llama",
    cell: str = "c1",
    nodes: tuple[str, ...] = NODES,
) -> CellSummary:
    """What a cell says `at` seconds after the injection; nodes in `silent` have been so for long, `still` pids are
    stopped or gone.
    """
    silent, still = set(silent), set(still)
    heard = [pid for node, pids in where.items() if node not in silent for pid in pids]
    runs = [pid for pid in heard if pid not in still]
    time = T0 + at
    return CellSummary(
        id=stable_id(cell, job, at),
        time=time,
        cluster="c",
        cell=cell,
        nodes={node: NodeSeen(last=time - (30.0 if node in silent else 0.0)) for node in nodes},
        order=nodes,
        columns={},
        jobs={job: {"ranks_running": float(len(runs)), "progress_age_seconds": age if runs else None}} if where else {},
        processes={job: {node: {pid: (gpus or {}).get(pid, "") for pid in pids} for node, pids in where.items()}},
        not_running={node: tuple(pid for pid in where[node] if pid in still) for node in where if node not in silent},
    )


def healthy(recovery: Recovery, where: Where | None = None, **fields: Any) -> None:
    """Ten good seconds up to the injection, and the injection."""
    for second in range(-10, 1):
        recovery.feed(tick(second, HOME if where is None else where, **fields))
    recovery.feed(fault(FaultPhase.INJECTED, T0 + 0.5))


def feed(recovery: Recovery, seconds: Iterable[float], where: Where, **fields: Any) -> None:
    for second in seconds:
        recovery.feed(tick(second, where, **fields))


def found(recovery: Recovery) -> tuple[float | None, Mitigation | None]:
    """TTM, counted from T0 as the ticks are, and what it was counted to."""
    record: RecoveryRecord = recovery.record(EXPERIMENT, T0 + 60)
    return (None if record.ttm is None else record.ttm + 0.5), record.mitigated_by


def test_a_job_that_goes_on_in_full_on_another_node_has_moved_before_the_fault_is_gone() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, range(1, 12), HOME, silent=["n1"], age=STALLED)
    feed(recovery, range(12, 15), ELSEWHERE, age=STALLED)  # it loads its checkpoint
    assert found(recovery) == (None, None)
    feed(recovery, range(15, 20), ELSEWHERE)
    assert found(recovery) == (15.0, Mitigation.MOVED)
    recovery.feed(fault(FaultPhase.UNDONE, T0 + 40.5))
    assert found(recovery) == (15.0, Mitigation.MOVED)


def test_a_fault_that_is_gone_before_the_move_was_removed() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, range(1, 12), HOME, silent=["n1"], age=STALLED)
    feed(recovery, range(12, 20), ELSEWHERE)
    recovery.feed(fault(FaultPhase.UNDONE, T0 + 5.5))
    assert found(recovery) == (5.5, Mitigation.REMOVED)


def test_a_silent_node_carries_its_work_until_as_many_processes_as_before_go_on_elsewhere() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, range(1, 20), {**HOME, "n3": ("30",)}, silent=["n1"])  # three of four, and they make progress
    assert found(recovery) == (None, None)
    feed(recovery, range(20, 24), {**HOME, "n3": ("30", "31")}, silent=["n1"])
    assert found(recovery) == (21.0, Mitigation.MOVED)


def test_a_cell_that_says_nothing_at_all_has_moved_nothing() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    assert found(recovery) == (None, None)
    feed(recovery, range(10, 20), HOME)
    assert found(recovery) == (None, None), "it is heard again, where it was"


def test_progress_from_before_the_move_is_none_after_it() -> None:
    recovery = begun("process/n1/10")
    healthy(recovery)
    feed(recovery, range(1, 5), HOME, still=["10"], age=STALLED)
    replaced = {"n1": ("12", "11"), "n2": ("20", "21")}
    for second in range(5, 9):
        recovery.feed(
            tick(second, replaced, age=second - 4.5)
        )  # the last step was half a second before it was replaced
    assert found(recovery) == (None, None)
    feed(recovery, [9], replaced)
    assert found(recovery) == (9.0, Mitigation.MOVED), "another process of the same node is off it"


def test_progress_that_nobody_knows_of_is_no_move() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, range(1, 20), ELSEWHERE, age=None)
    assert found(recovery) == (None, None)


def test_a_process_left_behind_that_does_not_run_keeps_no_work_on_the_target() -> None:
    left = {"n1": ("10", "11"), **ELSEWHERE}
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, range(1, 8), left)
    assert found(recovery) == (None, None)
    feed(recovery, range(8, 12), left, still=["10", "11"])
    assert found(recovery) == (9.0, Mitigation.MOVED)


def test_a_gpu_that_is_another_process_s_is_off_the_target_and_an_unknown_one_is_on_it() -> None:
    gpus = {"10": "0", "11": "1", "12": "2", "20": "0", "21": "1"}
    elsewhere: Where = {"n1": ("12", "11"), "n2": ("20", "21")}
    for told, answer in ((gpus, (2.0, Mitigation.MOVED)), ({**gpus, "12": ""}, (None, None))):
        recovery = begun("gpu/n1/0")
        healthy(recovery, gpus=gpus)
        feed(recovery, range(1, 8), elsewhere, gpus=told)
        assert found(recovery) == answer


def test_a_port_s_work_is_all_that_its_node_carries() -> None:
    recovery = begun("port/n1/mlx5_0")
    healthy(recovery)
    feed(recovery, range(1, 5), {"n1": ("11",), "n2": ("20", "21"), "n3": ("30",)})
    assert found(recovery) == (None, None)
    feed(recovery, range(5, 8), ELSEWHERE)
    assert found(recovery) == (6.0, Mitigation.MOVED)


def test_every_job_of_every_target_must_have_moved() -> None:
    recovery = begun("node/n1", "node/m1", jobs=["llama", "qwen"])
    other = {"job": "qwen", "cell": "c2", "nodes": ("m1", "m2")}
    at_home, moved = {"m1": ("7",)}, {"m2": ("8",)}
    for second in range(-10, 1):
        recovery.feed(tick(second, at_home, **other))
    healthy(recovery)
    feed(recovery, range(1, 9), ELSEWHERE)
    feed(recovery, range(1, 5), at_home, **other)
    assert found(recovery) == (None, None)
    feed(recovery, range(5, 9), moved, age=STALLED, **other)
    feed(recovery, range(9, 12), ELSEWHERE)
    assert found(recovery) == (None, None)
    feed(recovery, range(9, 12), moved, **other)
    assert found(recovery) == (9.0, Mitigation.MOVED)


def test_a_cell_that_fell_silent_counts_for_nothing() -> None:
    recovery = begun("node/n1")
    for second in range(-10, 1):
        recovery.feed(tick(second, {"m1": ("8", "9")}, age=None, cell="c2", nodes=("m1",)))
    healthy(recovery)
    feed(recovery, range(1, 20), ELSEWHERE)
    assert found(recovery) == (None, None), "six processes before, four now"


def test_a_node_that_was_silent_before_the_injection_had_its_processes_all_the_same() -> None:
    recovery = begun("node/n1")
    healthy(recovery, silent=["n2"])
    feed(recovery, range(1, 20), HOME, silent=["n1"])
    assert found(recovery) == (None, None)


def test_a_job_on_a_silent_target_makes_the_move_of_the_others_unknown() -> None:
    recovery = begun("node/n1", "node/m1", jobs=["llama", "qwen"])
    for second in range(-10, 20):
        recovery.feed(tick(second, {"m1": ("7",)}, job="qwen", cell="c2", nodes=("m1",), silent=["m1"]))
    healthy(recovery)
    feed(recovery, range(1, 20), ELSEWHERE)
    assert found(recovery) == (None, None)


def test_a_gap_begins_the_watch_anew() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, [5, 10], ELSEWHERE)
    assert found(recovery) == (None, None), "where it was in between is not known"
    feed(recovery, [11], ELSEWHERE)
    assert found(recovery) == (11.0, Mitigation.MOVED)


def test_work_moves_off_only_after_the_last_injection() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, range(1, 12), ELSEWHERE)
    assert found(recovery) == (2.0, Mitigation.MOVED)
    recovery.feed(fault(FaultPhase.INJECTED, T0 + 6.5, fault_id="f2"))
    assert found(recovery) == (8.0, Mitigation.MOVED)


def test_what_comes_late_still_counts() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, [*range(1, 5), *range(7, 40)], HOME, silent=["n1"], age=STALLED)
    assert found(recovery) == (None, None)
    feed(recovery, [5, 6], ELSEWHERE)
    assert found(recovery) == (6.0, Mitigation.MOVED)


def test_of_two_workers_at_once_the_worse_is_believed_whichever_came_first() -> None:
    says = [
        tick(1, HOME),
        tick(1, HOME, silent=["n1"], age=None),
        tick(1, ELSEWHERE, age=STALLED),
        tick(1, ELSEWHERE, still=["20"]),
    ]
    for one, other in itertools.permutations(says, 2):
        ways = []
        for pair in ((one, other), (other, one)):
            recovery = begun("node/n1")
            for event in pair:
                recovery.feed(event)
            ways.append({key: json.loads(value or b"") for key, value in recovery.dirty().items() if "/m/" in key})
        assert ways[0] == ways[1]


def test_a_job_that_moved_to_another_cell_is_counted_there() -> None:
    recovery = begun("node/n1")
    healthy(recovery)
    feed(recovery, range(1, 9), {"n1": ("10", "11"), "n2": ("20", "21")}, silent=["n1"], age=STALLED)
    for second in range(9, 13):
        recovery.feed(tick(second, {"n2": ("20", "21")}))
        recovery.feed(tick(second + 0.25, {"m1": ("8", "9")}, cell="c2", nodes=("m1",)))
    assert found(recovery) == (10.25, Mitigation.MOVED)


def test_a_target_whose_whole_cell_fell_silent_does_not_hold_up_what_moved() -> None:
    recovery = begun("node/m1")
    for second in range(-10, 1):
        recovery.feed(tick(second, {"m1": ("8", "9")}, cell="c2", nodes=("m1",)))
    healthy(recovery, {"n2": ("20", "21")})
    feed(recovery, range(1, 7), ELSEWHERE)
    assert found(recovery) == (4.0, Mitigation.MOVED), "2.5 s of silence and a second more, in which it went on"


def test_the_effect_may_show_before_the_injection_is_told() -> None:
    recovery = begun("node/n1")
    feed(recovery, range(-20, -8), HOME)
    feed(recovery, range(-8, 1), HOME, silent=["n1"], age=STALLED)
    recovery.feed(fault(FaultPhase.INJECTED, T0 + 0.5))
    feed(recovery, range(1, 9), ELSEWHERE)
    assert found(recovery) == (2.0, Mitigation.MOVED)


@pytest.mark.parametrize(
    ("targets", "jobs", "before"),
    [
        (("node/n1",), (), {}),  # a job that nobody named
        (("node/n1", "node/n9"), ("llama",), {}),  # a node that nobody has heard of
        (("node/n3",), ("llama",), {}),  # a node that carries nothing
        (("node/n1", "job/llama"), ("llama",), {}),  # a target that is on no node
        (("node/n1",), ("llama",), {"silent": ["n1"]}),  # nobody knows what ran on it
    ],
)
def test_what_cannot_be_told_is_no_move(targets: tuple[str, ...], jobs: tuple[str, ...], before: Any) -> None:
    recovery = begun(*targets, jobs=jobs)
    healthy(recovery, **before)
    feed(recovery, range(1, 20), ELSEWHERE)
    assert found(recovery) == (None, None)
    recovery.feed(fault(FaultPhase.UNDONE, T0 + 30.5))
    assert found(recovery) == (30.5, Mitigation.REMOVED)


def test_summaries_without_places_are_no_move() -> None:
    recovery = begun("node/n1")
    for second in range(-10, 20):
        said = tick(second, HOME if second < 1 else ELSEWHERE)
        recovery.feed(said.model_copy(update={"processes": {}, "not_running": {}}))
    recovery.feed(fault(FaultPhase.INJECTED, T0 + 0.5))
    assert found(recovery) == (None, None)


#: What one cell may show in a second: where the job is, which nodes are silent, which processes do not run, progress.
Moments = st.lists(
    st.tuples(
        st.sampled_from([HOME, HOME, ELSEWHERE, ELSEWHERE, {**HOME, "n3": ("30", "31")}]),
        st.sets(st.sampled_from(NODES), max_size=2),
        st.sets(st.sampled_from(["10", "11", "20"]), max_size=2),
        st.sampled_from([0.3, 0.3, 1.5, STALLED, None]),
    ),
    min_size=3,
    max_size=25,
)


@settings(max_examples=150, deadline=None)
@given(Moments, st.sets(st.integers(1, 25)))
def test_silence_never_moves(moments: list[Any], lost: set[int]) -> None:
    """Whatever is lost, nodes or whole ticks: a moment that counts has four processes seen to run, none on target."""
    recovery = begun("node/n1")
    healthy(recovery)
    for second, (where, silent, still, age) in enumerate(moments, 1):
        if second not in lost:
            recovery.feed(tick(second, where, silent=silent, still=still, age=age))
    ttm, by = found(recovery)
    if ttm is None:
        return
    where, silent, still, age = moments[int(ttm) - 1]
    seen = [(node, pid) for node, pids in where.items() for pid in pids if node not in silent and pid not in still]
    assert int(ttm) not in lost
    assert by is Mitigation.MOVED
    assert len(seen) >= 4
    assert all(node != "n1" for node, _ in seen)
    assert age is not None
    assert age < ttm


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_any_order_any_repeat_and_any_restart_give_the_same_move(data: st.DataObject) -> None:
    events: list[Any] = [tick(second, HOME) for second in range(-5, 1)]
    for second, (where, silent, still, age) in enumerate(data.draw(Moments), 1):
        events.append(tick(second, where, silent=silent, still=still, age=age))
        if age == 1.5:  # two workers at once, during a rebalance
            events.append(tick(second, ELSEWHERE))
    events.append(tick(data.draw(st.sampled_from([3.5, 14.5])), {"m1": ("8", "9")}, cell="c2", nodes=("m1",)))
    events += [fault(FaultPhase.INJECTED, T0 + 0.5), fault(FaultPhase.INJECTED, T0 + 2.5, fault_id="f2")]
    mixed = data.draw(st.permutations(events + data.draw(st.lists(st.sampled_from(events), max_size=8))))
    straight, other = begun("node/n1"), begun("node/n1")
    for event in events:
        straight.feed(event)
    table: dict[str, bytes] = {}
    for event in mixed:
        other.feed(event)
        if data.draw(st.booleans()):
            found(other)  # what is kept up between two questions must not depend on when they were asked
        if data.draw(st.integers(0, 9)) == 7:
            for key, value in other.dirty().items():
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value
            other = Recovery()
            other.load(table)
    assert found(other) == found(straight)


def test_a_long_watch_is_asked_in_steps_and_answers_as_if_asked_once() -> None:
    asked, once = begun("node/n1"), begun("node/n1")
    for recovery in (asked, once):
        healthy(recovery)
    for second in range(1, 60):
        moved = second >= 45
        said = tick(second, ELSEWHERE if moved else HOME, silent=[] if moved else ["n1"], age=0.3 if moved else STALLED)
        for recovery in (asked, once):
            recovery.feed(said)
        found(asked)
    assert found(asked) == found(once) == (46.0, Mitigation.MOVED)
