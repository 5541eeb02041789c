"""`gpuchaos-agent read PATH` and `gpuchaos-agent capture OUT`."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, NoReturn, TextIO

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.read import capture, guess
from gpuchaos_agent.read.base import Conclusion, Kind
from gpuchaos_agent.read.guess import Guess
from gpuchaos_agent.read.recording import Recording, opened, shown
from gpuchaos_agent.words.base import NONE
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.output import Form, text

#: What is no detail, or stands elsewhere in a table.
_COLUMNS: Final = frozenset({"fault", "severity", "device", "kind", "text", "advice"})
#: Longest cell of a table, characters.
_WIDEST: Final = 400


def read(path: Path, *, kind: str | None, output: Form, out: TextIO) -> int:
    """Prints what the recording says, one conclusion a line; always 0: what it says is no failure of reading.

    `path` `-` is standard input.

    Raises:
        UserError: it cannot be read, is no text, there is no such kind, or what it says cannot be printed.
        BrokenPipeError: whoever read what is printed has gone.
    """
    if kind is not None:
        guess.named(kind)  # before anything is waited for
    with opened(path) as recording:
        chosen = guess.guessed(recording) if kind is None else guess.asked(kind, recording)
        found = conclusions(recording, chosen)
        _print(
            _as_table(found, chosen, recording.name) if output == "table" else _as_objects(found, chosen, output), out
        )
    return 0


def conclusions(recording: Recording, chosen: Guess) -> Iterator[Conclusion]:
    """What the recording says; one conclusion `none` where it says nothing at all."""
    any_at_all = False
    for found in chosen.kind.conclude(recording.stream):
        any_at_all = True
        yield found
    if not any_at_all:
        yield Conclusion(details={"says": "nothing of a fault"})


def _print(lines: Iterable[str], out: TextIO) -> None:
    for line in lines:
        try:
            out.write(line + "\n")
        except OSError as error:
            _ended(out, error)
    try:
        out.flush()
    except OSError as error:
        _ended(out, error)


def _ended(out: TextIO, error: OSError) -> NoReturn:
    """It cannot be printed; what is still held in `out` goes nowhere."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, out.fileno())
        os.close(nowhere)
    if isinstance(error, BrokenPipeError):
        raise error
    raise UserError("standard output", f"cannot be written: {error.strerror}", "write somewhere else") from error


def write_capture(path: Path, *, sysfs: Path, procfs: Path, out: TextIO) -> int:
    """Captures this node into `path`.

    Raises:
        UserError: the file cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            done, failed = capture.capture(file, sysfs=sysfs, procfs=procfs)
    except OSError as error:
        raise UserError(
            str(path), f"cannot be written: {error.strerror}", "name a file in a folder of yours"
        ) from error
    out.write(f"{path}: {done} files, {failed} could not be read; GUIDs, addresses and serial numbers are left out\n")
    return 0


def flat(found: Conclusion, kind: Kind) -> Evidence:
    """A conclusion as one object: `fault`, `severity`, `device`, `kind` of recording, then its details.

    Of several Xids `xid` is the list, as in "48,63,94".
    """
    details = {name: value for name, value in found.details.items() if value not in (None, "")}
    if "xids" in details:
        details["xid"] = details.pop("xids")
    action = str(details.get("action", ""))
    advice = catalogue.advice(action) if action else ""
    if advice:
        details["advice"] = advice
    device = found.device or ("unknown" if found.fault != NONE else "")
    return {"fault": found.fault, "severity": found.severity.value, "device": device, "kind": kind.NAME, **details}


def _as_objects(found: Iterable[Conclusion], chosen: Guess, form: Form) -> Iterator[str]:
    for one in found:
        row = flat(one, chosen.kind)
        if chosen.doubt:
            row["doubt"] = chosen.doubt
        yield text(row, form).removesuffix("\n")


def _as_table(found: Iterable[Conclusion], chosen: Guess, name: str) -> Iterator[str]:
    """A header and one line each, in columns of fixed width: it is printed while it is read."""
    yield f"# {name}: {chosen.kind.SUMMARY} ({chosen.kind.NAME})"
    if chosen.doubt:
        yield f"# unsure: {chosen.doubt}"
    yield f"{'SEVERITY':<9} {'FAULT':<28} {'DEVICE':<22} DETAILS"
    for one in found:
        row = flat(one, chosen.kind)
        details = " ".join(f"{name}={_cell(value)}" for name, value in row.items() if name not in _COLUMNS)
        yield f"{row['severity']!s:<9} {row['fault']!s:<28} {_cell(row['device']):<22} {details}".rstrip()
        if row.get("advice"):
            yield f"{'':<9} → {row['advice']}"


def _cell(value: object) -> str:
    """As it may stand on a terminal: cut, and what could drive one as escapes."""
    text = str(value)
    return shown(text if len(text) <= _WIDEST else text[:_WIDEST] + "…")


def printable(out: TextIO = sys.stdout) -> TextIO:
    """Standard output that replaces what its encoding lacks instead of failing."""
    reconfigure = getattr(out, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="replace")
    return out
