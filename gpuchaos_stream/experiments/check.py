"""The check of a plan beyond its types: everything that can be known before anything runs.

Each rule is one small function in `RULES`; it yields mistakes and knows nothing of the others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, Protocol
from urllib.parse import urlsplit

from gpuchaos_stream.detect.config import JOB_SUMMARY, SUMMARY
from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.events.base import entity_kind, entity_node
from gpuchaos_stream.experiments import fidelity, parameters
from gpuchaos_stream.experiments.address import parse_address
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.experiments.plan import (
    QUESTIONS,
    Plan,
    SteadyCheck,
    TelemetryCheck,
)
from gpuchaos_stream.yamlfile import Document, Loc

#: The shortest lease, seconds: renewed every third of it, an agent must get a renewal even over one lost second.
SHORTEST_LEASE_S: Final = 3.0
#: The longest lease, seconds: it is how long a fault may outlive the control plane.
LONGEST_LEASE_S: Final = 300.0
#: The longest experiment with its recovery, seconds: what the recovery stage keeps samples for.
LONGEST_RUN_S: Final = 4 * 3600.0

_PID: Final = re.compile(r"[1-9]\d{0,9}", re.ASCII)

#: Node-level names that a cell summary carries (`gpu.utilization_ratio.mean`).
NODE_METRICS: Final = frozenset(f"{kind}.{name}.{how}" for (kind, name), ways in SUMMARY.items() for how in ways)
#: Job-level names of a cell summary.
JOB_METRICS: Final = frozenset({*JOB_SUMMARY, "ranks", "ranks_running"})

#: Which metrics a check over this kind of entity may name.
_METRICS_OF: Final[dict[str, frozenset[str]]] = {"node": NODE_METRICS, "job": JOB_METRICS}


class Places(Protocol):
    """What is known of the cluster: enough to say that a target exists. `topology.Topology` is one."""

    @property
    def nodes(self) -> Collection[str]:
        """Every node."""

    def nodes_of(self, entity: str) -> Collection[str]:
        """The nodes that an entity touches."""


Mistake = tuple[Loc, str, str]
Rule = Callable[[Plan], Iterable[Mistake]]


def check(plan: Plan, *, document: Document | None = None, places: Places | None = None) -> list[UserError]:
    """Every mistake of the plan; empty when it may run.

    `document` gives the lines; without it the place is named by the plan's name and the field. With `places`
    targets that the cluster does not have are mistakes too. Parameters are looked at in a document alone: at run
    time the agents say what they take, and theirs may be newer, or simulated.
    """

    def error(mistake: Mistake) -> UserError:
        loc, problem, fix = mistake
        where = document.where(loc) if document is not None else f"plan {plan.name}"
        return UserError(where, f"field {'.'.join(map(str, loc))!r}: {problem}", fix)

    found = [mistake for rule in RULES for mistake in rule(plan)]
    if document is not None:
        found.extend(parameters.mistakes(plan))
    if places is not None:
        found.extend(_absent(plan, places))
    return [error(mistake) for mistake in found]


def _fault(plan: Plan) -> Iterator[Mistake]:
    name = plan.fault.name
    kind = FAULTS.get(name)
    if kind is None:
        yield ("fault", "name"), f"no fault is called {name!r}", nearest(name, FAULTS)
    elif not kind.available:
        usable = ", ".join(sorted(k.name for k in FAULTS.values() if k.available))
        yield ("fault", "name"), f"{name!r} is not yet available", f"available are {usable}"


def _targets(plan: Plan) -> Iterator[Mistake]:
    kind = FAULTS.get(plan.fault.name)
    form = kind.form(plan.fault.params) if kind is not None else None
    seen: set[str] = set()
    for index, entity in enumerate(plan.targets.entities):
        loc: Loc = ("targets", "entities", index)
        if entity in seen:
            yield loc, f"{entity!r} is named twice", "keep one: each target gets one fault"
        seen.add(entity)
        if kind is not None and form is not None and entity_kind(entity) not in form.targets:
            wanted = " or ".join(f"{target}/NODE" + ("" if target == "node" else "/ID") for target in form.targets)
            yield loc, f"{kind.words(form)!r} cannot be aimed at {entity!r}", f"aim it at {wanted}"
        elif entity_kind(entity) == "process" and entity_node(entity) and not _PID.fullmatch(entity.rsplit("/", 1)[1]):
            yield loc, f"{entity!r} names no process", "a process is named by its pid, like process/NODE/41873"
        elif entity_node(entity) is None:
            yield loc, f"{entity!r} is on no single node", "name a target on a node, like process/NODE/PID"


def _times(plan: Plan) -> Iterator[Mistake]:
    if plan.lease < SHORTEST_LEASE_S:
        yield (
            ("lease",),
            f"{plan.lease:g} s is too short to be renewed in time",
            f"write at least {SHORTEST_LEASE_S:g}s",
        )
    if plan.lease > LONGEST_LEASE_S:
        yield (
            ("lease",),
            f"{plan.lease:g} s is how long the fault would outlive a dead control plane",
            f"write at most {LONGEST_LEASE_S:g}s: it is renewed while the experiment runs",
        )
    if plan.lease > max(plan.duration, SHORTEST_LEASE_S):
        yield ("lease",), f"{plan.lease:g} s is longer than the duration", f"write at most {plan.duration:g}s"
    whole = plan.recovery_deadline(0.0, plan.duration)
    if whole > LONGEST_RUN_S:
        yield (
            ("duration",),
            f"the run would take {whole:.0f} s with its recovery",
            f"duration and three times objectives.ttr must stay within {LONGEST_RUN_S:.0f} s",
        )


def _objectives(plan: Plan) -> Iterator[Mistake]:
    goals = plan.objectives
    if goals.ttd > goals.ttr:
        yield (
            ("objectives", "ttd"),
            f"detection within {goals.ttd:g} s is later than recovery within {goals.ttr:g} s",
            "ttd must not be longer than ttr: what is not seen is not known to have recovered",
        )
    if goals.ttm > goals.ttr:
        yield (
            ("objectives", "ttm"),
            f"mitigation within {goals.ttm:g} s is later than recovery within {goals.ttr:g} s",
            "ttm must not be longer than ttr",
        )
    if goals.ttm < plan.duration:
        yield (
            ("objectives", "ttm"),
            f"the plan itself removes the fault only after {plan.duration:g} s: {goals.ttm:g} s cannot be met",
            f"write more than duration ({plan.duration:g}s) and the undo's time, or a shorter duration",
        )


def _limits(plan: Plan) -> Iterator[Mistake]:
    if plan.limits.gpu_seconds == 0 and plan.limits.gpus > 0:
        yield (
            ("limits", "gpu_seconds"),
            f"0 GPU-seconds halt at the first of the {plan.limits.gpus} GPUs that limits.gpus allows",
            "write how many GPU-seconds may be lost beyond the targets, or gpus: 0",
        )


def _driver(plan: Plan) -> Iterator[Mistake]:
    kind = FAULTS.get(plan.fault.name)
    if kind is None or not kind.driver or plan.fault.params.get("force"):
        return
    for index, entity in enumerate(plan.targets.entities):
        if kind.agent(entity, plan.fault.params) == entity_node(entity):
            yield (
                ("targets", "entities", index),
                f"{entity!r} would be its own {kind.driver}, and nobody would be left to undo {kind.name!r}",
                f"name another node in fault.params.{kind.driver}: its agent gives the order",
            )


def _checks(plan: Plan) -> Iterator[Mistake]:
    seen: set[str] = set()
    for loc, item in _located(plan):
        if item.name in seen:
            yield (*loc, "name"), f"check {item.name!r} is named twice", "each check needs a name of its own"
        seen.add(item.name)
        if len(item.kinds) != 1:
            said = " and ".join(item.kinds) or "nothing"
            yield loc, f"check {item.name!r} asks {said}", f"write exactly one of {', '.join(QUESTIONS)}"
        for part, problem, fix in _one_check(item):
            yield (*loc, *part), problem, fix


def _located(plan: Plan) -> Iterator[tuple[Loc, SteadyCheck]]:
    for index, item in enumerate(plan.steady_state.checks):
        yield ("steady_state", "checks", index), item
    for index, item in enumerate(plan.recovery):
        yield ("recovery", index), item


def _one_check(item: SteadyCheck) -> Iterator[Mistake]:
    if item.telemetry is not None:
        yield from _telemetry(item.telemetry)
    if item.job is not None and "/" in item.job.name:
        yield ("job", "name"), f"{item.job.name!r} is no name of a job", "write it without job/"
    if item.promql is not None:
        if not item.promql.query.strip():
            yield ("promql", "query"), "the query is empty", "write a PromQL query that returns one sample"
        yield from _url(("promql", "url"), item.promql.url)
    if item.http is not None:
        if not 100 <= item.http.status <= 599:
            yield ("http", "status"), f"{item.http.status} is no HTTP status", "write one from 100 to 599, like 200"
        yield from _url(("http", "url"), item.http.url)
    for kind in ("tcp", "tls", "postgres", "redis"):
        for field in ("address", "same_as"):
            written = getattr(getattr(item, kind), field, None)
            if written is not None:
                yield from _address((kind, field), written)


def _address(loc: Loc, written: str) -> Iterator[Mistake]:
    try:
        parse_address(written)
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        yield loc, problem, fix


def _telemetry(asked: TelemetryCheck) -> Iterator[Mistake]:
    metric, of = asked.metric, asked.of
    known = _METRICS_OF.get(entity_kind(of)) if of.count("/") == 1 else None
    if known is None:
        yield ("telemetry", "of"), f"{of!r} has no summary", "write node/NAME or job/NAME"
    elif metric not in known:
        yield ("telemetry", "metric"), f"a {entity_kind(of)} has no metric {metric!r}", _near_metric(metric, known)
    if asked.relative_to and asked.value <= 0:
        yield (
            ("telemetry", "value"),
            f"{asked.value:g} is no share of a baseline",
            "write a share above 0, like 0.9",
        )


def _near_metric(metric: str, known: frozenset[str]) -> str:
    """The nearest known name, or the first few: the whole list fills a screen."""
    hint = nearest(metric, known)
    return hint if hint.startswith("did you mean") or len(known) < 10 else "SUMMARY in detect/config.py lists them"


def _url(loc: Loc, url: str) -> Iterator[Mistake]:
    try:
        parts = urlsplit(url)
        fine = parts.scheme in {"http", "https"} and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        fine = False
    if not fine:
        yield loc, f"{url!r} is no http or https URL", "write it like http://prometheus:9090"


def _absent(plan: Plan, places: Places) -> Iterator[Mistake]:

    def knows(entity: str) -> bool:
        return any(node in places.nodes for node in places.nodes_of(entity))

    for index, entity in enumerate(plan.targets.entities):
        if not knows(entity):
            yield ("targets", "entities", index), f"the cluster has no {entity!r}", "check the node's name"
    for loc, item in _located(plan):
        if item.reading is not None and not knows(item.reading.of):
            part: Loc = ("telemetry", "of") if item.telemetry is not None else ("job", "name")
            yield (*loc, *part), f"the cluster has no {item.reading.of!r}", "check the name"


#: Every rule, in the order in which its mistakes are shown.
RULES: Final[tuple[Rule, ...]] = (
    _fault,
    fidelity.mistakes,
    _targets,
    _driver,
    _times,
    _objectives,
    _limits,
    _checks,
)
