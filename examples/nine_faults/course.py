"""One experiment from its start to its end, and everything that was said of it meanwhile."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field
from typing import Any, Final

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import BadMessageError, from_value
from gpuchaos_stream.events.experiment import ExperimentState, Status
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.incident import AttributedAnomaly, Incident
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.experiments import client
from gpuchaos_stream.sim.demo_table import Narrator
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.house import House
from nine_faults.trial import Site, Trial

#: What is listened to.
TOPICS: Final = (topics.EXPERIMENTS.name, topics.INCIDENTS.name, topics.FAULTS.name)
#: Seconds after which an experiment that has not finished is given up.
PATIENCE_S: Final = 300.0


@dataclass(slots=True)
class Outcome:
    """What became of one fault. `before` and `after` are the workload's own words."""

    site: str
    fault: str
    name: str
    before: dict[str, Any]
    after: dict[str, Any] = field(default_factory=dict)
    state: ExperimentState | None = None
    injected: FaultEvent | None = None
    incidents: dict[str, Incident] = field(default_factory=dict)

    def heard(self, event: FaultEvent) -> None:
        """Takes what an agent says of the fault; the first injection counts."""
        if event.phase is FaultPhase.INJECTED and self.injected is None:
            self.injected = event

    @property
    def charged(self) -> list[AttributedAnomaly]:
        """The anomalies that the loop charged to the fault, the first one first."""
        found = {
            anomaly.anomaly_id: anomaly
            for incident in self.incidents.values()
            if self.state is not None and incident.experiment_id == self.state.id and not incident.superseded
            for anomaly in incident.anomalies
        }
        return sorted(found.values(), key=lambda anomaly: (anomaly.start, anomaly.anomaly_id))

    def grown(self, name: str) -> int:
        """By how much a number of the workload is higher than before."""
        return int(self.after.get(name, 0)) - int(self.before.get(name, 0))


class Course:
    """Runs experiments, one at a time."""

    def __init__(self, house: House, bus: Bus, reader: Any, signer: Signer, cluster: str, narrator: Narrator) -> None:
        self._house = house
        self._bus = bus
        self._reader = reader
        self._signer = signer
        self._cluster = cluster
        self._narrator = narrator

    async def run(self, site: Site, trial: Trial) -> Outcome:
        """Starts the trial's experiment and waits for its end.

        Raises:
            UserErrors: its plan is refused.
            UserError: a part of the house has ended.
        """
        plan = trial.plan()
        outcome = Outcome(site.name, plan.fault.name, plan.name, site.status())
        experiment_id = f"{plan.name}-{secrets.token_hex(4)}"
        command = client.start_command(plan, cluster=self._cluster, experiment_id=experiment_id)
        await client.send(self._bus, self._signer, command)
        provoked = False
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            for record in await self._reader.batch(0.3):
                self._take(record, experiment_id, outcome)
            if outcome.injected is not None and not provoked:
                provoked = True
                trial.provoke()
            if outcome.state is not None and outcome.state.status is Status.FINISHED:
                break
            for child in self._house.children:
                if not child.running:
                    raise UserError(child.name, f"ended with status {child.status}", child.tail())
        await self._last_words(experiment_id, outcome)
        outcome.after = site.status()
        return outcome

    async def _last_words(self, experiment_id: str, outcome: Outcome) -> None:
        """What was said just before the end may come just after it: the topics are not one."""
        while records := await self._reader.batch(1.0):
            for record in records:
                self._take(record, experiment_id, outcome)
            if time.time() - max(record.timestamp for record in records) / 1000 < 1.0:
                return

    def _take(self, record: Any, experiment_id: str, outcome: Outcome) -> None:
        try:
            event = from_value(record.topic, record.value)
        except BadMessageError:
            return
        if isinstance(event, ExperimentState) and event.id == experiment_id:
            outcome.state = event
            self._narrator.experiment(event)
        elif isinstance(event, Incident) and event.cluster == self._cluster:
            outcome.incidents[event.id] = event
        elif isinstance(event, FaultEvent) and event.experiment_id == experiment_id:
            outcome.heard(event)
