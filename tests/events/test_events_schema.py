"""The exported schemas are those under version control, and an incompatible change is found."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from gpuchaos_stream.events.schema import incompatible, schemas, text

COMMITTED = Path(__file__).parents[2] / "schema"


@pytest.mark.parametrize("name", sorted(schemas()))
def test_contract_is_the_committed_one(name: str) -> None:
    assert (COMMITTED / f"{name}.json").read_text() == text(schemas()[name]), "run `make schema` and read the diff"


@pytest.mark.parametrize("path", sorted(COMMITTED.glob("*.json")), ids=lambda p: p.stem)
def test_contract_understands_what_was_written_before(path: Path) -> None:
    assert path.stem in schemas()
    assert incompatible(json.loads(path.read_text()), schemas()[path.stem]) == []


BASE: dict[str, Any] = {
    "type": "object",
    "required": ["id"],
    "properties": {
        "id": {"type": "string", "maxLength": 10},
        "phase": {"$ref": "#/$defs/Phase"},
        "score": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    },
    "$defs": {"Phase": {"enum": ["a", "b"], "type": "string", "title": "Phase"}},
}


def changed(*path: str, to: Any) -> dict[str, Any]:
    new = copy.deepcopy(BASE)
    at: Any = new
    for part in path[:-1]:
        at = at[part]
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return new


@pytest.mark.parametrize(
    ("new", "problem"),
    [
        (changed("required", to=["id", "score"]), "document: field 'score' is now required"),
        (changed("properties", "id", to=None), "document: field 'id' was removed"),
        (changed("properties", "id", "type", to="integer"), "id: type was string, is integer"),
        (changed("properties", "id", "maxLength", to=5), "id: maxLength is 5, was 10"),
        (changed("properties", "id", "pattern", to="^x"), "id: pattern changed to ^x"),
        (changed("$defs", "Phase", "enum", to=["a"]), "phase: values ['b'] are no longer allowed"),
        (changed("properties", "score", "anyOf", to=[{"type": "integer"}]), "score: null is no longer allowed"),
        (changed("additionalProperties", to=False), "document: additionalProperties are no longer allowed"),
    ],
)
def test_incompatible_change_is_named(new: dict[str, Any], problem: str) -> None:
    assert problem in incompatible(BASE, new)


@pytest.mark.parametrize(
    "new",
    [
        BASE,
        changed("properties", "extra", to={"type": "string"}),
        changed("properties", "id", "maxLength", to=20),
        changed("$defs", "Phase", "enum", to=["a", "b", "c"]),
        changed("required", to=[]),
    ],
)
def test_compatible_change_passes(new: dict[str, Any]) -> None:
    assert incompatible(BASE, new) == []
