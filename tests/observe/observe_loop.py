"""The control stage with a trace: an experiment that spreads and is halted, from its start to its end.

For a process of its own that exports (`observe_otlp.run`, with the helpers of `loop` and `observe`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, Final

import test_loop_control as control
from test_loop_recording import HEADER

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.command import CommandKind, SignedCommand
from gpuchaos_stream.events.envelope import Record, command_record, from_value, to_record, traceparent_of
from gpuchaos_stream.events.experiment import Verdict
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.observation import Tick
from gpuchaos_stream.loop.cluster import ClusterLoop
from gpuchaos_stream.loop.control import Control
from gpuchaos_stream.loop.recording import Recorded
from gpuchaos_stream.loop.replay import judge

TRACE: Final = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT: Final = f"00-{TRACE}-b7ad6b7169203331-01"
#: How long the control stage takes here to decide, seconds.
LATENCY_S: Final = 0.25


class Traced(control.Machine):
    """A worker whose records keep their headers, and whose clock is the broker's."""

    def restart(self) -> None:
        self.at = getattr(self, "at", control.T0)
        self.given: list[Recorded] = getattr(self, "given", [])
        self.control = Control(
            table=self.table,
            make_loop=lambda cluster: ClusterLoop(cluster, control.RULES),
            verifier=control.VERIFIER,
            signer=control.CONTROL,
            source="/test",
            clock=lambda: self.at + LATENCY_S,
        )
        self.control.restore(lambda _cluster: True)

    def record(self, record: Record, at: float) -> Recorded:
        self.offset, self.at = self.offset + 1, at
        at_ms = int(at * 1000)
        self.given.append(Recorded(record.topic.name, 0, self.offset, at_ms, None, record.value, tuple(record.headers)))
        return self.given[-1]


def run(crashes: Iterable[str | None] = ()) -> Traced:
    """Plays it, with a kill wherever `crashes` says, and then lets time pass until it is over."""
    control.command_record = lambda *args, **kw: command_record(*args, **kw, traceparent=TRACEPARENT)  # type: ignore[attr-defined]
    machine = Traced()
    control.play(machine, crashes)
    lost = FaultEvent(
        id="lost",
        time=machine.at,
        cluster=control.CLUSTER,
        phase=FaultPhase.OBSERVED,
        fault="gpu_lost",
        node="n2",
        entity="gpu/n2/0",
        severity=Severity.CRITICAL,
    )
    machine.give([machine.record(to_record(lost, topics.FAULTS, source="/t"), machine.at)])
    for step in range(20):
        at = control.T0 + 40 + step
        tick = Tick(id=f"later{step}", time=at, cluster=control.CLUSTER)
        both = (tick, control.summary(at))
        machine.give([machine.record(to_record(each, topics.OBSERVATIONS, source="/t"), at) for each in both])
    return machine


def replay(machine: Traced) -> None:
    """Judges again what the machine was given, as `gpuchaos replay` does."""
    again = judge(HEADER, machine.given)
    assert {each.verdict for each in again.experiments.values()} == {Verdict.HALTED}


def told(machine: Traced) -> str:
    """Kind of each command and the `traceparent` that it carried, as JSON."""
    found: dict[str, list[Any]] = {kind.value: [] for kind in CommandKind}
    for record in machine.sent:
        if record.topic is topics.COMMANDS:
            signed = from_value(record.topic.name, record.value)
            assert isinstance(signed, SignedCommand)
            kind = json.loads(signed.payload)["kind"]
            found[kind].append(traceparent_of(record.headers))
    return json.dumps({kind: sorted(set(each)) for kind, each in found.items() if each})
