"""Tables in the documentation that are made from the code, between `<!-- table: NAME -->` and `<!-- end -->`.

`python tests/docs/docs_tables.py` writes them anew; `test_docs_tables.py` fails while one is not what the code says.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, get_args

import docs_alerts
import docs_cli
import docs_metrics
import yaml
from pydantic import TypeAdapter, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from gpuchaos_agent import metrics as agent_metrics
from gpuchaos_agent.collect.registry import collectors as all_collectors
from gpuchaos_agent.config import PREFIX as AGENT_PREFIX
from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.hardware import ROWS
from gpuchaos_agent.read.guess import known as known_kinds
from gpuchaos_stream.detect.config import JOB_SUMMARY, SUMMARY
from gpuchaos_stream.events.metrics import METRICS
from gpuchaos_stream.events.topics import DAY, HOUR, TOPICS, Topic
from gpuchaos_stream.experiments.faults import CLAIMS, FAULTS
from gpuchaos_stream.experiments.fidelity import TAKES
from gpuchaos_stream.experiments.parameters import SCHEMAS
from gpuchaos_stream.experiments.shortfalls import SHORTFALLS
from gpuchaos_stream.guard.context import NO_LIMIT, WORST, ClusterContext, ExperimentContext, View
from gpuchaos_stream.notify import metrics as notifications
from gpuchaos_stream.observe import metrics as control_metrics
from gpuchaos_stream.stream import watchdog
from gpuchaos_stream.stream.settings import PREFIX as KAFKA_PREFIX
from gpuchaos_stream.stream.settings import KafkaSettings
from gpuchaos_stream.web import metrics as serving

ROOT: Final = Path(__file__).resolve().parents[2]

Rows = Iterable[Sequence[str]]
_MARK: Final = re.compile(r"(<!-- table: ([a-z-]+) -->\n).*?(<!-- end -->)", re.DOTALL)


def table(head: Sequence[str], rows: Rows) -> str:
    """A Markdown table. A bar inside a cell is escaped."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |\n" for line in lines)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def _kept(topic: Topic) -> str:
    if topic.cleanup == "compact":
        return "latest of each key"
    unit, name = (DAY, "d") if topic.retention_s % DAY == 0 else (HOUR, "h")
    return f"{topic.retention_s // unit} {name}"


def topics() -> str:
    """Every topic of the contract."""
    rows = ((code(t.name), t.key, t.partitioned_by, _kept(t), t.holds) for t in TOPICS)
    return table(("topic", "key", "partition by", "kept", "holds"), rows)


#: What the numbers that stand for "unknown" are called in the documentation.
_STANDS_FOR: Final[dict[object, str]] = {NO_LIMIT: "2^53", WORST: "2^53 − 1", 1e9: "10^9", -1.0: "−1"}


def _unknown(field: FieldInfo) -> str:
    """What a missing value reads as; empty where the field is never missing."""
    try:
        kind: Any = Annotated[(field.annotation, *field.metadata, None)]
        value: Any = TypeAdapter(kind).validate_python(None)
    except ValidationError:
        return ""
    return _STANDS_FOR.get(value, f"{value:g}" if isinstance(value, int | float) else str(value))


def _kind(annotation: Any) -> str:
    words = {int: "int", float: "double", bool: "bool", str: "string"}
    if annotation in words:
        return words[annotation]
    if getattr(annotation, "__origin__", None) is dict:
        return "map"
    if getattr(annotation, "__origin__", None) is tuple:
        return "list"
    return "string"  # enums


def context() -> str:
    """Every name that a rule may use, those of scope cluster last."""
    rows = []
    in_cluster = set(ClusterContext.model_fields)
    for name in (*(n for n in ExperimentContext.model_fields if n not in in_cluster), *ClusterContext.model_fields):
        view: Any = ExperimentContext.model_fields[name].annotation
        assert issubclass(view, View)
        for field_name, field in view.model_fields.items():
            scope = "both" if name in in_cluster else "experiment"
            path = f"{name}.{field_name}"
            rows.append((code(path), _kind(field.annotation), scope, field.description or "", _unknown(field)))
    return table(("name", "type", "scope", "meaning", "unknown reads"), rows)


def fault_kinds() -> str:
    """Every fault, what it reaches and what may be claimed with it."""
    rows = (
        (
            code(kind.name) + (f", {code(f'{kind.by}: {form.value}')}" if kind.by else ""),
            form.layer if kind.available else f"(not yet available) {form.layer}",
            ", ".join(code(f"{target}/NODE" + ("" if target == "node" else "/ID")) for target in form.targets),
            ", ".join(map(code, form.certifies)),
            ", ".join(map(code, form.never)),
            form.needs,
        )
        for kind in FAULTS.values()
        for form in kind.forms
    )
    return table(("fault", "layer it reaches", "aimed at", "certifies", "never certifies", "needs"), rows)


def fault_parameters() -> str:
    """What each fault takes."""
    rows = []
    for fault in FAULTS:
        schema = SCHEMAS.get(fault, {"params": {}})["params"]
        required = schema.get("required", ())
        for name, said in schema.get("properties", {}).items():
            default = "required" if name in required else _written(said.get("default"))
            rows.append((code(fault), code(name), _takes(said), default))
    return table(("fault", "parameter", "takes", "default"), rows)


def shortfalls() -> str:
    """Parameters with which a fault does not make good what it makes good otherwise."""
    rows = ((code(row.fault), ", ".join(map(code, row.claims)), row.why, row.instead) for row in SHORTFALLS)
    return table(("fault", "does not certify", "because", "what to write"), rows)


def _written(value: object) -> str:
    if value is None:
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def _takes(said: Any) -> str:
    choices = [each for each in said.get("anyOf", [said]) if each.get("type") != "null"]
    return " or ".join(
        ", ".join(map(code, each["enum"])) if "enum" in each else each.get("type", "") for each in choices
    )


def claims() -> str:
    """What can be claimed, what it takes, and which fault makes it good."""
    rows = ((code(claim), takes, ", ".join(CLAIMS.get(claim, ())) or "none") for claim, takes in sorted(TAKES.items()))
    return table(("claim", "it takes", "faults that make it good"), rows)


def checks() -> str:
    """Metrics that a telemetry check may name."""
    rows: list[tuple[str, ...]] = []
    for (kind, metric), aggregates in SUMMARY.items():
        known = METRICS[kind, metric]
        names = (f"{kind}.{metric}.{how}" for how in aggregates)
        rows.extend((code(name), code("node/NAME"), known.unit, known.meaning) for name in names)
    for name, (metric, how) in JOB_SUMMARY.items():
        known = METRICS["process", metric]
        rows.append((code(name), code("job/NAME"), known.unit, f"{how} over the job's processes: {known.meaning}"))
    rows.append((code("ranks"), code("job/NAME"), "1", "how many of the job's processes are seen"))
    rows.append((code("ranks_running"), code("job/NAME"), "1", "how many of those run"))
    return table(("metric", "of", "unit", "meaning"), rows)


def _default(field: FieldInfo) -> str:
    if field.default_factory is not None:
        return "see below"
    if field.default is PydanticUndefined:
        return "required"
    value = field.default
    if value is None or value in ({}, ()):
        return ""
    return code(str(value).lower() if isinstance(value, bool) else str(value))


def _settings(model: Any, prefix: str) -> str:
    rows = (
        (
            code(name),
            code(prefix + name.upper()),
            _default(field),
            "; ".join(filter(None, (_choices(field), field.description))),
        )
        for name, field in model.model_fields.items()
    )
    return table(("field", "variable", "default", "meaning"), rows)


def _choices(field: FieldInfo) -> str:
    values = get_args(field.annotation)
    return " or ".join(map(code, values)) if values and all(isinstance(value, str) for value in values) else ""


def kafka_settings() -> str:
    """How Kafka is reached."""
    return _settings(KafkaSettings, KAFKA_PREFIX)


def agent_settings() -> str:
    """The agent's settings."""
    return _settings(AgentSettings, AGENT_PREFIX)


def collectors() -> str:
    """The agent's collectors, with the first sentence of each module."""
    rows = []
    for name, collector in all_collectors().items():
        summary = (inspect.getdoc(import_module(collector.__module__)) or "").split("\n\n")[0].replace("\n", " ")
        kinds = ", ".join(map(code, collector.kinds)) or "facts only"
        rows.append((code(name), kinds, summary))
    return table(("collector", "fills", "what it is"), rows)


def kinds() -> str:
    """What `gpuchaos-agent read` understands."""
    return table(("kind", "what it is"), [(code(name), kind.SUMMARY) for name, kind in known_kinds().items()])


def worker_metrics() -> str:
    """The worker's metrics."""
    return table(docs_metrics.HEAD, docs_metrics.exported(control_metrics))


def watchdog_metrics() -> str:
    """What the watchdog of the commits shows."""
    return table(docs_metrics.HEAD, docs_metrics.exported(watchdog))


def serve_metrics() -> str:
    """Those of `gpuchaos serve`."""
    return table(docs_metrics.HEAD, docs_metrics.exported(serving))


def notify_metrics() -> str:
    """Those of `gpuchaos notify`."""
    return table(docs_metrics.HEAD, docs_metrics.exported(notifications))


def metrics_of_agent() -> str:
    """The agent's metrics."""
    return table(docs_metrics.HEAD, docs_metrics.exported(agent_metrics))


def device_metrics() -> str:
    """What the agent shows of devices."""
    return table(docs_metrics.DEVICE_HEAD, docs_metrics.of_devices())


def dcgm_metrics() -> str:
    """What it shows under the names of a DCGM exporter."""
    return table(docs_metrics.DCGM_HEAD, docs_metrics.of_dcgm())


def hardware_metrics() -> str:
    """What an agent exports under OpenTelemetry's names."""
    rows = (
        (
            code(row.name),
            row.instrument,
            row.unit,
            ", ".join(code(f"{name}={value}") for name, value in row.attributes.items()) or _sensor(row.sensor),
            f"{row.kind}: {row.source}",
        )
        for row in ROWS
    )
    return table(("metric", "instrument", "unit", "attributes", "made of"), rows)


def _sensor(sensor: str) -> str:
    return code(f"hw.sensor_location={sensor}") if sensor else ""


def series() -> str:
    """How many series there are at most."""
    return table(docs_metrics.SERIES_HEAD, docs_metrics.series((control_metrics, watchdog), agent_metrics))


def recorded() -> str:
    """What the recording rules make."""
    return table(docs_alerts.RECORDED_HEAD, docs_alerts.recorded())


def alerts() -> str:
    """Every alert."""
    return table(docs_alerts.ALERTS_HEAD, docs_alerts.alerts())


def commands() -> str:
    """Every command of `gpuchaos`."""
    return docs_cli.reference()


def exit_statuses() -> str:
    """What an exit status means in every command."""
    return docs_cli.statuses()


def agent_options() -> str:
    """The options of `gpuchaos-agent`."""
    return docs_cli.agent_options()


def helm_needs() -> str:
    """What the chart gives the agent for each collector and fault."""
    needs = yaml.safe_load((ROOT / "helm/gpuchaos-stream/files/needs.yaml").read_text())
    rows = []
    for name, row in [*needs["collectors"].items(), *needs["faults"].items()]:
        for form, wants in row.get("forms", {"": row}).items():
            host = [word for key, word in (("hostNetwork", "network"), ("hostPID", "process ids")) if wants.get(key)]
            rights = [code(right) for right in wants.get("capabilities", ())]
            rights += [f"{profile} `Unconfined`" for profile in ("seccomp", "apparmor") if profile in wants]
            why = "; ".join([wants.get("reason", ""), *wants.get("capabilities", {}).values()]).removeprefix("; ")
            kind = "collector" if name in needs["collectors"] else "fault"
            given = ["`privileged`"] if wants.get("privileged") else rights
            rows.append((kind, code(f"{name}/{form}" if form else name), ", ".join(host), ", ".join(given), why))
    return table(("", "enabled", "of the node", "rights", "why"), rows)


#: Name in the mark → what makes the table.
TABLES: Final[dict[str, Callable[[], str]]] = {
    "helm-needs": helm_needs,
    "topics": topics,
    "context": context,
    "faults": fault_kinds,
    "fault-parameters": fault_parameters,
    "claims": claims,
    "shortfalls": shortfalls,
    "checks": checks,
    "kafka-settings": kafka_settings,
    "agent-settings": agent_settings,
    "collectors": collectors,
    "kinds": kinds,
    "worker-metrics": worker_metrics,
    "watchdog-metrics": watchdog_metrics,
    "notify-metrics": notify_metrics,
    "serve-metrics": serve_metrics,
    "agent-metrics": metrics_of_agent,
    "series": series,
    "recorded": recorded,
    "alerts": alerts,
    "device-metrics": device_metrics,
    "dcgm-metrics": dcgm_metrics,
    "hardware-metrics": hardware_metrics,
    "commands": commands,
    "exit-statuses": exit_statuses,
    "agent-options": agent_options,
}


def pages() -> list[Path]:
    """Every page of the documentation, the first page included."""
    singles = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "helm/README.md", "dashboards/README.md")]
    return [*singles, *sorted((ROOT / "docs").rglob("*.md"))]


def tables_in(text: str) -> dict[str, str]:
    """The tables that a page holds now, by name."""
    return {match[2]: match[0].removeprefix(match[1]).removesuffix(match[3]) for match in _MARK.finditer(text)}


def rewritten(text: str) -> str:
    """The page with its tables as the code has them.

    Raises:
        KeyError: it asks for a table that nothing makes.
    """
    return _MARK.sub(lambda match: match[1] + TABLES[match[2]]() + match[3], text)


if __name__ == "__main__":
    for page in pages():
        before = page.read_text()
        if (after := rewritten(before)) != before:
            page.write_text(after)
