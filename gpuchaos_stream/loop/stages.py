"""All stages of one cluster, and their state as one."""

from __future__ import annotations

from collections.abc import Mapping

from gpuchaos_stream.act.halts import Halts
from gpuchaos_stream.correlate.correlator import Correlator
from gpuchaos_stream.correlate.freshness import Freshness
from gpuchaos_stream.experiments.machine import Machine
from gpuchaos_stream.experiments.safety import Gate
from gpuchaos_stream.guard.breaker import Breaker
from gpuchaos_stream.guard.guard import Guard
from gpuchaos_stream.guard.rules import RuleSet
from gpuchaos_stream.loop.heard import Heard
from gpuchaos_stream.recovery.recovery import Recovery
from gpuchaos_stream.recovery.slo import SloBook
from gpuchaos_stream.stage import Stateful
from gpuchaos_stream.topology.topology import Topology


class Stages:
    """The stages of a cluster's control loop, empty; they meet in `cluster.py`."""

    def __init__(self, cluster: str, rules: RuleSet, *, dry_run: bool = False) -> None:
        self.cluster = cluster
        self.dry_run = dry_run
        self.topology = Topology()
        self.correlator = Correlator(self.topology)
        self.freshness = Freshness()
        self.recovery = Recovery()
        self.slo = SloBook()
        self.machine = Machine()
        self.gate = Gate(rules.safety, self.topology)
        self.guard = Guard(rules, dry_run=dry_run)
        self.breaker = Breaker(cluster)
        self.halts = Halts(cluster)
        self.heard = Heard()
        #: State was given back, or records stood still, and nothing was heard of the present yet (`cluster.RESUME_S`).
        self.resuming = False

    @property
    def _all(self) -> tuple[Stateful, ...]:
        return (
            self.topology,
            self.correlator,
            self.freshness,
            self.recovery,
            self.slo,
            self.machine,
            self.gate,
            self.guard,
            self.breaker,
            self.halts,
            self.heard,
        )

    def dirty(self) -> dict[str, bytes | None]:
        """What changed in any stage since the last call; see `stage.Stateful`."""
        changed: dict[str, bytes | None] = {}
        for stage in self._all:
            changed |= stage.dirty()
        return changed

    def load(self, items: Mapping[str, bytes]) -> None:
        """Gives every stage its state back."""
        for stage in self._all:
            stage.load(items)
        self.resuming = bool(items)
