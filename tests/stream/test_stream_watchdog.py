"""The watchdog of commits: what it calls stuck, and what it leaves alone."""

from __future__ import annotations

from aiokafka import TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.stream.watchdog import LAG, STILL, CommitWatchdog, show

A, B = TopicPartition("t", 0), TopicPartition("t", 1)


def test_a_partition_is_stuck_when_its_commit_stands_still_with_lag_for_the_limit() -> None:
    dog = CommitWatchdog(limit_s=60)
    assert dog.observe(0, {A: 5}, {A: 9}) == []
    assert dog.observe(59, {A: 5}, {A: 20}) == []
    [stuck] = dog.observe(60, {A: 5}, {A: 20})
    assert (stuck.partition, stuck.committed, stuck.lag, stuck.since) == (A, 5, 15, 0)


def test_a_partition_without_lag_may_stand_still_for_ever() -> None:
    dog = CommitWatchdog(limit_s=60)
    assert [dog.observe(now, {A: 9}, {A: 9}) for now in (0, 100, 10_000)] == [[], [], []]


def test_the_time_begins_when_the_lag_does() -> None:
    dog = CommitWatchdog(limit_s=60)
    dog.observe(0, {A: 9}, {A: 9})
    assert dog.observe(100, {A: 9}, {A: 10}) == []
    assert dog.observe(161, {A: 9}, {A: 10})


def test_slow_progress_is_progress() -> None:
    dog = CommitWatchdog(limit_s=60)
    assert all(not dog.observe(now, {A: now // 50}, {A: 1000}) for now in range(0, 1000, 5))


def test_nothing_committed_at_all_counts_when_records_wait() -> None:
    dog = CommitWatchdog(limit_s=60)
    dog.observe(0, {A: None}, {A: 3})
    [stuck] = dog.observe(60, {A: None}, {A: 3})
    assert stuck.lag == 3


def test_another_workers_partition_is_forgotten_and_begins_anew_when_it_comes_back() -> None:
    dog = CommitWatchdog(limit_s=60)
    dog.observe(0, {A: 1, B: 1}, {A: 5, B: 5})
    dog.observe(30, {B: 2}, {A: 5, B: 5})
    assert dog.observe(70, {A: 1, B: 3}, {A: 5, B: 5}) == []


def test_time_without_sight_of_the_broker_proves_nothing() -> None:
    dog = CommitWatchdog(limit_s=60)
    dog.observe(0, {A: 1}, {A: 5})
    dog.forget()
    assert dog.observe(100, {A: 1}, {A: 5}) == []


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=60))
def test_whatever_is_called_stuck_had_the_same_commit_and_lag_for_the_whole_limit(steps: list[tuple[int, int]]) -> None:
    dog, limit = CommitWatchdog(limit_s=5), 5
    for now in range(len(steps)):
        committed, lag = steps[now]
        stuck = dog.observe(now, {A: committed}, {A: committed + lag})
        window = steps[max(0, now - limit) : now + 1]
        same = now >= limit and all(step[0] == committed and step[1] > 0 for step in window)
        assert bool(stuck) == same


def test_a_partition_that_is_another_workers_now_leaves_no_number_behind() -> None:
    def shown() -> dict[str, float]:
        samples = (sample for metric in (LAG, STILL) for family in metric.collect() for sample in family.samples)
        return {f"{s.name}/{s.labels['partition']}": s.value for s in samples if s.labels["topic"] == "moved"}

    one, other = TopicPartition("moved", 0), TopicPartition("moved", 1)
    lag, still = "gpuchaos_commit_lag_records", "gpuchaos_commit_still_seconds"
    show({one: (5.0, 1.0), other: (50_000.0, 9.0)})
    assert shown() == {f"{lag}/0": 5.0, f"{lag}/1": 50_000.0, f"{still}/0": 1.0, f"{still}/1": 9.0}
    show({one: (4.0, 0.0)})
    assert shown() == {f"{lag}/0": 4.0, f"{still}/0": 0.0}
    show({other: (3.0, 0.0)})
    assert shown() == {f"{lag}/1": 3.0, f"{still}/1": 0.0}
    show({})
    assert shown() == {}
