from __future__ import annotations

from pathlib import Path

import pytest
from collect_trees import plant
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs import files, pci
from gpuchaos_agent.kernelfs.counters import Rates
from gpuchaos_stream.events.metrics import METRICS


@given(st.sets(st.integers(0, 500), max_size=60))
def test_a_kernel_list_of_ids_is_read_back(ids: set[int]) -> None:
    parts: list[str] = []
    for number in sorted(ids):
        if parts and int(parts[-1].split("-")[-1]) == number - 1:
            parts[-1] = f"{parts[-1].split('-')[0]}-{number}"
        else:
            parts.append(str(number))
    assert files.id_list(",".join(parts) + "\n") == tuple(sorted(ids))


@given(st.text(max_size=100))
def test_what_is_no_list_of_ids_is_read_without_an_error(text: str) -> None:
    assert all(number >= 0 for number in files.id_list(text))


@given(st.lists(st.integers(0, 2**64), min_size=2, max_size=20))
def test_a_rate_is_never_negative_and_a_reset_is_unknown(values: list[int]) -> None:
    rates = Rates()
    given_out = [rates.rate("x", float(value), float(now)) for now, value in enumerate(values)]
    assert given_out[0] is None
    for before, after, rate in zip(values, values[1:], given_out[1:], strict=False):
        assert (rate is None) == (float(after) < float(before))
        assert rate is None or rate >= 0


def test_a_rate_after_an_unreadable_tick_starts_anew() -> None:
    rates = Rates()
    assert [rates.rate("x", value, now) for value, now in ((1.0, 0.0), (None, 1.0), (9.0, 2.0), (11.0, 4.0))] == [
        None,
        None,
        None,
        1.0,
    ]


def test_gpus_are_found_in_bus_order_and_bridges_are_none(tmp_path: Path) -> None:
    def device(address: str, vendor: str, kind: str) -> dict[str, str]:
        return {
            f"bus/pci/devices/{address}/vendor": f"{vendor}\n",
            f"bus/pci/devices/{address}/class": f"{kind}\n",
        }

    plant(tmp_path, device("0000:c1:00.0", "0x10de", "0x030200"))
    plant(tmp_path, device("0000:1b:00.0", "0x10de", "0x030000"))
    plant(tmp_path, device("0000:20:00.0", "0x10de", "0x068000"))
    plant(tmp_path, device("0000:00:02.0", "0x8086", "0x030000"))
    assert pci.gpus(tmp_path) == ("0000:1b:00", "0000:c1:00")


@pytest.mark.parametrize("module", ["collect.node", "collect.numa", "collect.process", "nvml.reader"])
def test_collectors_use_only_metrics_of_the_contract(module: str) -> None:
    import importlib

    kind = module.partition(".")[2].replace("reader", "gpu")
    names = importlib.import_module(f"gpuchaos_agent.{module}").METRICS
    assert {(kind, name) for name in names} <= set(METRICS)
    assert len(set(names)) == len(names)
