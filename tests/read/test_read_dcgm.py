from __future__ import annotations

import http.server
import math
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from read_help import said, written

from gpuchaos_agent.collect.dcgm import DcgmCollector
from gpuchaos_agent.dcgm import page

CARD = 'gpu="0",UUID="GPU-0",pci_bus_id="00000000:3B:00.0",Hostname="n1"'


def line(name: str, value: float | str, labels: str = CARD) -> str:
    return f"{name}{{{labels}}} {value}\n"


def test_percent_and_mebibytes_and_megahertz_become_base_units() -> None:
    text = line("DCGM_FI_DEV_GPU_UTIL", 87) + line("DCGM_FI_DEV_FB_USED", 2) + line("DCGM_FI_DEV_SM_CLOCK", 1410)
    (card,) = page.parse(text)
    assert card.values == {"utilization_ratio": 0.87, "memory_used_bytes": 2 * 2**20, "sm_clock_hertz": 1.41e9}
    assert (card.gpu, card.pci) == ("0", "0000:3b:00")


@pytest.mark.parametrize(
    "blank",
    [
        0x7FFFFFF0,
        0x7FFFFFF3,
        "9223372036854775792",
        "9223372036854775795",
        "9.223372036854776e+18",
        2**47,
        2**47 + 3,
        "NaN",
    ],
)
def test_a_blank_of_any_width_is_no_value_and_is_never_scaled(blank: float | str) -> None:
    (card,) = page.parse(line("DCGM_FI_DEV_FB_USED", blank) + line("DCGM_FI_DEV_GPU_TEMP", 40))
    assert card.values == {"temperature_celsius": 40}


def test_utilization_outside_a_hundred_is_dropped_and_counted() -> None:
    (card,) = page.parse(line("DCGM_FI_DEV_GPU_UTIL", 808334905))
    assert (card.values, card.dropped) == ({}, 1)


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_CLOCKS_EVENT_REASONS"])
def test_reasons_are_named_under_the_old_and_the_new_name(name: str) -> None:
    (card,) = page.parse(line(name, 0x40 | 0x20))
    assert card.reasons == ("sw_thermal", "hw_thermal")
    assert card.values == {"throttle_hw_ratio": 1.0}


def test_an_idle_card_is_not_throttled() -> None:
    (card,) = page.parse(line("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", 1))
    assert (card.reasons, card.values) == (("gpu_idle",), {"throttle_hw_ratio": 0.0})


def test_the_count_of_a_window_is_read_under_the_name_that_some_releases_print(tmp_path: Path) -> None:
    labels = CARD + ',window_size_in_ms="60000",xid="31"'
    rows = said(written(tmp_path, line("DCGM_FI_DEV_XID_ERRORS_ACTIVE", 3, labels)))
    assert [(r["fault"], r["xid"], r["count"], r["window_ms"]) for r in rows] == [("gpu_mmu_fault", 31, 3, 60000)]


@given(st.floats(allow_nan=True, allow_infinity=True))
def test_no_number_of_a_page_makes_a_value_that_is_none(value: float) -> None:
    for name in (*page.SERIES, *page.XID_COUNTS, page.LAST_XID):
        for card in page.parse(line(name, repr(value).replace("inf", "Inf").replace("nan", "NaN"))):
            assert all(math.isfinite(number) for number in card.values.values())


class Exporter:
    """A page on loopback that a test may change."""

    def __init__(self) -> None:
        self.text = ""
        exporter = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(exporter.text.encode())

            def log_message(self, *_args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def exporter() -> Iterator[Exporter]:
    made = Exporter()
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_an_xid_is_a_fact_when_it_is_new_and_not_because_the_gauge_still_shows_it(exporter: Exporter) -> None:
    exporter.text = line("DCGM_FI_DEV_XID_ERRORS", 13)
    collector = DcgmCollector(exporter.url)
    assert collector.read(1.0).facts == (), "it stood there before we came"
    assert collector.read(2.0).facts == ()
    exporter.text = line("DCGM_FI_DEV_XID_ERRORS", 79)
    (fact,) = collector.read(3.0).facts
    assert (fact.fault, fact.local, fact.evidence["xid"], fact.time) == ("gpu_lost", "0", 79, 3.0)
    assert collector.read(4.0).facts == ()


def test_the_same_xid_twice_is_seen_where_the_window_counts_it(exporter: Exporter) -> None:
    labels = CARD + ',window_size_in_ms="300000",xid="31"'
    collector = DcgmCollector(exporter.url)
    exporter.text = line("DCGM_EXP_XID_ERRORS_COUNT", 1, labels)
    collector.read(1.0)
    exporter.text = line("DCGM_EXP_XID_ERRORS_COUNT", 2, labels)
    assert [fact.evidence["xid"] for fact in collector.read(2.0).facts] == [31]
    exporter.text = line("DCGM_EXP_XID_ERRORS_COUNT", 1, labels)
    assert collector.read(3.0).facts == (), "the window slid"


def test_a_counter_becomes_a_rate_and_a_missing_series_is_unknown_not_zero(exporter: Exporter) -> None:
    exporter.text = line("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 10)
    collector = DcgmCollector(exporter.url)
    collector.read(1.0)
    exporter.text = line("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", 30)
    (group,) = collector.read(3.0).groups
    values = dict(zip(group.layout.metrics, (column[0] for column in group.columns), strict=True))
    assert values["pcie_replay_rate"] == 10.0
    assert values["ecc_uncorrected_rate"] is None


def test_an_exporter_that_is_away_is_said_and_so_is_that_none_is_configured(exporter: Exporter) -> None:
    url = exporter.url
    exporter.server.shutdown()
    exporter.server.server_close()
    assert "127.0.0.1" in DcgmCollector(url).read(1.0).absent["dcgm"]
    assert "configured" in DcgmCollector(None).read(1.0).absent["dcgm"]
