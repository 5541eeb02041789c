"""Recovery times: what counts as recovered, what never does, and that order does not matter."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from recovery_help import (
    EXPERIMENT,
    PACE,
    T0,
    begun,
    fault,
    feed_rates,
    injected_and_undone,
    node_summary,
    plan,
    probe,
    summary,
)

from gpuchaos_stream.events.fault import FaultPhase
from gpuchaos_stream.events.incident import RecoveryOutcome, RecoveryRecord
from gpuchaos_stream.events.observation import CheckState
from gpuchaos_stream.recovery.recovery import Recovery

GOOD, SLOW = 1.0, 0.1
BASELINE = {"name": "pace", "telemetry": PACE | {"relative_to": "baseline", "value": 0.9}}
NODE = {
    "name": "node",
    "telemetry": {"of": "node/n1", "metric": "gpu.utilization_ratio.mean", "op": ">=", "value": 0.5},
}
WEB = {"name": "web", "http": {"url": "http://scheduler/healthz"}}


def record(recovery: Recovery, at: float = 40.0, detected: float | None = 2.0) -> RecoveryRecord:
    """The record `at` seconds after the injection."""
    return recovery.record(EXPERIMENT, T0 + at, None if detected is None else T0 + detected)


def test_ttr_is_the_start_of_the_first_window_that_holds() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 12 + [SLOW] * 10 + [GOOD] * 20)  # slow from T0+2 to T0+11
    found = record(recovery)
    assert (found.outcome, found.ttr, found.confirm) == (RecoveryOutcome.RECOVERED, 12.0, 15.0)
    assert (found.ttd, found.ttm) == (2.0, 10.0)
    assert found.met == {"ttd": True, "ttm": True, "ttr": True}


def test_a_window_shorter_than_hold_is_no_recovery() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 12 + [SLOW] * 5 + [GOOD] * 3 + [SLOW] * 2 + [GOOD] * 10)
    assert record(recovery).ttr == 12.0, "the window at T0+7 lasts 2 s, the one at T0+12 holds"


def test_the_window_that_was_open_when_the_fault_came_is_no_recovery() -> None:
    recovery = begun()
    injected_and_undone(recovery, undone=None)
    feed_rates(recovery, [GOOD] * 18)
    assert record(recovery, at=8).ttr is None
    feed_rates(recovery, [SLOW] * 4 + [GOOD] * 8, start=T0 + 8)
    assert record(recovery).ttr == 12.0


def test_an_absorbed_fault_has_a_ttr_of_0_only_once_it_is_gone_and_held() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 23)  # to T0+12
    assert record(recovery, at=12).ttr is None
    feed_rates(recovery, [GOOD] * 3, start=T0 + 13)
    assert record(recovery, at=15).ttr == 0.0


def test_a_run_that_never_recovers_is_a_miss_and_stays_one() -> None:
    recovery = begun(ttr=30)
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 10 + [SLOW] * 100)
    assert record(recovery, at=91).outcome is RecoveryOutcome.PENDING
    found = record(recovery, at=93)
    assert (found.outcome, found.ttr, found.met["ttr"]) == (RecoveryOutcome.MISSED, None, False)
    feed_rates(recovery, [GOOD] * 20, start=T0 + 100)
    assert record(recovery, at=120).outcome is RecoveryOutcome.MISSED


def test_a_late_recovery_is_recovered_and_misses_its_objective() -> None:
    recovery = begun(ttr=15)
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 10 + [SLOW] * 20 + [GOOD] * 10)
    found = record(recovery)
    assert (found.outcome, found.ttr, found.met["ttr"]) == (RecoveryOutcome.RECOVERED, 20.0, False)


def test_objectives_are_open_until_they_are_met_or_past() -> None:
    recovery = begun()
    injected_and_undone(recovery, undone=None)
    feed_rates(recovery, [GOOD] * 10 + [SLOW] * 5)
    assert record(recovery, at=4, detected=None).met == {"ttd": None, "ttm": None, "ttr": None}
    assert record(recovery, at=8, detected=None).met == {"ttd": False, "ttm": None, "ttr": None}
    assert record(recovery, at=8, detected=6.0).met["ttd"] is False
    assert record(recovery, at=18, detected=4.0).met == {"ttd": True, "ttm": False, "ttr": None}


def test_without_an_injection_there_is_nothing_to_time() -> None:
    recovery = begun()
    feed_rates(recovery, [GOOD] * 30)
    found = record(recovery)
    assert (found.outcome, found.injected, found.ttr) == (RecoveryOutcome.PENDING, None, None)


@pytest.mark.parametrize("missing", [[None] * 3, "gap"])
def test_missing_telemetry_breaks_a_window(missing: Any) -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 10 + [SLOW] * 5 + [GOOD] * 2)  # good from T0+5 to T0+6
    if missing != "gap":
        feed_rates(recovery, missing, start=T0 + 7)
    feed_rates(recovery, [GOOD] * 10, start=T0 + 10)
    assert record(recovery).ttr == 10.0


def test_one_lost_sample_breaks_nothing() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 10 + [SLOW] * 5 + [GOOD])
    feed_rates(recovery, [GOOD] * 10, start=T0 + 7)
    assert record(recovery).ttr == 5.0


def test_silence_right_after_the_injection_is_not_an_absorbed_fault() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 11)  # to T0
    feed_rates(recovery, [GOOD] * 20, start=T0 + 5)
    found = record(recovery)
    assert found.ttr == 5.0
    assert found.unknown_s == 5.0


def test_seconds_without_an_answer_are_counted() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 12 + [SLOW] * 3 + [None] * 4 + [GOOD] * 9)  # nothing known from T0+4 to T0+9
    found = record(recovery)
    assert (found.ttr, found.unknown_s) == (9.0, 5.0)


def test_a_job_of_which_one_cell_says_nothing_is_unknown() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    for i in range(-10, 30):
        recovery.feed(summary(T0 + i, SLOW if i == 1 else GOOD, cell="c1"))
        recovery.feed(summary(T0 + i, None if 3 < i < 9 else GOOD, cell="c2"))
    found = record(recovery)
    assert (found.ttr, found.unknown_s) == (9.0, 6.0)


def test_every_check_must_be_in_tolerance_at_once() -> None:
    recovery = begun({"name": "pace", "telemetry": PACE}, WEB)
    injected_and_undone(recovery)
    feed_rates(recovery, [SLOW] * 15 + [GOOD] * 20)  # good from T0+5
    for i in range(-10, 25):
        recovery.feed(probe(T0 + i + 0.4, CheckState.OK if i >= 8 or i < 1 else CheckState.UNKNOWN))
    assert record(recovery).ttr == pytest.approx(8.4)


def test_a_probe_that_stops_answering_is_no_recovery() -> None:
    recovery = begun(WEB)
    injected_and_undone(recovery)
    recovery.feed(probe(T0 + 12, CheckState.OK))
    assert record(recovery).ttr is None
    assert record(recovery, at=20).unknown_s >= 15


def test_a_relative_check_is_judged_by_the_median_before_the_injection() -> None:
    recovery = begun(BASELINE)
    injected_and_undone(recovery)
    feed_rates(recovery, [2.0] * 4 + [9.0] + [2.0] * 5 + [1.0] * 6 + [1.9] * 10)  # back to 0.95 of 2.0 at T0+6
    assert record(recovery).ttr == 6.0


def test_a_relative_check_without_a_baseline_is_unknown_and_never_recovered() -> None:
    recovery = begun(BASELINE)
    injected_and_undone(recovery)
    feed_rates(recovery, [2.0] * 30, start=T0 + 1)
    assert recovery.steady(EXPERIMENT, T0 + 30) == {"pace": CheckState.UNKNOWN}
    assert record(recovery).ttr is None


def test_a_job_that_spans_cells_must_be_well_in_all_of_them() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    for i in range(-10, 30):
        recovery.feed(summary(T0 + i, SLOW if 1 <= i < 5 else GOOD, cell="c1"))
        recovery.feed(summary(T0 + i + 0.5, SLOW if 1 <= i < 9 else GOOD, cell="c2"))
    assert record(recovery).ttr == 9.5


def test_a_job_that_left_a_cell_is_judged_by_where_it_is() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    for i in range(-10, 30):
        recovery.feed(summary(T0 + i, GOOD if i < 2 else -1, cell="c1"))
        if i >= 6:
            recovery.feed(summary(T0 + i, GOOD, cell="c2"))
    assert record(recovery).ttr == 6.0


def test_a_job_that_is_nowhere_is_not_well() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    for i in range(-10, 30):
        recovery.feed(summary(T0 + i, GOOD if i < 2 else -1))
    assert record(recovery).ttr is None
    assert recovery.steady(EXPERIMENT, T0 + 29) == {"pace": CheckState.UNKNOWN}


@pytest.mark.parametrize("seen", [{"stale": True}, {"last": T0 - 20}])
def test_an_old_number_of_a_silent_node_is_unknown(seen: dict[str, Any]) -> None:
    recovery = begun(NODE)
    recovery.feed(node_summary(T0, 0.9))
    assert recovery.steady(EXPERIMENT, T0) == {"node": CheckState.OK}
    recovery.feed(node_summary(T0 + 1, 0.9, **seen))
    assert recovery.steady(EXPERIMENT, T0 + 1) == {"node": CheckState.UNKNOWN}


def test_steady_is_unknown_after_four_seconds_of_silence() -> None:
    recovery = begun()
    feed_rates(recovery, [GOOD], start=T0)
    assert recovery.steady(EXPERIMENT, T0 + 4) == {"pace": CheckState.OK}
    assert recovery.steady(EXPERIMENT, T0 + 4.1) == {"pace": CheckState.UNKNOWN}
    assert recovery.steady("unknown", T0) == {}


def test_ttm_is_when_the_last_fault_is_gone() -> None:
    recovery = begun()
    recovery.feed(fault(FaultPhase.INJECTED, T0, fault_id="f1"))
    recovery.feed(fault(FaultPhase.INJECTED, T0 + 1, fault_id="f2"))
    recovery.feed(fault(FaultPhase.UNDONE, T0 + 9, fault_id="f1"))
    assert record(recovery).ttm is None
    recovery.feed(fault(FaultPhase.UNDONE, T0 + 12, fault_id="f2"))
    recovery.feed(fault(FaultPhase.UNDONE, T0 + 20, fault_id="f2"))
    assert record(recovery).ttm == 12.0, "a repeated answer does not move it"


def test_the_answer_to_an_undo_that_found_nothing_is_no_end() -> None:
    recovery = begun()
    recovery.feed(fault(FaultPhase.UNDONE, T0 - 1, evidence={"was_there": False}))
    injected_and_undone(recovery, undone=None)
    assert record(recovery).ttm is None


def test_times_are_on_the_broker_s_clock_and_the_largest_skew_is_reported() -> None:
    recovery = begun(NODE)
    recovery.feed(fault(FaultPhase.INJECTED, T0 - 0.3, clock_offset_s=0.3))
    recovery.feed(fault(FaultPhase.UNDONE, T0 + 9.5, clock_offset_s=0.5))
    recovery.feed(node_summary(T0, 0.9, clock_offset_s=-0.1))
    found = record(recovery)
    assert found.injected == pytest.approx(T0)
    assert found.ttm == pytest.approx(10.0)
    assert found.skew_s == 0.5


def test_other_experiments_and_unknown_checks_are_passed_by() -> None:
    recovery = begun(WEB)
    recovery.feed(probe(T0, CheckState.OK, check="typo"))
    recovery.feed(fault(FaultPhase.INJECTED, T0).model_copy(update={"experiment_id": "other"}))
    assert record(recovery).injected is None


def test_begin_twice_changes_nothing_and_forget_leaves_no_state() -> None:
    recovery = begun()
    feed_rates(recovery, [GOOD] * 100)
    recovery.feed(node_summary(T0, 0.9))
    table = {key: value for key, value in recovery.dirty().items() if value is not None}
    assert {key.split("/")[2] for key in table} == {"facts", "s", "m"}
    recovery.begin(EXPERIMENT, plan(hold=9), T0)
    assert recovery.dirty() == {}
    recovery.forget(EXPERIMENT)
    assert recovery.dirty() == dict.fromkeys(table)
    assert recovery.open() == []


def test_a_tick_rewrites_one_chunk_and_not_the_history() -> None:
    recovery = begun()
    injected_and_undone(recovery)
    feed_rates(recovery, [GOOD] * 300)
    recovery.dirty()
    recovery.feed(summary(T0 + 290, GOOD))
    (change,) = recovery.dirty().values()
    assert change is not None
    assert len(change) < 1000


def test_samples_long_before_the_injection_are_dropped() -> None:
    recovery = begun()
    table: dict[str, bytes] = {}
    for i in range(2000):
        recovery.feed(summary(T0 - 60 + i, GOOD))
    table |= {key: value for key, value in recovery.dirty().items() if value is not None}
    assert len(table) < 8


Rates = st.lists(st.sampled_from([GOOD, GOOD, GOOD, SLOW, None, "lost"]), min_size=5, max_size=60)


@settings(max_examples=150, deadline=None)
@given(Rates, st.floats(1, 20), st.integers(0, 2**32))
def test_missing_telemetry_never_counts_as_recovery(rates: list[Any], undone: float, seed: int) -> None:
    """DESIGN §6.6: a found window is good in every sample and has no hole; and it is the first such."""
    recovery = begun()
    injected_and_undone(recovery, undone)
    jitter = random.Random(seed)
    samples = {T0 - 5 + i + jitter.uniform(0, 0.3): rate for i, rate in enumerate(rates) if rate != "lost"}
    for time, rate in samples.items():
        recovery.feed(summary(time, rate))
    found = record(recovery, at=500)
    hold = found.hold_s

    def healthy(start: float, length: float) -> bool:
        """Every sample from the last one before `start` to the first one after the end is good, none is missing."""
        inside = sorted(time for time in samples if start <= time <= start + length)
        after = [time for time in sorted(samples) if time >= start + length]
        if not inside or not after:
            return False
        chain = [*inside, after[0]]
        close = all(b - a <= 2.5 for a, b in itertools.pairwise(chain))
        return close and all(samples[time] == GOOD for time in chain)

    if found.ttr is None:
        assert found.outcome is RecoveryOutcome.MISSED
        assert not any(healthy(time, hold + 1e-3) and _new(time, samples) for time in samples if time > T0)
    elif found.ttr > 0:
        assert healthy(T0 + found.ttr, hold - 1e-3)
        earlier = [time for time in samples if T0 < time < T0 + found.ttr - 1e-3]
        assert not any(healthy(time, hold + 1e-3) and _new(time, samples) for time in earlier)
    else:
        before = max(time for time in samples if time <= T0)
        assert healthy(before, T0 + undone + hold - before - 1e-3)


def _new(time: float, samples: dict[float, Any]) -> bool:
    """Whether health was out of tolerance at some point between the injection and `time`."""
    until = [t for t in sorted(samples) if t <= time]
    since = [t for t in until if t > T0]
    before = [t for t in until if t <= T0]
    chain = [*before[-1:], *since]
    holes = any(b - a > 2.5 for a, b in itertools.pairwise(chain))
    return not before or holes or any(samples[t] != GOOD for t in chain)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_order_any_repeat_and_any_restart_give_the_same_record(data: st.DataObject) -> None:
    rates = data.draw(st.lists(st.sampled_from([GOOD, GOOD, SLOW, None]), min_size=10, max_size=40))
    events: list[Any] = [summary(T0 - 10 + i, rate) for i, rate in enumerate(rates)]
    events += [summary(T0 - 10 + i + 0.5, rate, cell="c2") for i, rate in enumerate(reversed(rates))]
    events += [probe(T0 - 10 + i, data.draw(st.sampled_from(list(CheckState)))) for i in range(0, 40, 2)]
    events += [fault(FaultPhase.INJECTED, T0), fault(FaultPhase.UNDONE, T0 + 7, clock_offset_s=0.25)]
    mixed = data.draw(st.permutations(events + data.draw(st.lists(st.sampled_from(events), max_size=10))))
    checks = ({"name": "pace", "telemetry": PACE | {"relative_to": "baseline", "value": 0.9}}, WEB)
    straight, other = begun(*checks), begun(*checks)
    for event in events:
        straight.feed(event)
    table: dict[str, bytes] = {}
    for event in mixed:
        other.feed(event)
        if data.draw(st.booleans()):
            record(other)  # what is kept up between two questions must not depend on when they were asked
        if data.draw(st.integers(0, 19)) == 7:
            for key, value in other.dirty().items():
                if value is None:
                    table.pop(key, None)
                else:
                    table[key] = value
            other = Recovery()
            other.load(table)
    assert record(other) == record(straight)
    assert other.steady(EXPERIMENT, T0 + 29) == straight.steady(EXPERIMENT, T0 + 29)
