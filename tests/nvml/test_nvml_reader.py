"""What one card's values become: base units, unknown instead of zero, facts when something lasting changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from nvml_fake import Fake, Ticks, column, uuid

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Fact, JobSource
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.metrics import METRICS


def facts_of(ticks: Ticks, card: str = "0") -> list[Fact]:
    return [fact for fact in ticks.facts if fact.local == card]


def test_units_are_base_units(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world("field * 138 - 3000", "set * reasons 0x24")
        reading = ticks.tick(2.0)
    for metric, value in {
        "utilization_ratio": 0.97,
        "memory_busy_ratio": 0.41,
        "memory_used_bytes": 61 * 2**30,
        "power_watts": 655.0,
        "power_limit_watts": 700.0,
        "sm_clock_hertz": 1.755e9,
        "memory_temperature_celsius": 60.0,
        "pcie_width_ratio": 1.0,
        "pcie_generation": 5.0,
        "throttle_sw_ratio": 1.0,
        "throttle_hw_ratio": 0.0,
        "fabric_ready": 1.0,
        "processes": 0.0,
        "recovery_action": 0.0,
        # 2000 KiB in two seconds.
        "nvlink_tx_bytes_rate": 1000 * 1024,
    }.items():
        assert column(reading, metric) == (value, value), metric


def test_only_metrics_of_the_contract_are_filled(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        reading = ticks.tick()
    for group in reading.groups:
        assert {(group.layout.kind, name) for name in group.layout.metrics} <= set(METRICS)


@pytest.mark.parametrize("code", [2, 3, 4, 13, 25])
def test_what_is_not_supported_is_asked_once_a_driver_load(fake: Fake, tmp_path: Path, code: int) -> None:
    fake.world(f"error 1 nvmlDeviceGetPowerUsage {code}")
    with Ticks(tmp_path) as ticks:
        for _ in range(4):
            reading = ticks.tick()
        assert column(reading, "power_watts") == (655.0, None)
        assert fake.calls("nvmlDeviceGetPowerUsage", 1) == 1
        assert fake.calls("nvmlDeviceGetPowerUsage", 0) == 4
        assert "power_watts" in str(reading.info["gpu.1.unsupported"])
        fake.world("driver unloaded")
        ticks.until(lambda r: "gpu" in r.absent)
        fake.world()
        ticks.until(lambda r: column(r, "power_watts") == (655.0, 655.0))


def test_a_field_that_is_not_supported_is_unknown_and_its_neighbours_are_read(fake: Fake, tmp_path: Path) -> None:
    fake.world("field 0 82 - !3", "field 0 230 - !2", "field 1 82 - !999")
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        reading = ticks.tick()
        assert column(reading, "memory_temperature_celsius") == (None, None)
        assert column(reading, "recovery_action") == (None, 0.0)
        assert column(reading, "nvlink_tx_bytes_rate") == (0.0, 0.0)
        # An unknown error may be better next second, and is said.
        assert "memory_temperature_celsius (999)" in reading.absent["gpu.1"]
        fake.world()
        assert column(ticks.tick(), "memory_temperature_celsius") == (None, 60.0)


@pytest.mark.parametrize(
    ("line", "metric"),
    [
        ("set 0 utilization 4294967295", "utilization_ratio"),
        ("set 0 utilization 2000", "utilization_ratio"),
        ("set 0 temperature 4294967295", "temperature_celsius"),
        ("set 0 power 4294967295", "power_watts"),
        ("set 0 memory.used 99999999999999", "memory_used_bytes"),
        ("set 0 clock.sm 4294967295", "sm_clock_hertz"),
        ("set 0 pcie.most 0", "pcie_width_ratio"),
        ("field 0 82 - 0x7fffffffffffffff", "memory_temperature_celsius"),
        ("field 0 82 - 0xffffffffffffffff", "memory_temperature_celsius"),
        ("field 0 230 - 4294967295", "recovery_action"),
    ],
)
def test_a_value_that_cannot_be_is_unknown(fake: Fake, tmp_path: Path, line: str, metric: str) -> None:
    fake.world(line)
    with Ticks(tmp_path) as ticks:
        left, right = column(ticks.tick(), metric)
        assert left is None
        assert right is not None
        assert ticks.facts == []


def test_ecc_counts_become_rates_and_a_driver_reload_is_no_negative_one(fake: Fake, tmp_path: Path) -> None:
    got = []
    with Ticks(tmp_path) as ticks:
        for seconds, count in ((1.0, 4), (2.0, 8), (1.0, 0), (1.0, 1)):
            fake.world(f"set 0 ecc.0.0 {count}")
            got.append(column(ticks.tick(seconds), "ecc_corrected_rate")[0])
    assert got == [None, 2.0, None, 1.0]
    assert ticks.facts == []


def test_an_uncorrectable_error_is_a_fact_with_the_place_where_it_was(fake: Fake, tmp_path: Path) -> None:
    places = ("set 0 ecc.1.0.2 0", "set 0 ecc.1.0.7 3", "set 0 ecc.1.1 9")
    fake.world(*places, "set 0 ecc.1.0 0", "set 0 ecc.1.0.7 0")
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world(*places, "set 0 ecc.1.0 2", "set 0 ecc.1.0.7 0", "set 0 ecc.1.0.2 2")
        reading = ticks.tick()
        assert column(reading, "ecc_uncorrected_rate")[0] == 2.0
        (fact,) = facts_of(ticks)
        assert (fact.fault, fact.evidence["location"]) == ("gpu_ecc_dbe", "dram")
        assert (fact.evidence["count"], fact.evidence["aggregate"]) == (2, 9)
        ticks.tick()
        assert len(ticks.facts) == 1


def test_errors_from_before_the_start_are_told_once_as_such(fake: Fake, tmp_path: Path) -> None:
    fake.world("set 0 ecc.1.0 3", "set 0 ecc.1.0.2 3", "set 0 remapped 0 1 1 0")
    keys = []
    for _ in range(2):
        with Ticks(tmp_path) as ticks:
            ticks.tick()
            ticks.tick()
        assert sorted(ticks.told()) == ["gpu_ecc_dbe", "gpu_row_remap_pending"]
        assert all(fact.evidence["baseline"] for fact in ticks.facts)
        keys.append(sorted(fact.key for fact in ticks.facts))
    # The same after a restart of the agent: the same events, not others.
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("bad", "fault", "severity", "action"),
    [
        ("set 0 remapped 0 1 1 0", "gpu_row_remap_pending", Severity.WARNING, "reset_gpu"),
        ("set 0 remapped 0 8 0 1", "gpu_row_remap_failure", Severity.CRITICAL, "replace_gpu"),
        ("field 0 31 - 1", "gpu_memory_repair_pending", Severity.WARNING, "reset_gpu"),
        ("field 0 30 - 64", "gpu_retirement_failure", Severity.CRITICAL, "replace_gpu"),
        ("field 0 230 - 1", "gpu_recovery_action", Severity.CRITICAL, "reset_gpu"),
        ("field 0 230 - 2", "gpu_recovery_action", Severity.CRITICAL, "reboot_node"),
        ("set 0 fabric.state 1", "gpu_fabric_not_ready", Severity.ERROR, "check_fabric"),
        ("set 0 fabric.summary 2", "gpu_fabric_not_ready", Severity.ERROR, "check_fabric"),
        ("field 0 165 4 0", "gpu_nvlink_error", Severity.ERROR, "check_link"),
    ],
)
def test_a_lasting_trouble_is_told_when_it_begins_and_when_it_ends(
    fake: Fake, tmp_path: Path, bad: str, fault: str, severity: Severity, action: str
) -> None:
    # Links one by one, so that a single one can be down.
    fake.base = [line for line in fake.base if not line.startswith("field * 165")]
    well = [f"field * {field} - 0" for field in (29, 30, 31)] + [f"field * 165 {link} 1" for link in range(18)]
    fake.world(*well)
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        fake.world(*well, bad)
        ticks.until(lambda _: ticks.facts)
        for _ in range(12):
            ticks.tick()
        (fact,) = ticks.facts
        assert (fact.fault, fact.local, fact.severity) == (fault, "0", severity)
        assert fact.evidence["action"] == action
        assert fact.evidence["pci"] == "0000:1a:00"
        assert "baseline" not in fact.evidence
        fake.world(*well)
        ticks.until(lambda _: len(ticks.facts) > 1)
        assert ticks.facts[1].severity is Severity.INFO
        assert ticks.facts[1].evidence["cleared"] is True
        ticks.tick()
        assert len(ticks.facts) == 2


def test_a_worse_recovery_action_is_told_as_well(fake: Fake, tmp_path: Path) -> None:
    with Ticks(tmp_path) as ticks:
        for number in (0, 1, 1, 2, 0):
            fake.world(f"field 0 230 - {number}")
            reading = ticks.tick()
            assert column(reading, "recovery_action")[0] == number
        assert [fact.evidence.get("recovery_action") for fact in ticks.facts] == [1, 2, 0]


def test_a_link_that_was_never_up_is_no_fault_and_one_bad_reading_is_none_either(fake: Fake, tmp_path: Path) -> None:
    fake.base = [line for line in fake.base if not line.startswith("field * 165")]
    up = [f"field * 165 {link} {1 if link else 0}" for link in range(18)]
    fake.world(*up)
    with Ticks(tmp_path) as ticks:
        for _ in range(6):
            reading = ticks.tick()
        assert column(reading, "link_active", "nvlink")[:2] == (0.0, 1.0)
        fake.world(*up, "field 0 165 5 0")
        ticks.tick()
        fake.world(*up)
        for _ in range(6):
            ticks.tick()
        assert ticks.facts == []


def test_a_link_that_saves_power_is_up(fake: Fake, tmp_path: Path) -> None:
    fake.world("field * 165 - 2")
    with Ticks(tmp_path) as ticks:
        assert set(column(ticks.tick(), "link_active", "nvlink")) == {1.0}


@pytest.mark.parametrize(
    ("dropped", "instead"),
    [
        # Blackwell: recoveries and what is left after correction; before Hopper: a call for each counter.
        ((161, 162, 163), ("field * 215 - 0", "field * 219 - 0")),
        ((91, 161, 162, 163, 165), ()),
    ],
)
def test_links_are_read_by_whichever_way_the_card_knows(
    fake: Fake, tmp_path: Path, dropped: tuple[int, ...], instead: tuple[str, ...]
) -> None:
    fake.base = [line for line in fake.base if not line.startswith(tuple(f"field * {f} " for f in dropped))]
    old = [f"set * link.{n} 1" for n in range(18)] if 165 in dropped else []
    old += [f"set * link.{n}.{c} 0" for n in range(18) for c in range(4)] if 165 in dropped else []
    fake.world(*instead, *old)
    with Ticks(tmp_path) as ticks:
        ticks.tick()
        more = ("field * 215 3 6", "field * 219 3 8") if instead else ("set * link.3.1 6", "set * link.3.2 8")
        # A line for one link stands before the one for any.
        fake.base = [line for line in fake.base if "field * 215" not in line and "field * 219" not in line]
        fake.world(*more[:2], *instead, *old, *more)
        reading = ticks.tick(2.0)
        group = next(group for group in reading.groups if group.layout.kind == "nvlink")
        assert group.layout.ids[:2] == ("0/0", "0/1")
        assert len(group.layout.ids) == 36
        assert column(reading, "link_active", "nvlink")[3] == 1.0
        assert column(reading, "recovery_rate", "nvlink")[3] == 3.0
        assert column(reading, "crc_error_rate", "nvlink")[3] == 4.0
        assert column(reading, "recovery_rate", "nvlink")[2] == 0.0
        assert group.layout.labels["pci"][0] == "0000:1a:00"


def test_a_card_without_nvlink_has_no_links(fake: Fake, tmp_path: Path) -> None:
    fake.base = [line for line in fake.base if not line.startswith(("field * 91", "set * links", "field * 16"))]
    fake.world()
    with Ticks(tmp_path) as ticks:
        for _ in range(3):
            reading = ticks.tick()
    assert [group.layout.kind for group in reading.groups] == ["gpu"]
    assert fake.calls("nvmlDeviceGetNvLinkState", 0) == 1


def test_the_fabric_names_the_nodes_nvlink_domain(fake: Fake, tmp_path: Path) -> None:
    fake.world("set * fabric.uuid 00112233445566778899aabbccddeeff", "set * fabric.clique 7")
    with Ticks(tmp_path) as ticks:
        assert ticks.tick().places.nvlink_domain == "00112233-4455-6677-8899-aabbccddeeff.7"


def test_a_fabric_within_one_node_is_no_domain(fake: Fake, tmp_path: Path) -> None:
    fake.world("set * fabric.uuid 00000000000000000000000000000000")
    with Ticks(tmp_path) as ticks:
        reading = ticks.tick()
    assert reading.places.nvlink_domain is None
    assert column(reading, "fabric_ready") == (1.0, 1.0)


@pytest.mark.parametrize(("mask", "ready"), [("0x0", 1.0), ("0x2", 1.0), ("0x1", 0.0), ("0x10", 0.0), ("0x400", 0.0)])
def test_the_health_mask_of_the_fabric_is_understood(fake: Fake, tmp_path: Path, mask: str, ready: float) -> None:
    fake.world("set * fabric.summary 0", f"set 0 fabric.mask {mask}")
    with Ticks(tmp_path) as ticks:
        assert column(ticks.tick(), "fabric_ready") == (ready, 1.0)


def test_places_tell_address_node_and_job(fake: Fake, tmp_path: Path) -> None:
    nodes, device = tmp_path / "devices/system/node", tmp_path / "bus/pci/devices/0000:1b:00.0"
    for path in (nodes, device):
        path.mkdir(parents=True)
    (nodes / "online").write_text("0-1\n")
    (device / "numa_node").write_text("1\n")
    jobs = (JobSource("a", gpu="0"), JobSource("b", gpu="0000:1B:00.0"))
    with Ticks(tmp_path, jobs=jobs) as ticks:
        reading = ticks.tick()
    assert [(p.index, p.pci, p.numa_node, p.job) for p in reading.places.gpus] == [
        ("0", "0000:1a:00", None, "a"),
        ("1", "0000:1b:00", 1, "b"),
    ]
    assert reading.groups[0].layout.labels["job"] == ("a", "b")


def test_a_numa_node_with_cpus_is_believed_where_sysfs_knows_none_and_one_without_is_memory(
    fake: Fake, tmp_path: Path
) -> None:
    nodes = tmp_path / "devices/system/node"
    for number, cpus in ((0, "0-3"), (1, "4-7"), (2, "")):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}/cpulist").write_text(f"{cpus}\n")
    (nodes / "online").write_text("0-2\n")
    fake.world("set 0 numa 1", "set 1 numa 2")
    with Ticks(tmp_path) as ticks:
        reading = ticks.tick()
    assert [place.numa_node for place in reading.places.gpus] == [1, None]
    assert reading.info["gpu.1.memory_node"] == 2


def test_processes_are_counted_and_named_with_their_container(fake: Fake, tmp_path: Path) -> None:
    inside = "c0ffee" + "0" * 58
    for pid, group in ((4711, f"0::/kubepods.slice/cri-containerd-{inside}.scope\n"), (4712, "0::/user.slice\n")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/cgroup").write_text(group)
    fake.world("process 0 4711 1073741824 0 0", "process 0 4712 1073741824 0 0", "process 0 4713 5 0 0")
    with Ticks(tmp_path, procfs=tmp_path / "proc") as ticks:
        reading = ticks.tick()
    assert column(reading, "processes") == (3.0, 0.0)
    assert reading.info["gpu.0.processes"] == "4711:c0ffee000000, 4712, 4713"


def test_names_that_are_no_text_keep_nothing_from_being_read(fake: Fake, tmp_path: Path) -> None:
    fake.script.write_bytes(fake.script.read_bytes() + b"set 0 uuid \xf8\xff\xfe\nset 0 name \xf8\n")
    with Ticks(tmp_path) as ticks:
        reading = ticks.tick()
    assert column(reading, "power_watts") == (655.0, 655.0)
    assert [place.uuid for place in reading.places.gpus] == ["pci-0000:1a:00", uuid(1)]


def test_every_fault_and_action_that_can_be_told_is_in_the_tables() -> None:
    from gpuchaos_agent.nvml import codes, conditions, events

    lasting = [value for value in vars(conditions).values() if isinstance(value, conditions.Condition)]
    faults = {condition.fault for condition in lasting} | {kind.fault for kind in events.TYPES.values()}
    faults |= {fault for fault, _ in codes.LOSSES.values()}
    faults |= {"gpu_recovery_action", "gpu_call_hang", "gpu_driver_gone", "gpu_ecc_dbe"}
    assert faults <= set(catalogue.fault_names())
    actions = {condition.action for condition in lasting} | {kind.action for kind in events.TYPES.values()}
    actions |= {action for _, action in codes.LOSSES.values()} | {"investigate", "update_software", "none"}
    assert all(catalogue.advice(action) for action in actions)
