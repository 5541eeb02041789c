"""What every fault is: one effect on one target of this node, and how it is taken back.

A strategy declares what it certifies and what it does not. One that cannot reach its layer here refuses with
the reason (`check`); it never fakes. Everything that the undo needs goes into the journal before the effect
(`plan`), and the undo works from the journal alone, any number of times, in another process, after a reboot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

Payload = dict[str, Scalar]


class InjectError(Exception):
    """The effect could not be brought about or taken back; the text says why."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """What moved because of the injection. `moved` False voids the experiment: injected is not happened."""

    moved: bool
    detail: Payload = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Bmc:
    """The management controller of the node. The password is in a file, read when it is used, and never told."""

    url: str
    user: str = ""
    password_file: Path | None = None
    system: str | None = None
    ca_file: Path | None = None
    insecure: bool = False


@dataclass(frozen=True, slots=True)
class Env:
    """The node as strategies see it; every path can be a fixture.

    `job_of(pid)` is the job of a process or None; `gpu_pci(index)` a GPU's PCI address or None; `gpu_of(pid)` the
    GPU of a job's process, by index or PCI address. `protected` are command names that no fault may touch, besides
    those that each strategy protects anyway. `state_dir` is where a strategy may keep what is too large for the
    journal (bytes to put back), in a file named by the fault's id. `brokers` are the agent's own Kafka addresses as
    `host:port`: its way to them is never cut unless a plan asks for it. `bmc` says how to reach this node's BMC,
    `bmcs` how to reach those of other nodes, by node. `reload_commands` are the only commands by which a fault may
    make a service read its files again, by name. `corruptible` are the only folders in which a fault may flip bits of
    files.
    """

    node: str
    boot_id: str
    procfs: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    protected: frozenset[str] = frozenset()
    any_process: bool = False
    job_of: Callable[[int], str | None] = lambda _pid: None
    gpu_pci: Callable[[str], str | None] = lambda _index: None
    gpu_of: Callable[[int], str | None] = lambda _pid: None
    sysfs: Path = Path("/sys")
    state_dir: Path = Path("/var/lib/gpuchaos-agent")
    brokers: tuple[str, ...] = ()
    bmc: Bmc | None = None
    bmcs: Mapping[str, Bmc] = field(default_factory=dict)
    reload_commands: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    corruptible: tuple[Path, ...] = ()


class FaultStrategy(Protocol):
    """One kind of fault. The calls come in this order: check, plan, inject, evidence, undo, verify.

    Calls for different faults come at the same time, each from a thread of its own that lasts no longer than the call
    (`hands`): what a strategy keeps, it keeps by fault id. Beside an `inject` or `evidence` that hangs, `undo` is
    called all the same (`standing`).
    """

    @property
    def name(self) -> str:
        """As in plans: `process-stop`."""

    @property
    def layer(self) -> str:
        """The layer that is really reached, in words."""

    @property
    def certifies(self) -> tuple[str, ...]:
        """Claims that an experiment with this fault may make."""

    @property
    def not_certified(self) -> tuple[str, ...]:
        """Claims that it must not make, although they sound near."""

    @property
    def params(self) -> type[Authored]:
        """The model of the parameters; they are validated by it before anything runs."""

    def unavailable(self) -> str | None:
        """Why no target of this node could suffer this, or None. Changes nothing."""

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Why this cannot be done to `target` here and now, or None. Changes nothing."""

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:
        """What the undo will need. Changes nothing.

        Raises:
            InjectError: the target has gone since `check`.
        """

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:
        """What the fault takes hold of, as `kind:name` (`process:4711`, `mount:/data`, `port:mlx5_0`).

        Two faults on one resource would undo each other in the wrong order: the second one is refused.
        """

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """What `inject` and then `undo` will do, exactly, as a person would type it; for `--dry-run`."""

    def inject(self, entry: JournalEntry) -> None:
        """Brings the effect about. The entry is on disk.

        Raises:
            InjectError: it could not; whatever half-effect there is, `undo` takes it back.
        """

    def evidence(self, entry: JournalEntry) -> Evidence:
        """What moved, measured at the layer itself. May wait up to half a second for it."""

    def undo(self, entry: JournalEntry) -> None:
        """Takes the effect back, or does nothing where it is not there.

        Raises:
            InjectError: it could not; it will be called again.
        """

    def verify(self, entry: JournalEntry) -> bool:
        """Whether the effect is gone, measured at the layer itself. May wait up to half a second for it."""
