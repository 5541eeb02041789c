"""Events of cases that lie outside the project; `conftest.py` leaves this file out where they are not."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest

from gpuchaos_agent.kernelfs import pci
from gpuchaos_agent.read import command

CASES = Path(__file__).parents[2] / "../shared/cases"

#: Where our words for the same thing differ: a list of devices is `devices`, a list of roots `roots`.
RENAMED: dict[str, dict[str, tuple[str, object]]] = {
    "nvswitch/sxid_11004_acl_service_vm.log": {"device": ("switches", 4)},
    "nvswitch/sxid_20034_fatal_burst.log": {
        "device": ("devices", "0000:06:00.0(link48),0000:05:00.0(links63,62),0000:07:00.0(link37)")
    },
    "xid/x45_caused_by_149_145.log": {
        "root_xid": ("roots", "149@0000:dc:00,145@0000:ed:00/0000:ba:00/0000:97:00"),
    },
    # Expected with severity info; a warning here, because what only informs opens no anomaly, and a process that
    # speaks in the hardware's words must be seen.
    "kmsg/userspace_injected_record.kmsg": {"severity": ("severity", "warning")},
}


def cases(*folders: str) -> list[Any]:
    rows = [json.loads(line) for line in (CASES / "expected.jsonl").read_text().splitlines()]
    return [pytest.param(row, id=row["file"]) for row in rows if row["file"].split("/")[0] in folders]


def said(file: str) -> list[dict[str, Any]]:
    out = io.StringIO()
    assert command.read(CASES / file, kind=None, output="json", out=out) == 0
    return [json.loads(line) for line in out.getvalue().splitlines()]


def value(event: dict[str, Any], name: str) -> str:
    found = event.get(name)
    if name in {"xid", "sxid"}:
        found = event.get(f"{name}s", found)
    if name == "device":
        return pci.normal(str(found or "unknown"))
    return "" if found is None else str(found)


@pytest.mark.parametrize("case", cases("xid", "nvswitch", "kmsg"))
def test_one_event_of_each_shared_case_is_what_is_expected(case: dict[str, Any]) -> None:
    events = said(case["file"])
    wanted = dict(case["expect"])
    if wanted == {"fault": "none"}:
        assert [event["fault"] for event in events if event["fault"] != "none"] == []
        return
    event = next((event for event in events if event["fault"] == wanted["fault"]), None)
    assert event is not None, events
    for theirs, (ours, expected) in RENAMED.get(case["file"], {}).items():
        del wanted[theirs]
        assert event[ours] == expected
    if "device" in wanted:
        wanted["device"] = pci.normal(wanted["device"])
    assert {name: value(event, name) for name in wanted} == wanted
