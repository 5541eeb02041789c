"""What each fault takes as parameters, as the agents say it.

`faults.json` is made from the agent's own models (`make schema`): names, choices and defaults, also where no agent is
looked at. Whether parameters may be given like that is asked of the models themselves, so that a person is told here
what the agent would say later. At run time nobody asks: the agents may be newer than this, or simulated.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from importlib.resources import files
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from gpuchaos_stream.errors import nearest
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.yamlfile import Loc

#: Fault → what its agent says of it: `layer`, `certifies`, `not_certified`, `params` (a JSON Schema).
SCHEMAS: Final[Mapping[str, Mapping[str, Any]]] = json.loads(
    files("gpuchaos_stream.experiments").joinpath("faults.json").read_text("utf-8")
)

#: pydantic's kinds of mistakes → what would be right, in our words; `{}` are those of the mistake's context.
_WANTED: Final[dict[str, str]] = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "float_parsing": "a number",
    "float_type": "a number",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_type": "a whole number",
    "finite_number": "a number",
    "greater_than": "more than {gt:g}",
    "greater_than_equal": "at least {ge:g}",
    "less_than": "less than {lt:g}",
    "less_than_equal": "at most {le:g}",
    "literal_error": "one of {expected}",
    "string_pattern_mismatch": "text that matches {pattern}",
    "string_too_long": "at most {max_length} characters",
    "string_too_short": "some text",
    "value_error": "{error}",
}


def names(fault: str) -> tuple[str, ...]:
    """The parameters of a fault."""
    return tuple(_properties(fault))


def defaults(fault: str) -> dict[str, object]:
    """Each parameter of a fault with its value where none is given; None for what has none."""
    return {name: schema.get("default") for name, schema in _properties(fault).items()}


def choices(fault: str, name: str) -> tuple[str, ...]:
    """What a parameter that is one of several words may be."""
    schema = _properties(fault).get(name, {})
    while "$ref" in schema:
        schema = SCHEMAS[fault]["params"]["$defs"][schema["$ref"].rsplit("/", 1)[-1]]
    return tuple(schema.get("enum", ()))


def model(fault: str) -> type[BaseModel] | None:
    """The agent's own model of the parameters; None for a fault that it does not have."""
    from gpuchaos_agent.inject import registry  # noqa: PLC0415  (a third of a second that the stages do not need)

    strategy = registry.strategies().get(fault)
    return strategy.params if strategy is not None else None


def mistakes(plan: Plan) -> Iterator[tuple[Loc, str, str]]:
    """Parameters that the fault does not have, lacks, or cannot take: what its agent would refuse."""
    asked = model(plan.fault.name)
    if asked is None:
        return
    try:
        asked.model_validate(plan.fault.params)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            yield _explained(plan, asked, item)


def _explained(plan: Plan, asked: type[BaseModel], item: Any) -> tuple[Loc, str, str]:
    fault = plan.fault.name
    wanted = _wanted(item)
    if not item["loc"]:  # of several together
        return ("fault", "params"), f"{fault!r} cannot be done like this: {wanted}", f"docs/faults/{fault}.md has them"
    name = str(item["loc"][0])
    field = asked.model_fields.get(name)
    said = field.description or "" if field is not None else ""
    if item["type"] == "extra_forbidden":
        fix = nearest(name, asked.model_fields) or "it takes none"
        return ("fault", "params", name), f"{fault!r} has no parameter {name!r}", fix
    if item["type"] == "missing":
        fix = f"add it to fault.params: {said}".rstrip(": ")
        return ("fault",), f"{fault!r} needs the parameter {name!r}", fix
    return ("fault", "params", name), f"{plan.fault.params[name]!r} is not what {fault!r} takes: {wanted}", said


def _wanted(item: Any) -> str:
    """What would be right in the place of a mistake."""
    if item["type"] == "string_type":
        return f"text, like {str(item['input'])!r}"
    words = _WANTED.get(item["type"])
    if words is None:
        return str(item["msg"])
    context = item.get("ctx", {})
    return words.format(**context | {"expected": _listed(str(context.get("expected", "")))})


def _listed(expected: str) -> str:
    """`a, b` of pydantic's `'a' or 'b'`."""
    return expected.replace("' or '", "', '").replace("'", "")


def _properties(fault: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = SCHEMAS[fault]["params"].get("properties", {}) if fault in SCHEMAS else {}
    return found
