"""The topics: one table, from which they are created, documented and checked.

Control topics share one partition count and are partitioned by **cluster** whatever their key is: the
correlate worker must meet everything of a cluster, while compaction needs the entity as key. Telemetry is
partitioned by cell, so that peers meet in one detect worker.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

HOUR: Final = 3600
DAY: Final = 24 * HOUR

Cleanup = Literal["delete", "compact"]


@dataclass(frozen=True, slots=True)
class Topic:
    """One Kafka topic of the contract.

    `retention_s` is in seconds and only meaningful with `cleanup="delete"`. `partitioned_by` names the
    field whose value chooses the partition, which for control topics is not the record key.
    """

    name: str
    key: Literal["cell", "cluster", "experiment", "incident", "node", "source"]
    partitioned_by: Literal["cell", "cluster", "source"]
    cleanup: Cleanup
    retention_s: int
    holds: str


TELEMETRY: Final = Topic(
    "gpuchaos.telemetry.v1", "cell", "cell", "delete", 6 * HOUR, "one node, one tick: a columnar frame"
)
NODES: Final = Topic(
    "gpuchaos.nodes.v1", "node", "cluster", "compact", 0, "where a node sits and what it holds: its topology"
)
FAULTS: Final = Topic(
    "gpuchaos.faults.v1", "cluster", "cluster", "delete", 30 * DAY, "faults injected, undone, refused, observed"
)
OBSERVATIONS: Final = Topic(
    "gpuchaos.observations.v1",
    "cluster",
    "cluster",
    "delete",
    7 * DAY,
    "ticks, cell summaries, probe results: all that time and state depend on, so that a replay is exact",
)
ANOMALIES: Final = Topic(
    "gpuchaos.anomalies.v1", "cluster", "cluster", "delete", 7 * DAY, "anomalies opened, updated, closed"
)
EXPERIMENTS: Final = Topic(
    "gpuchaos.experiments.v1", "experiment", "cluster", "compact", 0, "the latest state of each experiment"
)
COMMANDS: Final = Topic(
    "gpuchaos.commands.v1", "cluster", "cluster", "delete", DAY, "signed: start, stop, inject, renew, halt, reset"
)
INCIDENTS: Final = Topic(
    "gpuchaos.incidents.v1", "incident", "cluster", "compact", 0, "the latest state of each incident"
)
DEADLETTER: Final = Topic(
    "gpuchaos.deadletter.v1", "source", "source", "delete", 7 * DAY, "what could not be read, and why"
)

TOPICS: Final[tuple[Topic, ...]] = (
    TELEMETRY,
    NODES,
    FAULTS,
    OBSERVATIONS,
    ANOMALIES,
    EXPERIMENTS,
    COMMANDS,
    INCIDENTS,
    DEADLETTER,
)
BY_NAME: Final[dict[str, Topic]] = {topic.name: topic for topic in TOPICS}

#: What the control stage consumes; telemetry is the detect stage's, the rest are outputs.
CONTROL_INPUTS: Final[tuple[Topic, ...]] = (NODES, FAULTS, OBSERVATIONS, ANOMALIES, COMMANDS)

#: What the loop writes for others: read back only to set aside what is not of the contract.
AUDITED: Final[tuple[Topic, ...]] = (EXPERIMENTS, INCIDENTS)
