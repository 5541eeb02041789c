"""What each fault takes as parameters, as the agents say it.

`faults.json` is made from the agent's own models (`make schema`), so that the control plane needs no agent to be
installed. It is enough to name a wrong parameter with its line; what the agent checks besides, it checks.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

from gpuchaos_stream.errors import nearest
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.yamlfile import Loc

#: Fault → what its agent says of it: `layer`, `certifies`, `not_certified`, `params` (a JSON Schema).
SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    files("gpuchaos_stream.experiments").joinpath("faults.json").read_text("utf-8")
)

#: JSON Schema's bounds → what must hold between a number and one of them, in words.
_BOUNDS: Final[dict[str, tuple[str, Callable[[float, float], bool]]]] = {
    "minimum": ("at least", operator.ge),
    "exclusiveMinimum": ("more than", operator.gt),
    "maximum": ("at most", operator.le),
    "exclusiveMaximum": ("less than", operator.lt),
}


def names(fault: str) -> tuple[str, ...]:
    """The parameters of a fault."""
    return tuple(SCHEMAS[fault]["params"].get("properties", {})) if fault in SCHEMAS else ()


def choices(fault: str, name: str) -> tuple[str, ...]:
    """What a parameter that is one of several words may be."""
    schema = SCHEMAS[fault]["params"] if fault in SCHEMAS else {}
    return tuple(_resolved(schema.get("properties", {}).get(name, {}), schema).get("enum", ()))


def mistakes(plan: Plan) -> Iterator[tuple[Loc, str, str]]:
    """Parameters that the fault does not have, lacks, or cannot take."""
    fault, given = plan.fault.name, plan.fault.params
    if fault not in SCHEMAS:
        return
    schema = SCHEMAS[fault]["params"]
    known: dict[str, Any] = schema.get("properties", {})
    for name, value in given.items():
        loc: Loc = ("fault", "params", name)
        if name not in known:
            yield loc, f"{fault!r} has no parameter {name!r}", nearest(name, known) or "it takes none"
        elif problem := _problem(value, known[name], schema):
            yield loc, f"{value!r} is not what {fault!r} takes: {problem}", known[name].get("description", "")
    for name in schema.get("required", ()):
        if name not in given:
            said = known.get(name, {}).get("description", "")
            yield ("fault",), f"{fault!r} needs the parameter {name!r}", f"add it to fault.params: {said}".rstrip(": ")


def _problem(value: object, schema: Mapping[str, Any], root: Mapping[str, Any]) -> str:
    """Why the agent would not take the value, as far as the schema tells; empty if nothing speaks against it."""
    schema = _resolved(schema, root)
    if schema.get("x-read"):
        return ""  # read by a function of the agent's, like a duration
    if "anyOf" in schema:
        problems = [_problem(value, choice, root) for choice in schema["anyOf"] if choice.get("type") != "null"]
        return "" if "" in problems else " or ".join(dict.fromkeys(problems))
    allowed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if allowed is not None:
        return "" if value in allowed else f"one of {', '.join(map(str, allowed))}"
    return _TYPES.get(str(schema.get("type")), _anything)(value, schema)


def _resolved(schema: Mapping[str, Any], root: Mapping[str, Any]) -> Mapping[str, Any]:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return schema


def _anything(_value: object, _schema: Mapping[str, Any]) -> str:
    return ""


def _boolean(value: object, _schema: Mapping[str, Any]) -> str:
    return "" if isinstance(value, bool) else "true or false"


def _string(value: object, schema: Mapping[str, Any]) -> str:
    if not isinstance(value, str):
        return f"text, like {str(value)!r}"
    if len(value) < schema.get("minLength", 0):
        return "some text"
    pattern = schema.get("pattern", "")
    try:
        return "" if re.search(pattern, value) else f"text that matches {pattern}"
    except re.error:
        return ""  # written for the agent's own expressions, which know more


def _number(value: object, schema: Mapping[str, Any]) -> str:
    try:
        number = math.nan if isinstance(value, bool) else float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        number = math.nan
    if math.isnan(number):
        return "a number"
    if schema["type"] == "integer" and not number.is_integer():
        return "a whole number"
    return next(
        (
            f"{words} {schema[bound]:g}"
            for bound, (words, holds) in _BOUNDS.items()
            if bound in schema and not holds(number, schema[bound])
        ),
        "",
    )


_TYPES: Final = {"boolean": _boolean, "string": _string, "number": _number, "integer": _number}
