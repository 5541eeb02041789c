"""Captures: what is left out of them, what a broken or hostile one can do, and what is concluded."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from read_help import said

from gpuchaos_agent.read import capture, command, planting, redact
from gpuchaos_stream.errors import UserError

MAC = "b8:ce:f6:12:34:56"
GUID = "b8ce:f603:0012:3456"
GID = "fe80:0000:0000:0000:bace:f6ff:fe12:3456"
SECRETS = (
    *(MAC, MAC.upper(), "b8cef6123456", GUID, GUID.replace(":", ""), GID, "fe80::bace:f6ff:fe12:3456", "10.20.30.40"),
    *("00:00:10:49:fe:80:00:00:00:00:00:00:" + MAC, "MT2049X01234", "node-secret", "builder@build-secret", "--token"),
)


def put(root: Path, path: str, content: str = "1\n") -> None:
    file = root / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(content)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    """A node that has a secret in every place in which one can stand."""
    sys, proc = tmp_path / "sys", tmp_path / "proc"
    for number, name in enumerate(("mlx5_0", f"ibx{GUID.replace(':', '')}")):
        port = f"class/infiniband/{name}/ports/1"
        put(sys, f"{port}/state", "4: ACTIVE\n")
        put(sys, f"{port}/phys_state", "5: LinkUp\n")
        put(sys, f"{port}/rate", "200 Gb/sec (4X HDR)\n")
        put(sys, f"{port}/link_layer", "InfiniBand\n")
        put(sys, f"{port}/lid", "0x1\n")
        put(sys, f"{port}/counters/link_downed", "0\n")
        put(sys, f"{port}/gids/0", GID + "\n")
        put(sys, f"{port}/gid_attrs/types/0", "RoCE v2\n")
        put(sys, f"{port}/gid_attrs/ndevs/0", "enxb8cef6123456\n")
        put(sys, f"class/infiniband/{name}/node_guid", GUID + "\n")
        put(sys, f"class/infiniband/{name}/sys_image_guid", GUID + "\n")
        put(sys, f"class/infiniband/{name}/node_desc", "node-secret HCA-1\n")
        put(sys, f"class/infiniband/{name}/fw_ver", "20.31.1014\n")
        put(sys, f"bus/pci/devices/0000:3{number}:00.0/vpd", "MT2049X01234\n")
        put(sys, f"bus/pci/devices/0000:3{number}:00.0/numa_node", "0\n")
    for name in ("eth0", "enxb8cef6123456", "bond0"):
        put(sys, f"class/net/{name}/address", MAC + "\n")
        put(sys, f"class/net/{name}/broadcast", "ff:ff:ff:ff:ff:ff\n")
        put(sys, f"class/net/{name}/operstate", "up\n")
        put(sys, f"class/net/{name}/phys_switch_id", "b8cef6123456\n")
        put(sys, f"class/net/{name}/ifalias", "node-secret uplink\n")
        put(sys, f"class/net/{name}/uevent", f"INTERFACE={name}\n")
        put(sys, f"class/net/{name}/unheard_of", f"{MAC} {MAC.upper()} {GID} 10.20.30.40 fe80::bace:f6ff:fe12:3456\n")
        put(sys, f"class/net/{name}/statistics/rx_bytes", "5\n")
    put(sys, "class/net/ib0/unheard_of", "00:00:10:49:fe:80:00:00:00:00:00:00:" + MAC)
    put(sys, "class/net/bond0/bonding/slaves", "eth0 enxb8cef6123456\n")
    put(sys, "class/net/bond0/bonding/ad_partner_mac", MAC + "\n")
    put(sys, "class/net/bond0/bonding/arp_ip_target", "10.20.30.40\n")
    put(sys, "devices/system/node/online", "0\n")
    put(sys, "devices/system/node/node0/cpulist", "0-3\n")
    put(proc, "version", "Linux version 6.1 (builder@build-secret) #1\n")
    put(proc, "sys/kernel/osrelease", "6.1.0\n")
    put(proc, "sys/kernel/hostname", "node-secret\n")
    put(proc, "4242/cmdline", "python\0--token\0")
    put(proc, "loadavg", "0.1 0.2 0.3 1/100 4242\n")
    (sys / "class/net/eth1").symlink_to("../../devices/pci0000:00/net/enxb8cef6123456")
    return tmp_path


def captured(node: Path) -> str:
    out = io.StringIO()
    capture.capture(out, sysfs=node / "sys", procfs=node / "proc")
    return out.getvalue()


def entries(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_in_a_capture_tells_which_machine_or_whose_it_is(node: Path, secret: str) -> None:
    assert secret not in captured(node)


def test_what_faults_are_concluded_from_is_in_it(node: Path) -> None:
    found = {entry["path"]: entry.get("content") for entry in entries(captured(node))}
    assert found["/sys/class/infiniband/mlx5_0/ports/1/state"] == "4: ACTIVE\n"
    assert found["/sys/class/infiniband/mlx5_0/fw_ver"] == "20.31.1014\n"
    assert found["/sys/bus/pci/devices/0000:30:00.0/numa_node"] == "0\n"
    assert found["/proc/sys/kernel/osrelease"] == "6.1.0\n"


def test_a_hidden_name_is_the_same_wherever_it_stands(node: Path) -> None:
    found = {entry["path"]: entry.get("content") for entry in entries(captured(node))}
    (name,) = {path.split("/")[4] for path in found if path.startswith("/sys/class/net/enx")}
    assert found["/sys/class/infiniband/mlx5_0/ports/1/gid_attrs/ndevs/0"] == f"{name}\n"
    assert found["/sys/class/net/bond0/bonding/slaves"] == f"eth0 {name}\n"


@pytest.mark.parametrize(
    "text",
    ["0000:3b:00.0", "10000:01:00.0", "0-3,8-11", "20.31.1014", "1-2:1.0", "00:00:00:00:00:00", "ff:ff:ff:ff:ff:ff",
     "4: ACTIVE", "0x1", "15.4 GT/s", "enp59s0f0np0", "ibp59s0", "16.0 GT/s PCIe", "cpu  1 2 3", "[always] never"],
)  # fmt: skip
def test_what_only_looks_like_an_address_stays(text: str) -> None:
    assert redact.Redactor()(text) == text


@given(st.text("0123456789abcdef:.x enib", max_size=3000))
@settings(deadline=None)
def test_no_text_grows_much_by_redaction(text: str) -> None:
    once = redact.Redactor()(text)
    assert len(once) <= len(text) + 400


def test_a_capture_of_this_machine_says_nothing_of_a_fault(tmp_path: Path) -> None:
    out = tmp_path / "here.jsonl"
    assert command.write_capture(out, sysfs=Path("/sys"), procfs=Path("/proc"), out=io.StringIO()) == 0
    rows = said(out)
    assert rows[0]["kind"] == "capture"
    assert [row for row in rows if row["fault"] != "none" and row["severity"] in {"error", "critical"}] == []
    assert [row for row in rows if "unreadable" in str(row.get("says"))] == []
    hostname = Path("/proc/sys/kernel/hostname").read_text().strip()
    if len(hostname) > 6:
        assert hostname not in out.read_text()
    own = {path.read_text().strip() for path in Path("/sys/class/net").glob("*/address")} - {"", "00:00:00:00:00:00"}
    assert [address for address in own if address in out.read_text()] == []


def port(state: str, physical: str) -> bytes:
    files = {"state": state, "phys_state": physical, "rate": "25 Gb/sec (1X EDR)", "link_layer": "InfiniBand"}
    root = "/sys/class/infiniband/mlx5_7/ports/1"
    return lines(*({"path": f"{root}/{name}", "content": text + "\n"} for name, text in files.items()))


def lines(*rows: dict[str, str]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def of(folder: Path, content: bytes) -> list[dict[str, Any]]:
    path = folder / "x.jsonl"
    path.write_bytes(content)
    return said(path)


def test_a_port_that_was_switched_off_when_it_was_captured_is_said_to_be(tmp_path: Path) -> None:
    (fact,) = [row for row in of(tmp_path, port("1: DOWN", "3: Disabled")) if row["fault"] != "none"]
    assert (fact["fault"], fact["device"]) == ("port_disabled", "mlx5_7")
    assert "assumed" not in fact


def test_what_is_bad_only_when_it_lasts_is_said_with_what_is_assumed(tmp_path: Path) -> None:
    (fact,) = [row for row in of(tmp_path, port("2: INIT", "5: LinkUp")) if row["fault"] != "none"]
    assert (fact["fault"], fact["device"]) == ("no_subnet_manager", "mlx5_7")
    assert "assumed" in fact


HOSTILE = (
    {"path": "/sys/../../etc/x", "content": "1"},
    {"path": "/etc/passwd", "content": "1"},
    {"path": "../x", "content": "1"},
    {"path": "/sys", "content": "1"},
    {"path": "/sys/half\ud800", "content": "1"},
    {"path": "/sys/nul\0", "content": "1"},
    {"path": "/sys/" + "d/" * 600, "content": "1"},
    {"path": "/sys/" + "n" * 300, "content": "1"},
    {"path": "/sys/out", "link": "/etc/passwd"},
    {"path": "/sys/up", "link": "../../etc/passwd"},
    {"path": "/sys/nul2", "link": "a\0b"},
    {"path": "/sys/p/q/down_and_up", "link": "b/../../../../../../../../../../../etc/passwd"},
)


@pytest.mark.parametrize("entry", HOSTILE)
def test_a_path_that_leads_out_is_refused_and_counted(tmp_path: Path, entry: dict[str, str]) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert planting.plant(io.BytesIO(lines(entry)), root) == (0, 1)
    assert [path for path in tmp_path.rglob("*") if not path.is_dir()] == []


PARTS = st.lists(st.sampled_from(["a", "b", "c", "..", ".", "sys"]), max_size=6).map("/".join)


@given(st.lists(st.tuples(PARTS, PARTS), max_size=8))
@settings(deadline=None)
def test_no_links_together_lead_out(tmp_path_factory: pytest.TempPathFactory, links: list[tuple[str, str]]) -> None:
    outside = tmp_path_factory.mktemp("outside").resolve()
    root = outside / "one/two/root"
    root.mkdir(parents=True)
    rows = [{"path": f"/sys/{path}", "link": target} for path, target in links]
    planting.plant(io.BytesIO(lines({"path": "/sys/a/file", "content": "1"}, *rows)), root)
    for path in root.rglob("*"):
        try:
            reached = path.resolve()
        except RuntimeError:  # a ring
            continue
        assert reached.is_relative_to(root)


def test_a_ring_of_links_and_lines_that_are_none_are_counted_and_the_rest_is_read(tmp_path: Path) -> None:
    ring = lines(
        {"path": "/sys/l1", "link": "l2"}, {"path": "/sys/l2", "link": "l1"}, {"path": "/sys/l1/x", "link": "z"}
    )
    rows = of(tmp_path, port("1: DOWN", "3: Disabled") + ring + b'not json\n{"path":5}\n{"path":"/sys/x"}\n\n[]\n')
    assert [row["fault"] for row in rows if row["fault"] != "none"] == ["port_disabled"]
    assert "unreadable" in rows[-1]["says"]


def test_a_file_in_the_way_of_a_folder_is_no_error(tmp_path: Path) -> None:
    rows = of(tmp_path, lines({"path": "/sys/class", "content": "a file"}) + port("4: ACTIVE", "5: LinkUp"))
    assert rows[-1]["says"] == "4 of 5 lines unreadable"


def test_a_capture_without_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planting, "MOST", 10)
    many = lines(*({"path": f"/sys/x{number}", "content": "1"} for number in range(20)))
    assert planting.plant(io.BytesIO(many), tmp_path) == (10, 10)


def test_a_capture_that_cannot_be_written_is_an_error_in_words(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "none/x.jsonl", Path("/dev/full")):
        with pytest.raises(UserError, match="cannot be written"):
            command.write_capture(path, sysfs=Path("/sys"), procfs=Path("/proc"), out=io.StringIO())
