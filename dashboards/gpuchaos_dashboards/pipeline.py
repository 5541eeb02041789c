"""The lower half of the loop's overview: how old is what you see, and are people told?"""

from __future__ import annotations

from gpuchaos_dashboards.pages import Page
from gpuchaos_dashboards.parts import About, Query, bad_from, cells, lines
from gpuchaos_dashboards.shared import OF_CLUSTER as C
from gpuchaos_dashboards.shared import to_runbook


def rows(made: Page) -> None:
    """Adds them."""
    _pipeline(made)
    _notify(made)


def _pipeline(made: Page) -> None:
    made.row(
        "Pipeline: how old is what you see",
        (
            lines(
                About(
                    "Lag, by topic",
                    "Records after the committed offset.",
                    "short",
                    "no partition is committed yet",
                    bad_from(1000, 10000),
                    to_runbook("GPUChaosWorkerLags"),
                ),
                Query("topic:gpuchaos_commit_lag_records:sum", "{{topic}}"),
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Freshness",
                    "Age of the oldest node's last frame, of the nodes heard within the hour.",
                    "s",
                    "no node was heard of",
                    bad_from(5, 60),
                    to_runbook("GPUChaosAgentsSilent"),
                ),
                Query(f"max(gpuchaos_telemetry_age_seconds{{{C}}})", "oldest node"),
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Decision latency",
                    "From a record's append at the broker to the end of the decision made on it, all workers.",
                    "s",
                    "no decision in this time",
                    bad_from(0.5, 2),
                    to_runbook("GPUChaosDecisionsSlow"),
                ),
                Query(_latency("0.5"), "half within"),
                Query(_latency("0.99"), "99 % within"),
            ),
            8,
            8,
        ),
        (
            cells(
                About(
                    "Decision latency, all of them",
                    "Decisions a second by how long they took; the rows are upper bounds in seconds.",
                    "ops",
                    "no decision in this time",
                ),
                Query(
                    "sum by (le) (rate(gpuchaos_decision_seconds_bucket[$__rate_interval]))",
                    "{{le}}",
                    buckets=True,
                ),
            ),
            8,
            8,
        ),
        (
            lines(
                About("Records read", "Records a second, by topic.", "cps", "nothing was read"),
                Query("sum by (topic) (rate(gpuchaos_records_total[$__rate_interval]))"),
                stacked=True,
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Dead letters",
                    "Records set aside in each step because they could not be read, by topic and stage.",
                    "short",
                    "no worker is scraped",
                    bad_from(1),
                    to_runbook("GPUChaosDeadLetters"),
                ),
                Query("sum by (topic, stage) (increase(gpuchaos_deadletters_total[$__rate_interval]))"),
                bars=True,
            ),
            8,
            8,
        ),
        (
            lines(
                About(
                    "Frames that came late",
                    "Frames that came after their tick was judged, since their partition came to its worker.",
                    "short",
                    "no frame was read",
                ),
                Query("sum(gpuchaos_frames_late)", "late frames"),
            ),
            8,
            7,
        ),
        (
            lines(
                About(
                    "What must never be",
                    "The loop raised (a bug), a rule raised, a partition stood still, a command was not believed.",
                    "short",
                    "no worker is scraped",
                    bad_from(1),
                    to_runbook("GPUChaosClusterUnguarded") | to_runbook("GPUChaosRuleErrors"),
                ),
                Query(f"sum(increase(gpuchaos_settle_errors_total{{{C}}}[$__rate_interval]))", "loop raised"),
                Query(f"sum(gpuchaos_rule_errors{{{C}}})", "rules raised, so far"),
                Query("sum(increase(gpuchaos_commit_stuck_total[$__rate_interval])) or vector(0)", "commits stuck"),
                Query("sum(increase(gpuchaos_commands_refused_total[$__rate_interval]))", "commands refused"),
            ),
            16,
            7,
        ),
    )


def _notify(made: Page) -> None:
    none = "gpuchaos notify is not scraped"
    made.row(
        "Notifications",
        (
            lines(
                About(
                    "Receivers that take messages",
                    "1 if the last request was taken.",
                    "short",
                    none,
                    ((None, "red"), (1, "green")),
                    to_runbook("GPUChaosNotifyReceiverFailing"),
                    low=0,
                    high=1,
                ),
                Query("min by (receiver) (gpuchaos_notify_receiver_healthy)"),
            ),
            6,
            8,
        ),
        (
            lines(
                About("Messages waiting", "In the queue, by receiver.", "short", none, bad_from(10, 100)),
                Query("sum by (receiver) (gpuchaos_notify_queue_messages)"),
            ),
            6,
            8,
        ),
        (
            lines(
                About(
                    "Oldest message",
                    "How long the oldest message of a receiver has been waiting.",
                    "s",
                    none,
                    bad_from(60, 300),
                ),
                Query("max by (receiver) (gpuchaos_notify_queue_oldest_seconds)"),
            ),
            6,
            8,
        ),
        (
            lines(
                About(
                    "Set aside",
                    "Messages that could not be delivered and wait for a person.",
                    "short",
                    none,
                    bad_from(1),
                    to_runbook("GPUChaosNotifyDeadLetters"),
                ),
                Query("sum by (receiver) (gpuchaos_notify_dead_messages)"),
            ),
            6,
            8,
        ),
        (
            lines(
                About("Requests", "Requests a second, by receiver and how they ended.", "reqps", none),
                Query("sum by (receiver, result) (rate(gpuchaos_notify_attempts_total[$__rate_interval]))"),
            ),
            12,
            8,
        ),
        (
            lines(
                About(
                    "Delay",
                    "From a message's entry into the queue to its delivery; 99 % are quicker.",
                    "s",
                    "nothing was delivered in this time",
                    bad_from(30, 300),
                ),
                Query(
                    "histogram_quantile(0.99, sum by (le, receiver) "
                    "(increase(gpuchaos_notify_delay_seconds_bucket[$__range])))",
                    "{{receiver}}",
                ),
            ),
            12,
            8,
        ),
    )


def _latency(share: str) -> str:
    return f"histogram_quantile({share}, sum by (le) (rate(gpuchaos_decision_seconds_bucket[$__rate_interval])))"
