"""A rule's expression: CEL, checked against the context's types before it is ever needed.

CEL finds an unknown name only when evaluation reaches it, which for `a > 1 && b.typo > 2` may be the night
of the incident; and it compares a string with a number without a word. So the names, the functions and the
words compared with a fixed set are checked here at load, and each operand of `&&` and `||` is tried alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final

import cel
from pydantic import BaseModel

from gpuchaos_stream.errors import nearest

#: Longest expression, characters. Longer ones want to be two rules.
LONGEST: Final = 2000

#: Functions and methods of CEL that the evaluator has; macros (has, exists, …) are resolved while parsing.
FUNCTIONS: Final = frozenset(
    {
        *("size", "int", "uint", "double", "string", "bytes", "type", "dyn", "duration", "timestamp"),
        *("contains", "startsWith", "endsWith", "matches"),
    }
)
_MACROS: Final = frozenset({"exists", "exists_one", "all", "filter", "map"})
_WORDS: Final = frozenset({"true", "false", "null", "in"})
#: How other languages write it → how CEL does.
_ELSEWHERE: Final = {"and": "&&", "or": "||", "not": "!", "=": "==", "&": "&&", "|": "||", "=>": ">=", "=<": "<="}

_TOKEN: Final = re.compile(
    r"""//[^\n]*|\s+
    |(?P<string>[rR]?[bB]?(?:\"\"\".*?\"\"\"|'''.*?'''|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'))
    |(?P<number>\d[\w.]*)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<op>==|!=|<=|>=|&&|\|\||.)""",
    re.VERBOSE | re.DOTALL,
)


class ExpressionError(ValueError):
    """An expression that cannot be accepted: what is wrong, and what to do."""

    def __init__(self, problem: str, fix: str = "") -> None:
        super().__init__(problem)
        self.problem = problem
        self.fix = fix


class EvaluationError(RuntimeError):
    """An expression that could not be evaluated on a context; the text says why, `fix` what to do."""

    def __init__(self, problem: str, fix: str = "each part must be true or false") -> None:
        super().__init__(problem)
        self.fix = fix


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Path:
    """A name with its parts (`blast.gpus`), the indexes of its first token and of the one after it."""

    parts: tuple[str, ...]
    first: int
    after: int


class Names:
    """The values of a context, dumped in JSON mode, handed to CEL once for any number of expressions.

    Handing them over costs 300 times an evaluation (280 µs and 1 µs measured).
    """

    __slots__ = ("_given", "values")

    def __init__(self, values: Mapping[str, Any]) -> None:
        self.values = values
        self._given: cel.Context | None = None

    def given(self) -> cel.Context:
        """The values as CEL holds them; raises what the evaluator raises on a value that it cannot hold."""
        if self._given is None:
            self._given = cel.Context(variables=dict(self.values))
        return self._given


class Expression:
    """A compiled CEL expression of type bool over the names of `model`."""

    __slots__ = ("_program", "paths", "source")

    def __init__(self, source: str, model: type[BaseModel], *, calm: BaseModel, busy: BaseModel) -> None:
        """Compiles and checks.

        `calm` and `busy` are example contexts: the whole must give a bool on both, each operand of `&&` and
        `||` on `busy`.

        Raises:
            ExpressionError: a syntax error, an unknown name or function, a word outside the set that it is
                compared with, or a part that is not boolean.
        """
        if len(source) > LONGEST:
            raise ExpressionError(f"is {len(source)} characters long", f"at most {LONGEST}; make it two rules")
        self.source = source
        self._program = _compile(source)
        tokens = list(_tokens(source))
        paths = list(_paths(tokens, model))
        self.paths = tuple(".".join(path.parts) for path in paths)
        for name in self._program.functions():
            if name.isidentifier() and name not in FUNCTIONS:
                fix = _as_cel_has_it(source) or nearest(name, FUNCTIONS | _MACROS | {"has"})
                raise ExpressionError(f"unknown function {name!r}", fix)
        for path in paths:
            _check_words(tokens, path, model)
        example = busy.model_dump(mode="json")
        for path in paths:
            _fill_open(example, path.parts)
        for operand in _operands(source, tokens):
            self._try(operand, example)
        self._try(source, calm.model_dump(mode="json"))
        self._try(source, busy.model_dump(mode="json"))

    def evaluate(self, names: Names) -> bool:
        """Whether it holds for `names`.

        Raises:
            EvaluationError: it cannot be evaluated, or gives no bool.
        """
        return _execute(self._program, names)

    @staticmethod
    def _try(source: str, names: Mapping[str, Any]) -> None:
        try:
            _execute(_compile(source), Names(names))
        except EvaluationError as error:
            text = source.strip()
            raise ExpressionError(f"{text!r} cannot be evaluated: {error}", error.fix) from error


def resolve(model: type[BaseModel], parts: tuple[str, ...]) -> Any:
    """The annotation of the field at `parts` below `model`.

    Raises:
        ExpressionError: no such field, with the nearest known name.
    """
    current: Any = model
    for index, part in enumerate(parts):
        here = ".".join(parts[:index])
        if isinstance(current, type) and issubclass(current, BaseModel):
            if part not in current.model_fields:
                known = current.model_fields
                raise ExpressionError(
                    f"unknown name {'.'.join(parts[: index + 1])!r}",
                    nearest(part, known)
                    if not here
                    else nearest(f"{here}.{part}", [f"{here}.{name}" for name in known]),
                )
            current = current.model_fields[part].annotation
        elif getattr(current, "__origin__", None) is dict:
            current = current.__args__[1]
        else:
            raise ExpressionError(f"{here!r} has no part {part!r}", f"it is a plain value: write {here}")
    return current


def _compile(source: str) -> cel.Program:
    try:
        return cel.compile(source)
    except ValueError as error:
        found = re.search(r"<input>:(\d+):(\d+): (?:Syntax error: )?([^\n]*)", str(error))
        text = f"at column {found[2]}: {found[3]}" if found else str(error).splitlines()[0]
        fix = _as_cel_has_it(source) or "docs/rules.md#cel-in-short has the language"
        raise ExpressionError(f"not CEL: {text.partition(' expecting ')[0]}", fix) from error


def _as_cel_has_it(source: str) -> str:
    """`write && for and`, for the first thing that is written as in another language; empty where there is none."""
    tokens = list(_tokens(source))
    for index, token in enumerate(tokens):
        following = tokens[index + 1] if index + 1 < len(tokens) else None
        pair = token.text + following.text if following is not None and following.start == token.end else ""
        written = pair if pair in _ELSEWHERE else token.text
        if token.kind != "string" and _text(tokens, index - 1) != "." and written.lower() in _ELSEWHERE:
            return f"write {_ELSEWHERE[written.lower()]} for {written}"
    return ""


#: What the evaluator raises → what to do.
_FIXES: Final[dict[type[BaseException], tuple[str]]] = {
    TypeError: ("CEL mixes no types: make numbers alike with double() or int()",),
    KeyError: ("ask has() before reading a label",),
}


def _execute(program: cel.Program, names: Names) -> bool:
    try:
        value = program.execute(names.given())
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic of the Rust side is no Exception, and must not pass for "holds not"
        # The library goes on with a paragraph about types in general.
        said = str(error).splitlines()[0].partition(" CEL does not coerce")[0].removeprefix("No such overload: ")
        raise EvaluationError(f"{type(error).__name__}: {said.rstrip('.')}", *_FIXES.get(type(error), ())) from error
    if not isinstance(value, bool):
        raise EvaluationError(f"it gives {value!r}, which is neither true nor false", "compare it with something")
    return value


def _tokens(source: str) -> Iterator[_Token]:
    for match in _TOKEN.finditer(source):
        if match.lastgroup:
            yield _Token(match.lastgroup, match[0], match.start(), match.end())


def _paths(tokens: list[_Token], model: type[BaseModel]) -> Iterator[_Path]:
    """Every name of the context that the expression reads, checked."""
    bound: set[str] = set()
    for index in range(len(tokens) - 3):
        dot, macro, bracket, name = tokens[index : index + 4]
        if dot.text == "." and macro.text in _MACROS and bracket.text == "(" and name.kind == "name":
            if name.text in model.model_fields:
                raise ExpressionError(f"{name.text!r} is bound by {macro.text}() and is a name", "choose another")
            bound.add(name.text)
    for index, token in enumerate(tokens):
        if token.kind != "name" or token.text in _WORDS or token.text in bound:
            continue
        if index and tokens[index - 1].text == ".":
            before = tokens[index - 2] if index > 1 else None
            if before is not None and (before.kind in {"name", "string", "number"} or before.text in ")]}"):
                continue
        if _text(tokens, index + 1) == "(":
            continue
        path = _path(tokens, index)
        resolve(model, path.parts)
        yield path


def _path(tokens: list[_Token], first: int) -> _Path:
    parts = [tokens[first].text]
    at = first + 1
    while True:
        if _text(tokens, at) == "." and _text(tokens, at + 2) != "(":
            parts.append(_text(tokens, at + 1))
            at += 2
        elif _text(tokens, at) == "[" and tokens[at + 1].kind == "string" and _text(tokens, at + 2) == "]":
            parts.append(tokens[at + 1].text.lstrip("rR").strip("\"'"))
            at += 3
        else:
            return _Path(tuple(parts), first, at)


def _check_words(tokens: list[_Token], path: _Path, model: type[BaseModel]) -> None:
    """A field of a fixed set of words may only be compared with those: CEL would answer false without a word."""
    kind = resolve(model, path.parts)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        if _text(tokens, path.first - 1) == "in" and path.first:
            return
        raise ExpressionError(
            f"{'.'.join(path.parts)!r} is a group of names", f"known are {', '.join(kind.model_fields)}"
        )
    if not (isinstance(kind, type) and issubclass(kind, StrEnum)):
        return
    words: list[str] = []
    at = path.after
    if _text(tokens, at) in {"==", "!="}:
        words = [_text(tokens, at + 1)]
    elif _text(tokens, at) == "in" and _text(tokens, at + 1) == "[":
        end = next((i for i in range(at, len(tokens)) if tokens[i].text == "]"), at)
        words = [token.text for token in tokens[at + 2 : end] if token.kind == "string"]
    elif path.first >= 2 and _text(tokens, path.first - 1) in {"==", "!="}:
        words = [_text(tokens, path.first - 2)]
    for word in words:
        text = word.strip("\"'")
        known = [str(member.value) for member in kind]
        if text != word and text not in known:
            raise ExpressionError(f"{'.'.join(path.parts)!r} is never {text!r}", nearest(text, known))


def _operands(source: str, tokens: list[_Token]) -> Iterator[str]:
    """The operands of `&&` and `||`, down through brackets and `!`; the whole where there are none."""
    while tokens and tokens[0].text == "!":
        tokens = tokens[1:]
    while len(tokens) > 1 and tokens[0].text == "(" and _closing(tokens, 0) == len(tokens) - 1:
        tokens = tokens[1:-1]
        while tokens and tokens[0].text == "!":
            tokens = tokens[1:]
    depth = 0
    cuts: list[int] = []
    for index, token in enumerate(tokens):
        depth += (token.text in "([{") - (token.text in ")]}") if token.kind == "op" else 0
        if depth == 0 and token.text == "?":
            cuts = []
            break
        if depth == 0 and token.text in {"&&", "||"}:
            cuts.append(index)
    if not cuts:
        yield source[tokens[0].start : tokens[-1].end]
        return
    for start, end in zip([-1, *cuts], [*cuts, len(tokens)], strict=True):
        yield from _operands(source, tokens[start + 1 : end])


def _closing(tokens: list[_Token], opening: int) -> int:
    depth = 0
    for index in range(opening, len(tokens)):
        if tokens[index].kind == "op":
            depth += (tokens[index].text in "([{") - (tokens[index].text in ")]}")
        if depth == 0:
            return index
    return len(tokens)


def _fill_open(example: dict[str, Any], parts: tuple[str, ...]) -> None:
    """Gives an open map (labels) the key that the expression reads, so that the reader's type is tried too."""
    current: Any = example
    for part in parts[:-1]:
        current = current.get(part) if isinstance(current, dict) else None
    if isinstance(current, dict):
        current.setdefault(parts[-1], "x")


def _text(tokens: list[_Token], index: int) -> str:
    return tokens[index].text if 0 <= index < len(tokens) else ""
