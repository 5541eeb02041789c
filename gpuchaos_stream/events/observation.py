"""What the loop observes about time and state: all that a decision depends on besides faults and anomalies.

They travel through Kafka, not through memory, so that a restart, a second worker and a replay decide alike.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import Field

from gpuchaos_stream.events.base import Event, Timestamp, Wire


class Tick(Event):
    """The clock of the control stage: deadlines are checked when one arrives, never by a timer.

    `host` is the node on which the worker that sends it runs.
    """

    type: Literal["tick"] = "tick"
    host: str = ""


class NodeSeen(Wire):
    """The last frame of a node: event time and, in seconds, how far its clock is from the broker's."""

    last: Timestamp
    clock_offset_s: float | None = Field(default=None, allow_inf_nan=False)
    dropped: int = 0
    stale: bool = False


class CellSummary(Event):
    """What a detect worker knows of a cell at one tick.

    `nodes[n]` says when each node was last seen. `columns[metric][i]` is a node-level value of `order[i]`,
    named `kind.metric.aggregate` (`gpu.utilization_ratio.mean`), None where unknown. `jobs[job][metric]`
    is the same over the job's processes in this cell. Steady-state checks over telemetry read these.
    `processes[job][node]` are the job's processes by id (pid) with the index of the GPU that each uses ("" where its
    node does not say), as the node last said: one that is silent keeps them. `not_running[node]` are those that the
    tick shows stopped or gone.
    """

    type: Literal["cell_summary"] = "cell_summary"
    cell: str
    nodes: dict[str, NodeSeen]
    order: tuple[str, ...]
    columns: dict[str, tuple[float | None, ...]]
    jobs: dict[str, dict[str, float | None]] = {}
    processes: dict[str, dict[str, dict[str, str]]] = {}
    not_running: dict[str, tuple[str, ...]] = {}


class CheckState(StrEnum):
    """The answer of a steady-state check. Unknown is unsafe: it counts against the limit, like bad."""

    OK = "ok"
    BAD = "bad"
    UNKNOWN = "unknown"


class ProbeResult(Event):
    """The answer of one check, of the steady state or of recovery, that had to ask outside."""

    type: Literal["probe_result"] = "probe_result"
    experiment_id: str
    check: str
    state: CheckState
    value: float | None = None
    detail: str = ""


Observation = Annotated[Tick | CellSummary | ProbeResult, Field(discriminator="type")]
