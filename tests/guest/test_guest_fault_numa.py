"""`numa-misalignment` on a machine with two NUMA nodes: a process is moved away from its GPU, and back exactly."""

from __future__ import annotations

import json
import re
import shlex
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from lab.guest import Guest, Result

ROOT: Final = Path(__file__).resolve().parents[2]
PYTHON: Final = shlex.quote(str(ROOT / ".venv/bin/python"))
AGENT: Final = shlex.quote(str(ROOT / ".venv/bin/gpuchaos-agent"))
STATE: Final = "/run/numa-state"

HUGE: Final = "/sys/kernel/mm/transparent_hugepage/enabled"

#: Memory on both nodes, three threads with masks of their own. On SIGUSR1 it allocates, starts a thread and a
#: child; on SIGUSR2 it computes without an end.
VICTIM: Final = """
    import mmap, os, signal, subprocess, sys, threading, time

    def memory(megabytes, node):
        os.sched_setaffinity(0, {node})
        made = mmap.mmap(-1, megabytes << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, len(made), 4096):
            made[at] = 1
        return made

    kept = [memory(24, 0), memory(8, 1)]
    os.sched_setaffinity(0, {0, 1})
    quiet = threading.Event()

    def bound(cpus):
        os.sched_setaffinity(0, cpus)
        quiet.wait()

    for cpus in ({0}, {1}, {0, 1}):
        threading.Thread(target=bound, args=(cpus,), daemon=True).start()
    tasks = lambda: (open(f"/proc/self/task/{tid}/status").read() for tid in os.listdir("/proc/self/task")[1:])
    while not all("S (sleeping)" in status for status in tasks()):
        time.sleep(0.01)

    def grow(*_):
        late = mmap.mmap(-1, 4 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        for at in range(0, len(late), 4096):
            late[at] = 1
        kept.append(late)
        threading.Thread(target=quiet.wait, daemon=True).start()
        child = subprocess.Popen(["sleep", "600"])
        print("grown", child.pid, flush=True)

    def work(*_):
        while True:
            pass

    signal.signal(signal.SIGUSR1, grow)
    signal.signal(signal.SIGUSR2, work)
    print("ready", flush=True)
    while True:
        signal.pause()
"""
#: Masks of all threads, and where each own page is.
LOOK: Final = """
    import json, sys
    from pathlib import Path
    from gpuchaos_agent.inject import page_moves, thread_masks
    proc, pid = Path("/proc"), int(sys.argv[1])
    runs = page_moves.where(proc, pid, page_moves.own_ranges(proc, pid))
    print(json.dumps({
        "masks": {str(tid): sorted(cpus) for (tid, _), cpus in thread_masks.Masks.now(proc, pid).threads.items()},
        "pages": [[run.start, run.pages, run.node] for run in runs],
    }))
"""


def until(guest: Guest, condition: str, what: str, within: float = 180.0) -> None:
    deadline = time.monotonic() + within
    while guest.run(condition).rc != 0:
        assert time.monotonic() < deadline, f"{what}: {guest.run('cat /run/victim.log /run/killed.log').out}"
        time.sleep(0.1)


def agent(guest: Guest, arguments: str) -> Result:
    """With all the time that a busy host may need."""
    return guest.agent(arguments, timeout=180)


def look(guest: Guest, pid: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(guest.check(f"{PYTHON} /run/look.py {pid}", timeout=180))
    return found


def node_of(pages: list[list[int]]) -> dict[int, int]:
    """Each page's node, by address."""
    return {start + at * 4096: node for start, count, node in pages for at in range(count)}


@pytest.fixture
def victim(guest: Guest) -> Iterator[str]:
    """The pid of a process with threads and memory on both nodes.

    The kernel moves no pages on its own account meanwhile: it neither balances nodes nor makes huge pages of small
    ones, which would take pages of both nodes to one.
    """
    balancing = guest.check("cat /proc/sys/kernel/numa_balancing").strip()
    guest.check(f"echo 0 > /proc/sys/kernel/numa_balancing; echo never > {HUGE}")
    for name, program in (("victim", VICTIM), ("look", LOOK)):
        guest.check(f"cat > /run/{name}.py <<'PROGRAM'\n{textwrap.dedent(program)}\nPROGRAM")
    guest.check(f"setsid {PYTHON} /run/victim.py </dev/null >/run/victim.log 2>&1 & echo $! > /run/victim.pid")
    until(guest, "grep -q ready /run/victim.log", "it runs")
    pid = guest.check("cat /run/victim.pid").strip()
    yield pid
    guest.run(f"{AGENT} undo --all --node n1 --state-dir {STATE}", timeout=180)
    guest.run(f"kill {pid} $(sed -n 's/grown //p' /run/victim.log); rm -rf {STATE}")
    guest.run(f"echo {balancing} > /proc/sys/kernel/numa_balancing; echo always > {HUGE}")


def asked(pid: str, params: str = "--param gpu_node=0") -> str:
    return f"inject numa-misalignment process/n1/{pid} --node n1 --state-dir {STATE} --job job=llama,pid={pid} {params}"


@pytest.mark.timeout(900)
def test_process_is_moved_to_the_far_node_and_back_exactly_thread_by_thread_and_page_by_page(
    guest: Guest, victim: str
) -> None:
    before = look(guest, victim)
    assert sorted(before["masks"].values()) == [[0], [0, 1], [0, 1], [1]]
    command = f"PYTHONUNBUFFERED=1 setsid {AGENT} {asked(victim)} --seconds 300 --no-deadman"
    guest.check(f"{command} </dev/null >/run/killed.log 2>&1 & echo $! > /run/killed.pid")
    until(guest, "grep -q -e injected -e EFFECTIVE /run/killed.log", "it is injected")
    said = guest.check("cat /run/killed.log")
    numbers = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", said)}
    assert numbers["misaligned"] > 0.9, said
    assert numbers["misaligned_before"] < 0.6, said
    assert numbers["bytes_moved"] > 20 << 20
    assert numbers["threads"] == numbers["threads_moved"] == 4
    during = look(guest, victim)
    assert set(map(tuple, during["masks"].values())) == {(1,)}
    old, now = node_of(before["pages"]), node_of(during["pages"])
    assert sum(now.get(page) == 1 for page in old) > 0.95 * len(old)

    guest.check(f"kill -USR1 {victim}")
    until(guest, "grep -q grown /run/victim.log", "it has grown")
    child = guest.check("sed -n 's/grown //p' /run/victim.log").strip()
    assert guest.check(f"taskset -p {child}").strip().endswith(": 2"), "a child inherits the far node"
    guest.check("kill -9 $(cat /run/killed.pid)")
    undone = agent(guest, f"undo --all --node n1 --state-dir {STATE}")
    assert undone.rc == 0, undone.out
    after = look(guest, victim)
    assert {tid: after["masks"][tid] for tid in before["masks"]} == before["masks"]
    assert [cpus for tid, cpus in after["masks"].items() if tid not in before["masks"]] == [[0, 1]], "the late thread"
    assert guest.check(f"taskset -p {child}").strip().endswith(": 3")
    now = node_of(after["pages"])
    strayed = {page for page, node in old.items() if page in now and now[page] != node}
    assert not strayed, f"{len(strayed)} of {len(old)} pages are not where they were: {sorted(strayed)[:9]}"
    late = [node for page, node in now.items() if page not in old]
    assert len(late) >= 1024
    assert late.count(0) > 0.95 * len(late), "what it allocated meanwhile is beside the GPU"
    assert guest.check(f"find {STATE} -name '*.pages'") == ""
    assert "nothing to undo" in agent(guest, f"undo --all --node n1 --state-dir {STATE}").out
    assert look(guest, victim) == after


@pytest.mark.timeout(900)
def test_pages_that_the_kernels_balancing_has_marked_are_found_as_well(guest: Guest, victim: str) -> None:
    quiet = node_of(look(guest, victim)["pages"])
    # Only the pages of a process that computes are marked.
    count = "sed -n 's/^numa_pte_updates //p' /proc/vmstat"
    enough = int(guest.check(count)) + len(quiet) // 2
    guest.check(f"echo 1 > /proc/sys/kernel/numa_balancing; kill -USR2 {victim}")
    until(guest, f"[ $({count}) -ge {enough} ]", "its pages are marked")
    found = node_of(look(guest, victim)["pages"])
    missing = quiet.keys() - found.keys()
    assert len(missing) < 0.01 * len(quiet), f"{len(missing)} of {len(quiet)} pages are not seen"


@pytest.mark.timeout(900)
def test_the_telemetrys_own_number_rises_and_falls_with_the_fault(guest: Guest, victim: str) -> None:
    before = look(guest, victim)
    done = agent(guest, f"{asked(victim)} --seconds 0.5 --param memory=false")
    assert done.rc == 0, done.out
    assert "verified gone" in done.out
    assert look(guest, victim)["masks"] == before["masks"]
    done = agent(guest, f"{asked(victim)} --seconds 0.5 --param cpus=false --param memory_mb=4")
    numbers = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", done.out)}
    assert 3 << 20 <= numbers["bytes_moved"] <= 5 << 20, done.out
    assert "verified gone" in done.out
    after = look(guest, victim)
    assert after["masks"] == before["masks"]
    old, now = node_of(before["pages"]), node_of(after["pages"])
    assert all(now.get(page, node) == node for page, node in old.items())


@pytest.mark.timeout(900)
def test_process_whose_cpuset_has_no_far_processors_is_refused_and_a_dry_run_changes_nothing(
    guest: Guest, victim: str
) -> None:
    guest.check("mkdir -p /sys/fs/cgroup/near && echo +cpuset > /sys/fs/cgroup/cgroup.subtree_control")
    guest.check(f"echo 0 > /sys/fs/cgroup/near/cpuset.cpus; echo {victim} > /sys/fs/cgroup/near/cgroup.procs")
    try:
        assert "cpuset without CPUs of node 1" in agent(guest, asked(victim)).out
    finally:
        guest.check(f"echo {victim} > /sys/fs/cgroup/cgroup.procs; rmdir /sys/fs/cgroup/near")
    dry = agent(guest, f"{asked(victim)} --dry-run")
    assert f"taskset -a -c -p 1 {victim}" in dry.out
    assert f"migratepages {victim} all 1" in dry.out
    assert guest.run(f"ls {STATE}/*.pages").rc != 0
