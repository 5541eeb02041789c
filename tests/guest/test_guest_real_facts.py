"""Real effects on a real kernel, each told as its fact within two seconds by collectors that were running already."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from guest_facts import SOON_S, Facts, Told
from lab.guest import Guest

PYTHON: Final = shlex.quote(str(Path(__file__).resolve().parents[2] / ".venv/bin/python"))


def now(guest: Guest) -> float:
    """The guest's clock, seconds since the epoch."""
    return float(guest.check("date +%s.%N"))


def soon(told: Told, since: float) -> None:
    """Within two seconds of the effect, and with a time that lies between."""
    assert told.seen - since < SOON_S, f"told {told.seen - since:.2f} s after the effect"
    # Records of the kernel's log are stamped with its own clock: 50 ms for the difference of the two.
    assert since - 0.05 <= told.time <= told.seen + 0.05


def start_python(guest: Guest, program: str, *, pidfile: str) -> str:
    """A Python program left running in the guest; told to the watcher, and its pid returned, once it has printed."""
    guest.check(f"cat > {pidfile}.py <<'PROGRAM'\n{textwrap.dedent(program)}\nPROGRAM")
    guest.check(f"setsid {PYTHON} {pidfile}.py </dev/null >{pidfile}.log 2>&1 & echo $! > {pidfile}.new")
    guest.check(f"until [ -s {pidfile}.log ]; do sleep 0.05; done; mv {pidfile}.new {pidfile}")
    return guest.check(f"cat {pidfile}").strip()


#: Memory on node 0 first, and then only processors of the node that is asked for.
PINNED: Final = """
    import os, signal
    os.sched_setaffinity(0, {0})
    memory = bytearray(48 << 20)
    memory[::4096] = b"x" * len(memory[::4096])
    signal.signal(signal.SIGUSR1, lambda *_: os.sched_setaffinity(0, {1}))
    print("at home", flush=True)
    while True:
        signal.pause()
"""


def test_process_pinned_away_from_its_memory_is_misaligned_and_its_neighbour_is_not(guest: Guest, seen: Facts) -> None:
    pids = {job: start_python(guest, PINNED, pidfile=f"/run/{job}.pid") for job in ("near", "far")}
    metric = "numa_misaligned_ratio"
    since = now(guest)
    for pid in pids.values():
        seen.wait_number("process", pid, metric, lambda value: value < 0.2, after=since)
    guest.check(f"kill -USR1 {pids['far']}")
    moved = now(guest)
    at, value = seen.wait_number("process", pids["far"], metric, lambda value: value > 0.2, after=moved)
    assert at - moved < SOON_S
    assert value > 0.4, "all its processors are on the other node"
    _, beside = seen.wait_number("process", pids["near"], metric, lambda _: True, after=at)
    assert beside < 0.2
    guest.check(f"kill {' '.join(pids.values())}")


def test_process_that_outgrows_its_cgroup_is_an_oom_kill(guest: Guest, seen: Facts) -> None:
    guest.check("cd /sys/fs/cgroup && echo +memory > cgroup.subtree_control && mkdir -p job")
    guest.check("echo 24M > /sys/fs/cgroup/job/memory.max")
    program = "import time; time.sleep(0.2); b = bytearray(96 << 20); b[::4096] = b'x' * len(b[::4096])"
    since = now(guest)
    killed = guest.run(
        f"echo $$ > /sys/fs/cgroup/job/cgroup.procs; exec {PYTHON} -c {shlex.quote(program)}", timeout=30
    )
    assert killed.rc == 137, killed.out
    until = now(guest)
    told = seen.wait("oom_kill", after=since)
    assert told.evidence["constraint"] == "CONSTRAINT_MEMCG"
    assert str(told.evidence["victim"]).startswith("python")
    assert told.origin == "kernel"
    assert told.seen - until < SOON_S
    soon(told, told.time)


@contextmanager
def nfs_server(guest: Guest) -> Iterator[None]:
    """An NFS server on the guest's loopback, mounted at /run/mnt so that silence is noticed within seconds."""
    guest.check(
        """
        set -e
        mkdir -p /run/export /run/mnt /var/lib/nfs/v4recovery /var/lib/nfs/rpc_pipefs
        mount -t tmpfs -o size=8m tmpfs /run/export
        mount -t nfsd nfsd /proc/fs/nfsd
        mount -t rpc_pipefs rpc /var/lib/nfs/rpc_pipefs
        touch /var/lib/nfs/rmtab /var/lib/nfs/etab /etc/exports
        exportfs -o rw,fsid=0,no_root_squash,no_subtree_check,insecure 127.0.0.1:/run/export
        setsid rpc.mountd -N 3 </dev/null >/dev/null 2>&1
        rpc.nfsd -U -N 3 --lease-time 10 --grace-time 10 2
        """
    )
    # timeo is in tenths of a second. A hard mount, as checkpoints are written to: it waits for ever.
    guest.check("mount.nfs4 -o vers=4.2,hard,timeo=5,retrans=1,actimeo=0 127.0.0.1:/ /run/mnt")
    guest.check("echo weights > /run/mnt/checkpoint")
    try:
        yield
    finally:
        # It answers again, so that no later test hears of it.
        guest.run("rpc.nfsd -U -N 3 2", timeout=20)


def test_nfs_server_that_is_stopped_is_unresponsive(guest: Guest, seen: Facts) -> None:
    with nfs_server(guest):
        guest.check("echo 0 > /proc/fs/nfsd/threads")
        since = now(guest)
        guest.check("setsid timeout -s KILL 15 cat /run/mnt/checkpoint </dev/null >/dev/null 2>&1 &")
        told = seen.wait("nfs_unresponsive", after=since, timeout=25, server="127.0.0.1")
        assert told.time >= since
        # How soon the kernel speaks is the mount's doing; how soon we do counts from its word.
        soon(told, told.time)
        assert told.severity == "critical"


def test_corrected_machine_check_is_told_as_a_warning(guest: Guest, seen: Facts) -> None:
    # MCi_STATUS: valid, address valid, corrected; memory read error of channel 2 (Intel SDM 3B, 16.9.2).
    guest.check(
        "cd /sys/kernel/debug/mce-inject && echo sw > flags && echo 0x8c00004000010092 > status"
        " && echo 0x1234567000 > addr && echo 0 > cpu"
    )
    since = now(guest)
    guest.check("echo 8 > /sys/kernel/debug/mce-inject/bank")
    told = seen.wait("mce_corrected", after=since)
    soon(told, since)
    assert told.severity == "warning"


#: `struct aer_error_inj` (drivers/pci/pcie/aer_inject.c): bus, device, function, uncorrectable, correctable, header.
INJECT: Final = """
import struct
with open("/dev/aer_inject", "wb", buffering=0) as device:
    device.write(struct.pack("<BBBx7I", 1, 0, 0, {uncorrectable}, {correctable}, 0, 1, 2, 3, 0))
"""


def test_pcie_errors_are_told_with_their_device(guest: Guest, seen: Facts) -> None:
    # The lesser one first: what is corrected within seconds of a worse error of the same device is part of that story.
    for uncorrectable, correctable, fault in ((0, 0x1, "pcie_aer_corrected"), (0x4000, 0, "pcie_aer_nonfatal")):
        program = INJECT.format(uncorrectable=uncorrectable, correctable=correctable)
        since = now(guest)
        guest.check(f"{PYTHON} -c {shlex.quote(program)}")
        told = seen.wait(fault, after=since)
        assert "0000:01:00.0" in (told.local, told.evidence.get("bdf"), told.evidence.get("device"))
        soon(told, told.time)
        assert told.time >= since - 0.05


def test_rdma_port_that_loses_its_link_is_down_and_not_before(guest: Guest, seen: Facts) -> None:
    guest.check(
        """
        set -e
        ip link add rail0 type veth peer name rail0p
        ip link set rail0 up; ip link set rail0p up
        rdma link add rxe0 type rxe netdev rail0
        """
    )
    since = now(guest)
    seen.wait_number("rdma", "rxe0", "port_active", lambda value: value == 1, after=since)
    assert not list(seen.told("port_down", after=since))
    guest.check("ip link set rail0p down")
    cut = now(guest)
    told = seen.wait("port_down", after=since)
    assert told.seen - cut < SOON_S
    assert told.kind == "port"
    assert told.local == "rxe0"
