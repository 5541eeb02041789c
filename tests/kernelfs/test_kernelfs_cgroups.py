from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs import cgroups
from gpuchaos_agent.kernelfs.cgroups import Container, Cpuset, Membership, container, folders, parse

ID = "c0ffee" * 10 + "beef"
POD = "3b5e2f10-9c41-4d77-8a20-6f00aa11bb22"


def plant(root: Path, tree: dict[str, str]) -> Path:
    for name, content in tree.items():
        path = root / "fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_both_versions_of_a_hybrid_machine_are_read() -> None:
    member = parse("9:name=systemd:/user.slice\n4:memory:/job\n3:cpu,cpuacct:/a:b\n0::/unified/x\n")
    assert member == Membership(v1={"memory": "/job", "cpu": "/a:b", "cpuacct": "/a:b"}, v2="/unified/x")
    assert (member.path("memory"), member.path("cpuset")) == ("/job", "/unified/x")


def test_a_group_that_was_removed_is_named_without_the_kernels_remark() -> None:
    assert parse("0::/gone (deleted)\n").v2 == "/gone"


@given(st.text(max_size=300))
def test_any_text_is_read_without_an_error(text: str) -> None:
    member = parse(text)
    assert all(path.startswith("/") for path in (*member.v1.values(), member.v2 or "/"))
    container(text)


@pytest.mark.parametrize(
    ("path", "found"),
    [
        (f"/system.slice/docker-{ID}.scope", Container("docker", ID)),
        (f"/docker/{ID}", Container("docker", ID)),
        (f"/docker/{ID}/init.scope", Container("docker", ID)),
        (f"/machine.slice/libpod-{ID}.scope/container", Container("podman", ID)),
        (f"/libpod_parent/{ID}", Container("podman", ID)),
        (
            f"/kubepods.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice/cri-containerd-{ID}.scope",
            Container("containerd", ID, POD),
        ),
        (f"/kubepods/besteffort/pod{POD}/{ID}", Container("", ID, POD)),
        (
            f"/kubepods.slice/kubepods-pod{POD.replace('-', '_')}.slice/crio-{ID}.scope/container",
            Container("crio", ID, POD),
        ),
        (
            f"/system.slice/containerd.service/kubepods-burstable-pod{POD.replace('-', '_')}.slice:cri-containerd:{ID}",
            Container("containerd", ID, POD),
        ),
        (f"/../../kubepods/pod{POD}/{ID}", Container("", ID, POD)),
        (f"/kubepods/pod{'0123456789abcdef' * 2}/{ID}", Container("", ID, "0123456789abcdef" * 2)),
        ("/ecs/" + "a1" * 16 + "/" + "a1" * 16 + "-1234567890", Container("ecs", "a1" * 16 + "-1234567890")),
        ("/", Container()),
        ("/user.slice/user-1000.slice/session-3.scope", Container()),
        ("/slurm/uid_1000/job_77/step_0", Container()),
        (f"/podcast/{ID[:12]}", Container()),
    ],
)
def test_a_container_is_told_from_its_path(path: str, found: Container) -> None:
    assert container(path) == found


def test_a_group_of_version_two_is_read(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "cgroup.controllers": "cpu memory\n",
            "job/cpu.stat": "usage_usec 5\nnr_periods 40\nnr_throttled 10\nthrottled_usec 2500000\n",
            "job/memory.current": "1000\n",
            "job/memory.max": "4096\n",
            "job/memory.events": "low 0\nhigh 0\nmax 7\noom 2\noom_kill 1\noom_group_kill 0\n",
            "job/cpuset.cpus.effective": "0-3,8\n",
            "job/cpuset.mems.effective": "0\n",
            "job/cpu.pressure": "some avg10=25.00 avg60=1.00 avg300=0.00 total=9\n",
            "job/io.pressure": "some avg10=0.50 avg60=1.00 avg300=0.00 total=9\nfull avg10=99.00 avg60=0\n",
        },
    )
    found = folders(tmp_path, Membership(v2="/job"))
    assert found.problem == ""
    assert cgroups.cpu_stat(found.cpu) == cgroups.CpuStat(periods=40.0, throttled=10.0, throttled_s=2.5)
    assert cgroups.group_memory(found.memory) == cgroups.GroupMemory(1000.0, 4096.0, 1.0)
    assert cgroups.cpuset(found.cpuset) == Cpuset((0, 1, 2, 3, 8), (0,))
    assert cgroups.pressures(found.unified) == (0.25, None, 0.005)


def test_a_group_of_version_one_is_read_in_its_units(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "cpu,cpuacct/job/cpu.stat": "nr_periods 4\nnr_throttled 1\nthrottled_time 1500000000\n",
            "memory/job/memory.usage_in_bytes": "77\n",
            "memory/job/memory.limit_in_bytes": "9223372036854771712\n",
            "memory/job/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 3\n",
            "cpuset/job/cpuset.cpus": "0-7\n",
            "cpuset/job/cpuset.effective_cpus": "4-5\n",
            "cpuset/job/cpuset.mems": "1\n",
        },
    )
    found = folders(tmp_path, parse("1:cpu,cpuacct:/job\n2:memory:/job\n3:cpuset:/job\n"))
    assert cgroups.cpu_stat(found.cpu).throttled_s == 1.5
    assert cgroups.group_memory(found.memory) == cgroups.GroupMemory(77.0, None, 3.0)
    assert cgroups.cpuset(found.cpuset) == Cpuset((4, 5), (1,))
    assert cgroups.pressures(found.unified) == (None, None, None)


def test_a_pods_quota_holds_for_its_container(tmp_path: Path) -> None:
    plant(
        tmp_path,
        {
            "cgroup.controllers": "cpu\n",
            "pod/cpu.stat": "nr_periods 9\nnr_throttled 3\nthrottled_usec 1\n",
            "pod/box/cpu.stat": "nr_periods 0\nnr_throttled 0\nthrottled_usec 0\n",
            "pod/memory.events": "oom_kill 0\n",
        },
    )
    found = folders(tmp_path, Membership(v2="/pod/box"))
    assert found.cpu == tmp_path / "fs/cgroup/pod"
    assert found.memory == tmp_path / "fs/cgroup/pod"


def test_a_group_without_any_quota_is_its_own(tmp_path: Path) -> None:
    plant(tmp_path, {"cgroup.controllers": "", "a/b/cpu.stat": "nr_periods 0\nnr_throttled 0\n"})
    assert folders(tmp_path, Membership(v2="/a/b")).cpu == tmp_path / "fs/cgroup/a/b"


def test_a_group_outside_of_our_namespace_is_said_and_never_looked_for(tmp_path: Path) -> None:
    plant(tmp_path, {"cgroup.controllers": "cpu\n", "cpu.stat": "nr_periods 5\n"})
    found = folders(tmp_path / "fs", Membership(v2="/../../job"))
    assert (found.cpu, found.memory, found.unified) == (None, None, None)
    assert "outside of this agent's cgroup namespace" in found.problem


def test_a_group_that_is_not_below_our_mount_is_said(tmp_path: Path) -> None:
    plant(tmp_path, {"cgroup.controllers": "cpu\n"})
    assert "/job is not below" in folders(tmp_path, Membership(v2="/job")).problem


def test_no_group_at_all_is_said(tmp_path: Path) -> None:
    assert "no cpu hierarchy" in folders(tmp_path, Membership()).problem
    assert cgroups.cpu_stat(None) == cgroups.CpuStat()
    assert cgroups.group_memory(None) == cgroups.GroupMemory()
    assert cgroups.cpuset(None) == Cpuset()


def test_this_process_has_a_group_and_its_cpus_are_those_it_may_run_on() -> None:
    member = cgroups.membership(Path("/proc"), os.getpid())
    assert member.path("memory") is not None
    found = folders(Path("/sys"), member)
    effective = cgroups.cpuset(found.cpuset).cpus
    if effective is None:
        # No cpuset controller here, or a cgroup namespace in between: then it is said.
        assert found.cpuset is None
        return
    assert os.sched_getaffinity(0) <= set(effective)


@pytest.mark.root
def test_a_real_group_that_is_cut_short_is_seen_as_throttled() -> None:
    """Only where version 1 or 2 lets root make a group with a quota."""
    import subprocess

    root = Path("/sys/fs/cgroup")
    v2 = (root / "cgroup.controllers").exists()
    at = (root if v2 else root / "cpu") / f"gpuchaos-test-{os.getpid()}"
    at.mkdir()
    child = subprocess.Popen(["sh", "-c", "read go; while :; do :; done"], stdin=subprocess.PIPE)
    try:
        if v2:
            (root / "cgroup.subtree_control").write_text("+cpu")
            (at / "cpu.max").write_text("5000 100000")
        else:
            (at / "cpu.cfs_period_us").write_text("100000")
            (at / "cpu.cfs_quota_us").write_text("5000")
        (at / "cgroup.procs").write_text(str(child.pid))
        assert child.stdin is not None
        child.stdin.write(b"\n")
        child.stdin.close()
        found = folders(Path("/sys"), cgroups.membership(Path("/proc"), child.pid))
        assert found.cpu == at
        import time

        until = time.monotonic() + 10
        while not cgroups.cpu_stat(found.cpu).throttled_s and time.monotonic() < until:
            os.sched_yield()
        stat = cgroups.cpu_stat(found.cpu)
        assert (stat.throttled or 0) > 0
        assert (stat.throttled_s or 0) > 0
    finally:
        child.kill()
        child.wait()
        until = time.monotonic() + 10
        while at.exists() and time.monotonic() < until:
            try:
                at.rmdir()
            except OSError:
                os.sched_yield()
