"""The experiment plan: what a reliability engineer writes, as types.

Everything an experiment must declare before it may run is required here: targets, limits, duration, lease,
steady state, recovery objectives, owner, undo. An unknown field is refused.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field

from gpuchaos_stream.events.base import Authored, Entity

_COMPARE: Final[dict[str, Callable[[float, float], bool]]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}

_DURATION = re.compile(r"^(\d+(?:\.\d+)?)(ms|s|m|h)$")
_UNIT = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0}


def parse_duration(value: Any) -> float:
    """Seconds of `500ms`, `30s`, `5m`, `1h`, or of a bare number of seconds.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    match = _DURATION.match(str(value).strip())
    if match is None:
        raise ValueError(f"{value!r} is no duration; write it like 500ms, 30s, 5m or 1h")
    return float(match[1]) * _UNIT[match[2]]


Duration = Annotated[
    float, BeforeValidator(parse_duration), Field(gt=0, allow_inf_nan=False, description="like 500ms, 30s, 5m, 1h")
]
#: The shortest hold, seconds: telemetry comes once a second, and one sample is no window.
SHORTEST_HOLD_S: Final = 2.0


def _hold(value: Any) -> float:
    seconds = parse_duration(value)
    if not seconds >= SHORTEST_HOLD_S:
        raise ValueError(f"{seconds:g} s hold no two samples; write at least {SHORTEST_HOLD_S:g}s")
    return seconds


Hold = Annotated[
    float,
    BeforeValidator(_hold),
    Field(gt=0, allow_inf_nan=False, description=f"{SHORTEST_HOLD_S:g}s or more, like 5s"),
]
Finite = Annotated[float, Field(allow_inf_nan=False)]


class Op(StrEnum):
    """Comparison of a steady-state check."""

    GE = ">="
    LE = "<="
    GT = ">"
    LT = "<"

    def holds(self, left: float, right: float) -> bool:
        """Whether `left <op> right`; False for NaN."""
        return _COMPARE[self.value](left, right)


class Targets(Authored):
    """What the fault is aimed at: entities, each of which gets one fault. Harm to these is declared, not spread."""

    entities: tuple[Entity, ...] = Field(min_length=1, max_length=1000)


class Limits(Authored):
    """The most that may be hurt **beyond the declared targets**. All are required: a forgotten limit is no limit."""

    gpus: int = Field(ge=0)
    nodes: int = Field(ge=0)
    jobs: int = Field(ge=0)
    gpu_seconds: float = Field(ge=0, allow_inf_nan=False)
    cells: int | None = Field(default=None, ge=0)
    racks: int | None = Field(default=None, ge=0)
    rails: int | None = Field(default=None, ge=0)
    nvlink_domains: int | None = Field(default=None, ge=0)


class Fault(Authored):
    """The fault to inject, its parameters, and what the experiment claims to certify with it."""

    name: str
    params: dict[str, str | float | int | bool] = {}
    certifies: tuple[str, ...] = Field(min_length=1)


class TelemetryCheck(Authored):
    """A node-level or job-level value from telemetry against a bound.

    `metric` is `kind.metric.aggregate` for nodes (`gpu.utilization_ratio.mean`), a metric of a job's summary
    for jobs (`steps_rate`). With `relative_to: baseline` the bound is a share of the value seen before injection.
    """

    metric: str
    of: Entity = Field(description="node/NAME or job/NAME")
    op: Op
    value: Finite
    relative_to: Literal["baseline"] | None = None


class PromqlCheck(Authored):
    """A PromQL instant query that must return one sample against a bound. Anything else is unknown."""

    url: str
    query: str
    op: Op
    value: Finite
    timeout: Duration = 5.0


class JsonField(Authored):
    """A value in a JSON answer: `path` leads to it (`progress.step`, `checkpoints.0.good`), `op value` must hold."""

    path: str = Field(min_length=1)
    op: Literal[">=", "<=", ">", "<", "==", "!="] = "=="
    value: bool | Finite | str

    def holds(self, found: object) -> bool | None:
        """Whether `found <op> value`; None where the two cannot be compared."""
        if self.op in {"==", "!="}:
            same = isinstance(found, bool) == isinstance(self.value, bool) and found == self.value
            return same == (self.op == "==")
        numbers = (found, self.value)
        if any(isinstance(each, bool) or not isinstance(each, int | float) for each in numbers):
            return None
        return _COMPARE[self.op](found, self.value)  # type: ignore[arg-type]


class HttpCheck(Authored):
    """An HTTP GET that must answer `status` within `timeout`, and `field` of its JSON where that is given."""

    url: str
    status: int = 200
    timeout: Duration = 2.0
    field: JsonField | None = None


class TcpCheck(Authored):
    """A TCP connection to `address` (`host:port`) that must come about within `timeout`."""

    address: str
    timeout: Duration = 2.0


class TlsCheck(Authored):
    """A TLS server at `address` that must show a certificate which is valid for `name` for `valid_for` more.

    `name` is the address's host where absent; `ca` a file of certificates on the worker's machine, its system's
    where absent. `same_as` is the fault's address where the worker knows that place by another name, here and
    below.
    """

    address: str
    same_as: str | None = None
    name: str | None = None
    ca: str | None = None
    valid_for: Duration | None = None
    timeout: Duration = 2.0


class PostgresCheck(Authored):
    """A PostgreSQL server that must answer `select 1` within `timeout`. The password is in a file on the worker."""

    address: str
    same_as: str | None = None
    user: str = "postgres"
    database: str | None = None
    password_file: str | None = None
    timeout: Duration = 2.0


class RedisCheck(Authored):
    """A Redis server that must answer a PING within `timeout`. The password is in a file on the worker."""

    address: str
    same_as: str | None = None
    user: str | None = None
    password_file: str | None = None
    timeout: Duration = 2.0


class JobCheck(Authored):
    """A job that must make progress again: its slowest rank's steps per second, as a share of those before."""

    name: str
    share: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 0.9

    @property
    def reading(self) -> TelemetryCheck:
        """The same as a question to telemetry."""
        return _pace(self.name, self.share)


@cache
def _pace(job: str, share: float) -> TelemetryCheck:
    # Made once: it is asked for with every sample.
    return TelemetryCheck(metric="steps_rate", of=f"job/{job}", op=Op.GE, value=share, relative_to="baseline")


class SteadyCheck(Authored):
    """One check, of the steady state or of recovery: a name and exactly one question (`QUESTIONS`)."""

    name: str = Field(pattern=r"^[a-z0-9][a-z0-9_-]*$")
    telemetry: TelemetryCheck | None = None
    job: JobCheck | None = None
    promql: PromqlCheck | None = None
    http: HttpCheck | None = None
    tcp: TcpCheck | None = None
    tls: TlsCheck | None = None
    postgres: PostgresCheck | None = None
    redis: RedisCheck | None = None

    @property
    def kinds(self) -> tuple[str, ...]:
        """The questions that it asks: one, in a plan that was checked."""
        return tuple(kind for kind in QUESTIONS if getattr(self, kind) is not None)

    @property
    def service(self) -> TlsCheck | PostgresCheck | RedisCheck | None:
        """What it asks a service of which it must know more than that somebody listens."""
        return self.tls or self.postgres or self.redis

    @property
    def reading(self) -> TelemetryCheck | None:
        """What it asks telemetry; None where it asks outside."""
        return self.telemetry or (self.job.reading if self.job is not None else None)


#: The kinds of questions. Those of the first line are answered by telemetry, the rest are asked once a second.
QUESTIONS: Final = ("telemetry", "job", "promql", "http", "tcp", "tls", "postgres", "redis")


class SteadyState(Authored):
    """What "healthy" means here, and for how long it must hold to count as recovered."""

    hold: Hold
    checks: tuple[SteadyCheck, ...] = Field(min_length=1)


class Objectives(Authored):
    """Recovery objectives, each in seconds since injection. `slo` is the share of runs that must meet them."""

    ttd: Duration
    ttm: Duration
    ttr: Duration
    slo: float = Field(default=0.95, gt=0, lt=1)


class Undo(Authored):
    """How the fault goes away. `automatic` is the strategy's own undo; `deadline` bounds it."""

    method: Literal["automatic"]
    deadline: Duration = 30.0


class Safety(Authored):
    """What a person takes on: `force` lets the node be hit on which the control plane itself runs."""

    force: bool = False


class Plan(Authored):
    """A whole experiment plan.

    `recovery` says what being recovered means where that is not the steady state: TTR is then counted to the first
    window in which all of its checks hold. The steady state must still be there before the injection, and again
    at the end.
    """

    api_version: Literal["gpuchaos/v1"]
    kind: Literal["Experiment"]
    name: str = Field(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")
    description: str = Field(min_length=1)
    owner: str = Field(min_length=1, description="who is called when it goes wrong")
    labels: dict[str, str] = {}
    fault: Fault
    targets: Targets
    duration: Duration
    lease: Duration
    undo: Undo
    limits: Limits
    steady_state: SteadyState
    recovery: tuple[SteadyCheck, ...] = ()
    objectives: Objectives
    safety: Safety = Safety()
    settle: Duration = Field(default=3.0, description="steady state must hold this long before injection")

    @property
    def checks(self) -> tuple[SteadyCheck, ...]:
        """All checks, those of the steady state first."""
        return (*self.steady_state.checks, *self.recovery)

    @property
    def recovered_by(self) -> frozenset[str]:
        """Names of the checks that say when it has recovered."""
        return frozenset(check.name for check in self.recovery or self.steady_state.checks)

    def recovery_deadline(self, injected: float, gone: float | None) -> float:
        """Epoch seconds after which a run that has not recovered is a miss.

        Three times the TTR objective after the first injection, and in any case long enough after the faults
        were gone (`gone`, None while they are not) for one recovery within the objective to be confirmed.
        """
        return max(
            injected + 3 * self.objectives.ttr,
            (gone if gone is not None else injected + self.duration) + self.objectives.ttr + self.steady_state.hold,
        )
