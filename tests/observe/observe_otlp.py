"""A real OTLP receiver, and a process that exports to it."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TESTS: Final = Path(__file__).resolve().parents[1]
NS: Final = 10**9
#: For the process: a span between what was told before it and what is told after. An export is ordered by stage.
_MARK: Final = """
def mark(name):
    from opentelemetry import trace
    trace.get_tracer_provider().force_flush()
    tracing.past(name, 1.0, 2.0)
    trace.get_tracer_provider().force_flush()
"""


@dataclass(frozen=True, slots=True)
class Told:
    """A span as it arrived, with the service and the stage that told it. Ids are hexadecimal, times epoch seconds."""

    name: str
    service: str
    scope: str
    trace: str
    id: str
    parent: str
    begin: float
    end: float
    attributes: dict[str, Any]
    links: tuple[tuple[str, str], ...]
    events: dict[str, float]
    error: str | None
    kind: int


@dataclass
class Receiver:
    """Takes OTLP over HTTP as a collector does, and keeps what it got."""

    requests: list[ExportTraceServiceRequest] = field(default_factory=list)
    measured: list[ExportMetricsServiceRequest] = field(default_factory=list)
    paths: list[str] = field(default_factory=list)
    port: int = 0
    #: Only these count, where they are set.
    kept: list[Told] | None = None

    @property
    def url(self) -> str:
        """Its endpoint."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def resources(self) -> list[dict[str, Any]]:
        """Who told spans."""
        return [_values(each.resource.attributes) for got in self.requests for each in got.resource_spans]

    @property
    def spans(self) -> list[Told]:
        """All spans, in order of arrival."""
        if self.kept is not None:
            return self.kept
        return [
            _told(span, scope.scope.name, _values(resource.resource.attributes)["service.name"])
            for request in list(self.requests)
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]

    def named(self, name: str) -> Told:
        """The one span of a name."""
        (found,) = [span for span in self.spans if span.name == name]
        return found

    def by_name(self) -> dict[str, list[Told]]:
        """Spans by name."""
        found: dict[str, list[Told]] = defaultdict(list)
        for span in self.spans:
            found[span.name].append(span)
        return found

    def points(self) -> dict[str, list[tuple[dict[str, Any], float]]]:
        """Attributes and value of each point of the last export, by metric."""
        return {
            metric.name: [
                (_values(point.attributes), point.as_int if point.HasField("as_int") else point.as_double)
                for point in getattr(metric, str(metric.WhichOneof("data"))).data_points
            ]
            for resource in self.measured[-1].resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
        }


@contextlib.contextmanager
def receiving() -> Iterator[Receiver]:
    """A receiver on a free port of the loopback."""
    got = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            got.paths.append(self.path)
            if self.path == "/v1/metrics":
                got.measured.append(ExportMetricsServiceRequest.FromString(body))
            else:
                got.requests.append(ExportTraceServiceRequest.FromString(body))
            self.send_response(200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002  (the base class names it so)
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    got.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield got
    finally:
        server.shutdown()
        server.server_close()
        thread.join(5)


def run(body: str, *folders: str, service: str = "gpuchaos-test", **environment: str) -> str:
    """Stdout of a process that traces: its own, because a process has one tracer provider for life.

    `folders` are rooms of the tests whose helpers it imports. `mark(name)` parts what was told before it from what
    is told after.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    paths = [str(TESTS / folder) for folder in folders]
    code = (
        f"import sys; sys.path[:0] = {paths!r}\n"
        f"from gpuchaos_stream.observe import tracing\ntracing.configure({service!r})\n{_MARK}{body}"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env={**clean, **environment}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def _told(span: Any, scope: str, service: str) -> Told:
    return Told(
        name=span.name,
        service=service,
        scope=scope,
        trace=span.trace_id.hex(),
        id=span.span_id.hex(),
        parent=span.parent_span_id.hex(),
        begin=span.start_time_unix_nano / NS,
        end=span.end_time_unix_nano / NS,
        attributes=_values(span.attributes),
        links=tuple((link.trace_id.hex(), link.span_id.hex()) for link in span.links),
        events={event.name: event.time_unix_nano / NS for event in span.events},
        error=span.status.message if span.status.code == 2 else None,
        kind=span.kind,
    )


def _values(attributes: Any) -> dict[str, Any]:
    return {each.key: getattr(each.value, str(each.value.WhichOneof("value"))) for each in attributes}
