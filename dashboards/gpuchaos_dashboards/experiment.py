"""One experiment: what was done when, what broke because of it, against which limit, and how long recovery took."""

from __future__ import annotations

from typing import Final

from gpuchaos_dashboards import shared
from gpuchaos_dashboards.pages import Mark, Page, Variable, trace, url
from gpuchaos_dashboards.parts import About, Query, bad_from, bars, grid, lines, number, states
from gpuchaos_dashboards.shared import runbook, to_runbook

E: Final = 'cluster="$cluster", experiment_id="$experiment_id"'
_GONE: Final = "no such experiment in this time: series of one that ended are there for an hour"

_HOW: Final = f"""
**Choose an experiment above; orange is from injection to undo, red a halt, yellow a new anomaly.** *Timeline* says
what was so when. *Blast radius* is harm beyond the declared targets: at 100 % of a limit the experiment is halted.
TTD, TTM and TTR are seconds from the injection to detection, mitigation and recovery
({shared.page_of_docs("experiments.md#times", "how they are measured")}). A trace leads through agent, worker and
guard. After an hour the series end; look further back in time, or at `gpuchaos report`
({shared.page_of_docs("reports.md", "reports")}). Still on and over its end: {runbook("GPUChaosExperimentOverdue")}.
"""

_CHOICE: Final = Variable(
    "experiment_id", "Experiment", 'label_values(gpuchaos_experiment_info{cluster="$cluster"}, experiment_id)'
)
_NOW: Final = f"max by (attribution) (gpuchaos_experiment_anomalies{{{E}}})"
_BEFORE: Final = f"max by (attribution) (last_over_time(gpuchaos_experiment_anomalies{{{E}}}[5m] offset $__interval))"
_MARKS: Final = (
    Mark("Fault present", f"sum(gpuchaos_experiment_faults_present{{{E}}}) > 0", "orange", "Fault present", ""),
    Mark(
        "Anomaly",
        # Not changes(): an anomaly may be there when the experiment's series is first scraped, and is none to that.
        f"{_NOW} - ({_BEFORE} or {_NOW} * 0) > 0",
        "yellow",
        "Anomaly",
        "{{attribution}}",
    ),
    Mark(
        "Halted",
        f'max(gpuchaos_experiment_timestamp_seconds{{{E}, event="halt_requested"}}) * 1000',
        "red",
        "Halt requested",
        "",
        moment=True,
    ),
    Mark(
        "Finished",
        f'max(gpuchaos_experiment_timestamp_seconds{{{E}, event="finished"}}) * 1000',
        "blue",
        "Finished",
        "",
        moment=True,
    ),
)
_STATUS: Final = (
    "max("
    + " or ".join(
        f'gpuchaos_experiment_info{{{E}, status="{name}"}} * {value:g}' for value, (name, _) in shared.STATUSES.items()
    )
    + ")"
)


def page() -> Page:
    """The dashboard."""
    made = Page(
        shared.EXPERIMENT,
        "GPUChaos / Experiment",
        "Timeline, blast radius against limits, recovery times against objectives, and the trace of one experiment.",
        _HOW,
        [shared.CLUSTER, _CHOICE],
        _MARKS,
        since="now-30m",
        refresh="10s",
    )
    _what(made)
    _timeline(made)
    _blast(made)
    _recovery(made)
    return made


def _what(made: Page) -> None:
    made.row(
        "What it is",
        (
            grid(
                About("Experiment", "Plan, owner, state. The trace id leads to its trace.", "none", _GONE),
                Query(
                    "max by (name, owner, fault, target_kind, status, verdict, trace_id) "
                    f"(gpuchaos_experiment_info{{{E}}})"
                ),
                hide=("Value",),
                links={
                    "trace_id": ("Show the trace", trace("${__value.raw}")),
                    "fault": ("Its recovery objectives", url(shared.SLO, fault="${__value.raw}")),
                },
            ),
            16,
            5,
        ),
        (
            number(
                About("Status", "Where it is in its life.", "none", _GONE, words=shared.STATUSES),
                Query(_STATUS),
            ),
            4,
            5,
        ),
        (
            number(
                About(
                    "Faults present",
                    "Its faults that are injected and not taken back.",
                    "short",
                    _GONE,
                    bad_from(1),
                    to_runbook("GPUChaosExperimentOverdue"),
                ),
                Query(f"sum(gpuchaos_experiment_faults_present{{{E}}})"),
            ),
            4,
            5,
        ),
    )


def _timeline(made: Page) -> None:
    made.row(
        "Timeline",
        (
            states(
                About(
                    "Status over time",
                    "From acceptance to the end.",
                    "none",
                    _GONE,
                    words=shared.STATUSES,
                ),
                Query(_STATUS, "status"),
            ),
            24,
            4,
        ),
        (
            states(
                About(
                    "What was so when",
                    "Faults that were there, anomalies that were charged to it or to nobody, levels of its blast "
                    "radius over their limit, nodes that nobody could see.",
                    "none",
                    _GONE,
                    words={0: ("no", "transparent"), 1: ("yes", "orange")},
                ),
                Query(f"sum(gpuchaos_experiment_faults_present{{{E}}}) > bool 0", "fault present"),
                Query(
                    f'sum(gpuchaos_experiment_anomalies{{{E}, attribution="attributed"}}) > bool 0',
                    "harm charged to it",
                ),
                Query(
                    f'sum(gpuchaos_experiment_anomalies{{{E}, attribution="unattributed"}}) > bool 0',
                    "harm that it does not explain",
                ),
                Query(
                    f"max(gpuchaos_experiment_blast_radius{{{E}}} - gpuchaos_experiment_blast_limit{{{E}}}) > bool 0",
                    "a limit exceeded",
                ),
                Query(f"sum(gpuchaos_experiment_unknown_nodes{{{E}}}) > bool 0", "nodes unseen"),
            ),
            24,
            7,
        ),
        (
            grid(
                About(
                    "Times",
                    "When each thing happened to it, event time.",
                    "dateTimeAsIso",
                    _GONE,
                ),
                Query(f"sort(max by (event) (gpuchaos_experiment_timestamp_seconds{{{E}}}) * 1000)"),
                names={"Value": "when"},
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Anomalies",
                    "attributed: charged to its fault. unattributed: during it, and of another cause.",
                    "short",
                    _GONE,
                ),
                Query(f"sum by (attribution) (gpuchaos_experiment_anomalies{{{E}}})"),
                stacked=True,
            ),
            16,
            8,
        ),
    )


def _blast(made: Page) -> None:
    made.row(
        "Blast radius: harm beyond the declared targets",
        (
            bars(
                About(
                    "Share of each limit",
                    "100 % is all that the plan allows; beyond it the experiment is halted. Levels whose limit is 0 or "
                    "absent are in the table.",
                    "percentunit",
                    "no limit above 0 in its plan",
                    bad_from(0.7, 1.0),
                    low=0,
                    high=1,
                ),
                Query(
                    f"max by (level) (cluster_experiment_id_level:gpuchaos_experiment_blast_radius:limit_ratio{{{E}}})",
                    "{{level}}",
                ),
                Query(
                    f"max(gpuchaos_experiment_lost_gpu_seconds{{{E}}} "
                    f"/ (gpuchaos_experiment_lost_gpu_limit_seconds{{{E}}} > 0))",
                    "GPU time",
                ),
            ),
            8,
            9,
        ),
        (
            grid(
                About("Level by level", "Entities hurt, and the most that the plan allows.", "short", _GONE),
                Query(f"max by (level) (gpuchaos_experiment_blast_radius{{{E}}})"),
                Query(f"max by (level) (gpuchaos_experiment_blast_limit{{{E}}})"),
                names={"Value #A": "hurt", "Value #B": "limit"},
            ),
            6,
            9,
        ),
        (
            lines(
                About("Blast radius over time", "Entities hurt beyond the targets, by level.", "short", _GONE),
                Query(f"max by (level) (gpuchaos_experiment_blast_radius{{{E}}})"),
                Query(f"max by (level) (gpuchaos_experiment_blast_limit{{{E}}})", "limit: {{level}}"),
            ),
            10,
            9,
        ),
        (
            lines(
                About("GPU time lost", "GPU-seconds lost beyond the targets, and the limit.", "s", _GONE),
                Query(f"max(gpuchaos_experiment_lost_gpu_seconds{{{E}}})", "lost"),
                Query(f"max(gpuchaos_experiment_lost_gpu_limit_seconds{{{E}}})", "limit"),
            ),
            12,
            7,
        ),
        (
            lines(
                About(
                    "Nodes that nobody can see",
                    "Targets or hurt nodes whose telemetry has stopped: they count as hurt.",
                    "short",
                    _GONE,
                    bad_from(1),
                    to_runbook("GPUChaosAgentsSilent"),
                ),
                Query(f"max(gpuchaos_experiment_unknown_nodes{{{E}}})", "unseen"),
            ),
            12,
            7,
        ),
    )


def _recovery(made: Page) -> None:
    made.row(
        "Recovery: times against objectives",
        (
            bars(
                About(
                    "Share of each objective used",
                    "100 % is all the time that the plan gives; more is a miss.",
                    "percentunit",
                    "nothing is measured yet",
                    bad_from(0.8, 1.0),
                    low=0,
                    high=1,
                ),
                Query(
                    f"max by (phase) (gpuchaos_experiment_recovery_seconds{{{E}}} "
                    f"/ gpuchaos_experiment_objective_seconds{{{E}}})",
                    "{{phase}}",
                ),
            ),
            8,
            8,
        ),
        (
            grid(
                About(
                    "Times and objectives",
                    "Detection, mitigation and recovery, from the injection on; missed: 1 where it took longer, or "
                    "never came.",
                    "s",
                    "nothing is measured yet",
                ),
                Query(f"max by (phase) (gpuchaos_experiment_recovery_seconds{{{E}}})"),
                Query(f"max by (phase) (gpuchaos_experiment_objective_seconds{{{E}}})"),
                Query(f"max by (phase) (gpuchaos_experiment_objective_missed{{{E}}})"),
                names={"Value #A": "took", "Value #B": "objective", "Value #C": "missed"},
                colored={"missed": ("short", bad_from(1))},
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Recovery times of all experiments, with traces",
                    "Half of the finished experiments of all faults are within; a dot is one experiment's trace.",
                    "s",
                    "no experiment finished in this time",
                ),
                Query(
                    "histogram_quantile(0.5, "
                    "sum by (le, phase) (increase(gpuchaos_recovery_seconds_bucket[$__range])))",
                    "{{phase}}",
                    exemplars=True,
                ),
            ),
            8,
            8,
        ),
    )
