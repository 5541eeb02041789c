"""What the tests of `gpuchaos-agent read` share."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from gpuchaos_agent.read import command, guess


def said(path: Path, *, kind: str | None = None) -> list[dict[str, Any]]:
    """What `read PATH -o json` prints, line by line."""
    out = io.StringIO()
    assert command.read(path, kind=kind, output="json", out=out) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def written(folder: Path, text: str, name: str = "recording.txt") -> Path:
    """The text as a file."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def guessed(folder: Path, text: str) -> str:
    """The kind that a file of this text is taken for."""
    return guess.guess(written(folder, text)).NAME
