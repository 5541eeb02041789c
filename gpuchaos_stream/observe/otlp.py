"""The OpenTelemetry SDK of this process: loaded only where an OTLP endpoint is set, and never waited for.

OTLP over HTTP with protobuf, set by the `OTEL_…` variables of the specification. Spans wait in a bounded queue; a
collector that is down or hangs costs spans, and nothing else.
"""

from __future__ import annotations

import atexit
import importlib.util
import logging
import os
import socket
import threading
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final

import structlog

from gpuchaos_stream import __version__

#: How long the end of a process waits for a collector, seconds.
LAST_WORDS_S: Final = 2.0
#: A span is exported this soon, milliseconds, unless `OTEL_BSP_SCHEDULE_DELAY` says otherwise (the specification's
#: default is 5000). What a killed process made in this time is lost.
_DELAY_MS: Final = 1000.0

#: Trace and span id of the span that is being started, where they are not to be random.
OWN: ContextVar[tuple[int, int] | None] = ContextVar("own", default=None)

_log = structlog.get_logger(__name__)
_lock: Final = threading.Lock()
_providers: dict[str, Any] = {}
_said: set[str] = set()
_ending: threading.Event | None = None
_ended: Final = threading.Event()


def traces() -> bool:
    """Whether spans are exported."""
    return "traces" in _providers


def configure_traces(service: str, instance: str | None) -> None:
    """Sets the tracer provider, where an endpoint is set and nothing was set before. Never raises."""
    _configure("traces", lambda: _trace_provider(service, instance))


def configure_metrics(service: str, instance: str | None, add: Callable[[Any], None]) -> None:
    """Exports metrics, where an endpoint is set; `add` gets the meter and makes the instruments. Never raises."""
    _configure("metrics", lambda: _meter_provider(service, instance, add))


def _configure(signal: str, make: Callable[[], Any]) -> None:
    with _lock:
        if signal in _providers or not _wanted(signal):
            return
        try:
            _keep(signal, make())
        except Exception as error:  # noqa: BLE001  (a setting that the SDK does not take keeps no agent from its work)
            _no(f"no {signal} are exported: {type(error).__name__}: {error}")


def _trace_provider(service: str, instance: str | None) -> Any:
    from opentelemetry import trace  # noqa: PLC0415
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter  # noqa: PLC0415
    from opentelemetry.sdk.trace import TracerProvider  # noqa: PLC0415
    from opentelemetry.sdk.trace.export import BatchSpanProcessor  # noqa: PLC0415

    provider = TracerProvider(resource=_resource(service, instance), id_generator=_ids(), shutdown_on_exit=False)
    delay = None if os.environ.get("OTEL_BSP_SCHEDULE_DELAY") else _DELAY_MS
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(), schedule_delay_millis=delay))
    trace.set_tracer_provider(provider)
    return provider


def _meter_provider(service: str, instance: str | None, add: Callable[[Any], None]) -> Any:
    from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
    from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415

    readers = [PeriodicExportingMetricReader(OTLPMetricExporter())]
    provider = MeterProvider(metric_readers=readers, resource=_resource(service, instance), shutdown_on_exit=False)
    add(provider.get_meter("gpuchaos", __version__))
    return provider


def close(timeout_s: float) -> None:
    """Exports what is left, and waits for it no longer than `timeout_s` seconds."""
    with _lock:
        if _ending is None:
            return
    _ending.set()
    _ended.wait(timeout_s)


def _wanted(signal: str) -> bool:
    """Whether the environment asks for the export of a signal, and what it takes is installed."""
    name = signal.upper()
    if os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if os.environ.get(f"OTEL_{name}_EXPORTER", "").strip() == "none":
        return False
    if not (os.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT") or os.environ.get(f"OTEL_EXPORTER_OTLP_{name}_ENDPOINT")):
        return False
    asked = os.environ.get(f"OTEL_EXPORTER_OTLP_{name}_PROTOCOL") or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
    if asked not in {None, "", "http/protobuf"}:
        return _no(f"{signal} are exported as http/protobuf alone, not as {asked}: set OTEL_EXPORTER_OTLP_PROTOCOL")
    for module in ("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"):
        if not _is_there(module):
            return _no(f"no {signal} are exported: install the extra `tracing` (gpuchaos-stream[tracing])")
    return True


def _no(why: str) -> bool:
    if why not in _said:
        _said.add(why)
        _log.warning(why)
    return False


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _resource(service: str, instance: str | None) -> Any:
    """Who speaks. What `OTEL_SERVICE_NAME` and `OTEL_RESOURCE_ATTRIBUTES` say comes before what is known here."""
    from opentelemetry.sdk.resources import OTELResourceDetector, Resource  # noqa: PLC0415

    host = socket.gethostname()
    ours = {
        "service.name": service,
        "service.version": __version__,
        "service.instance.id": instance or f"{host}/{os.getpid()}",
        "host.name": host,
    }
    node = _kubernetes_node()
    if node:
        ours["k8s.node.name"] = node
    return Resource.create(ours).merge(OTELResourceDetector().detect())


def _kubernetes_node() -> str | None:
    """`K8S_NODE_NAME`; in a pod else what the chart gives a worker or an agent as its node's name."""
    names = ["K8S_NODE_NAME"]
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        names += ["GPUCHAOS_NODE", "GPUCHAOS_AGENT_NODE"]
    return next((value for name in names if (value := os.environ.get(name))), None)


def _ids() -> Any:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator  # noqa: PLC0415

    class Ids(RandomIdGenerator):
        """Random ids, but for a span that has its own."""

        def generate_span_id(self) -> int:
            own = OWN.get()
            return super().generate_span_id() if own is None else own[1]

        def generate_trace_id(self) -> int:
            own = OWN.get()
            return super().generate_trace_id() if own is None else own[0]

    return Ids()


def _keep(signal: str, provider: Any) -> None:
    """Has the provider end with the process, in a thread that exists by then: the end may not wait for a collector."""
    global _ending  # noqa: PLW0603  (a process ends once)
    _providers[signal] = provider
    # It says each retry; that the collector cannot be reached it says as an error, once for each batch.
    logging.getLogger("opentelemetry").setLevel(logging.ERROR)
    if _ending is None:
        ending = _ending = threading.Event()
        threading.Thread(target=_end, args=(ending,), name="otlp end", daemon=True).start()
        atexit.register(close, LAST_WORDS_S)


def _end(ending: threading.Event) -> None:
    ending.wait()
    for provider in list(_providers.values()):
        provider.shutdown()
    _ended.set()
