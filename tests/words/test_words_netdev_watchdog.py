"""Transmit queues that time out, in the word orders of several kernels."""

from __future__ import annotations

from kernel_words_kit import events, fault, one, said, without_example

from gpuchaos_agent.words import netdev_watchdog
from gpuchaos_stream.events.base import Severity

OLD = "NETDEV WATCHDOG: ens2f0 (mlx5_core): transmit queue 12 timed out"
MIDDLE = "NETDEV WATCHDOG: ens2f0 (mlx5_core): transmit queue 12 timed out 6144 ms"
NEW = "mlx5_core 0000:98:00.0 ens2f0: NETDEV WATCHDOG: CPU: 61: transmit queue 12 timed out 6144 ms"
DRIVER = "mlx5_core 0000:98:00.0 ens2f0: TX timeout on queue: 12, SQ: 0x1a2, CQ: 0x9f, SQ Cons: 0x1, SQ Prod: 0x2"


def test_both_word_orders_name_the_same_device() -> None:
    for text in (OLD, MIDDLE, NEW, DRIVER):
        finding = fault(text)
        assert (finding.fault, finding.device, finding.severity) == ("nic_tx_timeout", "ens2f0", Severity.WARNING)
        assert finding.evidence["queue"] == "12"


def test_the_core_and_the_driver_speak_of_one_event() -> None:
    finding = one([(0.0, OLD), (0.0, DRIVER), (5.1, NEW)])
    assert (finding.evidence["bdf"], finding.evidence["netdev"]) == ("0000:98:00.0", "ens2f0")


def test_two_ports_are_two_events() -> None:
    assert len(events([OLD, OLD.replace("ens2f0", "ens2f1")])) == 2


def test_a_queue_that_is_only_mentioned_says_nothing() -> None:
    assert said("mlx5_core 0000:98:00.0 ens2f0: transmit queue 12 reset") is None
    assert said("systemd: NETDEV WATCHDOG: is a line of the kernel") is None


def test_every_wording_of_the_watchdog_has_an_example() -> None:
    assert without_example(netdev_watchdog.RULES, [OLD, NEW, DRIVER]) == []
