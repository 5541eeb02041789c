"""A machine that boots says hundreds of things, and none of them is a fault."""

from __future__ import annotations

import io
import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from lab.guest import Guest

from gpuchaos_agent.read import command

#: A machine's boot ends this long after the kernel has started the first program, microseconds: drivers come up
#: meanwhile, and no test or job has begun.
_SETTLED_US = 30_000_000
#: Prefix (facility and level) and microseconds since boot of a record of /dev/kmsg.
_HEAD = re.compile(rb"(\d+),\d+,(\d+),")
_FIRST_PROGRAM = re.compile(rb";Run \S+ as init process")


def read(path: Path) -> list[dict[str, Any]]:
    """What `gpuchaos-agent read` concludes, but for what it says is there and well."""
    out = io.StringIO()
    assert command.read(path, kind=None, output="json", out=out) == 0
    said = [json.loads(line) for line in out.getvalue().splitlines()]
    return [line for line in said if line["fault"] != "none"]


def test_guests_boot_concludes_nothing(guest: Guest, tmp_path: Path) -> None:
    log = tmp_path / "boot.log"
    log.write_text(guest.boot_log)
    assert guest.boot_log.startswith("5,0,0,-;Linux version ")
    assert guest.boot_log.count("\n") > 300, "the whole boot"
    # Among its lines are some with the words that faults have as well.
    words = ("AER: enabled", "mce: CPU0: Thermal", "Machine check injector", "pcieport", "RPC: Registered")
    assert [word for word in words if word in guest.boot_log][:1], guest.boot_log
    assert read(log) == []


def test_guests_boot_concludes_nothing_when_it_is_read_from_the_serial_console(guest: Guest, tmp_path: Path) -> None:
    log = tmp_path / "console.log"
    log.write_bytes(guest.console.read_bytes())
    assert b"] Linux version " in log.read_bytes()
    assert read(log) == []


@pytest.mark.root
def test_this_machines_boot_concludes_nothing(tmp_path: Path) -> None:
    log = tmp_path / "boot.log"
    log.write_bytes(b"".join(_boot(Path("/dev/kmsg"))))
    # A machine that is up for long has overwritten it, and then there is nothing to be wrong about.
    assert read(log) == [], "a false fact, or a real fault that this machine had as it booted"


def _boot(device: Path) -> Iterator[bytes]:
    """The kernel's own records of the boot: what a process or a test wrote comes with another facility."""
    until: int | None = None
    for record in _records(device):
        head = _HEAD.match(record)
        assert head is not None
        prefix, usec = int(head[1]), int(head[2])
        if until is None and _FIRST_PROGRAM.search(record):
            until = usec + _SETTLED_US
        if until is None and usec > 2 * _SETTLED_US:
            return  # the boot has been overwritten, and what is left is of another time
        if until is not None and usec > until:
            return
        if prefix >> 3 == 0:
            yield record


def _records(device: Path) -> Iterator[bytes]:
    """Every record that the log still holds; one read of the device gives one."""
    try:
        descriptor = os.open(device, os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        pytest.skip(f"{device} cannot be read: {error}")
    try:
        while True:
            try:
                yield os.read(descriptor, 8192)
            except BrokenPipeError:  # overwritten before it was read
                continue
            except BlockingIOError:
                return
    finally:
        os.close(descriptor)
