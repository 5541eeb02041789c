"""A broker that stood still is not a node that fell silent; a node that fell silent meanwhile is found all the same."""

from __future__ import annotations

from collections.abc import Iterable

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.events.experiment import Halt, Status
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.node import GpuPlace, NodeInfo
from gpuchaos_stream.events.observation import CellSummary, NodeSeen, Tick
from gpuchaos_stream.experiments.client import operator_command, start_command
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.cluster import RESUME_S, ClusterLoop
from gpuchaos_stream.loop.contexts import STALE_S

T0 = 1_000_000.0
TARGET, OTHER = "n1", "n2"
PAUSE_S = 8.0
#: The shipped rule waits for so long.
FOR_S = 2.0
TICK_S = 0.25
RULES = load_rules([shipped_rules()])
PLAN = Plan.model_validate(
    {
        "api_version": "gpuchaos/v1",
        "kind": "Experiment",
        "name": "pause",
        "description": "a long fault, so that nothing but silence can end it",
        "owner": "tests",
        "fault": {"name": "process-stop", "certifies": ("automatic-halt",)},
        "targets": {"entities": (f"process/{TARGET}/7",)},
        "duration": 120.0,
        "lease": 60.0,
        "undo": {"method": "automatic"},
        "limits": {"gpus": 0, "nodes": 0, "jobs": 0, "gpu_seconds": 0.0},
        "settle": 1.0,
        "steady_state": {
            "hold": 2.0,
            "checks": (
                {
                    "name": "up",
                    "telemetry": {"of": f"node/{OTHER}", "metric": "node.cpu_busy_ratio.mean", "op": "<=", "value": 2},
                },
            ),
        },
        "objectives": {"ttd": 60.0, "ttm": 200.0, "ttr": 300.0},
    }
)


class Site:
    """A cluster of two nodes with an experiment on one of them; `now` is the broker's time."""

    def __init__(self) -> None:
        self.loop = ClusterLoop("c", RULES)
        self.now = T0
        for node in (TARGET, OTHER):
            place = NodeInfo(id=node, time=T0, cluster="c", node=node, cell="c0", gpus=(GpuPlace(index="0"),))
            self.loop.feed(place)
        start = start_command(PLAN, cluster="c", now=T0)
        self.experiment = start.experiment_id or ""
        self.loop.command(start, now=T0)
        self.run(10.0, heard=(TARGET, OTHER))
        state = self.loop.machine.state(self.experiment)
        assert state is not None
        assert state.status is Status.ACTIVE

    def hear(self, at: float, nodes: Iterable[str] = (TARGET, OTHER)) -> None:
        """A summary of the cell as it was at `at`, in which `nodes` were last heard then."""
        seen = {node: NodeSeen(last=at) for node in nodes}
        columns = {"node.cpu_busy_ratio.mean": (0.5,) * len(seen)}
        self.loop.feed(
            CellSummary(
                id=stable_id("s", at), time=at, cluster="c", cell="c0", nodes=seen, order=tuple(seen), columns=columns
            )
        )

    def tick(self) -> None:
        self.now += TICK_S
        self.loop.feed(Tick(id=stable_id("t", self.now), time=self.now, cluster="c"))
        for command, _trace in self.loop.settle(self.now).commands:
            if command.kind is CommandKind.INJECT:
                self.loop.feed(_injected(command.fault_id or "", self.experiment, command.id, self.now))

    def run(self, seconds: float, heard: Iterable[str] = ()) -> None:
        """Time goes on; `heard` nodes send their frames."""
        nodes = tuple(heard)
        for _ in range(round(seconds / TICK_S)):
            if nodes:
                self.hear(self.now, nodes)
            self.tick()

    @property
    def halts(self) -> tuple[Halt, ...]:
        state = self.loop.machine.state(self.experiment)
        assert state is not None
        return state.halts


def _injected(fault_id: str, experiment_id: str, command_id: str, at: float) -> FaultEvent:
    return FaultEvent(
        id=stable_id(fault_id, "injected"),
        time=at,
        cluster="c",
        phase=FaultPhase.INJECTED,
        fault="process-stop",
        node=TARGET,
        entity=f"process/{TARGET}/7",
        fault_id=fault_id,
        experiment_id=experiment_id,
        command_id=command_id,
        lease_expires=at + 60.0,
    )


def test_a_broker_that_stood_still_is_no_silence_of_the_target() -> None:
    site = Site()
    paused = site.now
    site.now += PAUSE_S
    site.run(4.0)  # ticks are back first; frames wait behind a detector that is catching up
    for behind in range(int(PAUSE_S)):
        site.hear(paused + behind)
        site.tick()
    site.run(10.0, heard=(TARGET, OTHER))
    assert not site.halts


def test_a_target_that_fell_silent_during_the_pause_halts_as_soon_as_the_others_are_back() -> None:
    site = Site()
    site.now += PAUSE_S
    site.run(FOR_S + 1.0, heard=(OTHER,))
    (halt,) = site.halts
    assert "telemetry" in halt.reason


def test_silence_of_all_after_a_pause_halts_once_the_grace_is_over() -> None:
    site = Site()
    site.now += PAUSE_S
    site.run(RESUME_S - 1.0)
    assert not site.halts
    site.run(1.0 + FOR_S + 1.0)
    assert len(site.halts) == 1


def test_silence_while_ticks_go_on_halts_without_any_grace() -> None:
    site = Site()
    site.run(STALE_S + FOR_S + 1.0, heard=(OTHER,))
    assert len(site.halts) == 1


def test_a_command_that_is_read_first_after_the_pause_hides_it_not() -> None:
    site = Site()
    site.now += PAUSE_S
    site.loop.command(
        operator_command(CommandKind.STOP, cluster="c", now=site.now, experiment_id="other"), now=site.now
    )
    site.run(4.0)
    site.run(10.0, heard=(TARGET, OTHER))
    assert not site.halts
