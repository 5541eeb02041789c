"""Recovery SLOs: which faults do we recover from in time, what is left of the budget, and is it getting better?"""

from __future__ import annotations

from typing import Final

from gpuchaos_dashboards import shared
from gpuchaos_dashboards.pages import Page, Variable
from gpuchaos_dashboards.parts import About, Query, Steps, bad_from, bars, good_from, grid, lines, number
from gpuchaos_dashboards.shared import runbook, to_runbook

S: Final = 'cluster="$cluster", sloth_service=~"$fault"'
F: Final = 'cluster="$cluster", fault=~"$fault"'
_NONE: Final = "no run of these faults was judged"
_LEFT: Final[Steps] = good_from(0.0, 0.25)

#: Long and short window, and the burn that a page or a ticket begins at (SRE workbook, chapter 5).
_WINDOWS: Final = (("1h", "5m", 14.4), ("6h", "30m", 6.0), ("1d", "2h", 3.0), ("3d", "6h", 1.0))

_HOW: Final = f"""
**An objective says: of 100 runs of a fault, so many are detected (TTD), mitigated (TTM), recovered from (TTR) in
time.** Its budget is the share that may miss. *Burn* 1 spends the budget in 30 days, 14.4 a fiftieth of it in an
hour. What burns on a long and its short window at once pages or makes a ticket:
{runbook("GPUChaosRecoveryBudgetBurnsFast")}, {runbook("GPUChaosRecoveryBudgetBurns")}. A window without a run has no
value: no data is not good news. With few runs look at the budget over the last 500 runs. Prometheus must keep 30 days
({shared.page_of_docs("metrics.md#objectives-as-sloth-names-them", "the series")}).
"""

_FAULT: Final = Variable(
    "fault", "Fault", 'label_values(gpuchaos_objective_ratio{cluster="$cluster"}, fault)', many=True
)


def page() -> Page:
    """The dashboard."""
    made = Page(
        shared.SLO,
        "GPUChaos / Recovery SLOs",
        "Recovery objectives, error budgets and their burn, by fault and target class, and trends over weeks.",
        _HOW,
        [shared.CLUSTER, _FAULT],
        shared.MARKS,
        since="now-30d",
        refresh="5m",
    )
    _now(made)
    _burn(made)
    _classes(made)
    _trends(made)
    return made


def _now(made: Page) -> None:
    made.row(
        "Objectives and budgets",
        (
            number(
                About(
                    "Least budget left, 30 days",
                    "Of all objectives of the chosen faults. Below 0 the objective is missed.",
                    "percentunit",
                    _NONE,
                    _LEFT,
                    to_runbook("GPUChaosRecoveryBudgetBurns"),
                ),
                Query(f"min(slo:period_error_budget_remaining:ratio{{{S}}})"),
            ),
            5,
            4,
        ),
        (
            number(
                About(
                    "Least budget left, last 500 runs",
                    "The same over the last 500 runs of a fault, as the worker itself keeps it.",
                    "percentunit",
                    _NONE,
                    _LEFT,
                ),
                Query(f"min(slo_period_error_budget_remaining_ratio{{{S}}})"),
            ),
            5,
            4,
        ),
        (
            number(
                About("Runs judged, 7 days", "Runs that an objective judged, by objective.", "short", _NONE),
                Query(f"max(sum by (objective) (increase(gpuchaos_objective_runs_total{{{F}}}[7d])))", "runs"),
            ),
            5,
            4,
        ),
        (
            number(
                About("Misses, 7 days", "Those that missed one, or never got there.", "short", _NONE, bad_from(1)),
                Query(f"sum(increase(gpuchaos_objective_misses_total{{{F}}}[7d]))", "misses"),
            ),
            5,
            4,
        ),
        (
            number(
                About(
                    "Fastest burn now",
                    "How many times too fast the budget is spent, over 5 minutes; no value where nothing ran.",
                    "suffix:×",
                    "nothing ran within 5 minutes",
                    bad_from(1, 14.4),
                    to_runbook("GPUChaosRecoveryBudgetBurnsFast"),
                ),
                Query(f"max(slo:current_burn_rate:ratio{{{S}}})"),
            ),
            4,
            4,
        ),
        (
            bars(
                About(
                    "Budget left, 30 days",
                    "Of each objective. Empty is missed.",
                    "percentunit",
                    _NONE,
                    _LEFT,
                    low=0,
                    high=1,
                ),
                Query(
                    f"min by (sloth_service, sloth_slo) (slo:period_error_budget_remaining:ratio{{{S}}})",
                    "{{sloth_service}} {{sloth_slo}}",
                ),
            ),
            12,
            10,
        ),
        (
            grid(
                About(
                    "Objectives",
                    "Share of runs that should be in time, and the budget that is left.",
                    "percentunit",
                    _NONE,
                ),
                Query(f"max by (sloth_service, sloth_slo) (slo:objective:ratio{{{S}}})"),
                Query(f"min by (sloth_service, sloth_slo) (slo:period_error_budget_remaining:ratio{{{S}}})"),
                Query(f"min by (sloth_service, sloth_slo) (slo_period_error_budget_remaining_ratio{{{S}}})"),
                names={
                    "sloth_service": "fault",
                    "sloth_slo": "objective",
                    "Value #A": "should be in time",
                    "Value #B": "budget left, 30 days",
                    "Value #C": "budget left, 500 runs",
                },
                colored={
                    "budget left, 30 days": ("percentunit", _LEFT),
                    "budget left, 500 runs": ("percentunit", _LEFT),
                },
            ),
            12,
            10,
        ),
    )


def _burn(made: Page) -> None:
    panels = []
    for long, short, from_ in _WINDOWS:
        name = "GPUChaosRecoveryBudgetBurnsFast" if from_ > 3 else "GPUChaosRecoveryBudgetBurns"
        panels.append(
            (
                lines(
                    About(
                        f"Burn over {long} and {short}",
                        f"Both over {from_:g} at once {'page' if from_ > 3 else 'make a ticket'}.",
                        "suffix:×",
                        f"nothing ran within {long}",
                        bad_from(from_),
                        to_runbook(name),
                    ),
                    Query(_burning(long), f"{{{{sloth_service}}}} {{{{sloth_slo}}}} {long}"),
                    Query(_burning(short), f"{{{{sloth_service}}}} {{{{sloth_slo}}}} {short}"),
                ),
                12,
                8,
            )
        )
    made.row("Burn, over a long and a short window", *panels)


def _classes(made: Page) -> None:
    missed = "cluster_fault_target_kind_objective:gpuchaos_objective_misses:ratio7d"
    made.row(
        "By fault and target class",
        (
            grid(
                About("Runs and misses, 7 days", "By fault, kind of target and objective.", "short", _NONE),
                Query(
                    f"sum by (fault, target_kind, objective) (increase(gpuchaos_objective_runs_total{{{F}}}[7d])) > 0"
                ),
                Query(f"max by (fault, target_kind, objective) ({missed}{{{F}}})"),
                names={"Value #A": "runs", "Value #B": "missed", "target_kind": "target"},
                colored={"missed": ("percentunit", bad_from(0.05, 0.1))},
            ),
            12,
            10,
        ),
        (
            lines(
                About(
                    "Share that missed, over 7 days",
                    "By fault, kind of target and objective, over the seven days before.",
                    "percentunit",
                    _NONE,
                    bad_from(0.05, 0.1),
                    low=0,
                    high=1,
                ),
                Query(
                    f"max by (fault, target_kind, objective) ({missed}{{{F}}})",
                    "{{fault}} on {{target_kind}}: {{objective}}",
                ),
            ),
            12,
            10,
        ),
    )


def _trends(made: Page) -> None:
    made.row(
        "Trends over weeks",
        (
            lines(
                About(
                    "Recovery time, mean of 7 days",
                    "Of finished experiments of all clusters that got there, by fault and phase.",
                    "s",
                    _NONE,
                ),
                Query('max by (fault, phase) (fault_phase:gpuchaos_recovery_seconds:mean7d{fault=~"$fault"})'),
            ),
            12,
            9,
        ),
        (
            lines(
                About(
                    "Recovery time, 90 % within, 7 days",
                    "As before; what matters to an objective is the slow end.",
                    "s",
                    _NONE,
                ),
                Query(
                    "histogram_quantile(0.9, sum by (le, fault, phase) "
                    '(increase(gpuchaos_recovery_seconds_bucket{fault=~"$fault"}[7d])))',
                    exemplars=True,
                ),
            ),
            12,
            9,
        ),
        (
            lines(
                About(
                    "Budget left over time", "Of each objective, over the 30 days before.", "percentunit", _NONE, _LEFT
                ),
                Query(
                    f"min by (sloth_service, sloth_slo) (slo:period_error_budget_remaining:ratio{{{S}}})",
                    "{{sloth_service}} {{sloth_slo}}",
                ),
            ),
            12,
            9,
        ),
        (
            lines(
                About(
                    "Runs a day",
                    "Runs that an objective judged, by fault: what is not tried is not known.",
                    "short",
                    _NONE,
                ),
                Query(
                    f'sum by (fault) (increase(gpuchaos_objective_runs_total{{{F}, objective="ttr"}}[1d]))',
                ),
                bars=True,
                stacked=True,
            ),
            12,
            9,
        ),
    )


def _burning(window: str) -> str:
    labels = "sloth_service, sloth_slo"
    return (
        f"max by ({labels}) (slo:sli_error:ratio_rate{window}{{{S}}}) "
        f"/ max by ({labels}) (slo:error_budget:ratio{{{S}}})"
    )
