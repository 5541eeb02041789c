"""The page in a real browser: what is done with it, that anybody can use it, that nobody can abuse it."""

from __future__ import annotations

import statistics
import sys
from pathlib import Path
from typing import Any

import pytest
from browser_kit import PHONE, Clock, Look, looking
from playwright.sync_api import Browser
from web_kit import (
    T0,
    TOKEN,
    WHO,
    Running,
    anomaly,
    breaker,
    experiment,
    halt,
    incident,
    named,
    place,
    running,
    summary,
    synthetic_board,
    write_tokens,
)

from gpuchaos_stream.events.experiment import HaltState, InjectedFault, Status, Verdict
from gpuchaos_stream.web.site import NotSentError

EXPERIMENT = "rdma-link-down-1a2b"
HOSTILE = "<img/src=x/onerror=hacked=1>"


def faults(phase: str, reason: str = "") -> tuple[InjectedFault, ...]:
    gone = T0 + 45 if phase == "undone" else None
    return tuple(
        InjectedFault(
            fault_id=f"fault-{number}",
            fault="rdma-link",
            node=f"n00{number}",
            entity=f"port/n00{number}/mlx5_2",
            phase=phase,
            injected=T0 + 10,
            undone=gone,
            reason=reason,
        )
        for number in (0, 1)
    )


# ---- stopping


def test_a_read_only_page_says_so_and_offers_nothing(browser: Browser) -> None:
    with running(synthetic_board(32, 2), clock=Clock()) as server, looking(browser, server) as look:
        look.open().see("#read-only", "read-only")
        look.see("#running-list", "rdma-link-down")
        assert look.at(".card .stop").count() == 0
        assert look.at("#trip").is_hidden()
        assert look.at("#reset").is_hidden()


def test_a_stop_needs_a_reason_and_a_token_and_is_followed_until_it_is_confirmed(look: Look) -> None:
    look.at(".card .stop").click()
    look.at("#ask-go").click()
    look.see("#ask-problem", "A reason is needed")
    look.at("#ask-reason").fill("the night shift needs the rail")
    look.at("#ask-token").fill("a-token-that-nobody-has-123456789")
    look.at("#ask-go").click()
    look.see("#ask-problem", "The token was not accepted")
    assert look.server.hands.calls == []
    assert look.js("sessionStorage.length") == 0
    look.at("#ask-token").fill(TOKEN)
    look.at("#ask-go").click()
    look.see("#ask-steps", "✓ sent")
    assert look.server.hands.calls == [("stop", EXPERIMENT, "the night shift needs the rail", WHO)]
    look.see("#ask-steps", "· requested")
    look.server.hear(experiment(EXPERIMENT, [], status=Status.HALTING, time=T0 + 43, faults=faults("acknowledged")))
    look.see("#ask-steps", "✓ acknowledged by every node")
    look.see("#ask-steps", "· undone")
    look.server.hear(experiment(EXPERIMENT, [], status=Status.RECOVERING, time=T0 + 46, faults=faults("undone")))
    look.see("#ask-steps", "✓ undone")
    look.see("#ask-steps", "· confirmed")
    over: dict[str, Any] = {"faults": faults("undone"), "verdict": Verdict.STOPPED, "reason": "stopped by oncall"}
    look.server.hear(experiment(EXPERIMENT, [], status=Status.FINISHED, time=T0 + 50, **over))
    look.see("#ask-steps", "✓ confirmed")
    look.see("#ask-said", "Done")
    look.at("#ask-done").click()
    look.see("#finished-list", "stopped")


def test_the_token_is_asked_once_and_stays_in_the_tab(look: Look) -> None:
    assert look.js("localStorage.length + document.cookie.length") == 0
    look.at("#trip").click()
    look.at("#ask-reason").fill("all stop")
    look.at("#ask-token").fill(TOKEN)
    look.at("#ask-go").click()
    look.see("#ask-steps", "· tripped")
    look.server.hear(breaker(tripped=True))
    look.see("#ask-steps", "✓ tripped")
    look.at("#ask-done").click()
    look.see("#breaker-words", "BREAKER TRIPPED since 08:00:40 UTC: rate: 3 halts in 10 min")
    look.see("#live", "The breaker has tripped")
    look.at("#reset").click()
    assert look.at("#ask-token").is_hidden()
    look.at("#ask-reason").fill("a bad cable, replaced")
    look.press("Tab", "Tab", "Enter")
    look.see("#ask-steps", "· closed")
    look.server.hear(breaker(tripped=False, time=T0 + 60))
    look.see("#ask-steps", "✓ closed")
    assert [call[0] for call in look.server.hands.calls] == ["stop_all", "reset"]
    assert look.js("localStorage.length + document.cookie.length") == 0
    assert TOKEN not in look.page.url


def test_an_undo_that_fails_asks_for_a_person(look: Look) -> None:
    look.at(".card .stop").click()
    look.at("#ask-reason").fill("enough")
    look.at("#ask-token").fill(TOKEN)
    look.at("#ask-go").click()
    look.see("#ask-steps", "✓ sent")
    failed: dict[str, Any] = {
        "faults": faults("undo_failed", "no such device"),
        "halts": (halt(EXPERIMENT, HaltState.ESCALATED),),
    }
    look.server.hear(experiment(EXPERIMENT, [], status=Status.HALTING, time=T0 + 43, **failed))
    look.see("#ask-steps", "! escalated, a person is needed: port/n000/mlx5_2 undo_failed no such device")
    look.see("#ask-said", "A person is needed")
    look.at("#ask-done").click()
    look.see(".card", "not confirmed undone: port/n000/mlx5_2 (undo_failed)")
    look.see("#live", "Experiment rdma-link-down is being stopped")


def test_what_may_not_have_been_sent_is_said_and_can_be_tried_again(look: Look) -> None:
    look.server.hands.fails = NotSentError("no broker took it in 5 s")
    look.at(".card .stop").click()
    look.at("#ask-reason").fill("enough")
    look.at("#ask-token").fill(TOKEN)
    look.at("#ask-go").click()
    look.see("#ask-problem", "It is not known to be sent: no broker took it in 5 s")
    look.server.hands.fails = None
    look.at("#ask-go").click()
    look.see("#ask-steps", "✓ sent")


def test_an_experiment_can_be_stopped_with_the_keyboard_alone(look: Look) -> None:
    look.tab_to("To the experiments", most=2)
    look.press("Enter")
    look.tab_to("Stop")
    look.press("Enter")
    look.page.keyboard.type("by keyboard")
    look.press("Tab")
    look.page.keyboard.type(TOKEN)
    look.press("Enter")
    look.see("#ask-steps", "✓ sent")
    assert look.focused() == "Close"
    look.press("Enter")
    assert look.at("#ask").is_hidden()
    assert look.server.hands.calls == [("stop", EXPERIMENT, "by keyboard", WHO)]


# ---- cards


def test_a_card_says_limits_times_and_halts_in_words(look: Look) -> None:
    look.see(".card", "nodes 2 of 4")
    look.see(".card", "TTD 2.5 s of 10 s met")
    look.see(".card", "left, then it is undone")
    assert "detected after 2.5 s" in str(look.at(".card .timeline").get_attribute("aria-label"))
    over: dict[str, Any] = {"blast_radius": {"nodes": 5, "nodes_now": 5}, "halts": (halt(EXPERIMENT),)}
    look.server.hear(experiment(EXPERIMENT, ["port/n000/mlx5_2"], status=Status.HALTING, time=T0 + 41, **over))
    look.see(".card", "nodes 5 of 4 exceeded")
    look.see(".card", "Halt blast-radius: 5 nodes hurt, limit 4")
    look.see(".card", "✓ requested 08:00:31 UTC")
    assert look.at(".card .stop").count() == 0, "what is being stopped is not stopped again"


def test_the_focus_stays_where_it_is_when_a_card_changes(look: Look) -> None:
    look.at(".card .moments summary").click()
    look.at(".card .moments summary").focus()
    more: dict[str, Any] = {"attributed": 9, "reason": "two more nodes", "unattributed": 4}
    look.server.hear(experiment(EXPERIMENT, ["port/n000/mlx5_2"], time=T0 + 41, **more))
    look.see(".card", "9 anomalies charged to it")
    assert look.focused().startswith("All ")
    assert look.js("document.querySelector('.card .moments').open")


# ---- hostile words


def test_hostile_names_and_reasons_are_text(browser: Browser, tmp_path: Path) -> None:
    board = synthetic_board(32, 2)
    words = "<b>bold</b><script>hacked=1</script>\"'><svg onload=hacked=1>"
    events = [
        place(HOSTILE.replace("/", "_"), "c<i>0", rack="<u>rack"),
        incident("x", [anomaly("gpu/n004/0", "<s>metric", sentence=words)], time=T0 + 30, summary=words),
        experiment("<b>evil-1", [], time=T0 + 41, name=words, owner=words, reason=words, faults=faults("injected")),
        experiment("done-1", [], status=Status.FINISHED, time=T0 + 41, name=words, reason=words),
        breaker(tripped=True).model_copy(update={"cause": words}),
    ]
    for event in events:
        board.hear(event, T0 + 42, event.time)
    with running(board, token_file=write_tokens(tmp_path), clock=Clock()) as server, looking(browser, server) as look:
        look.open()
        for selector in ("#running-list", "#incidents-list", "#finished-list", "#breaker-words"):
            look.see(selector, "<b>bold</b>")
        look.at("#find-name").fill("<img")
        look.press("Enter")
        look.see("#panel h2", HOSTILE.replace("/", "_"))
        look.at("[data-view=table]").click()
        look.see("#table", "c<i>0")
        look.at(".card .stop").first.click()
        look.see("#ask-title", "Stop ")
        assert look.js("typeof hacked") == "undefined"
        assert (
            look.js("document.querySelectorAll('main b b, main i, main u, main s, main script, svg[onload]').length")
            == 0
        )


# ---- anybody


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_and_marks_stand_out_from_what_is_behind_them(browser: Browser, server: Running, scheme: str) -> None:
    with looking(browser, server, color_scheme=scheme) as look:
        look.open()
        texts = ["fg", "dim", "good", "bad", "warn", "fault", "link"]
        pairs = [(text, ground, 4.5) for text in texts for ground in ("bg", "soft", "raised")]
        pairs += [("on-stop", "stop", 4.5), ("on-mark", "hurt", 4.5), ("on-mark", "target", 4.5), ("bg", "fg", 4.5)]
        pairs += [(mark, "bg", 3) for mark in ("ok", "target", "hurt", "unexplained", "silent", "edge")]
        weak = [
            f"{one} on {other}: {ratio:.2f}, at least {least}"
            for one, other, least in pairs
            if (ratio := contrast(look.colour(one), look.colour(other))) < least
        ]
        assert weak == []


def contrast(one: tuple[int, ...], other: tuple[int, ...]) -> float:
    """The contrast of two colours as WCAG 2.2 defines it, 1 to 21."""

    def light(colour: tuple[int, ...]) -> float:
        parts = (value / 255 for value in colour)
        red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(one), light(other)))
    return (high + 0.05) / (low + 0.05)


def test_everything_has_a_name_and_a_place_for_who_does_not_see_it(look: Look) -> None:
    look.at("#find-name").fill("n003")
    look.press("Enter")
    look.see("#panel h2", "n003")
    tree = look.at("body").aria_snapshot()
    for line in (
        "- banner:",
        "- main:",
        '- heading "GPUChaos" [level=1]',
        '- combobox "Cluster"',
        '- heading "Running experiments" [level=2]',
        '- heading "Not explained" [level=2]',
        '- article "Experiment rdma-link-down"',
        '- button "Stop experiment rdma-link-down"',
        '- complementary "Cell or node"',
        '- group "Show only these states"',
        '- searchbox "Find a node or a cell"',
        '- application "Map of the cluster"',
    ):
        assert line in tree
    nameless = look.js(
        "[...document.querySelectorAll('button, a, select, input, textarea')].filter(e => e.checkVisibility()"
        " && !(e.innerText.trim() || e.labels?.length || e.getAttribute('aria-label'))).map(e => e.outerHTML)"
    )
    assert nameless == []
    doubled = look.js(
        "[...document.querySelectorAll('[id]')].map(e => e.id).filter((id, at, all) => all.indexOf(id) !== at)"
    )
    assert doubled == []


def test_what_has_the_focus_is_seen(look: Look) -> None:
    for _ in range(14):
        look.press("Tab")
        outline = look.js("getComputedStyle(document.activeElement).outlineStyle")
        ring = look.js("document.activeElement.id === 'map' && !document.getElementById('ring').hidden")
        assert outline != "none" or ring, look.focused()


def test_a_phone_shows_everything_without_scrolling_sideways(browser: Browser, server: Running) -> None:
    with looking(browser, server, size=PHONE, has_touch=True) as look:
        look.open()
        server.hear(breaker(tripped=True))
        look.see("#breaker-words", "TRIPPED")

        def fits() -> bool:
            return bool(look.js("document.documentElement.scrollWidth <= innerWidth"))

        for view in ("cells", "rails", "table"):
            look.at(f"[data-view={view}]").click()
            assert fits(), view
        look.at("[data-view=cells]").click()
        box = look.at("#map").bounding_box()
        assert box is not None
        look.page.touchscreen.tap(box["x"] + 8, box["y"] + 30)
        look.see("#panel h2", "Cell c0")
        assert fits(), "panel"
        look.at(".nodes button").first.tap()
        look.see("#panel h2", "n000")
        assert fits(), "node"
        look.at("#reset").click()
        assert fits(), "dialog"
        assert look.js("document.getAnimations().length") == 0, "nothing moves"


# ---- speed


def test_a_cluster_of_12500_nodes_changes_before_the_eyes(browser: Browser, capsys: pytest.CaptureFixture[str]) -> None:
    grid = named(12_500, 391)
    figures: dict[str, list[float]] = {}
    turns = [("every node", 391, 40), ("every node", 391, 0), ("31 nodes", 31, 1), ("31 nodes", 31, 0)] * 2
    with running(synthetic_board(), clock=Clock()) as server, looking(browser, server) as look:
        look.open()
        look.see("#map-title", "12,500 nodes in 391 cells")
        session = look.page.context.new_cdp_session(look.page)
        session.send("Performance.enable", {"timeDomain": "threadTicks"})

        def work() -> float:
            metrics = session.send("Performance.getMetrics")["metrics"]
            return float(next(each["value"] for each in metrics if each["name"] == "ScriptDuration"))

        for turn, (name, cells, gone) in enumerate(turns):
            look.js("performance.clearMeasures()")
            before = work()
            most = sum(len(names[:gone]) for names in list(grid.values())[:cells])
            changed = [
                summary(cell, names, stale=names[:gone], time=T0 + 50 + turn)
                for cell, names in list(grid.items())[:cells]
            ]
            server.hear(*changed)
            look.wait(lambda: look.js("performance.getEntriesByName('update').some(each => each.detail.nodes > 0)"))
            seen = look.js("performance.getEntriesByName('update').filter(e => e.detail.nodes).map(e => e.duration)")
            figures.setdefault(f"{name}: update", []).extend(seen)
            figures.setdefault(f"{name}: of it script, CPU", []).append((work() - before) * 1000)
            if gone:
                look.see("#legend", f"{most:,} silent")
    with capsys.disabled():
        for name, values in figures.items():
            middle = statistics.median(values)
            sys.stdout.write(f"\n  12,500 nodes, {name}: median {middle:.0f} ms, worst {max(values):.0f} ms")
