"""OpenTelemetry: one trace for an experiment, carried through Kafka in the W3C `traceparent` header.

Nothing is exported, and no SDK is loaded, unless an OTLP endpoint is configured (`OTEL_EXPORTER_OTLP_ENDPOINT`);
without one every call here is a cheap no-op. Spans are made of what is over (`past`), and those of the control stage
have ids that are made of what they tell of (`of`, `alone`): any process can name such a span without having seen it,
and one that is told again after a crash is the same span.
"""

from __future__ import annotations

import contextlib
import hashlib
import secrets
from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any, Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from gpuchaos_stream.observe import logs, otlp

_log = logs.logger(__name__)

_PROPAGATOR: Final = TraceContextTextMapPropagator()
_NS: Final = 1_000_000_000
_SCOPE: Final = "gpuchaos"
#: The most links of one span; the SDK drops what is beyond (OpenTelemetry specification, "Span Limits").
MOST_LINKS: Final = 128

_silent: ContextVar[bool] = ContextVar("silent", default=False)


def configure(service: str, *, instance: str | None = None) -> None:
    """Starts exporting spans over OTLP/HTTP if an endpoint is configured; otherwise does nothing.

    A process has one exporter for life: the first call counts. `instance` tells processes of one service apart, by
    default host and process id.
    """
    otlp.configure_traces(service, instance)


def close(timeout_s: float = otlp.LAST_WORDS_S) -> None:
    """Exports what is left, for `timeout_s` seconds at most; also done when the process ends by itself."""
    otlp.close(timeout_s)


def enabled() -> bool:
    """Whether a span that is made here and now is kept: for whoever would have to gather what it says."""
    return otlp.traces() and not _silent.get()


@contextlib.contextmanager
def silent() -> Iterator[None]:
    """Within, no span is made: for a replay, which tells of what was told before."""
    token = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(token)


def start(name: str, *, parent: str | None = None, kind: SpanKind = SpanKind.INTERNAL, **attributes: Any) -> Span:
    """A started span; `parent` is a `traceparent`. End it with `.end()`. None attributes are left out."""
    return trace.get_tracer(_SCOPE).start_span(name, context=_context(parent), kind=kind, attributes=_given(attributes))


def past(
    name: str,
    begin: float,
    end: float,
    *,
    parent: str | None = None,
    own: str | None = None,
    links: Iterable[str | None] = (),
    events: Iterable[tuple[str, float | None]] = (),
    error: str | None = None,
    kind: SpanKind = SpanKind.INTERNAL,
    scope: str = _SCOPE,
    gpuchaos: Mapping[str, Any] = MappingProxyType({}),
    **attributes: Any,
) -> None:
    """A span of something that is over: `begin` and `end` in epoch seconds. `parent` and `links` are `traceparent`s.

    `own` is its own, where others name it (`of`, `alone`). `events` have their time, None where it never came. `error`
    says why it failed; None where it did not. Of `links` the first `MOST_LINKS` are kept. The names in `gpuchaos` are
    attributes that get the prefix `gpuchaos.`; a None is left out. It never raises.
    """
    if not enabled():
        return
    said = _given(attributes | {f"gpuchaos.{each}": value for each, value in gpuchaos.items()})
    try:
        with _named(own):
            span = trace.get_tracer(scope).start_span(
                name,
                context=_context(parent),
                kind=kind,
                attributes=said,
                links=[Link(each) for each in map(_read, links) if each is not None][:MOST_LINKS],
                start_time=int(begin * _NS),
            )
        for what, at in events:
            if at is not None:
                span.add_event(what, timestamp=int(at * _NS))
        if error is not None:
            span.set_status(Status(StatusCode.ERROR, error))
        span.end(end_time=int(max(begin, end) * _NS))
    except Exception:  # noqa: BLE001  (what is traced must not fail because of its trace)
        _log.exception("a span could not be made", span=name)


@contextlib.contextmanager
def _named(own: str | None) -> Iterator[None]:
    """Within, a span that is started has the ids of `own`."""
    ids = _read(own)
    token = otlp.OWN.set(None if ids is None else (ids.trace_id, ids.span_id))
    try:
        yield
    finally:
        otlp.OWN.reset(token)


def of(parent: str | None, *parts: object) -> str | None:
    """The `traceparent` of a span in the trace of `parent` whose id is made of `parts`; None without a trace."""
    known = _read(parent)
    if known is None:
        return None
    return _written(known.trace_id, _number(8, f"{known.trace_id:032x}", *parts), known.trace_flags)


def alone(*parts: object) -> str:
    """The `traceparent` of the first span of a trace of its own; trace and span are made of `parts` alone."""
    return _written(_number(16, "trace", *parts), _number(8, "span", *parts), TraceFlags(TraceFlags.SAMPLED))


def messaging(topic: str, operation: str) -> dict[str, str]:
    """Attributes of a span that sends to or receives from a topic (OpenTelemetry's conventions for messaging)."""
    return {
        "messaging.system": "kafka",
        "messaging.operation.type": operation,
        "messaging.operation.name": operation,
        "messaging.destination.name": topic,
    }


def same_trace(one: str | None, other: str | None) -> bool:
    """Whether both are spans of one trace."""
    first, second = _read(one), _read(other)
    return first is not None and second is not None and first.trace_id == second.trace_id


def traceparent(span: Span) -> str | None:
    """The `traceparent` of a span, None where nothing is traced."""
    carrier: dict[str, str] = {}
    _PROPAGATOR.inject(carrier, trace.set_span_in_context(span))
    return carrier.get("traceparent")


def root(span: Span) -> str:
    """The `traceparent` of `span`, or where nothing is traced a new one: the same experiment, the same trace id."""
    return traceparent(span) or f"00-{secrets.token_hex(16)}-{secrets.token_hex(8)}-01"


def _context(parent: str | None) -> Context:
    """That of `parent`; an empty one without, whatever span is under way in this thread."""
    return _PROPAGATOR.extract({"traceparent": parent}, Context()) if parent else Context()


def _read(header: str | None) -> SpanContext | None:
    if header is None:
        return None
    found = trace.get_current_span(_context(header)).get_span_context()
    return found if found.is_valid else None


def _written(trace_id: int, span_id: int, flags: TraceFlags) -> str:
    return f"00-{trace_id:032x}-{span_id:016x}-{flags:02x}"


def _number(size: int, *parts: object) -> int:
    """A number of `size` bytes made of `parts`; never 0, which is no id."""
    text = "\x1f".join(map(str, parts))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:size]) or 1


def _given(attributes: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in attributes.items() if value is not None}
