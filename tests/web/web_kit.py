"""A board to try the API and the page on: of any size, fed by hand, served by a real server in a thread."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import uvicorn

from gpuchaos_stream.events.base import Event, Severity
from gpuchaos_stream.events.experiment import (
    BreakerState,
    ExperimentState,
    Halt,
    HaltState,
    InjectedFault,
    Status,
    Verdict,
)
from gpuchaos_stream.events.incident import (
    AttributedAnomaly,
    BlastRadius,
    Evidence,
    Incident,
    RecoveryOutcome,
    RecoveryRecord,
)
from gpuchaos_stream.events.node import GpuPlace, NodeInfo, PortPlace
from gpuchaos_stream.events.observation import CellSummary, NodeSeen
from gpuchaos_stream.web.app import create_app
from gpuchaos_stream.web.board import Board
from gpuchaos_stream.web.connection import Connection
from gpuchaos_stream.web.guard import allowed_hosts
from gpuchaos_stream.web.tokens import Tokens
from gpuchaos_stream.web.views import Links, Sent

CLUSTER = "sim"
T0 = 1_800_000_000.0
TOKEN = "a-token-of-the-on-call-0123456789"  # noqa: S105  (of a test)
WHO = "oncall"
#: Seconds that a server waits for its last requests.
GRACE_S = 2


# -- events ------------------------------------------------------------------------------------------------------


@cache
def _model(cell: str, rails: int, gpus: int) -> NodeInfo:
    """A node of a cell: thousands of them differ in little more than their name."""
    return NodeInfo(
        id="place",
        time=T0,
        cluster=CLUSTER,
        node="model",
        cell=cell,
        rack=f"k{cell[1:]}",
        nvlink_domain=f"{cell}-d0",
        gpus=tuple(GpuPlace(index=str(number), numa_node=number // 4, job="train") for number in range(gpus)),
        ports=tuple(PortPlace(name=f"mlx5_{number}", rail=f"{cell}-r{number}") for number in range(rails)),
        jobs=("train",),
    )


def place(node: str, cell: str, *, rails: int = 8, gpus: int = 8, **more: Any) -> NodeInfo:
    """A node's word of where it sits."""
    return _model(cell, rails, gpus).model_copy(update={"id": f"place-{node}", "node": node} | more)


def summary(
    cell: str, nodes: Iterable[str], *, stale: Iterable[str] = (), time: float = T0, gpu: float = 0.93
) -> CellSummary:
    """What a detect worker says of a cell."""
    gone, names = set(stale), tuple(nodes)
    return CellSummary(
        id=f"summary-{cell}-{time}",
        time=time,
        cluster=CLUSTER,
        cell=cell,
        nodes={name: NodeSeen(last=time, stale=name in gone) for name in names},
        order=names,
        columns={
            "gpu.utilization_ratio.mean": (gpu,) * len(names),
            "gpu.temperature_celsius.max": (61.0,) * len(names),
            "rdma.tx_bytes_rate.mean": (11e9,) * len(names),
        },
    )


def anomaly(
    entity: str, metric: str, *, sentence: str = "nothing explains it", end: float | None = None
) -> AttributedAnomaly:
    return AttributedAnomaly(
        anomaly_id=f"{metric}@{entity}",
        entity=entity,
        metric=metric,
        start=T0 + 20,
        end=end,
        severity=Severity.ERROR,
        evidence=Evidence(fault_id=None, score=0.7, time=0.9, distance=0.6, signature=0.7, sentence=sentence),
    )


def incident(
    incident_id: str,
    anomalies: Sequence[AttributedAnomaly],
    *,
    experiment: str | None = None,
    time: float = T0 + 21,
    closed: float | None = None,
    **more: Any,
) -> Incident:
    """Anomalies of one cause: of an experiment, or of nothing that is known."""
    fields: dict[str, Any] = {
        "id": incident_id,
        "time": time,
        "cluster": CLUSTER,
        "cause": "fault-1" if experiment else f"unattributed:{anomalies[0].anomaly_id}",
        "experiment_id": experiment,
        "fault_id": "fault-1" if experiment else None,
        "attributed": experiment is not None,
        "opened": T0 + 20,
        "closed": closed,
        "severity": Severity.ERROR,
        "anomalies": tuple(anomalies),
        "nodes": tuple(sorted({each.entity.split("/")[1] for each in anomalies})),
        "summary": f"{len(anomalies)} anomalies, the first: {anomalies[0].metric} on {anomalies[0].entity}",
    }
    return Incident.model_validate(fields | more)


def experiment(
    experiment_id: str, targets: Sequence[str], *, status: Status = Status.ACTIVE, time: float = T0 + 30, **more: Any
) -> ExperimentState:
    """A running experiment with a fault on each target (`gpu/n1/0`), two of four nodes hurt."""
    done = status is Status.FINISHED
    fields: dict[str, Any] = {
        "id": experiment_id,
        "time": time,
        "cluster": CLUSTER,
        "name": experiment_id.rpartition("-")[0] or experiment_id,
        "owner": "team-training",
        "status": status,
        "verdict": Verdict.PASSED if done else None,
        "reason": "recovered within its objectives" if done else "",
        "plan": {
            "description": "A link that goes down is noticed, and the job goes on over the others.",
            "fault": {"name": "rdma-link", "params": {}, "certifies": ["link-detection"]},
            "objectives": {"ttd": 10.0, "ttm": 60.0, "ttr": 120.0},
        },
        "started": T0,
        "ends": T0 + 70,
        "finished": T0 + 95 if done else None,
        "faults": tuple(
            InjectedFault(
                fault_id=f"fault-{number + 1}",
                fault="rdma-link",
                node=entity.split("/")[1],
                entity=entity,
                phase="undone" if done else "injected",
                injected=T0 + 10,
                undone=T0 + 70 if done else None,
                lease_expires=T0 + 40,
            )
            for number, entity in enumerate(targets)
        ),
        "blast_radius": BlastRadius(gpus=16, nodes=2, cells=1, racks=1, rails=1, jobs=1, gpu_seconds=320.0, gpus_now=8),
        "limits": {"gpus": 32, "nodes": 4, "jobs": 1, "gpu_seconds": 4000},
        "recovery": RecoveryRecord(
            outcome=RecoveryOutcome.RECOVERED if done else RecoveryOutcome.PENDING,
            injected=T0 + 10,
            ttd=2.5,
            ttm=60.0 if done else None,
            ttr=71.0 if done else None,
            hold_s=10.0,
            objectives={"ttd": 10.0, "ttm": 60.0, "ttr": 120.0},
            met={"ttd": True, "ttm": True if done else None, "ttr": True if done else None},
        ),
        "attributed": 3,
        "unattributed": 1,
        "steady": {"pace": "ok" if done else "bad"},
    }
    return ExperimentState.model_validate(fields | more)


def halt(experiment_id: str, state: HaltState = HaltState.REQUESTED) -> Halt:
    return Halt(
        id=f"halt-{experiment_id}",
        experiment_id=experiment_id,
        cause="blast-radius",
        reason="5 nodes hurt, limit 4",
        state=state,
        requested=T0 + 31,
    )


def breaker(*, tripped: bool, time: float = T0 + 40) -> BreakerState:
    return BreakerState(
        id="breaker",
        time=time,
        cluster=CLUSTER,
        tripped=tripped,
        since=time if tripped else None,
        cause="rate: 3 halts in 10 min" if tripped else "",
    )


def named(nodes: int, cells: int) -> dict[str, list[str]]:
    """Cell → its nodes, spread evenly."""
    digits = max(3, len(str(nodes - 1)))
    return {
        f"c{cell}": [f"n{row:0{digits}d}" for row in range(cell * nodes // cells, (cell + 1) * nodes // cells)]
        for cell in range(cells)
    }


def synthetic_events(nodes: int = 12_500, cells: int = 391, rails: int = 8, *, at_work: bool = True) -> Iterator[Event]:
    """A whole cluster; `at_work`: with a running experiment, one that passed, harm of both kinds, silent nodes."""
    grid = named(nodes, cells)
    for number, (cell, names) in enumerate(grid.items()):
        gone = names[-1:] if at_work and number % 60 == 3 else ()
        yield from (place(name, cell, rails=rails, rack=f"k{number // 4}") for name in names)
        yield summary(cell, names, stale=gone, gpu=0.9 + 0.01 * (number % 8))
    if not at_work:
        return
    first, second, last = (list(grid.values())[i] for i in (0, min(1, cells - 1), -1))
    yield experiment("rdma-link-down-1a2b", [f"port/{name}/mlx5_2" for name in first[:2]])
    yield experiment("stopped-rank-9f00", [f"gpu/{second[0]}/0"], status=Status.FINISHED)
    hurt = [
        anomaly(f"port/{name}/mlx5_2", "tx_bytes_rate", sentence="on the same rail as the fault") for name in first[2:6]
    ]
    hurt.append(anomaly(f"gpu/{first[2]}/3", "utilization_ratio", sentence="in the same job as the fault"))
    yield incident("incident-charged", hurt, experiment="rdma-link-down-1a2b")
    yield incident("incident-alone", [anomaly(f"gpu/{last[0]}/5", "gpu_lost"), anomaly(f"node/{last[0]}", "pressure")])


def synthetic_board(nodes: int = 12_500, cells: int = 391, rails: int = 8, *, at_work: bool = True) -> Board:
    """A board of that size on which nobody is expected to speak; its cluster is `CLUSTER`."""
    board = Board(epoch="test", watched=False, links=Links(loop="/grafana/d/gpuchaos-loop"))
    for event in synthetic_events(nodes, cells, rails, at_work=at_work):
        board.hear(event, T0 + 30, event.time)
    board.flush(T0 + 30)
    return board


# -- a server ----------------------------------------------------------------------------------------------------


class Recorder:
    """Hands that only remember: (what, on what, reason, who) for each call. `fails`: what each call raises instead."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str, str, str]] = []
        self.fails: Exception | None = None

    async def stop(self, state: ExperimentState, reason: str, who: str) -> list[Sent]:
        return self._did("stop", state.id, reason, who)

    async def trip(self, cluster: str, before: BreakerState | None, reason: str, who: str) -> list[Sent]:
        return self._did("stop_all", cluster, reason, who)

    async def reset(self, cluster: str, before: BreakerState | None, reason: str, who: str) -> list[Sent]:
        return self._did("reset", cluster, reason, who)

    def _did(self, kind: str, what: str, reason: str, who: str) -> list[Sent]:
        if self.fails is not None:
            raise self.fails
        self.calls.append((kind, what, reason, who))
        return [Sent(kind=kind, id=f"command-{len(self.calls)}", node=None)]


class Running:
    """A server over a board, in a thread. `hear` feeds the board; `stop` and `start` keep the port."""

    def __init__(self, board: Board, *, token_file: Path | None = None, port: int = 0, **app: Any) -> None:
        self.board = board
        self.hands = Recorder()
        self.port = port
        began = time.monotonic()
        # The board's own time goes on from where its events end.
        self._app = {
            "clock": lambda: T0 + 35 + time.monotonic() - began,
            "hosts": allowed_hosts("127.0.0.1"),
        } | app
        if token_file is not None:
            self._app |= {"tokens": Tokens(token_file), "hands": self.hands}
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        """The cluster's part of the API."""
        return f"{self.url}/api/v1/clusters/{CLUSTER}"

    def start(self) -> Running:
        ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(ready)), daemon=True)
        self._thread.start()
        assert ready.wait(20), "the server did not start"
        return self

    def stop(self) -> None:
        if self._thread is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self.app.state.site.streams.close)
            self._loop.call_soon_threadsafe(setattr, self._server, "should_exit", True)
            self._thread.join(20)
        self._thread = None

    def hear(self, *events: Event, now: float | None = None) -> None:
        """Feeds the board in the server's own thread; returns when it has heard."""
        done = threading.Event()

        def hear() -> None:
            for event in events:
                self.board.hear(event, self._app["clock"]() if now is None else now, event.time)
            done.set()

        self._loop.call_soon_threadsafe(hear)
        assert done.wait(20)

    async def _serve(self, ready: threading.Event) -> None:
        self._loop = asyncio.get_running_loop()
        self.app = create_app(self.board, **self._app)
        config = uvicorn.Config(
            self.app,
            host="127.0.0.1",
            port=self.port,
            log_config=None,
            http=Connection,
            timeout_graceful_shutdown=GRACE_S,
            proxy_headers=False,
        )
        self._server = uvicorn.Server(config)
        serving = asyncio.create_task(self._server.serve())
        while not (self._server.started or serving.done()):  # noqa: ASYNC110  (uvicorn has no event for it)
            await asyncio.sleep(0.005)
        if self._server.started:
            self.port = self._server.servers[0].sockets[0].getsockname()[1]
            ready.set()
        await serving


@contextmanager
def running(board: Board, *, token_file: Path | None = None, **app: Any) -> Iterator[Running]:
    """A server over `board` on a free port; with `token_file` it may act, else it is read-only."""
    server = Running(board, token_file=token_file, **app).start()
    try:
        yield server
    finally:
        server.stop()


def write_tokens(folder: Path, *lines: str) -> Path:
    """A token file; with no lines that of `WHO` with `TOKEN`."""
    path = folder / "tokens"
    path.write_text("\n".join(lines or (f"{WHO}:{TOKEN}",)) + "\n")
    path.chmod(0o600)
    return path
