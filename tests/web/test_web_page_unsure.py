"""The page in a real browser while it does not know, or no longer: it claims nothing of which it is not sure."""

from __future__ import annotations

from pathlib import Path

import pytest
from browser_kit import Clock, Look, looking
from playwright.sync_api import Browser
from web_kit import T0, TOKEN, breaker, experiment, running, summary, synthetic_board, write_tokens

from gpuchaos_stream.events.experiment import Status, Verdict
from gpuchaos_stream.web import streams
from gpuchaos_stream.web.board import Board

EXPERIMENT = "rdma-link-down-1a2b"
DAY_S = 86_400


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A word about freshness comes ten times as often."""
    monkeypatch.setattr(streams, "PULSE_S", 0.2)


def test_before_anything_is_known_nothing_is_claimed(browser: Browser) -> None:
    waits = "no broker has answered yet"
    with running(Board(epoch="e"), ready=lambda: waits) as server, looking(browser, server) as look:
        look.open(live=False)
        look.see("#nothing", f"Nothing is known yet: {waits}.")
        look.see("#running", "experiments: not known yet")
        look.see("#breaker-words", "not known yet")
        assert look.page.title() == "GPUChaos"


def test_what_is_old_is_said_to_be_as_last_heard_of(look: Look) -> None:
    look.at("#map").focus()
    look.press("Enter", "Enter")
    look.see("#panel", "Place")
    look.server.stop()
    look.see("#fresh-words", "connection lost")
    for place in ("#breaker", "#running", "#unexplained", "#legend"):
        look.see(place, "as last heard of")
    assert "old" in (look.at("#legend").get_attribute("class") or "")
    look.at("[data-view=table]").click()
    look.see("#table", "As last heard of")
    look.see("#panel", "As last heard of")
    look.see("#panel", "Place")
    look.server.start()
    look.see("#fresh-words", "live")
    look.wait(lambda: "last heard of" not in look.text("body"))


def test_what_is_read_anew_after_a_restart_is_no_news(browser: Browser, tmp_path: Path) -> None:
    board = synthetic_board(64, 4)
    clock = Clock()
    with running(board, token_file=write_tokens(tmp_path), clock=clock) as server, looking(browser, server) as look:
        board.clusters["sim"]._watched = True
        server.hear(summary("c0", ["n000"]))
        look.open()
        board._whole = False
        look.see("#fresh-words", "still reading")
        look.see("#live", "Out of date")
        server.hear(breaker(tripped=True, time=T0 + 50))
        look.see("#breaker-words", "BREAKER TRIPPED")
        server.hear(breaker(tripped=False, time=T0 + 51))
        look.see("#breaker-words", "breaker closed")
        assert "tripped" not in look.text("#live")
        server.hear(breaker(tripped=True, time=T0 + 52))
        look.see("#breaker-words", "BREAKER TRIPPED")
        board.read_whole()
        look.see("#live", "The data is live again. The breaker has tripped")


def test_what_was_on_another_day_has_its_date(look: Look) -> None:
    look.server.hear(breaker(tripped=True, time=T0 + 40))
    look.see("#breaker-words", "TRIPPED since 08:00:40 UTC")
    clock = look.server._app["clock"]
    clock.ahead = DAY_S
    look.see("#breaker-words", "TRIPPED since 2027-01-15 08:00:40 UTC")
    look.see("#incidents-list", "since 2027-01-15 08:00:20 UTC")
    look.see("#finished-list", "2027-01-15 08:01:35 UTC")
    look.see(".card .line", "2027-01-15 08:00:00 UTC")


def test_a_token_that_cannot_be_sent_is_not_kept(look: Look) -> None:
    look.at("#trip").click()
    look.at("#ask-reason").fill("smoke")
    look.at("#ask-go").click()
    look.see("#ask-problem", "A token is needed")
    look.at("#ask-token").fill(f"{TOKEN[:8]}\u2013{TOKEN[8:]}")
    look.at("#ask-go").click()
    look.see("#ask-problem", "Nothing was sent")
    assert look.js("sessionStorage.length") == 0
    assert look.server.hands.calls == []


def test_after_a_stop_the_focus_is_on_the_experiments_though_the_button_is_gone(look: Look) -> None:
    look.at(".card .stop").click()
    look.at("#ask-reason").fill("enough")
    look.at("#ask-token").fill(TOKEN)
    look.at("#ask-go").click()
    look.see("#ask-steps", "✓ sent")
    over = experiment(EXPERIMENT, [], status=Status.FINISHED, time=T0 + 50, verdict=Verdict.STOPPED)
    look.server.hear(over)
    look.see("#ask-said", "Done")
    look.at("#ask-done").click()
    look.wait(lambda: look.js("document.activeElement.id") == "experiments")


def test_on_paper_it_says_of_when_it_is_and_offers_nothing(look: Look) -> None:
    look.page.emulate_media(media="print")
    look.js("() => { dispatchEvent(new Event('beforeprint')); }")
    look.see("#printed", "Printed 2027-01-15 08:00:")
    look.see("#printed", "UTC: live.")
    assert not look.at("#trip").is_visible()
    assert not look.at("#find").is_visible()
    assert look.at("#legend button").first.is_visible()


def test_n_and_p_are_taken_with_the_shift_key_too(look: Look) -> None:
    look.at("#map").focus()
    look.press("Shift+N", "Shift+N")
    look.see("#told", "n001: target")
    look.press("Shift+P")
    look.see("#told", "n000: target")


def test_an_experiment_says_its_id_and_a_list_of_moments_that_it_opens(look: Look) -> None:
    look.see("#running-list", EXPERIMENT)
    look.see("#finished-list summary", "stopped-rank-9f00")
    look.at("#finished-list summary").first.click()
    moments = look.at("#finished-list .moments summary").first
    assert moments.evaluate("each => getComputedStyle(each).display") == "list-item"
    box = moments.bounding_box()
    assert box is not None
    assert box["height"] < 30
