"""`rdma-link` without an RDMA device: its interface for real in a network namespace, its ports as a fixture tree.

Real ports are switched in the guest (`test_guest_fault_rdma.py`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from journal_entries import journalled

from gpuchaos_agent.inject import port_admin
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.rdma_link import RdmaLink, RdmaLinkParams
from gpuchaos_agent.journal import JournalEntry, Scalar

TARGET = "port/n1/mlx5_0"

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: network namespaces")
needs_ip = pytest.mark.skipif(
    shutil.which("ip", path="/usr/sbin:/sbin:/usr/bin") is None, reason="no ip: run `make tools`"
)

Inside = Callable[[str], str]


@pytest.fixture
def inside() -> Iterator[Inside]:
    """Runs a shell command in a network namespace with a pair of interfaces `r0` and `r1` that hold much."""
    name = f"rl{uuid.uuid4().hex[:8]}"
    subprocess.run(["ip", "netns", "add", name], check=True)

    def run(command: str) -> str:
        argv = ["ip", "netns", "exec", name, "sh", "-c", command]
        done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done.stdout

    try:
        run(
            """set -e
            ip link set lo up
            ip link add r0 type veth peer name r1
            ip link add link r0 name r0m type macvlan
            ip addr add 10.5.0.1/24 dev r0; ip addr add 10.5.7.1/24 dev r0m
            ip -6 addr add fd05::1/64 dev r0 nodad
            ip -6 addr add fd05:7::1/64 dev r0m nodad noprefixroute
            ip link set r0 up; ip link set r1 up; ip link set r0m up
            ip route add 10.6.0.0/16 via 10.5.0.2 dev r0 metric 7
            ip route add default via 10.5.0.2 dev r0 table 100 proto static
            ip route add 10.9.0.0/24 dev r0m table 107 src 10.5.7.1 scope link
            ip -6 route add fd06::/64 via fd05::2 dev r0 metric 77
            ip -6 route add fd07::/64 dev r0m
            ip neigh add 10.5.0.9 lladdr 02:00:00:00:00:09 dev r0 nud permanent
            ip -6 neigh add fd05::9 lladdr 02:00:00:00:00:09 dev r0 nud permanent
            """
        )
        yield run
    finally:
        subprocess.run(["ip", "netns", "del", name], check=True)


def look(inside: Inside) -> str:
    """Everything that an interface can lose. Link-local addresses come back tentative, and settle."""
    inside("until ! ip -6 addr show tentative | grep -q inet6; do sleep 0.05; done")
    return inside(
        "for f in -4 -6; do ip $f route show table all | sort; ip $f neigh show nud permanent | sort; done;"
        "ip -o addr show | sed 's/ *valid_lft.*//' | sort; ip -o link show | sed 's/ qdisc.*//'; ip rule"
    )


def python(inside: Inside, program: str) -> str:
    return inside(f"exec {sys.executable} - <<'PROGRAM'\n{textwrap.dedent(program)}\nPROGRAM")


DOWN_AND_UP = """
    import sys
    from pathlib import Path
    from gpuchaos_agent.inject import port_admin as p
    kept = p.to_text(p.snapshot(Path("/sys"), "r0"))
    assert not p.missing("r0", p.from_text(kept)[0])
    p.set_up("r0", up=False)
    p.set_up("r0", up=False)
    p.set_up("r0", up=True)
    assert len(p.missing("r0", p.from_text(kept)[0])) >= 5
    p.set_up("r0", up=False)
    for _ in range(2):
        p.bring_up("r0", p.from_text(kept))
"""


@needs_root
@needs_ip
@pytest.mark.root
def test_interface_that_was_down_has_again_all_that_the_kernel_forgets_of_it_and_of_what_stands_on_it(
    inside: Inside,
) -> None:
    before = look(inside)
    python(inside, DOWN_AND_UP)
    assert look(inside) == before


FLAP = """
    import json, os, signal, subprocess, sys, time
    from pathlib import Path
    from gpuchaos_agent.inject import hold, port_admin as p
    from gpuchaos_agent.journal import JournalEntry
    folder = Path({folder!r})
    given = {{"file": str(folder / "who"), "parent": {parent}, "interfaces": p.to_text(p.snapshot(Path("/sys"), "r0")),
             "period_s": 0.2, "count": 1000}}
    downs = lambda: int(Path("/sys/class/net/r0/carrier_down_count").read_text())
    began = downs()
    started = hold.start("gpuchaos_agent.inject.port_flap", [json.dumps(given)], log=folder / "log")
    assert json.loads((folder / "who").read_text()) == started
    deadline = time.monotonic() + 20
    while downs() < began + 3:
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(started["holder_pid"], signal.{signal})
    os.waitpid(started["holder_pid"], 0)
    assert not hold.alive(started)
    if "{signal}" == "SIGKILL":
        p.bring_up("r0", p.from_text(given["interfaces"]))
"""


@needs_root
@needs_ip
@pytest.mark.root
@pytest.mark.parametrize("signal", ["SIGTERM", "SIGKILL"])
def test_flapping_interface_goes_down_and_up_and_is_left_as_it_was(inside: Inside, tmp_path: Path, signal: str) -> None:
    before = look(inside)
    python(inside, FLAP.format(folder=str(tmp_path), parent="os.getpid()", signal=signal))
    assert look(inside) == before
    assert "Traceback" not in (tmp_path / "log").read_text()


@needs_root
@needs_ip
@pytest.mark.root
def test_flapping_whose_agent_died_before_it_could_be_known_of_never_begins(inside: Inside, tmp_path: Path) -> None:
    downs = inside("cat /sys/class/net/r0/carrier_down_count")
    with pytest.raises(AssertionError, match="did not come up"):
        python(inside, FLAP.format(folder=str(tmp_path), parent="1", signal="SIGTERM"))
    assert inside("cat /sys/class/net/r0/carrier_down_count") == downs
    assert not (tmp_path / "who").exists(), "an undo that has been would not find it"


@needs_root
@needs_ip
@pytest.mark.root
def test_the_way_to_a_broker_and_the_default_route_are_known(inside: Inside) -> None:
    inside("ip route add default via 10.5.0.2 dev r0")
    said = python(
        inside,
        """
        from gpuchaos_agent.inject import port_admin as p
        print(p.way_to("10.6.1.1"), p.way_to("10.9.9.9"), p.way_to("127.0.0.1"), p.way_to("fd06::1"))
        print(p.carries_default(["r1"]), p.carries_default(["r0", "r0m"]))
        """,
    )
    assert said.split() == ["r0", "r0", "lo", "r0", "None", "r0"]


# Ports as a fixture tree


class Tree:
    """`/sys/class/infiniband` with one port, and the interface that it may have."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.port = root / "class/infiniband/mlx5_0/ports/1"
        self.put("state", "4: ACTIVE")
        self.put("phys_state", "5: LinkUp")
        self.put("link_layer", "InfiniBand")
        self.put("rate", "400 Gb/sec (4X NDR)")
        self.put("counters/link_downed", "3")

    def put(self, name: str, content: str) -> None:
        path = self.port / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")

    def ethernet(self, name: str = "nosuch0", flags: str = "0x1003") -> None:
        self.put("link_layer", "Ethernet")
        self.put("gid_attrs/ndevs/0", name)
        netdev = self.root / "class/net" / name
        netdev.mkdir(parents=True, exist_ok=True)
        (netdev / "flags").write_text(flags)
        (netdev / "ifindex").write_text("4711")

    def strategy(self, tmp_path: Path, boot_id: str = "b", **fields: object) -> RdmaLink:
        env = Env(node="n1", boot_id=boot_id, sysfs=self.root, state_dir=tmp_path / "state", **fields)  # type: ignore[arg-type]
        return RdmaLink(env)


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    return Tree(tmp_path / "sys")


@pytest.fixture
def ibportstate(tree: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stand-in for the tool that does to the fixture what a port does; what it was told is in `told`."""
    folder = tmp_path / "bin"
    folder.mkdir()
    tool = folder / "ibportstate"
    tool.write_text(
        f"""#!/bin/sh
echo "$*" >> {folder}/told
case "$*" in
  *disable) echo "1: DOWN" > {tree.port}/state; echo "3: Disabled" > {tree.port}/phys_state
            echo 4 > {tree.port}/counters/link_downed ;;
  *enable)  echo "4: ACTIVE" > {tree.port}/state; echo "5: LinkUp" > {tree.port}/phys_state ;;
esac
"""
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    return folder / "told"


def entry(of: RdmaLink, **params: Scalar) -> JournalEntry:
    return journalled("rdma-link", TARGET, params, of.plan(TARGET, params, "f1"), boot_id="b")


@needs_root
@needs_ip
def test_infiniband_port_is_disabled_and_enabled_by_a_datagram_to_itself(
    tree: Tree, tmp_path: Path, ibportstate: Path
) -> None:
    link = tree.strategy(tmp_path)
    assert link.check(TARGET, {}) is None
    fault = entry(link)
    link.undo(fault)
    assert link.verify(fault)
    assert not ibportstate.exists(), "what never began needs no undo"
    link.inject(fault)
    evidence = link.evidence(fault)
    assert evidence.moved
    assert evidence.detail == {
        "state_before": "ACTIVE",
        "state": "DOWN",
        "phys_state": "DISABLED",
        "link_downed": 1,
    }
    assert not link.verify(fault)
    # Renamed by udev meanwhile: the port is known by its hardware.
    for _ in range(2):
        tree.strategy(tmp_path).undo(fault)
        assert tree.strategy(tmp_path).verify(fault)
    assert ibportstate.read_text().splitlines() == [
        "-C mlx5_0 -P 1 -D 0 1 disable",
        "-C mlx5_0 -P 1 -D 0 1 enable",
    ]
    assert link.commands(fault) == (
        "ibportstate -C mlx5_0 -P 1 -D 0 1 disable",
        "ibportstate -C mlx5_0 -P 1 -D 0 1 enable",
    )


@needs_root
@needs_ip
def test_entry_of_another_boot_is_over_and_touches_nothing(tree: Tree, tmp_path: Path, ibportstate: Path) -> None:
    fault = entry(tree.strategy(tmp_path))
    tree.strategy(tmp_path).inject(fault)
    told = ibportstate.read_text()
    later = tree.strategy(tmp_path, boot_id="another")
    later.undo(fault)
    assert later.verify(fault)
    with pytest.raises(InjectError, match="another boot"):
        later.inject(fault)
    assert ibportstate.read_text() == told


@needs_root
@needs_ip
def test_port_that_cannot_or_must_not_go_down_is_refused_with_the_reason(
    tree: Tree, tmp_path: Path, ibportstate: Path
) -> None:
    link = tree.strategy(tmp_path)

    def why(target: str = TARGET, **params: Scalar) -> str:
        return link.check(target, params) or "allowed"

    assert why() == "allowed"
    assert "must be port/n1/NAME" in why("port/n2/mlx5_0")
    assert "no RDMA port mlx5_7" in why("port/n1/mlx5_7")
    assert "for Ethernet ports" in why(mode="flap")
    tree.put("state", "1: DOWN")
    assert "not active" in why()
    tree.put("state", "4: ACTIVE")
    assert "protected" in (tree.strategy(tmp_path, protected=frozenset({"mlx5_0"})).check(TARGET, {}) or "")
    tree.put("link_layer", "Ethernet")
    assert "no network interface" in why()
    tree.ethernet(flags="0x1002")
    assert "down already" in why()
    tree.ethernet()
    bond = tree.root / "class/net/bond7/bonding"
    bond.mkdir(parents=True)
    (bond / "slaves").write_text("nosuch0 nosuch1\n")
    (tree.root / "class/net/nosuch0/master").symlink_to("../bond7")
    assert "bonded (nosuch0, nosuch1)" in why()
    assert "no RDMA device" in (RdmaLink(Env(node="n1", boot_id="b", sysfs=tmp_path)).check(TARGET, {}) or "")
    assert not ibportstate.exists()


@pytest.mark.parametrize(
    "params", [{"mode": "tc"}, {"period_s": 0.01}, {"count": 0}, {"speed_mbps": 1}, {"loss_percent": 10}]
)
def test_parameters_that_are_none_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="1 validation error"):
        RdmaLinkParams.model_validate(params)


def test_interfaces_are_read_back_from_the_journal_as_they_were_written() -> None:
    route = ("ip", "route", "replace", "10.0.0.0/8", "dev", "{}")
    kept = (port_admin.Interface("r0", 4, up=False, addresses=((3, ("ip", "addr")),), commands=(route,)),)
    assert port_admin.from_text(port_admin.to_text(kept)) == kept
    assert port_admin.from_text("") == ()
    assert json.loads(port_admin.to_text(())) == []
