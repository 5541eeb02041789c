"""A capture that was made on another machine is read here."""

from __future__ import annotations

import io
import json
from pathlib import Path

from lab.guest import Guest

from gpuchaos_agent.read import command


def test_a_guests_capture_says_what_the_guest_has_and_no_fault(guest: Guest) -> None:
    made = guest.agent("capture /out/capture.jsonl --state-dir /tmp/capture-state", timeout=150)
    assert made.rc == 0, made.out
    path: Path = guest.folder / "capture.jsonl"
    out = io.StringIO()
    assert command.read(path, kind=None, output="json", out=out) == 0
    rows = [json.loads(line) for line in out.getvalue().splitlines()]
    assert {row["kind"] for row in rows} == {"capture"}
    assert [row for row in rows if row["fault"] != "none"] == []
    nodes = guest.check("cat /sys/devices/system/node/online").strip()
    assert [row["online"] for row in rows if "online" in row] == [nodes]
    addresses = set(guest.check("cat /sys/class/net/*/address").split()) - {"00:00:00:00:00:00"}
    assert [address for address in addresses if address in path.read_text()] == []
