"""One job watched by all ways it offers: its heartbeat file, its Prometheus page, its log."""

from __future__ import annotations

from gpuchaos_agent.collect.base import JobSource
from gpuchaos_agent.jobs.heartbeat import Heartbeat
from gpuchaos_agent.jobs.progress import AppLog
from gpuchaos_agent.jobs.prometheus_page import PrometheusPage
from gpuchaos_agent.jobs.way import Way
from gpuchaos_agent.logs.application import Application
from gpuchaos_agent.logs.record import LogRecord


class JobWatch:
    """What is known of a job's progress. Numbers that no way tells are None.

    Where several ways tell a number, the one that was made for it goes first: the heartbeat, then the page, then
    the log. The youngest sign of progress counts, whichever way it came.

    Raises:
        UserError: a pattern of the source is no regular expression, or has not exactly one group.
    """

    def __init__(self, source: JobSource) -> None:
        self.source = source
        self._log: AppLog | None = None
        ways: list[Way] = []
        if source.heartbeat is not None:
            ways.append(Heartbeat(source.heartbeat))
        if source.metrics_url is not None:
            ways.append(PrometheusPage(source.metrics_url))
        if source.log is not None:
            self._log = AppLog(source.log, step_pattern=source.step_pattern, time_pattern=source.time_pattern)
            ways.append(self._log)
        self._ways = tuple(ways)
        self._framer = Application(tag=source.job)

    @property
    def step(self) -> int | None:
        """The step it is at."""
        return next((way.step for way in self._ways if way.step is not None), None)

    @property
    def step_time(self) -> float | None:
        """Seconds that the last finished step took."""
        return next((way.step_time for way in self._ways if way.step_time is not None), None)

    @property
    def loss(self) -> float | None:
        """As the job last told it; None where that was no number."""
        return next((way.loss for way in self._ways if way.loss is not None), None)

    @property
    def problem(self) -> str:
        """Why a way could not be read, in words; empty where all can."""
        return "; ".join(way.problem for way in self._ways if way.problem)

    def poll(self, now: float) -> None:
        """Looks at every way once; never waits. `now` is the node's clock, seconds since the epoch."""
        for way in self._ways:
            way.poll(now)

    def steps_rate(self) -> float | None:
        """Steps a second; None before two readings, or where the step went back."""
        return next((rate for way in self._ways if (rate := way.steps_rate()) is not None), None)

    def tokens_rate(self) -> float | None:
        """Tokens a second."""
        return next((rate for way in self._ways if (rate := way.tokens_rate()) is not None), None)

    def progress_age(self, now: float) -> float | None:
        """Seconds since the last sign of progress; None while there was none."""
        return min((age for way in self._ways if (age := way.progress_age(now)) is not None), default=None)

    def records(self) -> list[LogRecord]:
        """What the log said since the last poll, for the words."""
        lines = () if self._log is None else self._log.lines
        return [record for line in lines if (record := self._framer.take(line.data, line.key)) is not None]

    def close(self) -> None:
        """Closes what is open."""
        for way in self._ways:
            way.close()
