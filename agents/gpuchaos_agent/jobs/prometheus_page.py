"""Progress of a job as its own Prometheus page tells it (`metrics_url`)."""

from __future__ import annotations

import math
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from gpuchaos_agent.jobs.page import Page
from gpuchaos_agent.jobs.rates import Rate

#: What trainers call it, without the program's own prefix (`myjob_train_step`), the most telling first.
NAMES: Final[dict[str, tuple[str, ...]]] = {
    "step": (
        "global_step",
        "train_global_step",
        "training_step",
        "train_step",
        "train_steps_total",
        "training_steps_total",
        "steps_total",
        "iterations_total",
        "iteration",
        "step",
    ),
    "step_time": ("step_time_seconds", "train_step_time_seconds", "step_duration_seconds", "iteration_time_seconds"),
    "loss": ("train_loss", "training_loss", "lm_loss", "loss"),
    "tokens": ("train_tokens_total", "training_tokens_total", "tokens_total"),
    "tokens_rate": ("tokens_per_second", "tokens_per_sec", "train_tokens_per_second", "throughput_tokens_per_second"),
}
#: A page that came longer ago tells nothing of now, seconds.
STALE_AFTER_S: Final = 10.0


class PrometheusPage:
    """Reads a job's page once a poll, as it comes: numbers are those of the page before."""

    def __init__(self, url: str, *, page: Page | None = None) -> None:
        self._page = page or Page(url)
        self._steps = Rate()
        self._tokens = Rate()
        self._told_tokens_rate: float | None = None
        self._moved: float | None = None
        self._came: float | None = None
        self._began: float | None = None
        self.step: int | None = None
        self.step_time: float | None = None
        self.loss: float | None = None
        self.problem = ""

    def poll(self, now: float) -> None:
        """Takes what came, and asks again."""
        self._began = now if self._began is None else self._began
        answer = self._page.answer()
        if isinstance(answer, str):
            self.problem = answer
        elif answer is not None:
            self._read(answer, now)
        since = self._came if self._came is not None else self._began
        if not self.problem and now - since > STALE_AFTER_S:
            self.problem = f"{self._page.url}: no answer for {now - since:.0f} s"
        self._page.ask()

    def steps_rate(self) -> float | None:
        """Steps a second."""
        return self._steps.per_second()

    def tokens_rate(self) -> float | None:
        """Tokens a second, as told or from what was counted."""
        return self._told_tokens_rate if self._told_tokens_rate is not None else self._tokens.per_second()

    def progress_age(self, now: float) -> float | None:
        """Seconds since the step last changed on the page; it goes on while there is no page."""
        return None if self._moved is None else max(0.0, now - self._moved)

    def close(self) -> None:
        """Ends the thread."""
        self._page.close()

    def _read(self, body: bytes, now: float) -> None:
        try:
            values = parse(body.decode("utf-8", "replace"))
        except ValueError as error:
            self.problem = f"{self._page.url}: is not in Prometheus' text format: {str(error)[:120]}"
            return
        self.problem = "" if values else f"{self._page.url}: names no progress that we know"
        self._came = now
        step = values.get("step")
        if step is not None:
            if int(step) != self.step:
                self._moved = now
            self.step = int(step)
            self._steps.see(now, self.step)
        self.step_time = values.get("step_time")
        self.loss = values.get("loss")
        self._told_tokens_rate = values.get("tokens_rate")
        if "tokens" in values:
            self._tokens.see(now, values["tokens"])


def parse(text: str) -> dict[str, float]:
    """What a page says of progress, by the keys of `NAMES`. Of several series of one name the largest counts.

    A histogram or summary of step times gives its mean since the start.

    Raises:
        ValueError: it is no page of Prometheus' text format.
    """
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            value = float(sample.value)
            if math.isfinite(value) and abs(value) < 1e18:
                found[sample.name] = max(value, found.get(sample.name, value))
    values: dict[str, float] = {}
    for key, names in NAMES.items():
        told = [_named(found, name) for name in names]
        if key == "step_time":
            told += [_mean(found, name) for name in names]
        first = next((value for value in told if value is not None), None)
        if first is not None:
            values[key] = first
    return values


def _named(found: dict[str, float], name: str) -> float | None:
    if name in found:
        return found[name]
    return next((value for given, value in found.items() if given.endswith(f"_{name}")), None)


def _mean(found: dict[str, float], name: str) -> float | None:
    total, count = _named(found, f"{name}_sum"), _named(found, f"{name}_count")
    return total / count if total is not None and count else None
