"""The command line in this process, as a person calls it: status, standard output, standard error."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import click
import pytest

from gpuchaos_stream.cli import cli, main

GPUCHAOS: Final = (sys.executable, "-m", "gpuchaos_stream.cli")
AGENT: Final = (sys.executable, "-m", "gpuchaos_agent.agent")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    status: int
    out: str
    err: str


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Ended:
    """`gpuchaos WORDS` in this process."""
    capsys.readouterr()
    with pytest.raises(SystemExit) as end:
        main(list(words))
    said = capsys.readouterr()
    assert isinstance(end.value.code, int)
    return Ended(end.value.code, said.out, said.err)


def commands() -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command that does something, with the words that call it."""
    yield from _below(cli, ())


def _below(group: click.Group, words: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if not isinstance(command, click.Group) or command.invoke_without_command:
            yield (*words, name), command
        if isinstance(command, click.Group):
            yield from _below(command, (*words, name))


class Terminal:
    """A program on a terminal of its own; what it has shown is read as it comes."""

    def __init__(self, argv: tuple[str, ...], env: dict[str, str], columns: int = 100) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        own = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS", "LINES")}
        self.process = subprocess.Popen(
            argv,
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env=own | {"TERM": "xterm-256color"} | env,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),  # noqa: PLW1509  (Ctrl-C comes from its terminal)
        )
        os.close(theirs)
        self.shown = ""

    def until(self, pattern: str, within_s: float = 40.0) -> str:
        """What was shown once `pattern` was seen in it."""
        end = time.monotonic() + within_s
        while not re.search(pattern, self.shown):
            assert time.monotonic() < end, f"{pattern!r} was not shown in {within_s:g} s: {self.shown!r}"
            if not self._read(0.2) and self.process.poll() is not None:
                self._read(0.0)
                assert re.search(pattern, self.shown), f"it ended without {pattern!r}: {self.shown!r}"
        return self.shown

    def press(self, keys: str) -> None:
        os.write(self._ours, keys.encode())

    def ended(self, within_s: float = 40.0) -> int:
        """Its exit status, with everything read that it showed."""
        end = time.monotonic() + within_s
        while self.process.poll() is None:
            assert time.monotonic() < end, f"it did not end: {self.shown[-2000:]!r}"
            self._read(0.2)
        while self._read(0.0):
            pass
        return self.process.returncode

    def _read(self, wait_s: float) -> bool:
        if not select.select([self._ours], [], [], wait_s)[0]:
            return False
        try:
            got = os.read(self._ours, 65536)
        except OSError:  # its other side is closed
            return False
        self.shown += got.decode(errors="replace")
        return bool(got)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._ours)


@contextmanager
def terminal(*argv: str, columns: int = 100, **env: str) -> Iterator[Terminal]:
    """`argv` on a terminal, ended at the end."""
    found = Terminal(argv, env, columns)
    try:
        yield found
    finally:
        found.close()
