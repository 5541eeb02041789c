"""The system's tools as faults use them: found where they are, run with a bound, their words kept when they fail."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from typing import Final

from gpuchaos_agent.inject.base import InjectError

#: Administrators' tools are not on every user's PATH.
_PLACES: Final = "/usr/sbin:/sbin:/usr/bin:/bin:/usr/local/sbin:/usr/local/bin"
#: Most of a tool's complaint that is kept, characters.
_WORDS: Final = 400


def find(name: str) -> str | None:
    """Where the tool is, or None."""
    return shutil.which(name) or shutil.which(name, path=_PLACES)


def missing(*names: str) -> str | None:
    """Why a fault that needs these tools cannot run here, or None."""
    absent = [name for name in names if find(name) is None]
    return f"{' and '.join(absent)} not found on this node" if absent else None


def run(argv: Sequence[str], *, stdin: str | None = None, timeout_s: float = 10.0) -> str:
    """What the tool printed. `argv[0]` is looked up.

    Raises:
        InjectError: it is not there, took longer than `timeout_s`, or failed; with its own words.
    """
    path = find(argv[0])
    if path is None:
        raise InjectError(f"{argv[0]} not found on this node")
    try:
        done = subprocess.run(
            [path, *argv[1:]], input=stdin, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise InjectError(f"{argv[0]} took longer than {timeout_s:g} s") from error
    except OSError as error:
        raise InjectError(f"{argv[0]}: {error.strerror}") from error
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip().replace("\n", "; ")[:_WORDS]
        raise InjectError(f"{argv[0]} failed ({done.returncode}): {words}")
    return done.stdout
