"""`python -m gpuchaos_agent.describe FILE`: what this agent says of its faults, as data for the control plane.

The control plane installs without the agent and still has to name a wrong parameter: `make schema` writes the file.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, BeforeValidator, PlainValidator, WrapValidator

from gpuchaos_agent.inject import registry


def described() -> dict[str, dict[str, Any]]:
    """Fault → layer, claims, and the JSON Schema of its parameters."""
    return {
        name: {
            "layer": strategy.layer,
            "certifies": list(strategy.certifies),
            "not_certified": list(strategy.not_certified),
            "params": _schema(strategy.params),
        }
        for name, strategy in registry.strategies().items()
    }


def text() -> str:
    """The same as it is kept under version control."""
    return json.dumps(described(), indent=2, sort_keys=True) + "\n"


def _schema(model: type[BaseModel]) -> dict[str, Any]:
    schema = model.model_json_schema()
    early = {name for name, field in model.model_fields.items() if any(_read(field.annotation, field.metadata))}
    for decorator in model.__pydantic_decorators__.field_validators.values():
        if decorator.info.mode != "after":
            early.update(decorator.info.fields)
    for name in early & schema.get("properties", {}).keys():
        schema["properties"][name]["x-read"] = True  # its schema is that of the result, not of what is written
    plain: dict[str, Any] = _plain(schema)
    return plain


def _read(annotation: Any, metadata: Any = ()) -> Iterator[bool]:
    """Yields where a function reads the value before its type is looked at."""
    yield from (True for each in metadata if isinstance(each, BeforeValidator | PlainValidator | WrapValidator))
    for inner in get_args(annotation):
        yield from _read(inner, getattr(inner, "__metadata__", ()))


def _plain(schema: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
