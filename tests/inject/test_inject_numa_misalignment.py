"""`numa-misalignment` on real processes, on a machine whose two processors are told to be two nodes.

Real memory on two real nodes is moved in the guest (`test_guest_fault_numa.py`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent import clock
from gpuchaos_agent.inject import page_moves, thread_masks
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.numa_misalignment import NumaMisalignment
from gpuchaos_agent.inject.page_moves import PAGE, Run
from gpuchaos_agent.journal import JournalEntry, Scalar

HERE = sorted(os.sched_getaffinity(0))
PARAMS: dict[str, Scalar] = {"gpu_node": 0, "memory": False}

pytestmark = pytest.mark.skipif(len(HERE) < 2, reason="needs two processors; a GPU machine has them")

#: Threads with masks of their own; on a signal one thread more, and a child.
VICTIM = """
import os, signal, subprocess, sys, threading
one, two = map(int, sys.argv[1:])
over = threading.Event()
ready = threading.Barrier(3)
def bound(cpus):
    os.sched_setaffinity(0, cpus)
    ready.wait()
    over.wait()
for cpus in ({one}, {two}):
    threading.Thread(target=bound, args=(cpus,), daemon=True).start()
ready.wait()
def grow(*_):
    threading.Thread(target=over.wait, daemon=True).start()
    print(subprocess.Popen(["sleep", "300"]).pid, flush=True)
signal.signal(signal.SIGUSR1, grow)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    argv = [sys.executable, "-c", VICTIM, str(HERE[0]), str(HERE[-1])]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, start_new_session=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """Two nodes with a processor each, as real ids; no node 2."""
    root = tmp_path / "sys/devices/system/node"
    for node, cpus in ((0, HERE[:-1]), (1, HERE[-1:])):
        (root / f"node{node}").mkdir(parents=True)
        (root / f"node{node}/cpulist").write_text(thread_masks.listed(cpus))
        (root / f"node{node}/distance").write_text("10 20" if node == 0 else "20 10")
        (root / f"node{node}/meminfo").write_text(f"Node {node} MemTotal: 9999999 kB\nNode {node} MemFree: 4096 kB\n")
    (root / "online").write_text("0-1")
    return tmp_path / "sys"


def strategy(sysfs: Path, state_dir: Path, **fields: object) -> NumaMisalignment:
    made = {"node": "n1", "boot_id": clock.boot_id(), "job_of": lambda _pid: "llama", **fields}
    return NumaMisalignment(Env(sysfs=sysfs, state_dir=state_dir, **made))  # type: ignore[arg-type]


def entry(of: NumaMisalignment, pid: int, **params: Scalar) -> JournalEntry:
    target, asked = f"process/n1/{pid}", {**PARAMS, **params}
    assert of.check(target, asked) is None
    made = JournalEntry(
        fault_id="f1",
        experiment_id="e1",
        command_id="c1",
        fault="numa-misalignment",
        entity=target,
        params=asked,
        payload=of.plan(target, asked, "f1"),
        boot_id=clock.boot_id(),
        order=0,
        created=0,
        lease_s=10,
        lease_expires=10,
        lease_deadline=10,
    )
    return JournalEntry.model_validate_json(made.model_dump_json())  # as from the journal


def masks(pid: int) -> dict[tuple[int, int], frozenset[int]]:
    return thread_masks.Masks.now(Path("/proc"), pid).threads


def test_every_thread_goes_to_the_far_nodes_processors_and_back_to_its_own(
    victim: subprocess.Popen[bytes], sysfs: Path, tmp_path: Path
) -> None:
    before = masks(victim.pid)
    assert len(set(before.values())) == 3
    move = strategy(sysfs, tmp_path)
    fault = entry(move, victim.pid)
    assert masks(victim.pid) == before, "a plan changes nothing"
    move.inject(fault)
    evidence = move.evidence(fault)
    assert evidence.moved
    assert evidence.detail["misaligned"] == 1.0
    assert float(evidence.detail["misaligned_before"] or 0) < 1.0
    assert (evidence.detail["threads"], evidence.detail["threads_moved"]) == (3, 3)
    assert set(masks(victim.pid).values()) == {frozenset(HERE[-1:])}
    assert not move.verify(fault)
    for _ in range(2):
        strategy(sysfs, tmp_path / "elsewhere").undo(fault)
        assert strategy(sysfs, tmp_path / "elsewhere").verify(fault)
        assert masks(victim.pid) == before


def test_threads_and_children_that_were_started_meanwhile_are_not_left_on_the_far_node(
    victim: subprocess.Popen[bytes], sysfs: Path, tmp_path: Path
) -> None:
    before = masks(victim.pid)
    move = strategy(sysfs, tmp_path)
    fault = entry(move, victim.pid)
    move.inject(fault)
    victim.send_signal(signal.SIGUSR1)
    assert victim.stdout is not None
    child = int(victim.stdout.readline())
    assert os.sched_getaffinity(child) == set(HERE[-1:]), "it is inherited"
    move.undo(fault)
    after = masks(victim.pid)
    assert {thread: after[thread] for thread in before} == before
    assert [mask for thread, mask in after.items() if thread not in before] == [frozenset(HERE)]
    assert os.sched_getaffinity(child) == set(HERE)
    assert move.verify(fault)


def test_half_an_injection_is_undone_and_what_the_job_chose_meanwhile_is_kept(
    victim: subprocess.Popen[bytes], sysfs: Path, tmp_path: Path
) -> None:
    before = masks(victim.pid)
    move = strategy(sysfs, tmp_path)
    fault = entry(move, victim.pid)
    (main, *others) = (tid for tid, _ in before)
    os.sched_setaffinity(main, set(HERE[-1:]))  # as after a kill behind the first thread
    assert not move.verify(fault)
    move.undo(fault)
    assert masks(victim.pid) == before
    move.inject(fault)
    os.sched_setaffinity(others[0], set(HERE[:1]))
    move.undo(fault)
    assert move.verify(fault)
    assert os.sched_getaffinity(others[0]) == set(HERE[:1])


def test_a_process_that_ended_or_an_entry_of_another_boot_touches_nobody(
    victim: subprocess.Popen[bytes], sysfs: Path, tmp_path: Path
) -> None:
    move = strategy(sysfs, tmp_path)
    fault = entry(move, victim.pid)
    move.inject(fault)
    other = fault.model_copy(update={"boot_id": "of another boot"})
    with pytest.raises(InjectError):
        move.inject(other)
    move.undo(other)
    assert set(masks(victim.pid).values()) == {frozenset(HERE[-1:])}, "the pid is somebody else's in another boot"
    assert move.verify(other)
    victim.kill()
    victim.wait()
    move.undo(fault)
    assert move.verify(fault)
    assert not move.evidence(fault).moved


def test_what_cannot_lie_wrong_here_is_refused(victim: subprocess.Popen[bytes], sysfs: Path, tmp_path: Path) -> None:
    target = f"process/n1/{victim.pid}"
    move = strategy(sysfs, tmp_path)
    comm = Path(f"/proc/{victim.pid}/comm").read_text().strip()
    one_node = tmp_path / "one/devices/system/node/node0"
    one_node.mkdir(parents=True)
    (one_node / "cpulist").write_text("0-1")
    reasons = {
        "one node": (strategy(tmp_path / "one", tmp_path).check(target, PARAMS), "CPUs on 1 NUMA node"),
        "no gpu": (move.check(target, {"memory": False}), "give gpu_node"),
        "its own": (move.check(target, {**PARAMS, "node": 0}), "is the GPU's own"),
        "no such node": (move.check(target, {**PARAMS, "node": 2}), "has no CPUs"),
        "no memory there": (move.check(target, {"gpu_node": 0}), "cpuset without memory of node 1"),
        "agent": (move.check(f"process/n1/{os.getpid()}", PARAMS), "the agent or a parent"),
        "no job": (strategy(sysfs, tmp_path, job_of=lambda _pid: None).check(target, PARAMS), "no job"),
        "other job": (move.check(target, {**PARAMS, "job": "bert"}), "not to bert"),
        "protected": (strategy(sysfs, tmp_path, protected=frozenset({comm})).check(target, PARAMS), "is protected"),
    }
    for name, (said, why) in reasons.items():
        assert why in (said or "allowed"), name
    os.sched_setaffinity(victim.pid, set(HERE[-1:]))
    assert "as far from its GPU" in (move.check(target, PARAMS) or "")
    with pytest.raises(ValueError, match="cpus or memory must be moved"):
        move.check(target, {**PARAMS, "cpus": False})


def test_the_gpus_node_is_found_by_the_address_that_the_job_names(
    victim: subprocess.Popen[bytes], sysfs: Path, tmp_path: Path
) -> None:
    device = sysfs / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "numa_node").write_text("1\n")
    move = strategy(sysfs, tmp_path, gpu_of=lambda pid: "0000:3b:00.0" if pid == victim.pid else None)
    plan = move.plan(f"process/n1/{victim.pid}", {"memory": False}, "f1")
    assert (plan["gpu_node"], plan["home"], plan["node"]) == (1, 1, 0)


def test_dry_run_names_each_threads_mask(victim: subprocess.Popen[bytes], sysfs: Path, tmp_path: Path) -> None:
    move = strategy(sysfs, tmp_path)
    commands = move.commands(entry(move, victim.pid))
    assert commands[0] == f"taskset -a -c -p {HERE[-1]} {victim.pid}"
    assert set(commands[1:]) == {
        f"taskset -c -p {thread_masks.listed(mask)} {tid}" for (tid, _), mask in masks(victim.pid).items()
    }


def test_where_pages_are_is_told_of_a_real_process_and_kept_on_disk(
    victim: subprocess.Popen[bytes], tmp_path: Path
) -> None:
    ranges = page_moves.own_ranges(Path("/proc"), victim.pid)
    runs = list(page_moves.where(Path("/proc"), victim.pid, ranges))
    assert sum(run.pages for run in runs) * PAGE > 1 << 20
    assert {run.node for run in runs} == {0}
    page_moves.write(tmp_path / "new/pages", runs)
    assert page_moves.read(tmp_path / "new/pages") == runs
    assert page_moves.read(tmp_path / "nothing") is None
    cut = (tmp_path / "new/pages").read_text()[:-4]
    (tmp_path / "cut").write_text(cut)
    assert page_moves.read(tmp_path / "cut") is None, "it was being written, and no page had moved"


@st.composite
def page_tables(draw: st.DrawFn) -> dict[int, int]:
    """Page → node."""
    return draw(st.dictionaries(st.integers(0, 60), st.integers(0, 2), max_size=40))


def runs_of(pages: dict[int, int]) -> list[Run]:
    found: list[Run] = []
    for page, node in sorted(pages.items()):
        last = found[-1] if found else None
        if last is not None and last.node == node and last.start + last.pages * PAGE == page * PAGE:
            found[-1] = Run(last.start, last.pages + 1, node)
        else:
            found.append(Run(page * PAGE, 1, node))
    return found


@given(before=page_tables(), now=page_tables())
def test_exactly_the_pages_that_strayed_go_back_to_where_each_was(before: dict[int, int], now: dict[int, int]) -> None:
    far, home = 1, 0
    strayed = page_moves.strayed(runs_of(now), runs_of(before), far, home)
    back = {run.start // PAGE + at: run.node for run in strayed for at in range(run.pages)}
    wanted = {page: before.get(page, home) for page, node in now.items() if node == far}
    assert back == {page: node for page, node in wanted.items() if node != far}


@given(st.frozensets(st.integers(0, 300)))
def test_list_of_processors_is_read_back_as_it_was_written(cpus: frozenset[int]) -> None:
    assert thread_masks.ids(thread_masks.listed(cpus)) == cpus
