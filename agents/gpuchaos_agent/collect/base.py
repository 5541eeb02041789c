"""What every collector is: one source on this node, read once a tick, with its root path injected.

A collector never waits for long, never raises for what is merely absent (it says so in `absent`), and knows
neither Kafka nor the names of cluster and node: the agent adds those (`snapshot.py`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Protocol, runtime_checkable

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.frame import GroupLayout, Kind
from gpuchaos_stream.events.node import GpuPlace, PortPlace

#: `columns[m][d]` is metric `m` of device `d`; None where it could not be read, which is never zero.
Columns = tuple[tuple[float | None, ...], ...]

#: What a fact is about. `gpu` with a PCI address as `local` is resolved to the GPU's index by `Snapshot`.
FactKind = Literal["node", "gpu", "port", "numa", "process"]

Evidence = dict[str, str | float | int | bool | None]


@dataclass(frozen=True, slots=True)
class Group:
    """The devices of one kind and their numbers in this tick; the shape is that of a frame's group."""

    layout: GroupLayout
    columns: Columns


@dataclass(frozen=True, slots=True)
class Fact:
    """A hard fact that a source states: it becomes an OBSERVED `FaultEvent`.

    `key` is the same whenever the same record is read again (boot id and sequence number of a log record), so
    that the event's id is as well. `local` is empty for the node itself. `time` is seconds since the epoch on
    this node's clock. `injected_mark` is true where the record names itself an injection
    (`gpuchaos-injected=<fault_id>`), and then `evidence["fault_id"]` holds the id.
    """

    key: str
    fault: str
    severity: Severity
    time: float
    kind: FactKind = "node"
    local: str = ""
    origin: Origin = Origin.KERNEL
    injected_mark: bool = False
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Places:
    """What a collector knows of where devices sit; all collectors' places together make a `NodeInfo`.

    `rack`, `leaf` and `nvlink_domain` are of the node; settings that name them win over what was found.
    """

    gpus: tuple[GpuPlace, ...] = ()
    ports: tuple[PortPlace, ...] = ()
    jobs: tuple[str, ...] = ()
    numa: tuple[str, ...] = ()
    rack: str | None = None
    leaf: str | None = None
    nvlink_domain: str | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one collector has to say in one tick.

    `absent` maps what is missing to why, in words for a person (`{"gpu": "NVML library not found"}`).
    `info` is for people as well: the position in a log, how many records were lost.
    """

    groups: tuple[Group, ...] = ()
    absent: dict[str, str] = field(default_factory=dict)
    facts: tuple[Fact, ...] = ()
    places: Places = Places()
    info: dict[str, str | int | float] = field(default_factory=dict)


class Collector(Protocol):
    """One source. `kinds` are the frame groups it may fill, empty for a source of facts alone."""

    @property
    def name(self) -> str: ...

    @property
    def kinds(self) -> tuple[Kind, ...]: ...

    def read(self, now: float) -> Reading:
        """Reads once. `now` is the node's clock, seconds since the epoch; it never goes to sleep."""

    def close(self) -> None:
        """Gives back what is open. May be called twice."""


@runtime_checkable
class Follower(Protocol):
    """A collector that follows a log: it can be waited for, and keeps a position over restarts."""

    def fileno(self) -> int | None:
        """The descriptor to wait on for reading, None where it cannot be waited on (poll with `drain` then)."""

    def drain(self, now: float) -> tuple[Fact, ...]:
        """The facts that have come since the last `read` or `drain`. Bounded per call; never blocks."""

    def commit(self) -> None:
        """Saves the position: everything handed out so far is safe elsewhere. Until then a restart repeats it."""


@dataclass(frozen=True, slots=True)
class JobSource:
    """One process of a job on this node: who it is and where its progress can be read.

    Either `pid` or `pidfile` names the process; `log` is the application's log, `metrics_url` its Prometheus
    page, `heartbeat` a file that it writes (docs/agent.md names the forms). `gpu` is the GPU it uses, by index
    or PCI address; `numa_node` is that GPU's node where it cannot be found out. `step_pattern` and
    `time_pattern` (seconds) are regular expressions with one group; None for the usual forms.
    """

    job: str
    pid: int | None = None
    pidfile: Path | None = None
    log: Path | None = None
    gpu: str | None = None
    numa_node: int | None = None
    step_pattern: str | None = None
    time_pattern: str | None = None
    metrics_url: str | None = None
    heartbeat: Path | None = None


@dataclass(frozen=True, slots=True)
class Sources:
    """Where the collectors look: each root can be a fixture tree.

    `state_dir` None keeps no position over restarts. `rails` maps a port's name to its rail; `place` is a file
    that says the same and more where it is given. `kernel_log` says by which way the kernel log is read:
    `auto` takes /dev/kmsg, else the journal, else `syslog`. `dcgm_url` is the page of a DCGM exporter.
    `app_logs` are further logs of programs on this node (a database client's, a proxy's), by name.
    """

    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    state_dir: Path | None = None
    jobs: tuple[JobSource, ...] = ()
    rails: dict[str, str] = field(default_factory=dict)
    place: Path | None = None
    kernel_log: Literal["auto", "kmsg", "journal", "syslog"] = "auto"
    syslog: Path = Path("/var/log/syslog")
    dcgm_url: str | None = None
    app_logs: dict[str, Path] = field(default_factory=dict)
