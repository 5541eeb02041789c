"""A page as Markdown: headings, paragraphs, pipe tables; pictures as text. Nothing an event says becomes markup."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from gpuchaos_stream.report.markup import clean
from gpuchaos_stream.report.page import Block, Cell, Heading, Page, Table, Words

_SPACE: Final = re.compile(r"\s+")
_SPECIAL: Final = re.compile(r"([\\`*\[\]<>|~#!]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9]))")
#: What would begin a list, a quotation or a line at the beginning of a paragraph.
_BEGINS: Final = re.compile(r"^([-+=]|\d+[.)])")


def markdown(page: Page) -> str:
    """The page as Markdown, tables in the pipe form."""
    head = [f"# {text(page.title)}", "", f"**{text(page.badge.text)}**", "", _paragraph(page.lead), ""]
    return "\n".join([*head, *(line for block in page.blocks for line in _block(block))]).rstrip() + "\n"


def text(value: str) -> str:
    """`value` on one line, with every character escaped that Markdown or HTML would read as markup."""
    return _SPECIAL.sub(r"\\\1", _SPACE.sub(" ", clean(value)).strip().replace("&", "&amp;"))


def _paragraph(value: str) -> str:
    escaped = text(value)
    return _BEGINS.sub(r"\\\1", escaped) if not escaped[:1].isdigit() else _BEGINS.sub(_number, escaped)


def _number(match: re.Match[str]) -> str:
    return f"{match[1][:-1]}\\{match[1][-1]}"


def _block(block: Block) -> Iterator[str]:
    if isinstance(block, Heading):
        yield from (f"## {text(block.text)}", "")
    elif isinstance(block, Words):
        yield from (_paragraph(block.text), "")
    elif isinstance(block, Table):
        yield from _table(block)
    else:
        yield from (f"{text(block.title)}:", "")
        # Indented by four, it is code: no fence that a name could close.
        yield from (_indented(line) for line in block.lines)
        yield ""


def _indented(line: str) -> str:
    depth = len(line) - len(line.lstrip(" "))
    return " " * (4 + depth) + _SPACE.sub(" ", clean(line)).strip()


def _table(table: Table) -> Iterator[str]:
    yield from (_paragraph(table.caption) + ":", "")
    yield _row(tuple(Cell(name) for name in table.columns))
    yield "|" + " --- |" * len(table.columns)
    yield from (_row(row) for row in table.rows)
    yield ""


def _row(cells: tuple[Cell, ...]) -> str:
    return "| " + " | ".join(text(cell.text) or " " for cell in cells) + " |"
