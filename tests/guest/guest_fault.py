"""Faults in the guest as an agent leaves them that is killed while they stand, and their undo by another process."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import Final

from lab.guest import Guest, Result

AGENT: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / ".venv/bin/gpuchaos-agent"))
PYTHON: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / ".venv/bin/python"))
#: An entry of the journal whose effect may be there.
_UNFINISHED: Final = """grep -qE '"state":"(planned|injected)"'"""


def until(guest: Guest, condition: str, what: str, within: float = 150.0) -> None:
    """Until a shell condition holds in the guest."""
    deadline = time.monotonic() + within
    while guest.run(condition).rc != 0:
        assert time.monotonic() < deadline, f"{what}: {guest.run('tail -n 20 /run/*.log; dmesg | tail -n 5').out}"
        time.sleep(0.1)


def here(state: str) -> str:
    """The options of this node and of a state folder of its own."""
    return f"--node n1 --state-dir {state}"


def inject(guest: Guest, state: str, fault: str, **params: object) -> str:
    """Injects, kills the agent without warning once the effect stands, and returns what the agent saw."""
    words = " ".join(f"--param {shlex.quote(f'{name}={value}')}" for name, value in params.items())
    guest.check("rm -f /run/inject.log")
    command = f"env PYTHONUNBUFFERED=1 {AGENT} inject {fault} node/n1 {here(state)} --no-deadman --seconds 300 {words}"
    guest.check(f"setsid {command} </dev/null >/run/inject.log 2>&1 & echo $! > /run/inject.pid")
    until(
        guest, "grep -q -e injected -e EFFECTIVE -e nothing /run/inject.log || ! kill -0 $(cat /run/inject.pid)", fault
    )
    guest.run("kill -9 $(cat /run/inject.pid)")
    said = guest.check("cat /run/inject.log")
    assert said.startswith("injected"), said
    return said


def refused(guest: Guest, state: str, fault: str, **params: object) -> str:
    """Why a fault is not injected."""
    words = " ".join(f"--param {shlex.quote(f'{name}={value}')}" for name, value in params.items())
    done = guest.agent(f"inject {fault} node/n1 {here(state)} --dry-run {words}", timeout=150)
    assert done.rc != 0, done.out
    return done.out


def undo(guest: Guest, state: str) -> Result:
    """As a person does, from the journal alone."""
    done = guest.agent(f"undo --all {here(state)}", timeout=150)
    assert done.rc == 0, done.out
    return done


def undo_what_stands(guest: Guest, state: str) -> None:
    """After a test that failed half-way: the agent is slow in the guest, and not asked for nothing."""
    if guest.run(f"{_UNFINISHED} {state}/journal/*.json").rc == 0:
        undo(guest, state)
