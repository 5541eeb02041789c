from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.jobs.page import Page, PageError, get
from gpuchaos_agent.jobs.prometheus_page import STALE_AFTER_S, PrometheusPage, parse

TEXT = """\
# HELP myjob_train_step steps
# TYPE myjob_train_step gauge
myjob_train_step{rank="0"} 120
myjob_train_step{rank="1"} 119
myjob_train_loss 2.5
# TYPE myjob_train_tokens counter
myjob_train_tokens_total 8.192e+06
# TYPE myjob_step_time_seconds histogram
myjob_step_time_seconds_bucket{le="1"} 10
myjob_step_time_seconds_bucket{le="+Inf"} 20
myjob_step_time_seconds_sum 15.0
myjob_step_time_seconds_count 20
python_gc_objects_collected_total{generation="0"} 5
"""


class _Site:
    """A real server of one page. `hold` makes it wait before it answers."""

    def __init__(self) -> None:
        self.status, self.body = 200, TEXT
        self.hold: threading.Event | None = None
        site = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if site.hold is not None:
                    site.hold.wait(20)
                self.send_response(site.status)
                self.end_headers()
                self.wfile.write(site.body.encode())

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/metrics?x=1"


@pytest.fixture
def site() -> Iterator[_Site]:
    made = _Site()
    thread = threading.Thread(target=made.server.serve_forever, daemon=True)
    thread.start()
    yield made
    if made.hold is not None:
        made.hold.set()
    made.server.shutdown()
    made.server.server_close()


@contextmanager
def asked(url: str, **more: float) -> Iterator[Page]:
    page = Page(url, **more)  # type: ignore[arg-type]
    page.ask()
    yield page
    page.close()


def test_a_page_is_fetched(site: _Site) -> None:
    with asked(site.url) as page:
        assert page.wait(10.0)
        assert page.answer() == TEXT.encode()
        assert page.answer() is None


def test_an_answer_that_is_no_page_is_a_reason(site: _Site) -> None:
    site.status = 503
    with asked(site.url) as page:
        assert page.wait(10.0)
        assert "answered 503" in str(page.answer())


def test_a_server_that_hangs_holds_up_nobody(site: _Site) -> None:
    site.hold = threading.Event()
    with asked(site.url, timeout_s=0.2) as page:
        assert page.answer() is None
        assert page.wait(10.0)
        assert "timed out" in str(page.answer())


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:1/", "file:///etc/passwd", "http://", "http://127.0.0.1:99999/", "x"]
)
def test_an_address_without_a_server_is_a_reason(url: str) -> None:
    with pytest.raises(PageError):
        get(url, 1.0)


def test_a_page_that_never_ends_is_given_up(site: _Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpuchaos_agent.jobs.page.LARGEST", 100)
    with pytest.raises(PageError, match="larger"):
        get(site.url)


def test_progress_is_read_from_a_page() -> None:
    assert parse(TEXT) == {"step": 120.0, "step_time": 0.75, "loss": 2.5, "tokens": 8.192e6}


def test_a_job_is_followed_by_its_page(site: _Site) -> None:
    page = Page(site.url)
    job = PrometheusPage(site.url, page=page)
    job.poll(0.0)
    assert job.step is None
    for now, step in ((1.0, 120), (2.0, 122), (3.0, 122)):
        assert page.wait(10.0)
        site.body = TEXT.replace(" 120", f" {step}")
        page.answer()
        page.ask()
        assert page.wait(10.0)
        job.poll(now)
        assert job.step == step
    assert job.steps_rate() == 1.0
    assert job.progress_age(3.0) == 1.0
    assert (job.loss, job.problem) == (2.5, "")
    job.close()


def test_a_page_that_stays_away_is_said_and_the_age_goes_on() -> None:
    page = Page("http://127.0.0.1:1/", fetch=lambda _url, _timeout: b"step 5\n")
    job = PrometheusPage("http://127.0.0.1:1/", page=page)
    page.ask()
    assert page.wait(10.0)
    page.close()  # nothing comes any more
    job.poll(1.0)
    assert job.step == 5
    job.poll(2.0 + STALE_AFTER_S)
    assert "no answer" in job.problem
    assert job.progress_age(2.0 + STALE_AFTER_S) == 1.0 + STALE_AFTER_S


def test_a_page_of_something_else_is_said() -> None:
    job = PrometheusPage("http://x/")
    job._read(b"python_info 1\n", 1.0)
    assert "names no progress" in job.problem
    job._read(b"<html>no</html>", 1.0)
    assert "Prometheus" in job.problem


@given(st.text(max_size=200))
def test_any_text_is_a_page_or_a_value_error(text: str) -> None:
    try:
        values = parse(text)
    except ValueError:
        return
    assert all(isinstance(value, float) for value in values.values())
