"""What several dashboards have in common: their names, variables, annotations, and how a runbook is linked."""

from __future__ import annotations

from typing import Final

from gpuchaos_dashboards.pages import Mark, Variable, url

LOOP: Final = "gpuchaos-loop"
EXPERIMENT: Final = "gpuchaos-experiment"
FLEET: Final = "gpuchaos-fleet"
JOBS: Final = "gpuchaos-jobs"
SLO: Final = "gpuchaos-slo"

#: One cluster: two are two dashboards in two windows.
CLUSTER: Final = Variable("cluster", "Cluster", "label_values(gpuchaos_breaker_tripped, cluster)")
#: What every query of a cluster's series has between its braces.
OF_CLUSTER: Final = 'cluster="$cluster"'

_EVENTS: Final = f'max by (experiment_id) (gpuchaos_experiment_timestamp_seconds{{{OF_CLUSTER}, event="%s"}}) * 1000'

#: When experiments injected and were halted, over everything.
MARKS: Final = (
    Mark("Injected", _EVENTS % "injected", "orange", "Fault injected", "{{experiment_id}}", moment=True),
    Mark("Halted", _EVENTS % "halt_requested", "red", "Halt requested", "{{experiment_id}}", moment=True),
)

#: Status of an experiment as a number, and its colour.
STATUSES: Final[dict[float, tuple[str, str]]] = {
    0: ("finished", "text"),
    1: ("pending", "blue"),
    2: ("injecting", "yellow"),
    3: ("active", "orange"),
    4: ("undoing", "purple"),
    5: ("recovering", "light-green"),
    6: ("halting", "red"),
}
#: 1 where something is as it should be.
YES_NO: Final[dict[float, tuple[str, str]]] = {0: ("no", "red"), 1: ("yes", "green")}


def runbook(alert: str) -> str:
    """A runbook, as Markdown links it."""
    return f"[{alert}](${{docs}}/runbooks/{alert}.md)"


def page_of_docs(name: str, words: str) -> str:
    """A page of the documentation, as Markdown links it."""
    return f"[{words}](${{docs}}/{name})"


def to_runbook(alert: str) -> dict[str, str]:
    """The link of a panel to the runbook of the alert that watches the same number."""
    return {f"Runbook: {alert}": f"${{docs}}/runbooks/{alert}.md"}


def to_experiment(value: str) -> str:
    """Address of the dashboard of one experiment."""
    return url(EXPERIMENT, experiment_id=value)


def to_cell(value: str) -> str:
    """Address of the fleet's dashboard at one cell."""
    return url(FLEET, cell=value)


def to_node(cell: str, node: str) -> str:
    """Address of the fleet's dashboard at one node."""
    return url(FLEET, cell=cell, node=node)


def to_job(value: str) -> str:
    """Address of the dashboard of one job."""
    return url(JOBS, training_job=value)
