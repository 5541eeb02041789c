"""The map in a real browser: every state is seen, found, filtered, and said in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from browser_kit import Clock, Look, looking
from playwright.sync_api import Browser
from web_kit import T0, Running, anomaly, breaker, incident, place, running, summary, synthetic_board


@pytest.fixture
def server() -> Iterator[Running]:
    with running(synthetic_board(128, 8), clock=Clock()) as server:
        yield server


def seen(look: Look) -> dict[str, tuple[tuple[int, ...], tuple[int, ...]]]:
    """State in words → what is drawn for it: of each node that is not ok and of one that is, gone to by keyboard."""
    look.at("#map").focus()
    look.press("Home", "Enter")
    found = {}
    for key in ["n"] * 8 + ["End"]:
        look.press(key)
        said = look.text("#told")
        found[said.split(": ")[1].split(";")[0].split(" (")[0]] = look.pixels()
    return found


def test_each_state_is_drawn_in_its_colour_and_in_a_shape_of_its_own(look: Look) -> None:
    found = seen(look)
    background = look.colour("bg")
    assert set(found) == {"target", "hurt", "not explained", "silent", "ok"}
    assert found["hurt"] == (look.colour("hurt"),) * 2
    assert found["ok"][0] == look.colour("ok")
    assert found["target"][1] == background, "a diamond leaves the corner free"
    assert found["not explained"][1] == look.colour("unexplained")
    assert len(set(found.values())) == len(found)


def test_old_data_is_never_drawn_in_the_colour_of_health(browser: Browser) -> None:
    clock = Clock()
    board = synthetic_board(128, 8)
    board.clusters["sim"]._watched = True
    with running(board, clock=clock) as server, looking(browser, server) as look:
        server.hear(summary("c0", ["n000"]))
        look.open()
        look.wait(lambda: look.js("document.getElementById('map').dataset.old") != "true")
        clock.ahead = 60
        look.see("#fresh-words", "no word from the worker for ")
        look.see("#banner", "Out of date")
        assert look.js("document.getElementById('map').dataset.old") == "true"
        assert look.colour("ok") not in {colour for pair in seen(look).values() for colour in pair}
        look.see("#live", "Out of date")
        server.hear(summary("c0", ["n000"]))
        look.see("#fresh-words", "live")


def test_the_pointer_and_the_click_tell_of_a_node(look: Look) -> None:
    look.at("#map").focus()
    look.press("Home", "Enter")
    ring = look.at("#ring").bounding_box()
    assert ring is not None
    look.page.mouse.move(ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2)
    look.see("#tip", "n000: target")
    look.page.mouse.click(ring["x"] + ring["width"] / 2, ring["y"] + ring["height"] / 2)
    look.see("#panel", "port/n000/mlx5_2, of rdma-link-down")
    look.see("#panel", "GPU 7")
    look.at("#panel .close").click()
    assert look.at("#panel").is_hidden()


def test_the_legend_counts_and_filters(look: Look) -> None:
    look.see("#legend", "4 hurt")
    look.at("#legend button").filter(has_text="hurt").click()
    look.at("#map").focus()
    look.press("Home", "Enter", "End")
    assert look.pixels()[0] == look.colour("faint"), "what is not looked for is faint"
    look.at("[data-view=table]").click()
    rows = look.at("#table table").first.locator("tbody tr")
    assert rows.count() == 4
    assert "GPU 3; rail r2" in rows.first.inner_text().replace("\t", " ")
    rows.first.locator("button").focus()
    look.server.hear(incident("more", [anomaly("gpu/n002/6", "xid")], experiment="rdma-link-down-1a2b", time=T0 + 50))
    look.see("#table", "GPU 3, 6; rail r2")
    assert look.focused() == "n002", "a row that changes keeps the focus"


def test_a_node_and_a_cell_are_found_by_name(look: Look) -> None:
    look.at("#find-name").fill("n127")
    look.press("Enter")
    look.see("#panel h2", "n127")
    look.at("#find-name").fill("C3")
    look.press("Enter")
    look.see("#panel h2", "Cell c3")
    look.see("#panel", "1 silent")
    look.at("#find-name").fill("nowhere")
    look.press("Enter")
    look.see("#find-said", "no node or cell")


def test_the_view_by_rail_says_where_a_rail_is_hurt(look: Look) -> None:
    look.at("[data-view=rails]").click()
    look.at("#map").focus()
    look.press("Home", "ArrowRight", "ArrowRight", "ArrowRight")
    look.see("#told", "cell c0, rack k0, rail r2: 4 nodes marked, worst hurt")
    look.press("ArrowRight")
    look.see("#told", "rail r3: no mark")
    look.press("Enter", "ArrowDown", "ArrowDown", "ArrowLeft")
    look.see("#told", "n002: hurt; rail r2 is marked")
    look.press("Enter")
    look.see("#panel", "tx_bytes_rate on port/n002/mlx5_2")
    look.see("#panel", "mlx5_2 c0-r2 - open anomaly")


def test_where_a_node_has_no_port_the_view_by_rail_is_empty(look: Look) -> None:
    look.server.hear(place("n900", "c9", rails=0), place("n901", "c9", rails=0))
    look.see("#map-title", "130 nodes in 9 cells")
    look.at("[data-view=rails]").click()
    look.at("#map").focus()
    look.press("Home", "ArrowRight")
    look.see("#told", "cell c0, rack k0, rail r0: no mark")
    assert look.pixels()[1] == look.colour("ok")
    look.press("End", "ArrowRight")
    look.see("#told", "cell c9, rack k9, rail r1: no port")
    assert look.pixels() == (look.colour("bg"),) * 2
    look.press("Enter")
    look.see("#told", "n900: ok; rail r1 has no port here")
    assert look.pixels() == (look.colour("bg"),) * 2


def test_a_change_is_seen_and_so_is_a_node_that_comes(look: Look) -> None:
    look.see("#legend", "1 silent")
    look.server.hear(summary("c1", [f"n{row:03d}" for row in range(16, 32)], stale=["n016", "n017"], time=T0 + 50))
    look.see("#legend", "3 silent")
    look.server.hear(incident("new", [anomaly("gpu/n040/1", "xid")], time=T0 + 51))
    look.see("#incidents-list", "xid on gpu/n040/1")
    look.see("#unexplained", "2 not explained")
    look.server.hear(incident("new", [anomaly("gpu/n040/1", "xid", end=T0 + 52)], time=T0 + 52, closed=T0 + 52))
    look.see("#unexplained", "1 not explained")
    look.server.hear(place("n999", "c9"))
    look.see("#map-title", "129 nodes in 9 cells")
    look.see("#legend", "3 silent")


def test_after_a_restart_of_the_server_the_page_goes_on_by_itself(look: Look) -> None:
    look.server.stop()
    look.see("#fresh-words", "connection lost")
    assert look.js("document.getElementById('map').dataset.old") == "true"
    look.server.start()
    look.see("#fresh-words", "live")
    look.server.hear(summary("c2", [f"n{row:03d}" for row in range(32, 48)], stale=["n032"], time=T0 + 60))
    look.see("#legend", "2 silent")


def test_it_opens_with_the_cluster_of_most_nodes_and_says_which_has_none(browser: Browser, server: Running) -> None:
    server.hear(breaker(tripped=False).model_copy(update={"cluster": "aaa-mistyped"}))
    with looking(browser, server) as look:
        look.open()
        assert look.at("#cluster").input_value() == "sim"
        look.see("#map-title", "128 nodes")
        assert look.at("#cluster option").all_inner_texts() == ["aaa-mistyped (no nodes)", "sim"]
        look.at("#cluster").select_option("aaa-mistyped")
        look.see("#nothing", "No node has said where it sits.")
    with looking(browser, server) as look:
        look.open("#cluster=aaa-mistyped")
        look.see("#nothing", "No node has said where it sits.")
        assert look.at("#cluster").input_value() == "aaa-mistyped"


def test_names_in_the_table_are_not_broken(browser: Browser) -> None:
    board = synthetic_board(0, 1, at_work=False)
    for event in (place("host-0", "host"), place("n1", "c1")):
        board.hear(event, T0 + 30, event.time)
    with running(board, clock=Clock()) as server, looking(browser, server) as look:
        look.open("#view=table")
        look.see("#table", "host")
        heights = [row.bounding_box() for row in look.at("#table tbody tr").all()]
        assert len({box["height"] for box in heights if box}) == 1


def test_an_address_leads_a_colleague_to_the_same_node(browser: Browser, server: Running) -> None:
    with looking(browser, server) as look:
        look.open("#cluster=sim&view=rails&node=n003")
        look.see("#panel h2", "n003")
        assert look.at("[data-view=rails]").get_attribute("aria-pressed") == "true"
    with looking(browser, server) as look:
        look.open("#cluster=sim&experiment=stopped-rank-9f00")
        look.see(".done .card", "recovered within its objectives")


@pytest.mark.parametrize("at_work", [True, False])
def test_a_cluster_of_which_nothing_is_wrong_says_so_in_words(browser: Browser, *, at_work: bool) -> None:
    if at_work:
        board = synthetic_board(0, 1, at_work=False)
        board.clusters.clear()
    else:
        board = synthetic_board(32, 2, at_work=False)
    with running(board, clock=Clock()) as server, looking(browser, server) as look:
        look.open(live=not at_work)
        if at_work:
            look.see("#nothing", "Nothing was heard of any cluster yet")
            look.see("#running-none", "Nothing is known yet.")
        else:
            look.see("#running-none", "No experiment is running.")
            look.see("#incidents-none", "Nothing is broken that no experiment explains.")
            look.see("#finished-none", "None has finished")
            look.at("[data-view=table]").click()
            look.see("#table", "Every node is ok.")


def test_the_files_of_the_page_are_small_and_whole() -> None:
    folder = Path(__file__).resolve().parents[2] / "gpuchaos_stream/web/static"
    assert sum(path.stat().st_size for path in folder.iterdir()) < 150_000
    assert [path.name for path in folder.iterdir() if len(path.read_text().splitlines()) > 400] == []
