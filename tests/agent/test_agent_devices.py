"""What an agent shows of its node's devices: names, units, labels, and what DCGM's dashboards expect."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from gpuchaos_agent.collect.base import Columns, Places
from gpuchaos_agent.devices import DCGM, Devices, shown
from gpuchaos_agent.snapshot import Taken
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout
from gpuchaos_stream.events.metrics import METRICS
from gpuchaos_stream.events.node import GpuPlace

PLACE = {"cluster": "c", "cell": "rack-7", "node": "n1"}
Labels = frozenset[tuple[str, str]]


def series(taken: Taken | None, *, dcgm: bool = True) -> dict[str, dict[Labels, float]]:
    """Every series as Prometheus reads it, by name and by the labels that are not the node's place."""
    registry = CollectorRegistry()
    registry.register(Devices(**PLACE, taken=lambda: taken, dcgm=dcgm))
    found: dict[str, dict[Labels, float]] = {}
    for family in text_string_to_metric_families(generate_latest(registry).decode()):
        assert family.type == "gauge"
        for sample in family.samples:
            if not sample.name.startswith("DCGM"):
                assert PLACE.items() <= sample.labels.items()
            own = frozenset((key, value) for key, value in sample.labels.items() if key not in PLACE)
            found.setdefault(sample.name, {})[own] = sample.value
    return found


def taken(layout: GroupLayout, columns: Columns) -> Taken:
    gpus = (GpuPlace(index="0", uuid="GPU-a"), GpuPlace(index="1", uuid="GPU-b"))
    return Taken(time=1.0, layout=FrameLayout(groups=(layout,)), values=(columns,), places=Places(gpus=gpus))


CARDS = taken(
    GroupLayout(
        kind="gpu",
        ids=("0", "1"),
        metrics=("utilization_ratio", "memory_used_bytes", "sm_clock_hertz", "ecc_corrected_rate"),
        labels={"job": ("llama", ""), "pci": ("0000:3b:00", "0000:5e:00")},
    ),
    ((0.5, None), (2.0**31, 0.0), (1.98e9, 1.5e9), (0.25, 0.0)),
)


def of(**labels: str) -> Labels:
    return frozenset(labels.items())


def test_a_number_of_a_frame_is_a_series_with_what_it_belongs_to() -> None:
    found = series(CARDS)
    assert found["gpuchaos_gpu_ecc_corrected_per_second"] == {
        of(gpu="0", training_job="llama"): 0.25,
        of(gpu="1", training_job=""): 0.0,
    }


def test_what_could_not_be_read_is_no_series_and_never_zero() -> None:
    assert series(CARDS)["gpuchaos_gpu_utilization_ratio"] == {of(gpu="0", training_job="llama"): 0.5}


def test_a_card_is_shown_as_a_dcgm_exporter_would_in_its_units() -> None:
    found = series(CARDS)
    first, second = of(gpu="0", UUID="GPU-a", Hostname="n1"), of(gpu="1", UUID="GPU-b", Hostname="n1")
    assert found["DCGM_FI_DEV_GPU_UTIL"] == {first: 50.0}
    assert found["DCGM_FI_DEV_FB_USED"] == {first: 2048.0, second: 0.0}
    assert found["DCGM_FI_DEV_SM_CLOCK"] == {first: 1980.0, second: 1500.0}


def test_where_a_dcgm_exporter_is_read_it_shows_its_series_itself() -> None:
    names = set(series(CARDS, dcgm=False))
    assert "gpuchaos_gpu_utilization_ratio" in names
    assert [name for name in names if name.startswith("DCGM")] == []


def test_every_name_of_dcgm_is_made_of_a_metric_that_frames_have() -> None:
    assert [metric for metric, _, _ in DCGM.values() if ("gpu", metric) not in METRICS] == []


def test_a_port_is_shown_with_its_rail_and_its_rate_in_bytes() -> None:
    layout = GroupLayout(
        kind="rdma",
        ids=("mlx5_0",),
        metrics=("port_active", "rate_bits", "rx_bytes_rate"),
        labels={"rail": ("rail-0",)},
    )
    found = series(taken(layout, ((1.0,), (4e11,), (3e9,))))
    where = of(port="mlx5_0", rail="rail-0")
    assert found == {
        "gpuchaos_rdma_port_active": {where: 1.0},
        "gpuchaos_rdma_rate_bytes_per_second": {where: 5e10},
        "gpuchaos_rdma_rx_bytes_per_second": {where: 3e9},
    }


def test_links_are_shown_as_those_of_a_card_together() -> None:
    layout = GroupLayout(
        kind="nvlink",
        ids=("0/0", "0/1", "1/0"),
        metrics=("link_active", "replay_rate"),
        labels={"gpu": ("0", "0", "1"), "pci": ("a", "a", "b"), "job": ("", "", "")},
    )
    found = series(taken(layout, ((1.0, 0.0, 1.0), (2.0, 3.0, None))))
    assert found["gpuchaos_nvlink_link_active"] == {of(gpu="0"): 0.0, of(gpu="1"): 1.0}
    assert found["gpuchaos_nvlink_replay_per_second"] == {of(gpu="0"): 5.0}


def test_no_two_metrics_of_a_frame_have_one_name() -> None:
    names = [shown(metric).name for metric in METRICS.values()]
    assert len(set(names)) == len(names)


def test_nothing_is_shown_before_the_first_tick() -> None:
    assert series(None) == {}
