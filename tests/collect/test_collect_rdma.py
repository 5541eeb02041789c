from __future__ import annotations

import os
from pathlib import Path

import pytest
from collect_trees import plant, table
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rdma_kit import IB, Adapter, faults

from gpuchaos_agent.collect.rdma import METRICS as RDMA_METRICS
from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_agent.collect.rdma_counters import COUNTERS
from gpuchaos_agent.kernelfs import ethtool, quiet
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.metrics import METRICS


@pytest.fixture(autouse=True)
def _nothing_is_left_alone() -> None:
    quiet.forget()


def test_data_counters_are_words_of_four_bytes(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(port_rcv_data=1000)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(port_rcv_data=1250)
    values = table(collector.read(2.0))
    assert values[("mlx5_0", "rx_bytes_rate")] == 500.0
    assert values[("mlx5_0", "rate_bits")] == 400e9
    assert values[("mlx5_0", "link_downed_rate")] == 0.0
    assert values[("mlx5_0", "tx_bytes_rate")] is None


def test_a_port_that_is_not_active_has_no_rate(tmp_path: Path) -> None:
    Adapter(tmp_path).down()
    values = table(RdmaCollector(tmp_path).read(0.0))
    assert (values[("mlx5_0", "port_active")], values[("mlx5_0", "rate_bits")]) == (0.0, None)


def test_a_rate_that_came_back_lower_is_seen_at_once(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    collector = RdmaCollector(tmp_path)
    assert table(collector.read(0.0))[("mlx5_0", "rate_bits")] == 400e9
    adapter.down()
    collector.read(1.0)
    adapter.say("4: ACTIVE", "5: LinkUp", "100 Gb/sec (4X EDR)")
    assert table(collector.read(2.0))[("mlx5_0", "rate_bits")] == 100e9


def test_efa_counts_bytes(tmp_path: Path) -> None:
    path = f"{IB}/rdmap0s7/ports/1"
    plant(tmp_path, {f"{path}/state": "4: ACTIVE\n", f"{path}/hw_counters/rx_bytes": "100\n"})
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    plant(tmp_path, {f"{path}/hw_counters/rx_bytes": "300\n"})
    assert table(collector.read(1.0))[("rdmap0s7", "rx_bytes_rate")] == 200.0


def test_efa_without_a_carrier_is_not_active_although_its_driver_says_so(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path, "efa_0", link_layer="Unknown")
    adapter.netdev("ens6")
    collector = RdmaCollector(tmp_path)
    assert table(collector.read(0.0))[("efa_0", "port_active")] == 1.0
    adapter.netdev("ens6", carrier="0", downs=1)
    reading = collector.read(1.0)
    assert table(reading)[("efa_0", "port_active")] == 0.0
    assert table(reading)[("efa_0", "carrier")] == 0.0
    assert faults(reading.facts) == [("port_down", "efa_0", Severity.ERROR)]
    assert reading.facts[0].evidence["cause"] == "no carrier"


@pytest.mark.parametrize(
    ("metric", "file"),
    [
        ("cnp_sent_rate", "np_cnp_sent"),
        ("cnp_sent_rate", "cnpSent"),
        ("ecn_marked_rate", "np_ecn_marked_roce_packets"),
        ("ecn_marked_rate", "RxECNMrkd"),
        ("cnp_handled_rate", "rp_cnp_handled"),
        ("out_of_sequence_rate", "oos_drop_count"),
        ("slow_restart_rate", "roce_slow_restart"),
    ],
)
def test_congestion_counters_are_known_by_each_drivers_name(tmp_path: Path, metric: str, file: str) -> None:
    adapter = Adapter(tmp_path, link_layer="Ethernet")
    adapter.count(**{f"hw_{file}": 5})
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    adapter.count(**{f"hw_{file}": 25})
    assert table(collector.read(2.0))[("mlx5_0", metric)] == 10.0


def test_one_unreadable_counter_or_port_hides_no_other(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.count(hw_out_of_sequence=7)
    plant(tmp_path, {f"{adapter.path}/counters/symbol_error": "N/A (no PMA)\n"})
    (tmp_path / adapter.path / "counters/port_rcv_errors").mkdir()
    (tmp_path / IB / "irdma0/ports/1").mkdir(parents=True)
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    values = table(collector.read(1.0))
    assert values[("mlx5_0", "out_of_sequence_rate")] == 0.0
    assert values[("mlx5_0", "symbol_error_rate")] is None
    assert values[("mlx5_0", "rcv_errors_rate")] is None
    assert values[("irdma0", "port_active")] is None


def test_addresses_of_ports_are_told_for_people(tmp_path: Path) -> None:
    fabric = Adapter(tmp_path, "mlx5_0")
    plant(tmp_path, {f"{fabric.path}/lid": "0x11\n", f"{fabric.path}/sm_lid": "0x1\n"})
    ether = Adapter(tmp_path, "mlx5_1", link_layer="Ethernet")
    for index, kind in enumerate(("IB/RoCE v1", "RoCE v2")):
        plant(
            tmp_path,
            {
                f"{ether.path}/gids/{index}": "fe80:0000:0000:0000:a288:c2ff:fe00:0001\n",
                f"{ether.path}/gid_attrs/types/{index}": f"{kind}\n",
            },
        )
    assert RdmaCollector(tmp_path).read(0.0).info == {"mlx5_0.lid": 17, "mlx5_0.sm_lid": 1, "mlx5_1.roce_v2_gids": 1}


def test_an_interface_that_is_down_tells_nothing_of_its_cable(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path)
    adapter.netdev("ibs3", carrier="", flags="0x1002")
    values = table(RdmaCollector(tmp_path).read(0.0))
    assert (values[("mlx5_0", "port_active")], values[("mlx5_0", "carrier")]) == (1.0, None)


def test_absent_rdma_is_said_in_words(tmp_path: Path) -> None:
    assert "no RDMA driver loaded" in RdmaCollector(tmp_path).read(0.0).absent["rdma"]
    (tmp_path / IB).mkdir(parents=True)
    assert "no RDMA device" in RdmaCollector(tmp_path).read(0.0).absent["rdma"]


def test_metrics_are_those_of_the_contract_and_all_of_them() -> None:
    assert set(RDMA_METRICS) == {name for kind, name in METRICS if kind == "rdma"}
    assert len(set(RDMA_METRICS)) == len(RDMA_METRICS)


def test_a_device_that_its_driver_complains_about_is_read_no_more(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path, address="0000:81:00.0")
    collector = RdmaCollector(tmp_path)
    collector.read(0.0)
    quiet.ask_less("0000:81:00.0")
    adapter.down()
    reading = collector.read(1.0)
    assert set(table(reading).values()) == {None}
    assert reading.facts == ()
    assert "complains" in reading.absent["rdma.mlx5_0"]


def test_the_fabric_managers_devices_are_never_read(tmp_path: Path) -> None:
    adapter = Adapter(tmp_path, address="0000:81:00.0")
    name = b"Nvidia ConnectX-7 mezz internal for Nvidia Umbriel system"
    (tmp_path / IB / "mlx5_0/device/vpd").write_bytes(b"\x82" + len(name).to_bytes(2, "little") + name + b"\x90\0\0")
    adapter.count(port_rcv_data=1)
    reading = RdmaCollector(tmp_path).read(0.0)
    assert set(table(reading).values()) == {None}
    assert "rdma.mlx5_0" in reading.absent


class Driver(ethtool.Statistics):
    """A driver's statistics without a driver: `frames` of priority 3 at `address`."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self.address, self.frames, self.asked = address, 0, 0

    def bus_address(self, name: str) -> str | None:
        return self.address

    def names(self, name: str) -> tuple[str, ...] | None:
        return ("rx_packets", "rx_prio3_pause", "rx_prio3_pause_duration")

    def values(self, name: str) -> tuple[int, ...] | None:
        self.asked += 1
        return (10**9, self.frames, 77)


def test_pause_frames_are_asked_of_the_driver_seldom_and_stay_until_then(tmp_path: Path) -> None:
    Adapter(tmp_path, link_layer="Ethernet", address="0000:81:00.0").netdev("eth2")
    driver = Driver("0000:81:00.0")
    collector = RdmaCollector(tmp_path, pauses=ethtool.PauseFrames(driver))
    rates = []
    for second in range(13):
        driver.frames = second * 100
        collector.read(float(second))
        rates.append(table(collector.read(second + 0.5))[("mlx5_0", "pfc_pause_rate")])
    assert rates == [None] * 5 + [100.0] * 8
    assert driver.asked <= 4
    collector.close()
    collector.close()


def test_an_interface_of_the_same_name_elsewhere_is_not_asked(tmp_path: Path) -> None:
    Adapter(tmp_path, link_layer="Ethernet", address="0000:81:00.0").netdev("eth2")
    driver = Driver("0000:02:00.0")
    collector = RdmaCollector(tmp_path, pauses=ethtool.PauseFrames(driver))
    for second in range(0, 60, 3):
        assert table(collector.read(float(second)))[("mlx5_0", "pfc_pause_rate")] is None
    assert driver.asked == 0


FILES = st.sampled_from(
    sorted(
        {"state", "phys_state", "rate", "link_layer", "gid_attrs/ndevs/0", "../../device/numa_node", "../../board_id"}
        | {file for counter in COUNTERS for file, _ in counter.files}
    )
)
GARBAGE = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.sampled_from([b"", b"N/A (no PMA)", b"-1", b"1e9", b"0x10", b"12abc", b"9" * 30, "٣".encode(), b"4: ACTIVE \n"]),
    st.integers(0, 2**65).map(lambda number: str(number).encode()),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None, max_examples=60)
@given(ticks=st.lists(st.dictionaries(FILES, GARBAGE, max_size=12), min_size=1, max_size=4))
def test_any_files_missing_or_garbage_never_raise_and_never_become_a_number(
    tmp_path_factory: pytest.TempPathFactory, ticks: list[dict[str, bytes | None]]
) -> None:
    root = tmp_path_factory.mktemp("sys")
    port = root / IB / "mlx5_0/ports/1"
    collector = RdmaCollector(root, state=root / "rdma.json")
    held: dict[str, bytes | None] = {}
    for now, tick in enumerate(ticks):
        for file, content in tick.items():
            path = Path(os.path.normpath(port / file))
            path.parent.mkdir(parents=True, exist_ok=True)
            held[file] = content
            path.unlink(missing_ok=True)
            if content is not None:
                path.write_bytes(content)
        port.mkdir(parents=True, exist_ok=True)
        reading = collector.read(float(now))
        for (_, metric), value in table(reading).items():
            assert value is None or 0 <= value < 2**67
            counter = next((c for c in COUNTERS if c.metric == metric), None)
            if counter is not None and value is not None:
                assert any((held.get(file) or b"").strip().isdigit() for file, _ in counter.files)
        if not (held.get("state") or b"").strip()[:1].isdigit():
            assert table(reading)[("mlx5_0", "port_active")] is None
