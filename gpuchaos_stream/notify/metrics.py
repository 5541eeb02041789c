"""Metrics of `gpuchaos notify`. Labels are names of receivers and fixed words: bounded by the configuration."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

MESSAGES: Final = Counter("gpuchaos_notify_messages_total", "Messages put into the queue.", ["receiver", "kind"])
ATTEMPTS: Final = Counter("gpuchaos_notify_attempts_total", "Requests sent, by how they ended.", ["receiver", "result"])
DEAD: Final = Counter("gpuchaos_notify_deadletters_total", "Messages set aside as not deliverable.", ["receiver"])
WAITING: Final = Gauge("gpuchaos_notify_queue_messages", "Messages that wait to be delivered.", ["receiver"])
OLDEST: Final = Gauge("gpuchaos_notify_queue_oldest_seconds", "Age of the oldest of them.", ["receiver"])
SET_ASIDE: Final = Gauge("gpuchaos_notify_dead_messages", "Messages that lie set aside.", ["receiver"])
HEALTHY: Final = Gauge("gpuchaos_notify_receiver_healthy", "1 if the last request was taken, else 0.", ["receiver"])
ALERTS: Final = Gauge("gpuchaos_notify_alerts_open", "Alerts that were opened and not resolved.")
DELAY: Final = Histogram(
    "gpuchaos_notify_delay_seconds",
    "From a message's entry into the queue to its delivery.",
    ["receiver"],
    buckets=(0.1, 0.5, 1, 2, 5, 10, 30, 60, 300, 900, 3600),
)
