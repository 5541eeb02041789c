"""`rdma-link` on real RDMA: two rxe ports on a pair of interfaces, and traffic between them that feels it."""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest
from lab.guest import MODULES, Guest, Result

AGENT: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / ".venv/bin/gpuchaos-agent"))
STATE: Final = "/run/rdma-state"
HERE: Final = f"--node n1 --state-dir {STATE}"
PORT: Final = "/sys/class/infiniband/rxl0/ports/1"

#: Traffic between the two must cross the pair of interfaces, and not the loopback that one host would take: the
#: table of local addresses is asked last, and each side has a table of its own to the other, as rails do.
MAKE: Final = """
set -e
ip link add rl0 type veth peer name rl1
ip addr add 10.78.0.1/24 dev rl0; ip addr add 10.78.0.2/24 dev rl1
ip -6 addr add fd00:78::1/64 dev rl0 nodad
for d in rl0 rl1 all; do
  sysctl -q -w net.ipv4.conf.$d.rp_filter=0 net.ipv4.conf.$d.accept_local=1
done
ip link add link rl0 name rl0.7 type vlan id 7
ip addr add 10.78.7.1/24 dev rl0.7; ip -6 addr add fd00:78:7::1/64 dev rl0.7 nodad
ip link set rl0 up; ip link set rl1 up; ip link set rl0.7 up
ip route add 10.80.0.0/16 via 10.78.7.2 dev rl0.7 table 787
rdma link add rxl0 type rxe netdev rl0
rdma link add rxl1 type rxe netdev rl1
ip rule add pref 100 lookup local; ip rule del pref 0
ip rule add pref 1 to 10.78.0.2 oif rl0 lookup 780; ip rule add pref 1 to 10.78.0.1 oif rl1 lookup 781
ip route add 10.78.0.2 dev rl0 table 780; ip route add 10.78.0.1 dev rl1 table 781
ip route add 10.79.0.0/16 via 10.78.0.2 dev rl0 metric 50 table 780
ip -6 route add fd00:79::/64 via fd00:78::2 dev rl0
ip neigh replace 10.78.0.2 lladdr $(cat /sys/class/net/rl1/address) dev rl0 nud permanent
ip neigh replace 10.78.0.1 lladdr $(cat /sys/class/net/rl0/address) dev rl1 nud permanent
"""
BREAK: Final = """
ip rule add pref 0 lookup local; ip rule del pref 100; ip rule del pref 1; ip rule del pref 1
rdma link del rxl0; rdma link del rxl1; ip link del rl1
"""
#: Everything that must be as it was.
LOOK: Final = f"""
ip rule; for f in -4 -6; do ip $f route show table all; ip $f neigh show nud permanent; done | sort
ip -o addr show | sed 's/ttl.*//' | sort; ip -o link show | sed 's/ state .*//' | sort
cat {PORT}/state {PORT}/phys_state {PORT}/rate; grep -H . {PORT}/gids/* 2>/dev/null | grep -v 0000:0000:0000:0000:0000
ls {STATE} {STATE}/journal 2>/dev/null | sort -u | grep -e rdma-link -e by-hand
ls -l /proc/[0-9]*/exe 2>/dev/null | grep -c python
"""


def until(guest: Guest, condition: str, what: str, within: float = 90.0) -> None:
    """Until a shell condition holds in the guest."""
    deadline = time.monotonic() + within
    while guest.run(condition).rc != 0:
        assert time.monotonic() < deadline, f"{what}: {guest.run('cat /run/*.log; ip -o link').out}"
        time.sleep(0.1)


def pingpong(guest: Guest, rounds: int, port: int) -> None:
    """Starts both ends in the background; they write /run/ping-PORT-{0,1}.log, with their exit status at the end."""
    for end, peer in ((1, ""), (0, "127.0.0.1")):
        log = f"/run/ping-{port}-{end}.log"
        # Nice, and asleep between messages: the guest has two slow processors for all of it.
        command = f"nice -n 19 ibv_rc_pingpong -e -d rxl{end} -g 1 -p {port} -n {rounds} {peer}"
        guest.check(
            f"setsid sh -c {shlex.quote(f'{command} >{log} 2>&1; echo ended $? >>{log}')} </dev/null >/dev/null 2>&1 &"
        )
        if end == 1:
            until(guest, f"grep -q :{port:04X} /proc/net/tcp /proc/net/tcp6", "the server listens")


def agent(guest: Guest, arguments: str) -> Result:
    """With all the time that a busy host may need."""
    return guest.agent(arguments, timeout=180)


def inject(guest: Guest, params: str = "", seconds: float = 1.0) -> Result:
    return agent(guest, f"inject rdma-link port/n1/rxl0 {HERE} --seconds {seconds} {params}")


def inject_and_kill(guest: Guest, params: str = "") -> None:
    """Leaves a fault as an agent that was killed does."""
    command = f"{AGENT} inject rdma-link port/n1/rxl0 {HERE} --no-deadman --seconds 300 {params}"
    guest.check(f"PYTHONUNBUFFERED=1 setsid {command} </dev/null >/run/killed.log 2>&1 & echo $! > /run/killed.pid")
    until(guest, "grep -q injected /run/killed.log", "it is injected", 180)
    guest.check("kill -9 $(cat /run/killed.pid)")


@pytest.fixture
def rails(guest: Guest) -> Iterator[Callable[[], str]]:
    """Two connected ports; what is returned tells everything that the fault could leave behind."""
    guest.check(f"modprobe -a 8021q {' '.join(MODULES['rdma'])}")
    if guest.run("command -v ibv_rc_pingpong").rc:
        pytest.skip("no ibverbs-utils: run `make tools`")
    guest.check(MAKE)
    until(guest, f"grep -q ACTIVE {PORT}/state", "the port is active")
    # Link-local addresses are tentative for a moment, and then stay.
    until(guest, "! ip -6 addr show | grep -q tentative", "addresses have settled")
    yield lambda: guest.run(LOOK).out
    guest.run("kill $(pidof ibv_rc_pingpong)")
    guest.run(f"{AGENT} undo --all {HERE}", timeout=180)
    guest.check(BREAK)


@pytest.mark.timeout(900)
def test_running_pingpong_breaks_when_its_port_goes_down_and_a_new_one_works_after_the_undo(
    guest: Guest, rails: Callable[[], str]
) -> None:
    before = rails()
    assert "780" in before
    pingpong(guest, 100, 18781)
    until(guest, "grep -q 'ended 0' /run/ping-18781-0.log", "the ports are connected")
    assert int(guest.check("cat /sys/class/net/rl0/statistics/tx_packets")) >= 100, "it crosses the interfaces"
    pingpong(guest, 100_000_000, 18782)
    until(guest, "[ $(cat /sys/class/net/rl0/statistics/tx_packets) -ge 2000 ]", "it runs")
    # This port's end rests, with the next message for it to send, while the agent starts: the processors are slow.
    guest.check("pkill -STOP -f '^ibv_rc_pingpong -e -d rxl0'")
    command = f"{AGENT} inject rdma-link port/n1/rxl0 {HERE} --seconds 20"
    guest.check(f"PYTHONUNBUFFERED=1 setsid {command} </dev/null >/run/inject.log 2>&1 &")
    until(guest, "grep -q -e injected -e EFFECTIVE /run/inject.log", "it is injected", 180)
    guest.check("pkill -CONT -f '^ibv_rc_pingpong -e -d rxl0'")
    until(guest, "grep -q 'ended [1-9]' /run/ping-18782-0.log", "the running one has broken")
    until(guest, "grep -q verified /run/inject.log", "it is undone", 180)
    said = guest.check("cat /run/inject.log")
    assert "state_before=ACTIVE state=DOWN" in said
    assert int((re.search(r"link_downed=(\d+)", said) or [0, "0"])[1]) >= 1
    assert "verified gone" in said
    assert "Failed status" in guest.check("cat /run/ping-18782-0.log")
    guest.run("kill $(pidof ibv_rc_pingpong)")  # the other end: rxe sends again for ever
    until(guest, "! pidof ibv_rc_pingpong >/dev/null", "its other end is gone")
    assert rails() == before
    pingpong(guest, 100, 18783)
    until(guest, "grep -q 'ended 0' /run/ping-18783-0.log", "a new one works")


@pytest.mark.timeout(900)
def test_flapping_port_stops_flapping_when_a_killed_agents_fault_is_undone_from_the_journal(
    guest: Guest, rails: Callable[[], str]
) -> None:
    before = rails()
    downs = int(guest.check(f"cat {PORT}/hw_counters/link_downed"))
    inject_and_kill(guest, "--param mode=flap --param period_s=0.4 --param count=500")
    until(guest, f"[ $(cat {PORT}/hw_counters/link_downed) -ge {downs + 4} ]", "it goes on flapping without the agent")
    undone = agent(guest, f"undo --all {HERE}")
    assert undone.rc == 0, undone.out
    counted = guest.check(f"cat {PORT}/hw_counters/link_downed")
    assert "nothing to undo" in agent(guest, f"undo --all {HERE}").out
    assert guest.check(f"cat {PORT}/hw_counters/link_downed") == counted
    guest.check(f"rm -f {STATE}/journal/by-hand-*")
    assert rails() == before


@pytest.mark.timeout(900)
def test_interface_that_was_renamed_meanwhile_is_found_and_brought_back(guest: Guest, rails: Callable[[], str]) -> None:
    before = rails()
    inject_and_kill(guest)
    guest.check("ip link set rl0 name rl9")
    undone = agent(guest, f"undo --all {HERE}")
    assert undone.rc == 0, undone.out
    assert "UP" in guest.check("ip -o link show rl9").partition(">")[0]
    # The name can only be given back while it is down, so what it then forgets is put back by another fault's undo.
    assert "780" in guest.check("ip route show table 780 dev rl9; ip rule")
    routes = guest.check("ip route show table all dev rl9; ip -6 route show table all dev rl9; ip neigh show dev rl9")
    for kept in (
        "10.78.0.2 table 780",
        "10.79.0.0/16 via 10.78.0.2 table 780",
        "fd00:79::/64 via fd00:78::2",
        "PERMANENT",
    ):
        assert kept in routes
    assert "fd00:78::1/64" in guest.check("ip -6 addr show dev rl9")
    guest.check(f"rm -f {STATE}/journal/by-hand-*")
    assert rails().replace("rl9", "rl0").split("\n")[-1] == before.split("\n")[-1]


@pytest.mark.timeout(900)
def test_port_that_carries_the_default_route_is_refused_unless_forced_and_a_dry_run_changes_nothing(
    guest: Guest, rails: Callable[[], str]
) -> None:
    guest.check("ip route add default via 10.78.0.2 dev rl0")
    before = rails()
    refused = inject(guest)
    assert refused.rc == 2
    assert "default route leads through rl0" in refused.out
    dry = inject(guest, "--dry-run --param force=true")
    assert dry.rc == 0, dry.out
    assert dry.out.startswith("ip link set dev rl0 down\nip -6 addr replace fe80:")
    assert "\nip link set dev rl0 up\n" in dry.out
    assert "ip -4 route replace 10.78.0.2 table 780 scope link dev rl0" in dry.out
    assert "ip -6 addr replace fd00:78::1/64 dev rl0 nodad" in dry.out
    assert rails() == before
    assert inject(guest, "--param force=true").rc == 0
    assert rails() == before
    guest.check("ip link set rl0 down")
    assert "not active" in inject(guest, "--param force=true").out
    guest.check("ip link set rl0 up")


@pytest.mark.timeout(900)
def test_degraded_port_runs_slower_and_at_its_old_rate_again_after_the_undo(guest: Guest) -> None:
    guest.check("modprobe -a e1000e rdma_rxe; ip link set eth0 up; rdma link add rxd0 type rxe netdev eth0")
    rate = "/sys/class/infiniband/rxd0/ports/1/rate"
    try:
        until(
            guest,
            "[ $(cat /sys/class/net/eth0/speed) = 1000 ] && grep -q ACTIVE /sys/class/infiniband/rxd0/ports/1/state",
            "link",
        )
        before = guest.check(f"cat {rate}; ethtool eth0")
        target = f"rdma-link port/n1/rxd0 {HERE} --param mode=degraded"
        assert "no slower" in agent(guest, f"inject {target} --param speed_mbps=1000").out
        done = agent(guest, f"inject {target} --param speed_mbps=10 --seconds 1")
        assert done.rc == 0, done.out
        rates = re.search(r"rate_before=(.+) rate=(\S+)", done.out)
        assert rates is not None
        assert rates[1] != rates[2]
        until(guest, "[ $(cat /sys/class/net/eth0/speed) = 1000 ]", "the old speed is back")
        assert guest.check(f"cat {rate}; ethtool eth0") == before
    finally:
        guest.run("rdma link del rxd0; ip link set eth0 down")
