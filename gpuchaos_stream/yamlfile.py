"""YAML that people write, read into a model, with every mistake named by file and line."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from gpuchaos_stream.errors import UserError, UserErrors, nearest

Model = TypeVar("Model", bound=BaseModel)

#: What people write for a comparison → how it is written here.
_COMPARISONS: Final = {"=>": ">=", "=<": "<=", "=": "==", "<>": "!="}

#: Path of keys and indexes into a document.
Loc = tuple[int | str, ...]


class Document:
    """One YAML document: its data, and the line (from 1) of each key and item in it."""

    def __init__(self, path: Path, data: Any, lines: dict[Loc, int]) -> None:
        self.path = path
        self.data = data
        self.lines = lines

    def where(self, loc: Loc) -> str:
        """`file:line` of `loc`, or of the nearest thing around it that the file really holds."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return f"{self.path}:{self.lines.get(loc, 1)}"

    def validate(self, model: type[Model]) -> Model:
        """The document as `model`.

        Raises:
            UserErrors: each mistake with file, line, field and, for an unknown name, the nearest known one.
        """
        try:
            return model.model_validate(self.data)
        except ValidationError as error:
            found = error.errors(include_url=False)
            raise UserErrors(self._explain(model, item) for item in found if not _follows(item, found)) from error

    def _explain(self, model: type[BaseModel], item: Any) -> UserError:
        loc: Loc = tuple(item["loc"])
        field = ".".join(str(part) for part in loc) or "document"
        if item["type"] == "extra_forbidden":
            known = _fields_at(model, loc[:-1])
            return UserError(self.where(loc), f"unknown field {field!r}", nearest(str(loc[-1]), known))
        if item["type"] == "missing":
            return UserError(self.where(loc[:-1]), f"field {field!r} is missing", "it is required: add it")
        if item["type"] in {"enum", "literal_error"} and isinstance(item["input"], str):
            known = set(re.findall(r"'([^']*)'", item["ctx"]["expected"]))
            meant = _COMPARISONS.get(item["input"])
            fix = f"did you mean {meant!r}?" if meant in known else nearest(item["input"], known)
            return UserError(self.where(loc), f"field {field!r}: unknown value {item['input']!r}", fix)
        message = str(item["msg"]).removeprefix("Value error, ")
        if repr(item.get("input")) in message:
            problem, _, fix = message.partition("; ")
            return UserError(self.where(loc), f"field {field!r}: {problem}", fix)
        return UserError(self.where(loc), f"field {field!r}: {message}", f"it is {_short(item.get('input'))} now")


def read(path: Path) -> Document:
    """Reads a YAML file.

    Raises:
        UserError: it cannot be read, is no YAML, is empty, or repeats a key; with file and line.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise UserError(str(path), f"cannot be read ({error.strerror})", "check the path") from error
    except UnicodeDecodeError as error:
        raise UserError(str(path), "is not UTF-8 text", "save it as UTF-8") from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = mark.line + 1 if mark else 1
        raise UserError(f"{path}:{line}", f"not YAML: {error.problem}", "mend the syntax there") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise UserError(str(path), f"not YAML: {error}", "mend the syntax") from error
    if node is None:
        raise UserError(str(path), "is empty", "see docs/ for an example")
    lines: dict[Loc, int] = {}
    _mark(path, node, (), lines)
    return Document(path, data, lines)


def _mark(path: Path, node: yaml.Node, loc: Loc, lines: dict[Loc, int]) -> None:
    lines.setdefault(loc, node.start_mark.line + 1)
    if isinstance(node, yaml.MappingNode):
        seen: set[str] = set()
        for key, value in node.value:
            name = str(key.value)
            if name in seen:
                raise UserError(f"{path}:{key.start_mark.line + 1}", f"key {name!r} is written twice", "keep one")
            seen.add(name)
            lines[(*loc, name)] = key.start_mark.line + 1
            _mark(path, value, (*loc, name), lines)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            _mark(path, value, (*loc, index), lines)


def _follows(item: Any, found: Iterable[Any]) -> bool:
    """Whether it is no mistake of its own: a list counts as too short when an item of it is wrong."""
    loc = item["loc"]
    return item["type"] == "too_short" and any(
        len(other["loc"]) > len(loc) and other["loc"][: len(loc)] == loc for other in found
    )


def _fields_at(model: type[BaseModel], loc: Loc) -> set[str]:
    """Names of the fields that the model has at `loc`; empty where the types do not lead there."""
    current: Any = model
    for part in loc:
        if isinstance(part, int):
            continue
        fields = getattr(current, "model_fields", {})
        if part not in fields:
            return set()
        current = _model_in(fields[part].annotation)
    return set(getattr(current, "model_fields", {}))


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for argument in getattr(annotation, "__args__", ()):
        found = _model_in(argument)
        if found is not None:
            return found
    return None


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "…"
