from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import registry
from gpuchaos_agent.words.base import Words


@pytest.mark.parametrize("module", registry.modules(), ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_speaker_says_whose_records_it_reads(module: Words) -> None:
    assert set(Writer) >= module.WRITERS
    assert all(isinstance(hint, str) and hint for hint in module.HINTS)
    assert all(family.gap_s > 0 for family in module.FAMILIES)


def test_no_two_speakers_have_a_family_of_the_same_name() -> None:
    names = Counter(family.name for module in registry.modules() for family in module.FAMILIES)
    assert [name for name, times in names.items() if times > 1] == []


@given(st.binary(max_size=200), st.sampled_from(Writer))
def test_random_bytes_say_nothing(data: bytes, writer: Writer) -> None:
    assert registry.read(LogRecord(data.decode("utf-8", "replace"), writer=writer)) is None


def test_every_fault_name_has_a_class_and_a_meaning() -> None:
    for name in catalogue.fault_names().values():
        assert name.kind
        assert name.meaning


def test_every_table_of_every_speaker_uses_known_faults_and_actions_with_a_sentence() -> None:
    faults, actions = set(catalogue.fault_names()), set(catalogue.actions())
    for module in registry.modules():
        for table in vars(module).values():
            for rule in table if isinstance(table, tuple) else ():
                if hasattr(rule, "action") and hasattr(rule, "fault"):
                    assert not rule.action or rule.action in actions, (module, rule)
                    assert not rule.fault or rule.fault in faults, (module, rule)
