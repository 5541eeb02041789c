"""MD arrays: whole, degraded, and gone."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, fault, one, said, without_example

from gpuchaos_agent.words import raid
from gpuchaos_stream.events.base import Severity

FAULTS: list[tuple[str, dict[str, Any]]] = [
    (
        "md/raid0md4: Disk failure on nvme7n1 detected, failing array.",
        {"severity": Severity.CRITICAL, "device": "md4", "member": "nvme7n1"},
    ),
    ("md/linearmd4: Disk failure on sdc detected, failing array.", {"device": "md4", "level": "linear"}),
    (
        "md/raid10:md127: Disk failure on sdf2, disabling device.\nmd/raid10:md127: Operation continuing on 3 devices.",
        {"severity": Severity.ERROR, "device": "md127", "member": "sdf2"},
    ),
    ("md/raid:md5: Disk failure on sdb1, disabling device.", {"device": "md5"}),
    ("md/raid:md5: Cannot continue operation (2/4 failed).", {"severity": Severity.CRITICAL}),
    ("md/raid1:md1: sdb1: unrecoverable I/O read error for block 4096", {"member": "sdb1"}),
    ("md/raid1:md1: active with 1 out of 2 mirrors", {"severity": Severity.WARNING, "cause": "degraded"}),
    ("md/raid:md5: raid level 6 active with 5 out of 6 devices, algorithm 2", {"has": "5", "wants": "6"}),
    ("md: kicking non-fresh sdb1 from array!", {"member": "sdb1"}),
]


@pytest.mark.parametrize(("text", "wanted"), FAULTS)
def test_an_array_that_fails_or_is_degraded_names_itself_and_the_member(text: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert finding.fault == "raid_failed"
    agrees(finding, wanted)


@pytest.mark.parametrize(
    "text",
    [
        "md/raid1:md1: active with 2 out of 2 mirrors",
        "md/raid:md5: raid level 6 active with 6 out of 6 devices, algorithm 2",
        "md/raid10:md2: active with 10 out of 10 devices",
        "md: raid6 personality registered for level 6",
        "md: md1: resync done.",
        "md: bind<sdb1>",
        "md127: detected capacity change from 0 to 3750486016",
        "cron: md/raid1:md1: active with 1 out of 2 mirrors",
    ],
)
def test_a_whole_array_says_nothing(text: str) -> None:
    assert said(text) is None


def test_a_second_failure_in_one_incident_is_the_worse_one() -> None:
    finding = one([(0.0, FAULTS[3][0]), (0.2, FAULTS[4][0])])
    assert (finding.severity, finding.evidence["member"]) == (Severity.CRITICAL, "sdb1")


def test_every_wording_of_arrays_has_an_example() -> None:
    assert (
        without_example(raid.RULES, [*(text for text, _ in FAULTS), "md/raid1:md1: Operation continuing on 1 devices."])
        == []
    )
