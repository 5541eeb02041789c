"""Conclusions over cases that lie outside the project; `conftest.py` leaves this file out where they are not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gpuchaos_agent.collect import numa, pci
from gpuchaos_agent.collect.framing import Framer
from gpuchaos_agent.collect.messages import read_message
from gpuchaos_agent.collect.numa import NumaCollector
from gpuchaos_agent.collect.rdma import RdmaCollector
from gpuchaos_agent.collect.xid import Finding
from gpuchaos_stream.events.base import Severity

CASES = Path(__file__).parents[2] / "../shared/cases"

#: What logging daemons and dmesg put before a record's text. /dev/kmsg has none of it.
PREFIX = re.compile(
    r"^(?:kern\s*:\w+\s*: \S+ |[A-Z][a-z]{2} +\d+ [\d:]{8} \S+ kernel: |kernel: |\d+,\d+,\d+,-;)?"
    r"(?:\[[^\]]{1,30}\] )?(?:\[ *T\d+\] )?"
)

#: Where our conclusion from single records differs from the expected one from the whole file, and why.
KNOWN: dict[str, dict[str, str]] = {
    "xid/x48_63_94_one_dbe.log": {
        "severity": "48 is critical by itself; that 94 contains it is the correlator's conclusion",
        "scope": "as above",
    },
}
ACTIONS_OF_SEVERAL = {
    # The file's action is that of a later record than the one that names the fault.
    "xid/x51_154_pf_flr_610.log",
    "xid/x48_64_page_retirement_blacklist.log",
}


def cases(*folders: str) -> list[Any]:
    rows = [json.loads(line) for line in (CASES / "expected.jsonl").read_text().splitlines()]
    return [pytest.param(row, id=row["file"]) for row in rows if row["file"].split("/")[0] in folders]


def records(text: str) -> list[str]:
    """The texts of a log file: a line that begins with blanks continues the one above (one printk)."""
    found: list[str] = []
    for line in text.splitlines():
        if line.startswith("   ") and found:
            found[-1] += "\n" + line.strip()
        else:
            found.append(PREFIX.sub("", line, count=1))
    return found


def findings(file: str) -> list[Finding]:
    texts = records((CASES / file).read_text())
    return [message.finding for text in texts if (message := read_message(text, by_process=False)) is not None]


@pytest.mark.parametrize("case", cases("xid"))
def test_each_shared_xid_case_is_read_as_expected(case: dict[str, Any]) -> None:
    file, expect = case["file"], case["expect"]
    known = KNOWN.get(file, {})
    found = findings(file)
    if expect["fault"] == "none" and "xid" not in expect:
        assert found == []
        return
    named = [f for f in found if f.fault == expect["fault"]]
    if expect["fault"] == "none":
        assert [f.severity for f in found] == [Severity.INFO]
        assert found[0].evidence["recovered"] is True
        named = found
    assert named, [f.fault for f in found]
    if "severity" in expect and "severity" not in known:
        assert max((f.severity for f in found), key=lambda s: s.rank).value == expect["severity"]
    if "xid" in expect:
        wanted = {int(code) for code in expect["xid"].split(",") if code}
        assert {f.evidence["xid"] for f in found if "xid" in f.evidence} == wanted
    if expect.get("device") == "unknown":
        assert all(f.local == "" for f in named)
    elif "device" in expect:
        assert pci.normal(expect["device"]) in {f.local for f in found}
    if "scope" in expect and "scope" not in known:
        assert named[0].evidence["scope"] == expect["scope"]
    if "action" in expect:
        actions = {f.evidence["action"] for f in (found if file in ACTIONS_OF_SEVERAL else named)}
        assert expect["action"] in actions
    for theirs, ours in (
        ("gpu_instance", "gpu_instance"),
        ("compute_instance", "compute_instance"),
        ("nvlink", "nvlink"),
        ("partition", "partition"),
        ("gpu_index", "gpu_index"),
        ("recovery_action", "recovery_action"),
        ("pid", "pid"),
        ("name", "process"),
        ("pci_id", "pci_id"),
        ("peer", "peer"),
    ):
        if expect.get(theirs):
            assert expect[theirs] in {str(f.evidence.get(ours)) for f in found}, theirs


def planted(file: str, root: Path) -> Path:
    """The tree of a case below `root`: paths without their `/sys`, missing files left out."""
    for line in (CASES / file).read_text().splitlines():
        entry = json.loads(line)
        path = root / entry["path"].removeprefix("/sys/")
        if "content" in entry:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(entry["content"])
    return root


def framed(file: str) -> list[Any]:
    framer = Framer()
    return [*framer.feed((CASES / file).read_bytes()), *framer.flush()]


def test_shared_kmsg_tags_belong_to_the_record_above() -> None:
    found = framed("kmsg/dict_continuation.kmsg")
    assert [record.tags for record in found] == [{"SUBSYSTEM": "pci_bus", "DEVICE": "+pci_bus:0000:00"}] * 2
    assert all(read_message(record.text, by_process=record.by_process) is None for record in found)


def test_shared_kmsg_escapes_are_undone() -> None:
    assert [record.text[:5] for record in framed("kmsg/escaped_tab_real.kmsg")] == ["rcu: ", "\tTram"]


def test_shared_kmsg_record_of_a_process_is_known_as_one() -> None:
    (record,) = framed("kmsg/userspace_injected_record.kmsg")
    message = read_message(record.text, by_process=record.by_process)
    # Expected there with severity info; here it becomes a warning, because info alone opens no anomaly and a
    # process that speaks in hardware's words must be seen.
    assert record.facility == 1
    assert message is not None
    assert message.fault_id is None


def test_shared_kmsg_repeat_of_a_syslog_daemon_is_counted() -> None:
    (text,) = records((CASES / "kmsg/rsyslog_repeated.log").read_text())
    message = read_message(text, by_process=False)
    assert message is not None
    assert (message.finding.fault, message.finding.evidence["device"], message.finding.evidence["count"]) == (
        "nvme_path_failure",
        "nvme0n1",
        9,
    )


@pytest.mark.parametrize(
    ("file", "nodes", "with_cpus"),
    [
        ("numa/amd_sparse_node_ids.jsonl", (0, 1, 2, 33, 34, 45, 72, 73), None),
        ("numa/intel_interleaved_cpu_ids.jsonl", (0, 1, 2, 3), (0, 1, 2, 3)),
        ("numa/offline_node0.jsonl", (1,), (1,)),
        ("numa/power9_gpu_memory_nodes.jsonl", (0, 8, 250, 251, 252, 253, 254, 255), (0, 8)),
    ],
)
def test_shared_numa_trees_are_read_by_their_online_list(
    tmp_path: Path, file: str, nodes: tuple[int, ...], with_cpus: tuple[int, ...] | None
) -> None:
    root = planted(file, tmp_path)
    reading = NumaCollector(root).read(0.0)
    assert reading.places.numa == tuple(str(node) for node in nodes)
    assert all(free is not None for free in reading.groups[0].columns[0][: len(with_cpus or ())])
    if with_cpus is not None:
        assert tuple(numa.cpus(root / numa.NODES)) == with_cpus


def test_shared_pci_devices_that_say_minus_one_are_on_no_known_node(tmp_path: Path) -> None:
    root = planted("numa/pci_numa_node_mostly_minus1.jsonl", tmp_path)
    said = [int(path.read_text()) for path in (root / "bus/pci/devices").glob("*/numa_node")]
    found = {numa.device_node(float(value), (0, 1, 2)) for value in said}
    assert found <= {None, 2}
    assert None in found


@pytest.mark.parametrize(
    ("file", "ports", "rate"),
    [
        ("sysfs/ib_mlx4_dual_port.jsonl", ("mlx4_0_1", "mlx4_0_2"), 40e9),
        ("sysfs/ib_mlx5_hw_counters.jsonl", ("mlx5_0",), 25e9),
        ("sysfs/opa_hfi1.jsonl", ("hfi1_0",), 100e9),
        ("sysfs/efa_unknown_link_layer.jsonl", ("efa_0",), None),
        (
            "sysfs/irdma_mixed_with_mlx5.jsonl",
            ("irdma0", "mlx5_0"),
            None,
        ),
    ],
)
def test_shared_rdma_trees_give_every_port_and_hide_none(
    tmp_path: Path, file: str, ports: tuple[str, ...], rate: float | None
) -> None:
    collector = RdmaCollector(planted(file, tmp_path))
    collector.read(0.0)
    (group,) = collector.read(1.0).groups
    columns = dict(zip(group.layout.metrics, group.columns, strict=True))
    assert group.layout.ids == ports
    assert columns["port_active"][0] == 1.0
    assert columns["rate_bits"][0] == rate
    has_counters = "mlx" in ports[-1] or "hfi" in ports[-1]
    assert columns["link_downed_rate"][-1] == (0.0 if has_counters else None)


def test_shared_port_without_a_subnet_manager_is_told_after_a_minute(tmp_path: Path) -> None:
    collector = RdmaCollector(planted("sysfs/port_init_no_sm.jsonl", tmp_path))
    assert collector.read(0.0).facts == ()
    (fact,) = collector.read(61.0).facts
    assert (fact.fault, fact.local, fact.severity) == ("no_subnet_manager", "mlx5_5", Severity.ERROR)
