"""Every Prometheus metric of the control plane, on one page. Names keep to Prometheus' conventions.

Cardinality: labels are clusters, topics, partitions, stages, statuses, verdicts, rule names: bounded by
configuration, never by nodes, entities or ids. The agent's own metrics are in `gpuchaos_agent/metrics.py`.
"""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

RECORDS: Final = Counter("gpuchaos_records_total", "Records read, by topic.", ["topic"])
DEADLETTERS: Final = Counter(
    "gpuchaos_deadletters_total", "Records set aside because they could not be read.", ["topic", "stage"]
)
FRAMES: Final = Counter("gpuchaos_frames_total", "Telemetry frames judged.")
FRAMES_LATE: Final = Gauge(
    "gpuchaos_frames_late", "Frames that came after their tick was judged, since the partition came.", ["partition"]
)
ANOMALIES: Final = Counter("gpuchaos_anomalies_total", "Anomalies opened, by how they were found.", ["kind"])
EXPERIMENTS: Final = Gauge("gpuchaos_experiments", "Experiments by status.", ["cluster", "status"])
VERDICTS: Final = Counter("gpuchaos_verdicts_total", "Experiments finished, by verdict.", ["cluster", "verdict"])
BLAST_RADIUS: Final = Gauge(
    "gpuchaos_blast_radius",
    "Entities hurt beyond declared targets, summed over running experiments.",
    ["cluster", "level"],
)
HALTS: Final = Counter("gpuchaos_halts_total", "Halts requested, by rule.", ["cluster", "rule"])
HALTS_OPEN: Final = Gauge("gpuchaos_halts_open", "Halts not yet confirmed, by state.", ["cluster", "state"])
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
    "Share of the error budget of a recovery objective that is left.",
    ["sloth_service", "sloth_slo"],
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
