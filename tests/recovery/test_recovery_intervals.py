"""Interval arithmetic, against the plain meaning of the words."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.recovery.intervals import Interval, Runs, both, covered, either

Intervals = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 10)), max_size=8).map(
    lambda pairs: either([[(float(start), float(start + length)) for start, length in pairs]])
)


def within(intervals: list[Interval], point: float) -> bool:
    return any(start <= point <= end for start, end in intervals)


@given(Intervals, Intervals, st.integers(-5, 130))
def test_intersection_and_union_mean_and_and_or(left: list[Interval], right: list[Interval], twice: int) -> None:
    point = twice / 2
    assert within(both(left, right), point) == (within(left, point) and within(right, point))
    assert within(either([left, right]), point) == (within(left, point) or within(right, point))


@given(Intervals, Intervals)
def test_results_are_sorted_and_disjoint(left: list[Interval], right: list[Interval]) -> None:
    for result in (both(left, right), either([left, right])):
        assert all(start <= end for start, end in result)
        assert all(a[1] < b[0] for a, b in itertools.pairwise(result))


def test_a_bad_sample_and_a_long_gap_end_a_run() -> None:
    samples = [(0.0, True), (1.0, True), (2.0, False), (3.0, True), (4.0, True), (6.6, True), (9.1, True)]
    runs = Runs(max_gap=2.5)
    for time, good in samples:
        runs.add(time, good=good)
    assert runs.intervals == [(0.0, 1.0), (3.0, 4.0), (6.6, 9.1)]
    assert runs.stretched(2.5) == [(0.0, 1.0), (3.0, 4.0), (6.6, 11.6)]
    runs.add(10.0, good=False)
    assert runs.stretched(2.5) == runs.intervals


def test_covered_counts_only_what_lies_inside() -> None:
    assert covered([(0, 2), (5, 9)], 1, 7) == pytest.approx(3)
    assert covered([], 1, 7) == 0
