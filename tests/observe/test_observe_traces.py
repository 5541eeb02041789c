"""Traces: what a real OTLP receiver gets from a process, and that nothing leaves one that was not told to."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final

import pytest
from observe_otlp import Receiver, receiving, run

from gpuchaos_stream import __version__

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
PARENT_SPAN: Final = "b7ad6b7169203331"
#: The example of the W3C recommendation.
TRACEPARENT: Final = f"00-{TRACE}-{PARENT_SPAN}-01"


SPANS: Final = f"""
fault, anomaly = tracing.of({TRACEPARENT!r}, "fault", "f1"), tracing.alone("anomaly", "a1")
tracing.past("experiment", 1000.0, 1030.5, parent={TRACEPARENT!r}, experiment_id="e1")
tracing.past("fault", 1001.0, 1021.0, parent={TRACEPARENT!r}, own=fault, experiment_id="e1", node="n3", absent=None)
tracing.past("anomaly", 1001.5, 1002.0, own=anomaly)
tracing.past("orphan", 1.0, 2.0, parent="00-not-a-trace-01")
tracing.past("failed", 1.0, 2.0, error="it is stuck")
unsampled = {TRACEPARENT[:-2] + "00"!r}
own = tracing.of(unsampled, "fault", "f1")
assert own.endswith("-00"), own
tracing.past("left out", 1.0, 2.0, parent=unsampled, own=own)
"""


@pytest.fixture(scope="module")
def told() -> Iterator[Receiver]:
    """What a collector gets of `SPANS`."""
    with receiving() as receiver:
        run(
            SPANS,
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_RESOURCE_ATTRIBUTES="deployment.environment.name=test,service.instance.id=seven",
            K8S_NODE_NAME="n1",
        )
        yield receiver


def test_a_collector_gets_one_trace_under_the_parent_of_the_header(told: Receiver) -> None:
    assert set(told.paths) == {"/v1/traces"}
    experiment, fault = told.named("experiment"), told.named("fault")
    assert {(span.service, span.trace, span.parent) for span in (experiment, fault)} == {
        ("gpuchaos-test", TRACE, PARENT_SPAN)
    }
    assert fault.attributes == {"experiment_id": "e1", "node": "n3"}, "what is None is left out, not sent as text"
    assert (fault.begin, fault.end) == (1001.0, 1021.0)


def test_a_header_that_is_no_trace_context_begins_a_trace_of_its_own(told: Receiver) -> None:
    orphan = told.named("orphan")
    assert orphan.trace != TRACE
    assert orphan.parent == ""


def test_what_a_sampler_left_out_is_left_out_by_those_who_come_after(told: Receiver) -> None:
    """The client decides; nobody tells half a trace."""
    assert "left out" not in told.by_name()


def test_what_failed_says_why_as_the_status_of_its_span(told: Receiver) -> None:
    assert told.named("failed").error == "it is stuck"
    assert told.named("fault").error is None


def test_who_speaks_is_said_with_service_version_instance_host_and_node(told: Receiver) -> None:
    wanted = {
        "service.name": "gpuchaos-test",
        "service.version": __version__,
        "service.instance.id": "seven",
        "host.name": socket.gethostname(),
        "k8s.node.name": "n1",
        "deployment.environment.name": "test",
    }
    resource = told.resources[0]
    assert {name: resource.get(name) for name in wanted} == wanted


def test_a_span_that_is_told_twice_is_one_span_and_others_name_it_without_having_seen_it(
    told: Receiver, receiver: Receiver
) -> None:
    child = 'tracing.past("undo", 2.0, 3.0, parent=fault, links=(anomaly,), events=(("seen", 2.5), ("never", None)))'
    run(SPANS + child, OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url)
    fault, anomaly, undo = (receiver.named(name) for name in ("fault", "anomaly", "undo"))
    assert (fault, anomaly) == (told.named("fault"), told.named("anomaly")), "another process, the same spans"
    assert (fault.trace, undo.trace, undo.parent) == (TRACE, TRACE, fault.id)
    assert (anomaly.parent, undo.links) == ("", ((anomaly.trace, anomaly.id),))
    assert anomaly.trace != TRACE
    assert undo.events == {"seen": 2.5}


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
        OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=f"{receiver.url}/anywhere",
    )
    first, second = sorted(receiver.spans, key=lambda span: span.name)
    assert receiver.paths[0] == "/anywhere"
    assert said.strip() == f"00-{TRACE}-{first.id}-01"
    assert second.parent == first.id
    assert first.attributes == {}, "what is None is left out, not sent as text"


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


@pytest.mark.parametrize(
    "setting",
    [
        {"OTEL_SDK_DISABLED": "true"},
        {"OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
        {"OTEL_BSP_MAX_QUEUE_SIZE": "-1"},
    ],
    ids=lambda setting: next(iter(setting)),
)
def test_a_setting_that_forbids_or_spoils_the_export_costs_the_traces_alone(
    receiver: Receiver, setting: dict[str, str]
) -> None:
    said = run('tracing.past("a", 1.0, 2.0); print("works")', OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url, **setting)
    assert said.splitlines()[-1] == "works"
    assert receiver.spans == []


@contextlib.contextmanager
def hanging() -> Iterator[str]:
    """A collector that takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken: list[socket.socket] = []

        def take() -> None:
            with contextlib.suppress(OSError):
                while True:
                    taken.append(server.accept()[0])

        threading.Thread(target=take, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        for connection in taken:
            connection.close()


@contextlib.contextmanager
def dead() -> Iterator[str]:
    """A port that nobody listens on."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{held.getsockname()[1]}"


#: The exporter's own patience with a collector, seconds (`OTEL_EXPORTER_OTLP_TIMEOUT`).
PATIENCE_S: Final = 10.0


@pytest.mark.parametrize("collector", [dead, hanging], ids=["dead", "hanging"])
def test_a_collector_that_does_not_answer_holds_nobody_up_and_a_queues_length_is_kept(
    collector: Callable[[], contextlib.AbstractContextManager[str]],
) -> None:
    with collector() as url:
        said = run(
            """
import gc, json, time
from opentelemetry.sdk.trace import ReadableSpan
slowest = 0.0
for number in range(6_000):
    at = time.monotonic()
    tracing.past("a", 1.0, 2.0, experiment_id="e1")
    slowest = max(slowest, time.monotonic() - at)
kept = sum(isinstance(each, ReadableSpan) for each in gc.get_objects())
at = time.monotonic()
tracing.close(0.5)
print(json.dumps([slowest, kept, time.monotonic() - at]))
""",
            OTEL_EXPORTER_OTLP_ENDPOINT=url,
        )
    slowest, kept, ending = json.loads(said)
    assert slowest < PATIENCE_S / 2, "a span never waits"
    assert 2048 <= kept <= 2048 + 512 + 10, "a queue and a batch on its way"
    assert ending < PATIENCE_S / 2, "nor does the end"


def test_a_process_that_ends_tells_its_last_span_and_does_not_wait_for_a_collector_that_hangs() -> None:
    with hanging() as url:
        begin = time.monotonic()
        run('tracing.past("a", 1.0, 2.0)', OTEL_EXPORTER_OTLP_ENDPOINT=url)
        assert time.monotonic() - begin < 2 * PATIENCE_S, "the SDK itself would wait for 30 s"


def test_an_agent_loads_no_sdk_unless_it_is_to_export() -> None:
    said = run("import gpuchaos_agent.agent, gpuchaos_agent.runtime, gpuchaos_agent.deadman\nprint(*sys.modules)")
    assert [name for name in said.split() if name.startswith(("opentelemetry.sdk", "opentelemetry.exporter"))] == []
