"""The contract as JSON Schema, and what makes a change to it incompatible.

A reader of the next version must understand what the last one wrote, and the other way round while a rolling
upgrade lasts. So a field may be added if it has a default, and nothing may be removed, narrowed or required.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, Final

from pydantic import TypeAdapter

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Command
from gpuchaos_stream.events.envelope import ADAPTERS
from gpuchaos_stream.events.frame import TelemetryFrame

Schema = dict[str, Any]


def schemas() -> dict[str, Schema]:
    """File stem → JSON Schema, one for each topic and one for what a signed command holds."""
    out = {topics.TELEMETRY.name: TypeAdapter(TelemetryFrame).json_schema(mode="validation")}
    out |= {name: adapter.json_schema(mode="validation") for name, adapter in ADAPTERS.items()}
    out["gpuchaos.command-payload.v1"] = TypeAdapter(Command).json_schema(mode="validation")
    return out


def text(schema: Schema) -> str:
    """The schema as it is kept under version control: sorted, indented, one trailing newline."""
    return json.dumps(schema, indent=2, sort_keys=True) + "\n"


#: Bounds whose appearance or tightening refuses what was accepted. +1: may not rise; -1: may not fall.
_BOUNDS: Final = {
    "minimum": 1,
    "exclusiveMinimum": 1,
    "minLength": 1,
    "minItems": 1,
    "maximum": -1,
    "exclusiveMaximum": -1,
    "maxLength": -1,
    "maxItems": -1,
}


def incompatible(old: Schema, new: Schema) -> list[str]:
    """What in `new` refuses, or no longer carries, what `old` allowed: one sentence each, empty if compatible."""
    return list(_Comparison(old, new).compare(old, new, "", frozenset()))


class _Comparison:
    """Walks two schemas side by side; holds the documents in which their references are found."""

    def __init__(self, old_root: Schema, new_root: Schema) -> None:
        self._old_root = old_root
        self._new_root = new_root

    def compare(self, old: Any, new: Any, path: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        pair = (str(old.get("$ref", "")), str(new.get("$ref", "")))
        if all(pair):
            if pair in seen:
                return
            seen |= {pair}
        old_kinds = _variants(old, self._old_root)
        new_kinds = {_name(kind): kind for kind in _variants(new, self._new_root)}
        if len(old_kinds) == len(new_kinds) == 1:
            yield from self._one(old_kinds[0], next(iter(new_kinds.values())), path, seen)
            return
        for kind in old_kinds:
            name = _name(kind)
            if name in new_kinds:
                yield from self._one(kind, new_kinds[name], f"{path}<{name}>", seen)
            else:
                yield f"{path or 'document'}: {name} is no longer allowed"

    def _one(self, old: Any, new: Any, path: str, seen: frozenset[tuple[str, str]]) -> Iterator[str]:
        for problem in (*_type(old, new), *_allowed(old, new), *_bounds(old, new), *_required(old, new)):
            yield f"{path or 'document'}: {problem}"
        old_fields, new_fields = old.get("properties", {}), new.get("properties", {})
        for name in sorted(old_fields):
            if name in new_fields:
                yield from self.compare(old_fields[name], new_fields[name], f"{path}.{name}".lstrip("."), seen)
            else:
                yield f"{path or 'document'}: field {name!r} was removed"
        for part in ("items", "additionalProperties"):
            if isinstance(old.get(part), dict) and isinstance(new.get(part), dict):
                yield from self.compare(old[part], new[part], f"{path}[]", seen)
            elif new.get(part) is False and old.get(part) is not False:
                yield f"{path or 'document'}: {part} are no longer allowed"


def _type(old: Any, new: Any) -> Iterator[str]:
    widened = (old.get("type"), new.get("type")) == ("integer", "number")
    if new.get("type") not in {None, old.get("type")} and not widened:
        yield f"type was {old.get('type')}, is {new.get('type')}"


def _allowed(old: Any, new: Any) -> Iterator[str]:
    before, after = _values(old), _values(new)
    if after and not before:
        yield "values are now restricted"
    elif after and before - after:
        yield f"values {sorted(map(str, before - after))} are no longer allowed"
    if "pattern" in new and new["pattern"] != old.get("pattern"):
        yield f"pattern changed to {new['pattern']}"


def _bounds(old: Any, new: Any) -> Iterator[str]:
    for bound, direction in _BOUNDS.items():
        if bound in new and (bound not in old or (new[bound] - old[bound]) * direction > 0):
            yield f"{bound} is {new[bound]}, was {old.get(bound, 'free')}"


def _required(old: Any, new: Any) -> Iterator[str]:
    for name in sorted(set(new.get("required", ())) - set(old.get("required", ()))):
        yield f"field {name!r} is now required"


def _variants(schema: Any, root: Schema) -> list[Any]:
    schema = _resolve(schema, root)
    for word in ("anyOf", "oneOf"):
        if word in schema:
            return [kind for choice in schema[word] for kind in _variants(choice, root)]
    return [schema]


def _name(schema: Any) -> str:
    return str(schema.get("title") or schema.get("type") or "value")


def _values(schema: Any) -> set[Any]:
    return {schema["const"]} if "const" in schema else set(schema.get("enum", ()))


def _resolve(schema: Any, root: Schema) -> Any:
    while "$ref" in schema:
        target: Any = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema
