"""What a command prints: a table for people, JSON or YAML for programs. One way for every command.

`table` is drawn on a terminal, within its width and in colour where that is wanted, and plain elsewhere. `json` is one
object a line. `yaml` is one document an object, each after a `---`. The latter two hold the same fields.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal, TextIO

import yaml
from pydantic import BaseModel

Form = Literal["table", "json", "yaml"]
FORMS: Final[tuple[Form, ...]] = ("table", "json", "yaml")
HELP: Final = "How it is printed; json: an object a line, yaml: a document an object."

#: Who read the output has gone (`| head`): what a shell reports of SIGPIPE.
NOBODY_READS: Final = 141

#: What could drive a terminal, as an escape that can be read: all of C0 but tab and line feed, DEL, and C1.
_HARMLESS: Final = {
    number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160)) if chr(number) not in "\t\n"
}
_YAML_WIDTH: Final = 120
#: A column of a table is never narrower than this, or than its longest cell.
_NARROW: Final = 6


class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
    """Safe, and without anchors: a reader finds each value where it belongs."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002  (yaml's signature)
        return True


def body(item: Mapping[str, Any] | BaseModel) -> dict[str, Any]:
    """What JSON and YAML say of an object: plain values alone, no NaN, no infinity."""
    if isinstance(item, BaseModel):
        found: dict[str, Any] = json.loads(item.model_dump_json(by_alias=True))
        return found
    return dict(item)


def text(item: Mapping[str, Any] | BaseModel, form: Form) -> str:
    """One object in `form`, json or yaml, with the line feed at its end. ASCII in JSON: it drives no terminal."""
    if form == "yaml":
        dumped: str = yaml.dump(
            body(item), Dumper=Dumper, sort_keys=False, allow_unicode=True, width=_YAML_WIDTH, explicit_start=True
        )
        return dumped
    return json.dumps(body(item), allow_nan=False) + "\n"


def write(items: Iterable[Mapping[str, Any] | BaseModel], form: Form, out: TextIO | None = None) -> None:
    """Objects in `form`, json or yaml, as they come."""
    out = out or sys.stdout
    for item in items:
        out.write(text(item, form))
        out.flush()


def table(
    columns: Sequence[str], rows: Sequence[Sequence[str]], out: TextIO | None = None, *, styles: Sequence[str] = ()
) -> None:
    """Rows under their columns. `styles` are colours of whole rows, used on a terminal that wants them."""
    out = out or sys.stdout
    shown = [[harmless(cell).replace("\n", " ") for cell in row] for row in rows]
    if not out.isatty():
        widths = [max(map(len, cells)) for cells in zip(columns, *shown, strict=True)]
        for row in [columns, *shown]:
            cells = [cell.ljust(width) for cell, width in zip(row, widths, strict=True)]
            out.write("  ".join(cells).rstrip() + "\n")
        return
    from rich.table import Table  # noqa: PLC0415  (only a terminal pays for it)
    from rich.text import Text  # noqa: PLC0415

    drawer = console(out)
    styled = list(zip(shown, [*styles, *[""] * (len(shown) - len(styles))], strict=True))
    longest = [max(map(len, cells)) for cells in zip(columns, *shown, strict=True)]
    if sum(min(width, _NARROW) + 1 for width in longest) > drawer.width:
        # Beside each other nothing could be read: a line a value, a paragraph a row.
        names = max(map(len, columns))
        for row, style in styled:
            lines = [f"{name.ljust(names)}  {cell}" for name, cell in zip(columns, row, strict=True)]
            drawer.print(Text("\n".join(lines) + "\n", style=style, overflow="fold"))
        return
    drawn = Table(box=None, pad_edge=False)
    for name in columns:
        drawn.add_column(name, overflow="fold")  # an id that is cut short is none
    for row, style in styled:
        drawn.add_row(*row, style=style)
    drawer.print(drawn)


def console(out: TextIO) -> Any:
    """A rich console on `out` that takes text as it is, and has colours where they are wanted."""
    from rich.console import Console  # noqa: PLC0415

    if coloured(out):
        return Console(file=out, markup=False, highlight=False, emoji=False)
    return Console(file=out, markup=False, highlight=False, emoji=False, color_system=None)


def coloured(out: TextIO) -> bool:
    """Whether `out` is a terminal that takes colours, and nobody asked for none (no-color.org)."""
    return redraws(out) and not os.environ.get("NO_COLOR")


def redraws(out: TextIO) -> bool:
    """Whether `out` is a terminal that moves its cursor, so that what it shows can be drawn anew."""
    return out.isatty() and os.environ.get("TERM", "dumb") not in ("", "dumb")


def harmless(said: str) -> str:
    """`said` with what could drive a terminal written as escapes: names and reasons come from anybody on Kafka."""
    return said.translate(_HARMLESS)


def forget_stdout() -> None:
    """Lets what is still held for standard output go nowhere: nobody reads it, and Python would complain at its end."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
