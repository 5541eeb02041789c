"""Jobs: who does not get on, which rank is slow, who is far from its GPU, and how much of the time was productive."""

from __future__ import annotations

from typing import Final

from gpuchaos_dashboards import shared
from gpuchaos_dashboards.pages import Page, Variable
from gpuchaos_dashboards.parts import PLAIN, About, Query, Steps, bad_from, cells, good_from, grid, lines, number
from gpuchaos_dashboards.shared import OF_CLUSTER as C
from gpuchaos_dashboards.shared import page_of_docs, to_job

J: Final = 'cluster="$cluster", training_job="$training_job"'
PRODUCTIVE: Final = "cluster_training_job:gpuchaos_job_productive:min"
_NO_JOB: Final = "no worker tells of a job"
_NO_AGENT: Final = "no agent that is scraped has a process of it"
_ETTR: Final[Steps] = good_from(0.9, 0.97)

_HOW: Final = f"""
**First all jobs, worst first; then the chosen one, from its cells to its ranks.** A straggler holds all others up:
its own step time may look like theirs, since they wait for it. So compare *cells* and *ranks* while the step is slow,
and look for one that is misaligned (its CPUs or memory far from its GPU), throttled, or idle while the others
compute. *ETTR* is the share of time in which every process ran and none was late (three steps and 5 s); steps that a
restart repeats count as productive, so the true one is lower. Cells come from the workers; ranks and GPUs from agents
that Prometheus scrapes ({page_of_docs("telemetry.md", "what they read")},
{page_of_docs("faults/numa-misalignment.md", "misalignment")}).
"""

_JOB: Final = Variable("training_job", "Job", 'label_values(gpuchaos_job_processes{cluster="$cluster"}, training_job)')


def page() -> Page:
    """The dashboard."""
    made = Page(
        shared.JOBS,
        "GPUChaos / Jobs",
        "Step times by rank, stragglers, misaligned processes and effective training time of thousands of processes.",
        _HOW,
        [shared.CLUSTER, _JOB],
        shared.MARKS,
    )
    _all(made)
    _one(made)
    _ranks(made)
    _devices(made)
    return made


def _all(made: Page) -> None:
    running, every = (f'sum(gpuchaos_job_processes{{{C}, state="{state}"}})' for state in ("running", "all"))
    worst = f"bottomk(30, avg by (training_job) (avg_over_time({PRODUCTIVE}{{{C}}}[$__range])))"
    step = f"max by (training_job) (gpuchaos_job_step_time_seconds{{{C}}})"
    made.row(
        "All jobs",
        (
            number(
                About("Jobs", "That have processes in a cell.", "short", _NO_JOB),
                Query(f'count(count by (training_job) (gpuchaos_job_processes{{{C}, state="all"}}))'),
            ),
            6,
            4,
        ),
        (
            number(
                About("Processes", "Ranks of all jobs.", "short", _NO_JOB),
                Query(every),
            ),
            6,
            4,
        ),
        (
            number(
                About("Processes that do not run", "Stopped or gone.", "short", _NO_JOB, bad_from(1)),
                Query(f"{every} - {running}"),
            ),
            6,
            4,
        ),
        (
            number(
                About(
                    "Jobs late now",
                    "A process does not run, or made no progress for three steps and 5 s.",
                    "short",
                    "no job tells of its steps",
                    bad_from(1),
                ),
                Query(f"count({PRODUCTIVE}{{{C}}}) - sum({PRODUCTIVE}{{{C}}})"),
            ),
            6,
            4,
        ),
        (
            grid(
                About(
                    "The 30 jobs with the least effective training time",
                    "ETTR in the time that is looked at; median step time of the slowest cell; straggling: it against "
                    "the median cell's.",
                    "short",
                    "no job tells of its steps",
                ),
                Query(worst),
                Query(f"{step} and on (training_job) {worst}"),
                Query(
                    f"{step} / quantile by (training_job) (0.5, gpuchaos_job_step_time_seconds{{{C}}}) "
                    f"and on (training_job) {worst}"
                ),
                Query(
                    f'sum by (training_job) (gpuchaos_job_processes{{{C}, state="all"}}) and on (training_job) {worst}'
                ),
                names={
                    "training_job": "job",
                    "Value #A": "ETTR",
                    "Value #B": "step time",
                    "Value #C": "straggling",
                    "Value #D": "processes",
                },
                colored={
                    "ETTR": ("percentunit", _ETTR),
                    "step time": ("s", PLAIN),
                    "straggling": ("suffix:×", bad_from(1.1, 1.5)),
                },
                links={"job": ("Show the job", to_job("${__value.raw}"))},
            ),
            12,
            12,
        ),
        (
            lines(
                About(
                    "Effective training time over an hour, the worst",
                    "Share of the hour before in which the job was productive; the 15 lowest.",
                    "percentunit",
                    "no job tells of its steps",
                    _ETTR,
                    low=0,
                    high=1,
                ),
                Query(
                    f"bottomk(15, avg by (training_job) (avg_over_time({PRODUCTIVE}{{{C}}}[1h])))",
                    "{{training_job}}",
                ),
            ),
            12,
            6,
        ),
        (
            lines(
                About(
                    "No progress for the longest",
                    "Time since the last progress of a job's processes; the 15 longest.",
                    "s",
                    "no job tells of its progress",
                    bad_from(60, 300),
                ),
                Query(
                    f"topk(15, max by (training_job) (gpuchaos_job_progress_age_seconds{{{C}}}))", "{{training_job}}"
                ),
            ),
            12,
            6,
        ),
    )


def _one(made: Page) -> None:
    made.row(
        "Job $training_job, by cell",
        (
            number(
                About(
                    "ETTR",
                    "Share of the time that is looked at in which it was productive.",
                    "percentunit",
                    "it tells of no steps",
                    _ETTR,
                    low=0,
                    high=1,
                ),
                Query(f"avg(avg_over_time({PRODUCTIVE}{{{J}}}[$__range]))"),
            ),
            6,
            5,
        ),
        (
            number(
                About("Step time", "Median of its processes, slowest cell.", "s", "it tells of no steps"),
                Query(f"max(gpuchaos_job_step_time_seconds{{{J}}})"),
            ),
            6,
            5,
        ),
        (
            number(
                About(
                    "Straggling",
                    "Slowest cell against the median cell.",
                    "suffix:×",
                    "it tells of no steps",
                    bad_from(1.1, 1.5),
                ),
                Query(
                    f"max(gpuchaos_job_step_time_seconds{{{J}}}) / quantile(0.5, gpuchaos_job_step_time_seconds{{{J}}})"
                ),
            ),
            6,
            5,
        ),
        (
            number(
                About(
                    "Running",
                    "Share of its processes that run.",
                    "percentunit",
                    _NO_JOB,
                    good_from(0.9, 1),
                    low=0,
                    high=1,
                ),
                Query(
                    f'sum(gpuchaos_job_processes{{{J}, state="running"}}) '
                    f'/ sum(gpuchaos_job_processes{{{J}, state="all"}})'
                ),
            ),
            6,
            5,
        ),
        (
            cells(
                About("Step time, by cell", "Median of its processes in a cell.", "s", "it tells of no steps"),
                Query(f"max by (cell) (gpuchaos_job_step_time_seconds{{{J}}})", "{{cell}}"),
            ),
            12,
            9,
        ),
        (
            cells(
                About(
                    "Steps a second, by cell", "Of the slowest process in a cell.", "ops", "it tells of no steps", low=0
                ),
                Query(f"min by (cell) (gpuchaos_job_steps_per_second{{{J}}})", "{{cell}}"),
                low_is_bad=True,
            ),
            12,
            9,
        ),
    )


def _ranks(made: Page) -> None:
    step = f"gpuchaos_process_step_time_seconds{{{J}}}"
    made.row(
        "Job $training_job, by rank",
        (
            lines(
                About(
                    "Step time of all ranks",
                    "The quickest, half of them, 99 of 100, the slowest: far apart where some straggle.",
                    "s",
                    _NO_AGENT,
                    low=0,
                ),
                Query(f"min({step})", "quickest"),
                Query(f"quantile(0.5, {step})", "half within"),
                Query(f"quantile(0.99, {step})", "99 % within"),
                Query(f"max({step})", "slowest"),
            ),
            12,
            9,
        ),
        (
            cells(
                About("Step time, the 40 slowest ranks", "A row a rank: node and process.", "s", _NO_AGENT),
                Query(f"topk(40, max by (node, pid) ({step}))", "{{node}} {{pid}}"),
            ),
            12,
            9,
        ),
        (
            grid(
                About(
                    "Stragglers",
                    "Ranks by their step time against the median of the job, the 20 slowest.",
                    "suffix:×",
                    _NO_AGENT,
                ),
                Query(f"topk(20, max by (cell, node, pid) ({step} / scalar(quantile(0.5, {step}))))"),
                names={"Value": "against the median"},
                colored={"against the median": ("suffix:×", bad_from(1.1, 1.5))},
                links={"node": ("Show the node", shared.to_node("${__data.fields.cell}", "${__value.raw}"))},
            ),
            8,
            10,
        ),
        (
            grid(
                About(
                    "Misaligned ranks",
                    "How far a process is from its GPU (0 beside it, 1 far), the 20 furthest.",
                    "percentunit",
                    _NO_AGENT,
                ),
                Query(f"topk(20, max by (cell, node, pid) (gpuchaos_process_numa_misaligned_ratio{{{J}}}))"),
                names={"Value": "misaligned"},
                colored={"misaligned": ("percentunit", bad_from(0.25, 0.5))},
                links={"node": ("Show the node", shared.to_node("${__data.fields.cell}", "${__value.raw}"))},
            ),
            8,
            10,
        ),
        (
            lines(
                About(
                    "What holds ranks back",
                    "The worst rank: share of periods cut short by its CPU limit, CPUs far from its GPU, misaligned.",
                    "percentunit",
                    _NO_AGENT,
                    bad_from(0.25, 0.5),
                    low=0,
                    high=1,
                ),
                Query(f"max(gpuchaos_process_cpu_throttled_ratio{{{J}}})", "throttled by its cgroup"),
                Query(f"max(gpuchaos_process_numa_cpu_far_ratio{{{J}}})", "CPUs far"),
                Query(f"max(gpuchaos_process_numa_misaligned_ratio{{{J}}})", "misaligned in all"),
            ),
            8,
            10,
        ),
    )


def _devices(made: Page) -> None:
    busy = f"gpuchaos_gpu_utilization_ratio{{{J}}}"
    made.row(
        "Job $training_job: what its GPUs do",
        (
            lines(
                About(
                    "Utilisation of its GPUs",
                    "The idlest, one in ten, half of them. All down is a stall, one alone a straggler or a failure.",
                    "percentunit",
                    _NO_AGENT,
                    low=0,
                    high=1,
                ),
                Query(f"min({busy})", "idlest"),
                Query(f"quantile(0.1, {busy})", "one in ten below"),
                Query(f"quantile(0.5, {busy})", "half below"),
            ),
            12,
            9,
        ),
        (
            cells(
                About(
                    "Utilisation, the 40 idlest nodes",
                    "Mean of its GPUs on a node.",
                    "percentunit",
                    _NO_AGENT,
                    low=0,
                    high=1,
                ),
                Query(f"bottomk(40, avg by (node) ({busy}))", "{{node}}"),
                low_is_bad=True,
            ),
            12,
            9,
        ),
    )
