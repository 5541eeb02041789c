"""Makes the pictures of the documentation anew: `make pictures`, or into a folder that is named.

The page is shown as it is served, over a made-up cluster in the middle of an experiment; the report is that of the
spreading fault of the demo's scenarios, judged without a broker.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from browser_kit import PHONE, Clock, Look, chromium, looking
from playwright.sync_api import Browser
from report_help import told
from web_kit import (
    T0,
    Running,
    anomaly,
    experiment,
    halt,
    incident,
    named,
    running,
    summary,
    synthetic_board,
    write_tokens,
)

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.events.experiment import AnomalyLine, HaltState, InjectedFault, Status, Verdict
from gpuchaos_stream.report.curves import curves
from gpuchaos_stream.report.facts import facts
from gpuchaos_stream.report.html import html
from gpuchaos_stream.report.sheet import sheet as report_sheet

ROOT: Final = Path(__file__).resolve().parents[2]


def scene() -> Iterator[Event]:
    """What happens besides that with which the cluster begins: a second experiment that spreads, and is halted."""
    grid = named(12_500, 391)
    second, third, far = grid["c41"], grid["c42"], grid["c290"]
    stopped = InjectedFault(
        fault_id="fault-1",
        fault="process-stop",
        node=second[0],
        entity=f"process/{second[0]}/4100",
        phase="acknowledged",
        injected=T0 + 10,
    )
    lines = (
        AnomalyLine(
            metric="steps_rate",
            entity="job/llama-70b",
            after_s=3.1,
            count=6,
            entities=6,
            severity="error",
            score=0.9,
            sentence="in the same job as the fault",
        ),
    )
    yield experiment(
        "spreading-hang-77c0",
        [],
        faults=(stopped,),
        plan={
            "description": "A hang that spreads is stopped by itself.",
            "fault": {"name": "process-stop", "params": {}},
        },
        status=Status.HALTING,
        time=T0 + 41,
        reason="5 nodes hurt beyond the targets; the limit is 4",
        blast_radius={
            "gpus": 40,
            "gpus_now": 40,
            "nodes": 5,
            "nodes_now": 5,
            "jobs": 1,
            "jobs_now": 1,
            "gpu_seconds": 610,
        },
        limits={"gpus": 64, "nodes": 4, "jobs": 1},
        halts=(halt("spreading-hang-77c0", HaltState.ACKNOWLEDGED).model_copy(update={"acknowledged": T0 + 32.4}),),
        charged=lines,
        attributed=6,
        unattributed=0,
    )
    hurt = [
        anomaly(f"process/{name}/4100", "running", sentence="in the same job as the fault")
        for name in second[3:6] + third[:2]
    ]
    yield incident("incident-spread", hurt, experiment="spreading-hang-77c0", time=T0 + 33)
    rail = [anomaly(f"port/{name}/mlx5_5", "link_down") for name in far[:14]]
    more = "a leaf switch: 14 ports of rail r5 in c290 lost their link within 0.4 s"
    yield incident("incident-leaf", rail, time=T0 + 36, summary=more)
    done = {"verdict": Verdict.HALTED, "reason": "a real failure in the same rack", "finished": T0 - 200}
    yield experiment("storage-gone-5d1e", [f"node/{third[9]}"], status=Status.FINISHED, time=T0 - 200, **done)
    yield summary("c120", grid["c120"], stale=grid["c120"], time=T0 + 40)


def main(folder: Path) -> None:
    """Writes the pictures into `folder`."""
    board = synthetic_board()
    for event in scene():
        board.hear(event, T0 + 42, event.time)
    with TemporaryDirectory() as made, chromium() as browser:
        with running(board, token_file=write_tokens(Path(made)), clock=Clock()) as server:
            page(browser, server, folder)
        report(browser, folder / "report.png")


def page(browser: Browser, server: Running, folder: Path) -> None:
    """The page by night, by day with a node's panel, by rail, and on a phone."""
    for name, scheme, size, act in (
        ("page", "dark", (1500, 1320), lambda _: None),
        ("page-node", "light", (1680, 900), node),
        ("page-rails", "light", (1440, 900), rails),
        ("page-phone", "dark", PHONE, phone),
    ):
        with looking(browser, server, size=size, color_scheme=scheme) as look:
            look.open()
            act(look)
            look.page.screenshot(path=folder / f"{name}.png")


def node(look: Look) -> None:
    look.at("#find-name").fill("n00002")
    look.press("Enter")
    look.see("#panel", "Devices")


def rails(look: Look) -> None:
    look.at("[data-view=rails]").click()


def phone(look: Look) -> None:
    look.at("#running-title").scroll_into_view_if_needed()
    look.js("document.getElementById('running-title').scrollIntoView()")


def report(browser: Browser, path: Path) -> None:
    """The first part of a report."""
    one = told("halted")
    found = facts(
        one.state, one.story, curves(one.state, [event for _, event in one.inputs if isinstance(event, Event)])
    )
    sheet = browser.new_page(viewport={"width": 1060, "height": 1850})
    sheet.set_content(html(report_sheet(found)))
    sheet.screenshot(path=path)
    sheet.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/pictures")
