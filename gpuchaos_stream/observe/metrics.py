"""Every Prometheus metric of the control plane, on one page. Names keep to Prometheus' conventions.

Cardinality: labels are clusters, topics, partitions, stages, statuses, verdicts, rule names: bounded by
configuration. Three families are bounded by number instead: one series a cell (about 390 cells of 32 nodes at 12,500
nodes), one a job and cell, and those of `experiment_id`, for the running experiments and the newest of the last hour
(`loop/gauges.py`). Nothing here is by node or device: those are the agents' own, in `gpuchaos_agent/metrics.py` and
`gpuchaos_agent/devices.py`. What each means for whom is in `docs/metrics.md`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

from gpuchaos_stream.events.signing import Refusal
from gpuchaos_stream.events.topics import TOPICS

#: Labels of what is told of one experiment.
EXPERIMENT: Final = ("cluster", "experiment_id")
#: What reads records and may set one aside.
STAGES: Final = ("detect", "control", "audit")

RECORDS: Final = Counter("gpuchaos_records_total", "Records read, by topic.", ["topic"])
DEADLETTERS: Final = Counter(
    "gpuchaos_deadletters_total", "Records set aside because they could not be read.", ["topic", "stage"]
)
FRAMES: Final = Counter("gpuchaos_frames_total", "Telemetry frames judged.")
FRAMES_LATE: Final = Gauge(
    "gpuchaos_frames_late", "Frames that came after their tick was judged, since the partition came.", ["partition"]
)
ANOMALIES: Final = Counter("gpuchaos_anomalies_total", "Anomalies opened, by how they were found.", ["kind"])
EXPERIMENTS: Final = Gauge(
    "gpuchaos_experiments", "Experiments by status; finished ones for an hour.", ["cluster", "status"]
)
VERDICTS: Final = Counter("gpuchaos_verdicts_total", "Experiments finished, by verdict.", ["cluster", "verdict"])
BLAST_RADIUS: Final = Gauge(
    "gpuchaos_blast_radius",
    "Entities hurt beyond declared targets, summed over running experiments.",
    ["cluster", "level"],
)
HALTS: Final = Counter("gpuchaos_halts_total", "Halts requested, by rule.", ["cluster", "rule"])
HALTS_OPEN: Final = Gauge(
    "gpuchaos_halts_open",
    "Halts not yet confirmed, by state; those of a dry run are not counted.",
    ["cluster", "state"],
)
BREAKER: Final = Gauge("gpuchaos_breaker_tripped", "1 while the breaker is tripped.", ["cluster"])
RULE_ERRORS: Final = Gauge(
    "gpuchaos_rule_errors", "Evaluations of a rule that raised since the worker took the cluster.", ["cluster", "rule"]
)
COMMANDS_REFUSED: Final = Counter("gpuchaos_commands_refused_total", "Commands not believed, by reason.", ["reason"])
RECOVERY: Final = Histogram(
    "gpuchaos_recovery_seconds",
    "Recovery times of finished experiments, by fault and phase (ttd, ttm, ttr). Misses are not in it: see verdicts.",
    ["fault", "phase"],
    buckets=(0.5, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1800),
)
BUDGET: Final = Gauge(
    "slo_period_error_budget_remaining_ratio",
    "Share of the error budget of a recovery objective that is left, over the last 500 runs of the fault.",
    ["cluster", "sloth_service", "sloth_slo"],
)
SETTLE_ERRORS: Final = Counter(
    "gpuchaos_settle_errors_total",
    "Times that a cluster's loop raised: a bug, and the cluster is not guarded.",
    ["cluster"],
)
DECISION: Final = Histogram(
    "gpuchaos_decision_seconds",
    "From a record's append at the broker to the end of the decision made on it.",
    buckets=(0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5),
)

# Objectives: the raw counts that the recording rules in rules/prometheus/ make Sloth's series of.

OBJECTIVE_RUNS: Final = Counter(
    "gpuchaos_objective_runs_total",
    "Finished runs that an objective judged, by fault, kind of target and objective (ttd, ttm, ttr).",
    ["cluster", "fault", "target_kind", "objective"],
)
OBJECTIVE_MISSES: Final = Counter(
    "gpuchaos_objective_misses_total",
    "Those of them that missed it, or never got there.",
    ["cluster", "fault", "target_kind", "objective"],
)
OBJECTIVE_RATIO: Final = Gauge(
    "gpuchaos_objective_ratio",
    "Share of runs that should meet the objective, as the newest counted plan says.",
    ["cluster", "fault", "objective"],
)

# The fleet, as the control stage knows it.

NODES: Final = Gauge(
    "gpuchaos_nodes",
    "Nodes heard of within the hour, by state: fresh, or silent for more than 5 s.",
    ["cluster", "state"],
)
GPUS: Final = Gauge("gpuchaos_gpus", "GPUs that the topology knows.", ["cluster"])
TELEMETRY_AGE: Final = Gauge(
    "gpuchaos_telemetry_age_seconds",
    "Age of the oldest node's last frame, of nodes heard within the hour.",
    ["cluster"],
)
CELL_NODES: Final = Gauge("gpuchaos_cell_nodes", "Nodes of a cell, by state.", ["cluster", "cell", "state"])
ANOMALIES_OPEN: Final = Gauge(
    "gpuchaos_anomalies_open",
    "Anomalies of the last hour that last, by what explains them: an experiment, or none.",
    ["cluster", "attribution"],
)

# One experiment: running ones, and the newest finished ones of the last hour (see MOST_EXPERIMENTS in loop/gauges.py).

EXPERIMENT_INFO: Final = Gauge(
    "gpuchaos_experiment_info",
    "Always 1: what an experiment is and how far it is; join it on experiment_id.",
    [*EXPERIMENT, "name", "owner", "fault", "target_kind", "status", "verdict", "trace_id"],
)
EXPERIMENT_TIME: Final = Gauge(
    "gpuchaos_experiment_timestamp_seconds",
    "When something happened to it, event time: started, injected, ends, halt_requested, halt_undone, finished.",
    [*EXPERIMENT, "event"],
)
EXPERIMENT_FAULTS: Final = Gauge(
    "gpuchaos_experiment_faults_present", "Its faults that are injected and not taken back.", EXPERIMENT
)
EXPERIMENT_BLAST: Final = Gauge(
    "gpuchaos_experiment_blast_radius", "Entities beyond its targets that it hurt, so far.", [*EXPERIMENT, "level"]
)
EXPERIMENT_LIMIT: Final = Gauge(
    "gpuchaos_experiment_blast_limit",
    "Most of them that its plan allows; absent without a limit.",
    [*EXPERIMENT, "level"],
)
EXPERIMENT_LOST: Final = Gauge(
    "gpuchaos_experiment_lost_gpu_seconds", "GPU time beyond its targets that was lost so far.", EXPERIMENT
)
EXPERIMENT_LOST_LIMIT: Final = Gauge(
    "gpuchaos_experiment_lost_gpu_limit_seconds", "Most of it that its plan allows; absent without a limit.", EXPERIMENT
)
EXPERIMENT_UNKNOWN: Final = Gauge(
    "gpuchaos_experiment_unknown_nodes", "Nodes of its targets, or hurt ones, whose telemetry has stopped.", EXPERIMENT
)
EXPERIMENT_RECOVERY: Final = Gauge(
    "gpuchaos_experiment_recovery_seconds", "Its ttd, ttm and ttr; absent while open.", [*EXPERIMENT, "phase"]
)
EXPERIMENT_OBJECTIVE: Final = Gauge(
    "gpuchaos_experiment_objective_seconds", "The objectives for them in its plan.", [*EXPERIMENT, "phase"]
)
EXPERIMENT_MISSED: Final = Gauge(
    "gpuchaos_experiment_objective_missed",
    "1 where it missed one, 0 where it met it; absent while open.",
    [*EXPERIMENT, "phase"],
)
EXPERIMENT_ANOMALIES: Final = Gauge(
    "gpuchaos_experiment_anomalies",
    "Anomalies during it, by attribution: attributed to it, or unattributed.",
    [*EXPERIMENT, "attribution"],
)

# A cell and a job in a cell: the summaries that steady-state checks read, over the nodes of the cell. A training job's
# label is no `job`: Prometheus has that for its own and would rename ours.

CELL_GPU_UTILIZATION: Final = Gauge(
    "gpuchaos_cell_gpu_utilization_ratio", "Share of time a kernel ran, mean per node.", ["cluster", "cell", "over"]
)
CELL_GPU_POWER: Final = Gauge(
    "gpuchaos_cell_gpu_power_watts", "Power of a GPU, mean per node.", ["cluster", "cell", "over"]
)
CELL_GPU_TEMPERATURE: Final = Gauge(
    "gpuchaos_cell_gpu_temperature_celsius", "Temperature of the hottest GPU of a node.", ["cluster", "cell", "over"]
)
CELL_RDMA_ACTIVE: Final = Gauge(
    "gpuchaos_cell_rdma_port_active", "1 where every RDMA port of a node is active.", ["cluster", "cell", "over"]
)
CELL_RDMA_RX: Final = Gauge(
    "gpuchaos_cell_rdma_receive_bytes_per_second",
    "Bytes received by a port, mean per node.",
    ["cluster", "cell", "over"],
)
CELL_NUMA_REMOTE: Final = Gauge(
    "gpuchaos_cell_numa_remote_pages_per_second",
    "Pages allocated on another NUMA node than the CPU's, worst of a node.",
    ["cluster", "cell", "over"],
)
CELL_MISALIGNED: Final = Gauge(
    "gpuchaos_cell_numa_misaligned_ratio",
    "How far the worst process of a node is from its GPU: 0 beside it, 1 far.",
    ["cluster", "cell", "over"],
)
JOB_STEP_TIME: Final = Gauge(
    "gpuchaos_job_step_time_seconds",
    "Duration of a step, median of the job's processes in a cell.",
    ["cluster", "cell", "training_job"],
)
JOB_STEPS: Final = Gauge(
    "gpuchaos_job_steps_per_second",
    "Steps of the slowest process of the job in a cell.",
    ["cluster", "cell", "training_job"],
)
JOB_PROGRESS_AGE: Final = Gauge(
    "gpuchaos_job_progress_age_seconds",
    "Time since the last progress of its running processes.",
    ["cluster", "cell", "training_job"],
)
JOB_PROCESSES: Final = Gauge(
    "gpuchaos_job_processes",
    "Processes of the job in a cell, by state: running or all.",
    ["cluster", "cell", "training_job", "state"],
)

# A counter that appears with its first increment shows no increase to `increase()`: it must be seen at 0 before.
for _topic in TOPICS:
    for _stage in STAGES:
        DEADLETTERS.labels(_topic.name, _stage)
for _refusal in Refusal:
    COMMANDS_REFUSED.labels(_refusal.value)
