"""Traces: what a real OTLP receiver gets from a process, and that nothing leaves one that was not told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT_SPAN: Final = "b7ad6b7169203331"
#: The example of the W3C recommendation.
TRACEPARENT: Final = f"00-{TRACE}-{PARENT_SPAN}-01"


@dataclass
class Receiver:
    """Takes OTLP over HTTP as a collector does, and keeps what it got."""

    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    port: int = 0

    @property
    def spans(self) -> list[Any]:
        return [
            span
            for request in self.requests
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def services(self) -> set[str]:
        return {
            attribute.value.string_value
            for request in self.requests
            for resource in request.resource_spans
            for attribute in resource.resource.attributes
            if attribute.key == "service.name"
        }


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    got = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.paths.append(self.path)
            got.requests.append(ExportTraceServiceRequest.FromString(body))
            answer = ExportTraceServiceResponse().SerializeToString()
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it so)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    got.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield got
    server.shutdown()
    server.server_close()
    thread.join(5)


def run(body: str, **environment: str) -> str:
    """Stdout of a process that traces: its own, because a process has one tracer provider for life."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    code = f'from gpuchaos_stream.observe import tracing\ntracing.configure("gpuchaos-test")\n{body}'
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True, check=True
    )
    return done.stdout


def attributes(span: Any) -> dict[str, Any]:
    return {each.key: each.value.string_value for each in span.attributes}


def test_a_collector_gets_one_trace_under_the_parent_of_the_header(receiver: Receiver) -> None:
    run(
        f"""
tracing.past("experiment stopped-rank", 1000.0, 1030.5, parent={TRACEPARENT!r}, experiment_id="e1")
tracing.past("fault process-stop", 1001.0, 1021.0, parent={TRACEPARENT!r}, experiment_id="e1", fault_id="f1", node="n3")
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
    )
    assert set(receiver.paths) == {"/v1/traces"}
    assert receiver.services() == {"gpuchaos-test"}
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    assert {span.parent_span_id.hex() for span in receiver.spans} == {PARENT_SPAN}
    by_name = {span.name: span for span in receiver.spans}
    assert set(by_name) == {"experiment stopped-rank", "fault process-stop"}
    fault = by_name["fault process-stop"]
    assert attributes(fault) == {"experiment_id": "e1", "fault_id": "f1", "node": "n3"}
    assert (fault.start_time_unix_nano, fault.end_time_unix_nano) == (1001 * 10**9, 1021 * 10**9)


def test_a_span_hands_its_own_context_on(receiver: Receiver) -> None:
    said = run(
        f"""
first = tracing.start("command", parent={TRACEPARENT!r}, experiment_id=None)
header = tracing.traceparent(first)
second = tracing.start("inject", parent=header, fault_id="f1")
second.end()
first.end()
print(header)
""",
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"http://127.0.0.1:{receiver.port}/anywhere",
    )
    first, second = sorted(receiver.spans, key=lambda span: span.name)
    assert receiver.paths[0] == "/anywhere"
    assert said.strip() == f"00-{TRACE}-{first.span_id.hex()}-01"
    assert second.parent_span_id == first.span_id
    assert attributes(first) == {}, "what is None is left out, not sent as text"


def test_a_header_that_is_no_trace_context_begins_a_trace_of_its_own(receiver: Receiver) -> None:
    run(
        'tracing.past("a", 1.0, 2.0, parent="00-not-a-trace-01")',
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
    )
    (span,) = receiver.spans
    assert span.trace_id.hex() != TRACE
    assert span.parent_span_id == b""


def test_nothing_is_exported_when_no_endpoint_is_configured(receiver: Receiver) -> None:
    said = json.loads(
        run(
            f"""
import json, sys, threading
span = tracing.start("a", parent={TRACEPARENT!r})
recording = span.is_recording()
span.end()
tracing.past("b", 1.0, 2.0)
exporter = any(name.startswith("opentelemetry.exporter") for name in sys.modules)
print(json.dumps([recording, exporter, threading.active_count()]))
""",
        )
    )
    assert said == [False, False, 1], "no span is kept, no exporter loaded, no thread started"
    assert receiver.requests == []


def test_the_context_is_passed_on_even_where_nothing_is_exported() -> None:
    """So that a trace that a caller began is not cut where one process in between exports nothing."""
    said = run(f'print(tracing.traceparent(tracing.start("a", parent={TRACEPARENT!r})))')
    assert said.strip() == TRACEPARENT


def test_without_any_trace_there_is_no_header() -> None:
    assert run('print(tracing.traceparent(tracing.start("a")))').strip() == "None"


def test_a_finished_experiment_is_one_trace_of_experiment_fault_halt_and_recovery(receiver: Receiver) -> None:
    run(
        f"""
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.loop.report import _trace
state = ExperimentState.model_validate({{
    "id": "e1", "time": 1060.0, "cluster": "c", "name": "stopped-rank", "owner": "sre", "status": "finished",
    "verdict": "halted", "started": 1000.0, "finished": 1060.0, "traceparent": {TRACEPARENT!r},
    "plan": {{}},
    "faults": [{{"fault_id": "f1", "fault": "process-stop", "node": "n3", "entity": "process/n3/7", "phase": "undone",
                 "injected": 1005.0, "undone": 1011.0}}],
    "halts": [{{"id": "h1", "experiment_id": "e1", "cause": "hard-limit-gpus", "reason": "9 of 8", "state": "confirmed",
                "requested": 1010.0, "acknowledged": 1010.1, "undone": 1011.0, "confirmed": 1020.0}}],
    "recovery": {{"outcome": "recovered", "injected": 1005.0, "ttd": 1.0, "ttm": 6.0, "ttr": 7.0, "confirm": 12.0,
                  "hold_s": 5.0}},
}})
_trace(state, "process-stop")
""",
        OTEL_EXPORTER_OTLP_ENDPOINT=f"http://127.0.0.1:{receiver.port}",
    )
    seconds = {span.name: (span.start_time_unix_nano / 1e9, span.end_time_unix_nano / 1e9) for span in receiver.spans}
    assert seconds == {
        "experiment stopped-rank": (1000.0, 1060.0),
        "fault process-stop": (1005.0, 1011.0),
        "halt hard-limit-gpus": (1010.0, 1020.0),
        "recovery": (1005.0, 1017.0),
    }
    assert {span.trace_id.hex() for span in receiver.spans} == {TRACE}
    assert all(attributes(span)["experiment_id"] == "e1" for span in receiver.spans)
