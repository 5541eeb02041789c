"""Loop overview: is the loop itself well, what does it do now, and does anybody have to act?"""

from __future__ import annotations

from typing import Final

from gpuchaos_dashboards import pipeline, shared
from gpuchaos_dashboards.pages import Page
from gpuchaos_dashboards.parts import About, Query, bad_from, grid, lines, number
from gpuchaos_dashboards.shared import OF_CLUSTER as C
from gpuchaos_dashboards.shared import runbook, to_runbook

_HOW: Final = f"""
**From top to bottom: what runs, what was halted, what broke because of it, and whether the loop itself is well.** The
first row is what to look at on call: all of it green is a quiet cluster. Red in *Breaker* or *Halts escalated* is a
person's work, now: {runbook("GPUChaosBreakerTripped")}, {runbook("GPUChaosHaltEscalated")}. *Attribution* parts harm
that an experiment explains from harm that would have come anyway. If *Pipeline* lags, everything above it is old:
{runbook("GPUChaosWorkerLags")}, {runbook("GPUChaosDecisionsSlow")}. What each series counts:
{shared.page_of_docs("metrics.md", "metrics")}.
"""


def page() -> Page:
    """The dashboard."""
    made = Page(
        shared.LOOP,
        "GPUChaos / Loop overview",
        "Running experiments, halts, breaker, attribution, lag, freshness and notifications of one cluster.",
        _HOW,
        [shared.CLUSTER],
        shared.MARKS,
    )
    _now(made)
    _experiments(made)
    _attribution(made)
    pipeline.rows(made)
    return made


def _now(made: Page) -> None:
    made.row(
        "Now",
        (
            number(
                About(
                    "Breaker",
                    "Closed: faults may be injected. Tripped: every experiment was halted, and no fault is injected "
                    "until a person resets it.",
                    "none",
                    "no worker holds this cluster",
                    bad_from(1),
                    to_runbook("GPUChaosBreakerTripped"),
                    {0: ("closed", "green"), 1: ("tripped", "red")},
                ),
                Query(f"max(gpuchaos_breaker_tripped{{{C}}})"),
            ),
            4,
            4,
        ),
        (
            number(
                About(
                    "Experiments running",
                    "Accepted and not finished: pending, injecting, active, undoing, halting or recovering.",
                    "short",
                    "no worker holds this cluster",
                ),
                Query(f"sum(cluster:gpuchaos_experiments_running:sum{{{C}}})"),
            ),
            4,
            4,
        ),
        (
            number(
                About(
                    "Halts open",
                    "Halts that were requested and that telemetry has not yet confirmed.",
                    "short",
                    "no worker holds this cluster",
                    bad_from(1, 3),
                    to_runbook("GPUChaosHaltUnconfirmed"),
                ),
                Query(f'sum(gpuchaos_halts_open{{{C}, state!="escalated"}})'),
            ),
            4,
            4,
        ),
        (
            number(
                About(
                    "Halts escalated",
                    "Halts that agents could not carry out: a person has to.",
                    "short",
                    "no worker holds this cluster",
                    bad_from(1),
                    to_runbook("GPUChaosHaltEscalated"),
                ),
                Query(f'sum(gpuchaos_halts_open{{{C}, state="escalated"}})'),
            ),
            4,
            4,
        ),
        (
            number(
                About(
                    "Nodes silent",
                    "Share of the nodes heard of within the hour that have sent nothing for more than 5 s.",
                    "percentunit",
                    "no node was heard of within the hour",
                    bad_from(0.01, 0.05),
                    to_runbook("GPUChaosAgentsSilent"),
                    low=0,
                    high=1,
                ),
                Query(f"max(cluster:gpuchaos_nodes_silent:ratio{{{C}}})"),
            ),
            4,
            4,
        ),
        (
            number(
                About(
                    "Alerts firing",
                    "Alerts of ours that Prometheus says fire now, of all clusters.",
                    "short",
                    "Prometheus has no alerts: are the rules loaded?",
                    bad_from(1),
                ),
                Query('count(ALERTS{alertname=~"GPUChaos.*", alertstate="firing"}) or vector(0)'),
            ),
            4,
            4,
        ),
    )


def _experiments(made: Page) -> None:
    made.row(
        "Experiments and halts",
        (
            grid(
                About(
                    "Experiments",
                    "Those that run, and those that ended within the hour; at most 100. The id leads to its dashboard.",
                    "none",
                    "no experiment within the hour",
                ),
                Query(
                    "max by (experiment_id, name, owner, fault, target_kind, status, verdict) "
                    f"(gpuchaos_experiment_info{{{C}}})"
                ),
                hide=("Value",),
                links={"experiment_id": ("Show it", shared.to_experiment("${__value.raw}"))},
            ),
            14,
            9,
        ),
        (
            lines(
                About("Experiments by status", "How many are in which part of their life.", "short", "no experiment"),
                Query(f'sum by (status) (gpuchaos_experiments{{{C}, status!="finished"}})'),
                stacked=True,
            ),
            10,
            9,
        ),
        (
            lines(
                About(
                    "Halts, by rule",
                    "Halts requested in each step, by the rule that asked for them.",
                    "short",
                    "no rule is loaded",
                ),
                Query(f"sum by (rule) (increase(gpuchaos_halts_total{{{C}}}[$__rate_interval])) > 0 or vector(0)"),
                bars=True,
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Open halts, by state",
                    "requested → acknowledged by the agents → undone → confirmed by telemetry, or escalated.",
                    "short",
                    "no worker holds this cluster",
                    bad_from(1),
                ),
                Query(f"sum by (state) (gpuchaos_halts_open{{{C}}})"),
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Verdicts",
                    "Experiments that ended in each step, by verdict.",
                    "short",
                    "no worker holds this cluster",
                ),
                Query(f"sum by (verdict) (increase(gpuchaos_verdicts_total{{{C}}}[$__rate_interval]))"),
                bars=True,
                stacked=True,
            ),
            8,
            8,
        ),
    )


def _attribution(made: Page) -> None:
    made.row(
        "Attribution: what an experiment explains, and what it does not",
        (
            lines(
                About(
                    "Open anomalies, by what explains them",
                    "attributed: an experiment's fault explains it. unattributed: nothing that was injected does, so "
                    "it is a failure of its own.",
                    "short",
                    "no worker holds this cluster",
                ),
                Query(f"sum by (attribution) (gpuchaos_anomalies_open{{{C}}})"),
                stacked=True,
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Anomalies opened, by how they were found",
                    "Of all clusters: comparison with peers, with the own past, or a fact that needs no statistics.",
                    "short",
                    "no anomaly since the workers started",
                ),
                Query("sum by (kind) (increase(gpuchaos_anomalies_total[$__rate_interval]))"),
                bars=True,
                stacked=True,
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Blast radius, all experiments together",
                    "Entities hurt beyond declared targets, summed over the running experiments.",
                    "short",
                    "no worker holds this cluster",
                ),
                Query(f"sum by (level) (gpuchaos_blast_radius{{{C}}})"),
            ),
            8,
            8,
        ),
    )
