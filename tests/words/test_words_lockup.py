"""CPUs that are stuck, with the program that was on them."""

from __future__ import annotations

from typing import Any

import pytest
from kernel_words_kit import agrees, events, fault, one, said, without_example

from gpuchaos_agent.words import lockup
from gpuchaos_stream.events.base import Severity

SOFT = "watchdog: BUG: soft lockup - CPU#44 stuck for 22s! [kworker/44:1:913]"
FAULTS: list[tuple[str, str, dict[str, Any]]] = [
    (SOFT, "cpu_soft_lockup", {"cpu": 44, "comm": "kworker/44:1", "pid": 913, "device": "cpu44"}),
    ("NMI watchdog: BUG: soft lockup - CPU#3 stuck for 23s! [a b]:7]", "cpu_soft_lockup", {"comm": "a b]", "pid": 7}),
    ("watchdog: Watchdog detected hard LOCKUP on cpu 9", "cpu_hard_lockup", {"cpu": 9, "severity": Severity.CRITICAL}),
    ("watchdog: CPU1: Watchdog detected hard LOCKUP on cpu 9", "cpu_hard_lockup", {"cpu": 9, "device": "cpu9"}),
    ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 9", "cpu_hard_lockup", {}),
    ("rcu: INFO: rcu_preempt self-detected stall on CPU", "rcu_stall", {"severity": Severity.ERROR}),
    ("INFO: rcu_sched detected stalls on CPUs/tasks:", "rcu_stall", {}),
    (
        "rcu: INFO: rcu_sched detected expedited stalls on CPUs/tasks: { 7-... } 61 jiffies s: 9 root: 0x80/.",
        "rcu_stall",
        {},
    ),
    (
        "rcu: rcu_preempt kthread starved for 5250 jiffies! g901 f0x0 RCU_GP_WAIT_FQS(5)",
        "rcu_stall",
        {"cause": "starved"},
    ),
    (
        "BUG: workqueue lockup - pool cpus=7 node=0 flags=0x0 nice=0 stuck for 64s!",
        "cpu_soft_lockup",
        {"cause": "workqueue", "severity": Severity.WARNING},
    ),
]
DETAIL = "rcu: \t7-....: (5249 ticks this GP) idle=5c4/1/0x4000000000000000 softirq=1/1 fqs=2"


@pytest.mark.parametrize(("text", "name", "wanted"), FAULTS)
def test_a_stuck_cpu_is_named_in_all_wordings(text: str, name: str, wanted: dict[str, Any]) -> None:
    finding = fault(text)
    assert finding.fault == name
    agrees(finding, wanted)


def test_a_lock_up_that_goes_on_is_one_event_and_two_cpus_are_two() -> None:
    assert one([(0.0, SOFT), (28.0, SOFT)]).evidence["count"] == 2
    assert len(events([(0.0, SOFT), (0.0, SOFT.replace("44", "45"))])) == 2


def test_a_stall_gets_its_cpu_from_the_line_below() -> None:
    assert one([(0.0, FAULTS[5][0]), (0.0, DETAIL)]).evidence["cpu"] == 7


@pytest.mark.parametrize(
    "text",
    [
        "rcu: Hierarchical RCU implementation.",
        "rcu: \tRCU restricting CPUs from NR_CPUS=8192 to nr_cpu_ids=128.",
        "rcu: INFO: something else",
        "NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.",
        "watchdog: Delayed init of the lockup detector failed: -19",
        DETAIL,
        "top: BUG: soft lockup - CPU#44 stuck for 22s! [x:1]",
    ],
)
def test_banners_details_and_quotations_conclude_nothing(text: str) -> None:
    assert events([text]) == []


def test_every_wording_of_lock_ups_has_an_example() -> None:
    assert said(DETAIL) is not None
    assert without_example(lockup.RULES, [*(text for text, *_ in FAULTS), DETAIL]) == []
