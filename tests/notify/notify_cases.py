"""What the tests of notify share: states, a configuration, and a real HTTP server that fails as it is told to."""

from __future__ import annotations

import json
import random
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import (
    AnomalyLine,
    BreakerState,
    ExperimentState,
    Halt,
    HaltState,
    InjectedFault,
    Status,
    Verdict,
)
from gpuchaos_stream.events.incident import AttributedAnomaly, BlastRadius, Evidence, Incident
from gpuchaos_stream.notify.config import Config, load
from gpuchaos_stream.notify.notifier import Notifier
from gpuchaos_stream.notify.queue import Queue

#: Now, in the tests: epoch seconds.
T0 = 1_790_000_000.0


def experiment(status: Status = Status.ACTIVE, *, cluster: str = "training", **fields: Any) -> ExperimentState:
    """A running experiment that has hurt one node too many and met something that it does not explain."""
    base: dict[str, Any] = {
        "id": "exp-1",
        "time": T0,
        "cluster": cluster,
        "name": "stopped-rank",
        "owner": "platform",
        "status": status,
        "plan": {},
        "started": T0 - 60,
        "faults": (fault(),),
        "blast_radius": BlastRadius(nodes=2, gpus=16),
        "limits": {"nodes": 1.0, "gpus": 8.0},
        "attributed": 3,
        "unattributed": 1,
        "charged": (line("xid_79", "gpu/n003/2", "fell off the bus 2 s after the fault"),),
        "unexplained": (line("ecc_uncorrected", "gpu/n099/0", "no fault is near"),),
    }
    return ExperimentState.model_validate(base | fields)


def fault(phase: str = "injected", **fields: Any) -> InjectedFault:
    base = {
        "fault_id": "f-1",
        "fault": "process-stop",
        "node": "n003",
        "entity": "process/n003/77",
        "phase": phase,
        "injected": T0 - 30,
    }
    return InjectedFault.model_validate(base | fields)


def line(metric: str, entity: str, sentence: str) -> AnomalyLine:
    return AnomalyLine(
        metric=metric,
        entity=entity,
        after_s=2.0,
        count=3,
        entities=3,
        severity=Severity.ERROR,
        score=0.9,
        sentence=sentence,
    )


def halt(state: HaltState = HaltState.REQUESTED, **fields: Any) -> Halt:
    base = {
        "id": "halt-1",
        "experiment_id": "exp-1",
        "cause": "limit:nodes",
        "reason": "2 nodes hurt, 1 allowed",
        "state": state,
        "requested": T0,
        "waiting_for": ("n003",) if state is HaltState.REQUESTED else (),
    }
    return Halt.model_validate(base | fields)


def halted(state: HaltState = HaltState.REQUESTED, **fields: Any) -> ExperimentState:
    return experiment(Status.HALTING, halts=(halt(state, **fields),))


def confirmed(at: float = T0 + 20) -> ExperimentState:
    done = halt(HaltState.CONFIRMED, undone=at - 5, confirmed=at)
    gone = (fault("undone", undone=at - 5),)
    return experiment(
        Status.FINISHED, verdict=Verdict.HALTED, finished=at, time=at, halts=(done,), faults=gone, reason="nodes"
    )


def breaker(*, tripped: bool) -> BreakerState:
    if tripped:
        return BreakerState(id="breaker", time=T0, cluster="training", tripped=True, since=T0, cause="3 halts in 10 m")
    return BreakerState(
        id="breaker", time=T0 + 60, cluster="training", since=T0, reset_by="ann", reset_reason="cable changed"
    )


def incident(
    number: int = 1, *, closed: float | None = None, attributed: bool = False, severity: Severity = Severity.ERROR
) -> Incident:
    evidence = Evidence(fault_id=None, score=0, time=0, distance=0, signature=0, sentence="no fault explains it")
    anomaly = AttributedAnomaly(
        anomaly_id=f"a-{number}",
        entity=f"gpu/n{number:03d}/0",
        metric="xid_79",
        start=T0,
        end=closed,
        severity=severity,
        evidence=evidence,
    )
    return Incident(
        id=f"inc-{number}",
        time=closed or T0,
        cluster="training",
        cause="f-1" if attributed else f"unattributed:a-{number}",
        experiment_id="exp-1" if attributed else None,
        fault_id="f-1" if attributed else None,
        attributed=attributed,
        opened=T0,
        closed=closed,
        severity=severity,
        anomalies=(anomaly,),
        nodes=(f"n{number:03d}",),
        jobs=("llama",),
        summary=f"a GPU of n{number:03d} fell off the bus",
    )


@contextmanager
def opened(folder: Path, receivers: str, routes: str = "") -> Iterator[tuple[Config, Queue, Notifier]]:
    """A configuration of `receivers` (YAML of the list), its queue and notifier."""
    path = write(folder, receivers, routes)
    config = load(path)
    queue = Queue(folder / "queue", random.Random(7))
    try:
        yield config, queue, Notifier(config, queue)
    finally:
        queue.close()


def write(folder: Path, receivers: str, routes: str = "") -> Path:
    path = folder / "notify.yaml"
    path.write_text(
        "api_version: gpuchaos/v1\nkind: Notify\nlink: https://gpuchaos.example.com/experiments/{experiment_id}\n"
        f"receivers:\n{receivers}\nroutes:\n{routes or '  - {receivers: [it], group_wait: 1ms}'}\n"
    )
    return path


def hear(notifier: Notifier, queue: Queue, *events: Any, now: float = T0) -> None:
    for event in events:
        with queue.transaction():
            notifier.hear(event, now)


@dataclass
class Seen:
    """One request that the server took."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Server:
    """A real HTTP server. `behave` is called per request and answers (status, headers, body), or what to do instead."""

    port: int = 0
    scheme: str = "http"
    seen: list[Seen] = field(default_factory=list)
    behave: Callable[[Seen], tuple[int, dict[str, str], bytes] | str] = lambda _: (200, {}, b"ok")
    arrived: threading.Condition = field(default_factory=threading.Condition)
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}/hook"

    def wait(self, enough: Callable[[list[Seen]], bool], deadline_s: float = 15.0) -> list[Seen]:
        """What was seen, once it is enough."""
        with self.arrived:
            assert self.arrived.wait_for(lambda: enough(self.seen), deadline_s), [each.path for each in self.seen]
            return list(self.seen)


@contextmanager
def serving(server: Server, context: ssl.SSLContext | None = None) -> Iterator[Server]:
    """`server` on a free port (or its own, where it has one), with TLS where there is a context."""

    class Handler(BaseHTTPRequestHandler):
        def _any(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            seen = Seen(self.command, self.path, dict(self.headers.items()), self.rfile.read(length))
            answer = server.behave(seen)
            with server.arrived:
                server.seen.append(seen)
                server.arrived.notify_all()
            if answer == "hang":
                server.over.wait(20)
                return
            if answer == "reset":
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                self.connection.close()
                return
            assert not isinstance(answer, str)
            status, headers, body = answer
            self.send_response(status)
            for name, value in {"Content-Length": str(len(body)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        do_POST = do_GET = do_DELETE = _any  # noqa: N815  (the base class calls them so)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    class Quiet(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, *args: object) -> None:
            pass

    web = Quiet(("127.0.0.1", server.port), Handler)
    if context is not None:
        server.scheme = "https"
        web.socket = context.wrap_socket(web.socket, server_side=True)
    server.port = web.server_address[1]
    thread = threading.Thread(target=web.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.over.set()
        web.shutdown()
        web.server_close()
        thread.join()
