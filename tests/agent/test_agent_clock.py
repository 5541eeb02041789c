from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.clock import BrokerOffset, Now
from gpuchaos_agent.lease import Leases


def sample(offset: BrokerOffset, at: float, *, ahead: float, trip: float = 0.01, wall: float = 1e9) -> None:
    sent, acked = Now(wall + at, at), Now(wall + at + trip, at + trip)
    offset.add(sent, acked, wall + at + trip / 2 + ahead)


def test_the_offset_is_unknown_until_it_was_measured_a_few_times() -> None:
    offset = BrokerOffset(least=3)
    sample(offset, 1, ahead=2.0)
    sample(offset, 2, ahead=2.0)
    assert offset.seconds is None
    sample(offset, 3, ahead=2.0)
    assert abs((offset.seconds or 0) - 2.0) < 1e-6


def test_a_few_slow_answers_do_not_move_the_offset() -> None:
    offset = BrokerOffset()
    for at in range(20):
        sample(offset, at, ahead=0.5)
    for at in range(20, 25):
        offset.add(Now(1e9 + at, at), Now(1e9 + at + 0.9, at + 0.9), 1e9 + at + 0.9 + 0.5)
    assert abs((offset.seconds or 0) - 0.5) < 1e-6


def test_after_the_wall_clock_was_set_the_offset_is_measured_anew() -> None:
    offset = BrokerOffset()
    for at in range(10):
        sample(offset, at, ahead=0.0)
    for at in range(10, 13):
        sample(offset, at, ahead=-5.0, wall=1e9 + 5)
    assert abs((offset.seconds or 0) + 5.0) < 1e-6


def test_a_sample_during_which_the_clock_was_set_counts_nothing() -> None:
    offset = BrokerOffset(least=1)
    offset.add(Now(1e9, 0), Now(1e9 + 5, 0.01), 1e9)
    assert offset.seconds is None


@given(ahead=st.floats(-1e4, 1e4), trips=st.lists(st.floats(0, 0.9), min_size=3, max_size=31))
def test_the_offset_is_wrong_by_at_most_half_the_longest_round_trip(ahead: float, trips: list[float]) -> None:
    offset = BrokerOffset()
    for at, trip in enumerate(trips):
        # The broker's append falls anywhere between sending and acknowledgement: here at the very end.
        offset.add(Now(1e9 + at, at), Now(1e9 + at + trip, at + trip), 1e9 + at + trip + ahead)
    assert abs((offset.seconds or 0.0) - ahead) <= max(trips) / 2 + 1e-5


def test_a_lease_is_never_shortened_by_a_renewal() -> None:
    leases = Leases()
    leases.grant("f", deadline=100)
    assert leases.renew("f", boot=1, lease_s=5) == 100
    assert leases.expired(99.9) == []
    assert leases.expired(100) == ["f"]


def test_an_ended_lease_cannot_be_renewed() -> None:
    leases = Leases()
    leases.grant("f", deadline=10)
    assert leases.renew("f", boot=10, lease_s=10) is None
    leases.end("f")
    assert leases.expired(1e9) == []
    assert leases.expired(1e12) == []
