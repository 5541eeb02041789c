"""Slots whose link goes down without anyone having asked."""

from __future__ import annotations

import pytest
from kernel_words_kit import events, one, without_example

from gpuchaos_agent.words import pciehp
from gpuchaos_stream.events.base import Severity

DOWN = "pcieport 0000:d0:01.0: pciehp: Slot(17): Link Down"
GONE = "pcieport 0000:d0:01.0: pciehp: Slot(17): Card not present"
OLD = "pciehp 0000:d0:01.0:pcie004: Slot(17): Link Down"


def test_a_lost_card_is_one_event_of_its_slots_port() -> None:
    finding = one([(0.0, DOWN), (0.1, GONE)])
    assert (finding.fault, finding.severity, finding.device) == ("pcie_link_down", Severity.ERROR, "0000:d0:01.0")
    assert finding.evidence["slot"] == "17"
    assert one([OLD]).device == "0000:d0:01.0"


@pytest.mark.parametrize(
    "text",
    [
        "pcieport 0000:d0:01.0: pciehp: Slot #17 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+",
        "pcieport 0000:d0:01.0: pciehp: Slot(17): Link Up",
        "pcieport 0000:d0:01.0: pciehp: Slot(17): Powering off due to button press",
        "pciehp: PCI Express Hot Plug Controller Driver version: 0.4",
    ],
)
def test_a_slot_that_is_filled_or_emptied_on_purpose_concludes_nothing(text: str) -> None:
    assert events([text]) == []


def test_every_wording_of_hotplug_has_an_example() -> None:
    assert without_example(pciehp.RULES, [DOWN, DOWN.replace("Link Down", "Link Up")]) == []
