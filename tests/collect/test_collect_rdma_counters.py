from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from collect_trees import table
from hypothesis import given
from hypothesis import strategies as st
from rdma_kit import Adapter

from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_agent.collect.rdma_counters import _File, _step
from gpuchaos_stream.events.base import Severity


def test_a_hardware_counter_that_goes_round_is_an_increment(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(hw_out_of_sequence=2**32 - 10, hw_local_ack_timeout_err=4)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(hw_out_of_sequence=30)
    values = table(collector.read(1.0))
    assert values[("mlx5_0", "out_of_sequence_rate")] == 40.0
    assert values[("mlx5_0", "ack_timeout_rate")] == 0.0


def test_hardware_counters_that_fall_together_were_reset(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(hw_out_of_sequence=2**32 - 10, hw_local_ack_timeout_err=4)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(hw_out_of_sequence=0, hw_local_ack_timeout_err=0)
    values = table(collector.read(1.0))
    assert values[("mlx5_0", "out_of_sequence_rate")] is None
    assert values[("mlx5_0", "ack_timeout_rate")] is None
    adapter.count(hw_out_of_sequence=5)
    assert table(collector.read(2.0))[("mlx5_0", "out_of_sequence_rate")] == 5.0


@pytest.mark.parametrize(
    ("file", "metric", "bits"),
    [
        ("local_link_integrity_errors", "link_integrity_rate", 4),
        ("link_downed", "link_downed_rate", 8),
        ("symbol_error", "symbol_error_rate", 16),
        ("port_xmit_wait", "xmit_wait_rate", 32),
    ],
)
def test_a_port_counter_at_its_end_is_unknown_and_not_quiet(tmp_path: Path, file: str, metric: str, bits: int) -> None:
    end = 2**bits - 1
    adapter = Adapter(tmp_path)
    adapter.count(**{file: end - 1})
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(**{file: end})
    assert table(collector.read(1.0))[("mlx5_0", metric)] == 1.0
    stuck = collector.read(2.0)
    assert table(stuck)[("mlx5_0", metric)] is None
    assert str(end) in stuck.absent[f"rdma.mlx5_0.{file}"]
    adapter.count(**{file: 0})
    collector.read(3.0)
    adapter.count(**{file: 1})
    assert table(collector.read(4.0))[("mlx5_0", metric)] == 1.0


@pytest.mark.parametrize(
    ("file", "fault"),
    [
        ("excessive_buffer_overrun_errors", "rdma_buffer_overrun"),
        ("local_link_integrity_errors", "rdma_link_errors"),
        ("hw_rnr_nak_retry_err", "rdma_retry_exceeded"),
    ],
)
def test_one_increment_of_a_fatal_counter_is_a_fact_and_its_first_value_is_none(
    tmp_path: Path, file: str, fault: str
) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(**{file: 2})
    collector = RdmaCollector(tmp_path)
    assert collector.read(0.0).facts == ()
    adapter.count(**{file: 3})
    (fact,) = collector.read(1.0).facts
    assert (fact.fault, fact.severity, fact.local, fact.evidence["count"]) == (fault, Severity.ERROR, "mlx5_0", 1)
    assert fact.evidence["cause"] == file.removeprefix("hw_")


def test_a_counter_that_goes_on_growing_is_told_once_a_minute_with_all_that_came(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(hw_rnr_nak_retry_err=0)
    collector = RdmaCollector(tmp_path)
    counts = []
    for second in range(125):
        adapter.count(hw_rnr_nak_retry_err=second)
        counts += [fact.evidence["count"] for fact in collector.read(float(second)).facts]
    assert counts == [1, 60, 60]


def test_symbol_errors_are_a_fact_over_a_hundred_and_twenty_an_hour(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(symbol_error=0)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(symbol_error=120)
    assert collector.read(60.0).facts == ()
    adapter.count(symbol_error=121)
    assert [(f.fault, f.evidence["count"]) for f in collector.read(600.0).facts] == [("rdma_link_errors", 121)]
    adapter.count(symbol_error=200)
    assert collector.read(700.0).facts == ()
    adapter.count(symbol_error=300)
    assert collector.read(5000.0).facts == ()


def test_symbol_errors_of_a_link_in_training_are_none(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(symbol_error=0)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.down()
    collector.read(1.0)
    adapter.up()
    adapter.count(symbol_error=5000)
    assert [fact.fault for fact in collector.read(2.0).facts] == ["port_down"]  # that it is back


@given(st.lists(st.integers(0, 2**32 - 1), min_size=2, max_size=30), st.sampled_from([4, 8, 16, 32]))
def test_a_port_counter_never_gives_more_than_it_grew(values: list[int], bits: int) -> None:
    file = _File("m", "counters/x", 1.0, end=(1 << bits) - 1, hardware=False)
    for before, after in pairwise(values):
        step = _step(file, after, ("counters/x", before, 0.0), 1.0, alone=True)
        assert step.delta is None or step.delta == after - before >= 0
