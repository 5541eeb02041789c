"""Structured logs: one JSON object a line on stderr, or plain lines on a terminal.

The keys `experiment_id`, `fault_id` and `node` mean the same in every line, metric and span.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable
from typing import Final

import structlog

from gpuchaos_stream.output import coloured

#: Seconds after which what lasts is said again.
AGAIN_S: Final = 60.0


#: A new Kafka has no coordinator of a group for its first seconds: only what lasts longer is an error.
_COORDINATOR: Final = "Group Coordinator Request failed"
SETTLES_S: Final = 10.0


class _WorthReading(logging.Filter):
    """Keeps out what libraries tell of their own start: each service of Faust's, its tables, a Kafka that settles."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._since = self._last = -SETTLES_S

    def filter(self, record: logging.LogRecord) -> bool:
        text = str(record.msg)
        if record.levelno < logging.WARNING:
            # Our services are subclasses of Faust's, and so speak under our names: `[^--Watchdog]: Starting...`.
            return not text.startswith("[^")
        if text.startswith(_COORDINATOR) and any(getattr(each, "retriable", False) for each in record.args or ()):
            now = self._clock()
            if now - self._last >= SETTLES_S:
                self._since = now
            self._last = now
            return now - self._since >= SETTLES_S
        return True


def configure(*, level: str = "INFO", json: bool | None = None) -> None:
    """Sets up structlog and the standard library's logging alike.

    `json` None means: JSON unless stderr is a terminal.
    """
    as_json = not sys.stderr.isatty() if json is None else json
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
        structlog.processors.StackInfoRenderer(),
        structlog.processors.format_exc_info,
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if as_json else structlog.dev.ConsoleRenderer(colors=coloured(sys.stderr))
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer], foreign_pre_chain=shared
        )
    )
    if level != "DEBUG":
        handler.addFilter(_WorthReading())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    # They tell of each rebalance in tables; what matters of it the worker says itself.
    for noisy in ("faust", "mode", "aiokafka", "httpx", "httpcore", "urllib3"):
        logging.getLogger(noisy).setLevel(max(logging.WARNING, root.level))


def logger(name: str) -> structlog.stdlib.BoundLogger:
    """A logger that speaks structured."""
    bound: structlog.stdlib.BoundLogger = structlog.get_logger(name)
    return bound


class Sparingly:
    """Says a thing when it is new, and again when it lasts: never each second."""

    def __init__(self, again_s: float = AGAIN_S, clock: Callable[[], float] = time.monotonic) -> None:
        self._again_s = again_s
        self._clock = clock
        self._said: dict[str, float] = {}

    def __call__(self, text: str) -> bool:
        """Whether it is to be said now."""
        now = self._clock()
        self._said = {known: at for known, at in self._said.items() if now - at < self._again_s}
        if text in self._said:
            return False
        self._said[text] = now
        return True
