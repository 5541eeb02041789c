"""OpenTelemetry: one trace for an experiment, carried through Kafka in the W3C `traceparent` header.

Nothing is exported unless an OTLP endpoint is configured (`OTEL_EXPORTER_OTLP_ENDPOINT`), and then only
where the SDK is installed; without it every call here is a cheap no-op of the API.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

from opentelemetry import trace
from opentelemetry.trace import Span, SpanKind
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_PROPAGATOR = TraceContextTextMapPropagator()
_NS = 1_000_000_000


def configure(service: str) -> None:
    """Starts exporting spans over OTLP/HTTP if an endpoint is configured; otherwise does nothing."""
    if not (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")):
        return
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
        from opentelemetry.sdk.resources import Resource  # noqa: PLC0415
        from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
        from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415
    except ImportError:
        return
    provider = TracerProvider(resource=Resource.create({"service.name": service}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)


def start(name: str, *, parent: str | None = None, kind: SpanKind = SpanKind.INTERNAL, **attributes: Any) -> Span:
    """A started span; `parent` is a `traceparent`. End it with `.end()`. None attributes are left out."""
    context = _PROPAGATOR.extract({"traceparent": parent}) if parent else None
    given = {key: value for key, value in attributes.items() if value is not None}
    return trace.get_tracer("gpuchaos").start_span(name, context=context, kind=kind, attributes=given)


def past(name: str, begin: float, end: float, *, parent: str | None = None, **attributes: Any) -> None:
    """A span of something that is over: `begin` and `end` in epoch seconds.

    The control stage makes its spans this way, at the end, so that a restart in between loses none.
    """
    context = _PROPAGATOR.extract({"traceparent": parent}) if parent else None
    given = {key: value for key, value in attributes.items() if value is not None}
    tracer = trace.get_tracer("gpuchaos")
    tracer.start_span(name, context=context, attributes=given, start_time=int(begin * _NS)).end(end_time=int(end * _NS))


def traceparent(span: Span) -> str | None:
    """The `traceparent` of a span, None where nothing is traced."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


def root(span: Span) -> str:
    """The `traceparent` of `span`, or where nothing is traced a new one: the same experiment, the same trace id."""
    return traceparent(span) or f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"
