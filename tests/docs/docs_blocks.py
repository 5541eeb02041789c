"""Code blocks and links of the documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from docs_tables import ROOT, pages

_FENCE: Final = re.compile(r"^```(\S*) ?(.*)$")
_LINK: Final = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)")
_ASSIGNMENT: Final = re.compile(r"^[A-Z_][A-Z0-9_]*=")


@dataclass(frozen=True)
class Block:
    """One fenced block. `info` is what follows the language: the kind of a YAML example."""

    page: Path
    line: int
    language: str
    info: str
    text: str

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def blocks() -> Iterator[Block]:
    """Every fenced block of every page."""
    for page in pages():
        opened: tuple[int, str, str] | None = None
        body: list[str] = []
        for number, line in enumerate(page.read_text().splitlines(), 1):
            match = _FENCE.match(line)
            if match is None:
                body.append(line)
            elif opened is None:
                opened, body = (number, match[1], match[2]), []
            else:
                yield Block(page, opened[0], opened[1], opened[2], "\n".join(body) + "\n")
                opened = None
        assert opened is None, f"{page}: a block is not closed"


@dataclass(frozen=True)
class CommandLine:
    """One command of a shell block: its words, the assignments before it taken off."""

    where: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return " ".join(self.words)


def command_lines() -> Iterator[CommandLine]:
    """Every command line of every `sh` block; pipes and `&&` part them, comments are left out."""
    for block in blocks():
        if block.language != "sh":
            continue
        text = block.text.replace("\\\n", " ")
        for number, line in enumerate(text.splitlines(), block.line + 1):
            lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;>")
            lexer.whitespace_split = True
            words: list[str] = []
            for token in [*lexer, ";"]:
                if token and set(token) <= set("|&;>"):
                    while words and _ASSIGNMENT.match(words[0]):
                        words.pop(0)
                    if words:
                        yield CommandLine(f"{block.page.relative_to(ROOT)}:{number}", tuple(words))
                    words = []
                else:
                    words.append(token)


def links() -> Iterator[tuple[Path, str]]:
    """Page and target of every link that stays in the project."""
    for page in pages():
        for target in _LINK.findall(re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
            if "://" not in target and not target.startswith("mailto:"):
                yield page, target


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as forges make them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.+)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
