import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_stream.guard.breaker import Breaker


def reset(breaker: Breaker, at: float, *, now: float | None = None, command_id: str = "r1", reason: str = "ok") -> bool:
    return breaker.reset(by="ann", reason=reason, at=at, now=at if now is None else now, command_id=command_id)


def restarted(breaker: Breaker, items: dict[str, bytes]) -> Breaker:
    items.update({key: value for key, value in breaker.dirty().items() if value is not None})
    fresh = Breaker("c")
    fresh.load(items)
    return fresh


def test_it_stays_open_until_a_person_resets_it() -> None:
    breaker = Breaker("c")
    assert breaker.allows_injection(0.0)
    assert breaker.trip("rate", "3 halts", 100.0)
    assert not breaker.allows_injection(1e9)
    assert "rate: 3 halts" in breaker.refusal(1e9)
    assert reset(breaker, 200.0, reason=" fixed the switch ")
    assert breaker.allows_injection(200.0)
    assert (breaker.state.reset_by, breaker.state.reset_reason) == ("ann", "fixed the switch")


def test_a_second_cause_does_not_replace_the_first() -> None:
    breaker = Breaker("c")
    breaker.trip("rate", "first", 100.0)
    assert not breaker.trip("level", "second", 101.0)
    assert (breaker.cause, breaker.state.since) == ("rate", 100.0)


@pytest.mark.parametrize("reason", ["", "   ", "\n"])
def test_a_reset_without_a_reason_is_refused(reason: str) -> None:
    breaker = Breaker("c")
    breaker.trip("rate", "", 100.0)
    with pytest.raises(ValueError, match="reason"):
        reset(breaker, 200.0, reason=reason)
    assert not breaker.allows_injection(200.0)


def test_a_cause_from_before_the_reset_does_not_trip_it_again() -> None:
    breaker = Breaker("c")
    breaker.trip("rate", "", 100.0)
    reset(breaker, 200.0)
    assert not breaker.trip("rate", "", 100.0)
    assert not breaker.trip("level", "", 200.0)
    assert breaker.trip("level", "", 200.1)


def test_a_reset_delivered_again_does_not_close_a_later_trip() -> None:
    breaker = Breaker("c")
    breaker.trip("rate", "", 100.0)
    reset(breaker, 200.0)
    breaker.trip("level", "", 300.0)
    assert not reset(breaker, 200.0)
    assert not reset(breaker, 250.0, command_id="r2")
    assert not breaker.allows_injection(301.0)


def test_a_reset_from_a_fast_clock_neither_blinds_the_breaker_nor_closes_a_later_trip() -> None:
    breaker = Breaker("c")
    breaker.trip("rate", "", 100.0)
    assert reset(breaker, 230.0, now=200.0)
    assert breaker.trip("level", "", 210.0)
    assert not reset(breaker, 230.0, now=220.0)
    assert not breaker.allows_injection(220.0)


def test_a_freeze_ends_by_itself_and_is_never_shortened() -> None:
    breaker = Breaker("c")
    assert breaker.freeze(160.0, now=100.0)
    assert not breaker.freeze(130.0, now=101.0)
    assert not breaker.freeze(90.0, now=101.0)
    assert "frozen for 59 s" in breaker.refusal(101.0)
    assert breaker.allows_injection(160.0)


def test_a_rule_that_freezes_at_every_tick_does_not_publish_at_every_tick() -> None:
    breaker = Breaker("c")
    breaker.changed()
    published = 0
    for tick in range(40):
        breaker.freeze(160.0 + tick / 4, now=100.0 + tick / 4)
        published += breaker.changed() is not None
    assert published == 10


def test_it_is_durable_over_a_restart() -> None:
    items: dict[str, bytes] = {}
    breaker = Breaker("c")
    breaker.trip("rate", "3 halts", 100.0)
    breaker = restarted(breaker, items)
    assert not breaker.allows_injection(500.0)
    assert breaker.cause == "rate"
    reset(breaker, 200.0)
    breaker = restarted(breaker, items)
    assert breaker.allows_injection(500.0)
    assert not breaker.trip("rate", "", 150.0)
    breaker.trip("level", "", 300.0)
    breaker = restarted(breaker, items)
    assert not reset(breaker, 200.0)
    assert not breaker.allows_injection(500.0)


def test_what_has_not_changed_is_neither_saved_nor_published() -> None:
    breaker = Breaker("c")
    assert breaker.changed() is not None
    assert breaker.changed() is None
    assert breaker.dirty() == {}
    breaker.trip("rate", "", 100.0)
    state = breaker.changed()
    assert state is not None
    assert state.tripped
    assert list(breaker.dirty()) == ["breaker/state"]
    assert breaker.dirty() == {}


_WORDS = st.lists(
    st.tuples(st.sampled_from(["trip", "reset"]), st.integers(min_value=1, max_value=30)), min_size=1, max_size=12
)


@given(_WORDS, st.data())
@settings(deadline=None)
def test_words_in_order_of_time_with_repeats_and_restarts_end_where_the_last_one_says(
    words: list[tuple[str, int]], data: st.DataObject
) -> None:
    words = sorted(set(words), key=lambda word: (word[1], word[0] == "reset"))
    items: dict[str, bytes] = {}
    breaker = Breaker("c")
    for index, (_, at) in enumerate(words):
        again = data.draw(st.lists(st.integers(min_value=0, max_value=index), max_size=3))
        for which in (index, *again):
            kind, time = words[which]
            if kind == "trip":
                breaker.trip("rule", "", float(time))
            else:
                reset(breaker, float(time), now=float(at), command_id=f"r{time}")
        if data.draw(st.booleans()):
            breaker = restarted(breaker, items)
    assert breaker.state.tripped == (words[-1][0] == "trip")
