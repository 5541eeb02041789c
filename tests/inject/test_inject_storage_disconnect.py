"""`storage-disconnect` on real filesystems of their own: images on loop devices, and memory."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from storage_kit import TARGET, mount_line, mounted, needs, planned, strategy, undo_elsewhere, undone, wait_until

from gpuchaos_agent import clock
from gpuchaos_agent.inject import hold, storage_mounts
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.storage_mode import StorageDisconnectParams
from gpuchaos_agent.inject.storage_mounts import Server
from gpuchaos_agent.journal import JournalEntry


@pytest.fixture
def volume(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path) as where:
        yield where


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


def writer(where: Path) -> subprocess.Popen[bytes]:
    """A program that writes a checkpoint and then ends."""
    code = f"import os; f = open({str(where / 'weights')!r}, 'wb'); f.write(b'x' * 4096); os.fsync(f.fileno())"
    return subprocess.Popen([sys.executable, "-I", "-S", "-c", code])


def listed(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def guards(entry: JournalEntry) -> list[int]:
    return [int(each["holder_pid"] or 0) for each in hold.find(str(entry.payload["guard"]))]


@pytest.mark.root
@pytest.mark.parametrize("kind", ["xfs", "btrfs"])
def test_other_filesystems_freeze_and_become_read_only_as_well(tmp_path: Path, state: Path, kind: str) -> None:
    needs(kind)
    with mounted(tmp_path, kind, size_mb=320) as volume:
        fault = strategy(state)
        before = mount_line(volume)
        for mode in ("hanging", "readonly"):
            entry = planned(fault, state, {"mode": mode, "path": str(volume)})
            fault.inject(entry)
            evidence = fault.evidence(entry)
            assert evidence.moved, (mode, evidence)
            assert "[None] []" in undo_elsewhere(state).stdout
            assert fault.verify(entry)
            assert mount_line(volume) == before
            assert writer(volume).wait(10) == 0


@pytest.mark.root
def test_a_frozen_volume_holds_its_writers_and_lets_them_go_on_when_it_is_thawed(volume: Path, state: Path) -> None:
    fault = strategy(state)
    before = mount_line(volume)
    entry = planned(fault, state, {"mode": "hanging", "path": str(volume)})
    fault.inject(entry)
    evidence = fault.evidence(entry)
    assert evidence.moved, evidence
    assert (evidence.detail["probe"], evidence.detail["state"], evidence.detail["guards"]) == ("hangs", "D", 1)
    waiting = writer(volume)
    with pytest.raises(subprocess.TimeoutExpired):
        waiting.wait(0.5)
    assert not fault.verify(entry)
    fault.undo(entry)
    assert fault.verify(entry)
    assert waiting.wait(10) == 0
    assert (volume / "weights").stat().st_size == 4096
    fault.undo(entry)
    assert fault.verify(entry)
    assert guards(entry) == []
    assert listed(volume) == ["lost+found", "weights"]
    assert mount_line(volume) == before


@pytest.mark.root
def test_another_process_thaws_from_the_journal_alone_and_ends_the_guard(volume: Path, state: Path) -> None:
    fault = strategy(state)
    entry = planned(fault, state, {"mode": "hanging", "path": str(volume)})
    fault.inject(entry)
    assert "[None] []" in undo_elsewhere(state).stdout
    assert guards(entry) == []
    assert writer(volume).wait(10) == 0


@pytest.mark.root
def test_the_guard_thaws_at_the_end_of_the_lease_when_everybody_else_is_dead(volume: Path, state: Path) -> None:
    program = f"""
import os, signal, sys
sys.path[:0] = {sys.path!r}
from pathlib import Path
from storage_kit import planned, strategy
fault = strategy(Path({str(state)!r}))
entry = planned(fault, Path({str(state)!r}), {{"mode": "hanging", "path": {str(volume)!r}}}, lease_s=2.0)
fault.inject(entry)
print(entry.payload["guard"], entry.lease_deadline, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
    agent = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert agent.returncode == -signal.SIGKILL, agent.stderr
    mark, deadline = agent.stdout.split()
    assert len(hold.find(mark)) == 1
    waiting = writer(volume)
    assert waiting.wait(20) == 0
    assert -0.5 < clock.now().boot - float(deadline) < 3.0
    wait_until(lambda: hold.find(mark) == [], "the guard has ended")


@pytest.mark.root
def test_a_renewed_lease_keeps_it_frozen_and_an_undone_one_thaws_it(volume: Path, state: Path) -> None:
    from gpuchaos_agent.journal import Journal

    fault = strategy(state)
    entry = planned(fault, state, {"mode": "hanging", "path": str(volume)}, lease_s=1.0)
    Journal(state / "journal").write(entry.model_copy(update={"lease_deadline": entry.lease_deadline + 60}))
    fault.inject(entry)
    wait_until(lambda: clock.now().boot > entry.lease_deadline + 1.6, "the first lease is over")
    assert fault.evidence(entry).moved
    undone(state, entry)
    wait_until(lambda: guards(entry) == [], "the guard has ended")
    assert fault.verify(entry)


@pytest.mark.root
def test_a_guard_that_is_killed_leaves_the_thaw_to_the_journal(volume: Path, state: Path) -> None:
    fault = strategy(state)
    entry = planned(fault, state, {"mode": "hanging", "path": str(volume)})
    fault.inject(entry)
    os.kill(guards(entry)[0], signal.SIGKILL)
    wait_until(lambda: guards(entry) == [], "the guard is dead")
    assert not fault.verify(entry)
    fault.undo(entry)
    assert fault.verify(entry)


@pytest.mark.root
def test_a_guard_freezes_nothing_for_a_fault_that_the_journal_does_not_hold(volume: Path, state: Path) -> None:
    fault = strategy(state)
    entry = planned(fault, state, {"mode": "hanging", "path": str(volume)})
    undone(state, entry)
    with pytest.raises(InjectError, match="no such fault stands"):
        fault.inject(entry)
    assert fault.verify(entry)


@pytest.mark.root
def test_a_read_only_volume_refuses_writes_and_its_options_come_back_exactly(tmp_path: Path, state: Path) -> None:
    with mounted(tmp_path, options="nosuid,noatime,errors=continue") as volume:
        fault = strategy(state)
        before = mount_line(volume)
        entry = planned(fault, state, {"mode": "readonly", "path": str(volume / "lost+found")})
        fault.inject(entry)
        evidence = fault.evidence(entry)
        assert evidence.moved, evidence
        assert (evidence.detail["probe"], evidence.detail["kernel"]) == ("EROFS", "ro")
        with pytest.raises(OSError, match="Read-only") as refused:
            (volume / "weights").write_bytes(b"x")
        assert refused.value.errno == errno.EROFS
        assert not fault.verify(entry)
        assert "[None] []" in undo_elsewhere(state).stdout
        fault.undo(entry)
        assert fault.verify(entry)
        assert mount_line(volume) == before
        (volume / "weights").write_bytes(b"x")


@pytest.mark.root
def test_a_volume_with_an_open_writer_cannot_become_read_only_and_says_so(volume: Path, state: Path) -> None:
    fault = strategy(state)
    entry = planned(fault, state, {"mode": "readonly", "path": str(volume)})
    before = mount_line(volume)
    with (volume / "weights").open("wb"), pytest.raises(InjectError, match="open for writing"):
        fault.inject(entry)
    fault.undo(entry)
    assert fault.verify(entry)
    assert mount_line(volume) == before


@pytest.mark.root
@pytest.mark.parametrize("kind", ["ext4", "tmpfs", "xfs"])
def test_a_full_volume_refuses_writes_and_is_as_it_was_afterwards(tmp_path: Path, state: Path, kind: str) -> None:
    needs(kind)
    size = {"xfs": 320}.get(kind, 16)
    with mounted(tmp_path, kind, size_mb=size) as volume:
        fault = strategy(state)
        names, free = listed(volume), os.statvfs(volume).f_bavail
        entry = planned(fault, state, {"mode": "full", "path": str(volume)})
        fault.inject(entry)
        evidence = fault.evidence(entry)
        assert evidence.moved, evidence
        assert evidence.detail["probe"] == "ENOSPC"
        with pytest.raises(OSError, match="No space"):
            (volume / "weights").write_bytes(b"x" * (1 << 20))
        (volume / "weights").unlink(missing_ok=True)
        assert not fault.verify(entry)
        assert "[None] []" in undo_elsewhere(state).stdout
        fault.undo(entry)
        assert fault.verify(entry)
        assert listed(volume) == names
        assert os.statvfs(volume).f_bavail >= free * 0.98


@pytest.mark.root
def test_a_ballast_is_removed_after_a_reboot_and_not_forgotten_while_its_volume_is_away(
    tmp_path: Path, state: Path
) -> None:
    fault = strategy(state)
    with mounted(tmp_path) as volume:
        entry = planned(fault, state, {"mode": "full", "path": str(volume)})
        fault.inject(entry)
    entry = entry.model_copy(update={"boot_id": "of another boot"})
    with pytest.raises(InjectError, match="not mounted as it was"):
        fault.undo(entry)
    assert not fault.verify(entry)
    source = str(entry.payload["source"])
    subprocess.run(["losetup", source, str(tmp_path / "image")], check=True)
    subprocess.run(["mount", source, str(volume)], check=True)
    try:
        fault.undo(entry)
        assert fault.verify(entry)
        assert listed(volume) == ["lost+found"]
    finally:
        subprocess.run(["umount", str(volume)], check=True)
        subprocess.run(["losetup", "-d", source], check=True)


@pytest.mark.root
@pytest.mark.parametrize("mode", ["hanging", "readonly"])
def test_after_a_reboot_there_is_nothing_to_take_back(volume: Path, state: Path, mode: str) -> None:
    fault = strategy(state)
    entry = planned(fault, state, {"mode": mode, "path": str(volume)})
    entry = entry.model_copy(update={"boot_id": "of another boot"})
    fault.undo(entry)
    assert fault.verify(entry)
    with pytest.raises(InjectError):
        fault.inject(entry)


@pytest.mark.root
def test_what_the_node_needs_is_refused_in_every_mode(tmp_path: Path, volume: Path, state: Path) -> None:
    fault = strategy(state)
    for mode in ("hanging", "readonly", "full", "erring", "unreachable"):
        for path in ("/usr", "/var", str(tmp_path)):
            params = {"mode": mode, "path": path} | ({"remount": True} if mode == "erring" else {})
            assert "never touched" in (fault.check(TARGET, params) or ""), (mode, path)
    assert "undo journal" in (strategy(volume / "state").check(TARGET, {"mode": "hanging", "path": str(volume)}) or "")
    assert "no volume" in (fault.check(TARGET, {"mode": "full", "path": "/proc/self"}) or "")


@pytest.mark.root
def test_an_image_on_the_volume_that_holds_the_journal_protects_the_volume(tmp_path: Path) -> None:
    (tmp_path / "outer").mkdir()
    with mounted(tmp_path / "outer", size_mb=64) as outer:
        (outer / "inner").mkdir()
        with mounted(outer / "inner", size_mb=16) as inner:
            reason = strategy(inner / "state").check(TARGET, {"mode": "hanging", "path": str(outer)})
    assert "undo journal" in (reason or "")


@pytest.mark.root
def test_a_mode_that_cannot_reach_this_volume_is_refused_with_the_reason(tmp_path: Path, state: Path) -> None:
    fault = strategy(state)
    with mounted(tmp_path, "tmpfs") as memory:
        reasons = {
            mode: fault.check(TARGET, {"mode": mode, "path": str(memory)} | extra)
            for mode, extra in {"hanging": {}, "unreachable": {}, "erring": {"remount": True}}.items()
        }
    assert "cannot be frozen" in (reasons["hanging"] or "")
    assert "has no server" in (reasons["unreachable"] or "")
    assert "not on a device-mapper device" in (reasons["erring"] or "")
    assert "not there" in (fault.check(TARGET, {"mode": "full", "path": f"{tmp_path}/nowhere"}) or "")
    assert "node/n1" in (fault.check("node/n2", {"mode": "full", "path": str(tmp_path)}) or "")


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"mode": "hanging"}, "needs a path"),
        ({"mode": "unreachable"}, "name a path"),
        ({"mode": "full", "path": "data"}, "path"),
        ({"mode": "full", "path": "/"}, "never touched"),
        ({"mode": "erring", "path": "/data"}, "remount: true"),
        ({"mode": "full", "path": "/data", "endpoint": "10.0.0.1:2049"}, "for mode unreachable"),
        ({"mode": "full", "path": "/data", "remount": True}, "for mode erring"),
        ({"mode": "unreachable", "endpoint": "not an address"}, "endpoint"),
        ({"mode": "slow", "path": "/data"}, "mode"),
    ],
)
def test_parameters_that_mean_nothing_are_named(params: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        StorageDisconnectParams.model_validate(params)


def test_in_a_container_the_nodes_own_disks_are_known_from_init_and_from_single_files(tmp_path: Path) -> None:
    for process, table in {
        "self": "1 0 0:50 / / rw - overlay overlay rw\n2 1 8:1 /lib/hosts /etc/hosts rw - ext4 /dev/sda1 rw\n",
        "1": "1 0 8:2 / / rw - ext4 /dev/sda2 rw\n2 1 8:3 / /data rw - ext4 /dev/sda3 rw\n",
    }.items():
        (tmp_path / process).mkdir()
        (tmp_path / process / "mountinfo").write_text(table)
    env = Env(node="n1", boot_id="b", procfs=tmp_path, sysfs=tmp_path / "sys", state_dir=tmp_path / "state")
    found = storage_mounts.mounts(tmp_path)
    needed = {device: storage_mounts.needed_by_node(found, device, env) for device in ("8:1", "8:2", "8:3")}
    assert "/etc/hosts" in (needed["8:1"] or "")
    assert needed["8:2"] is not None
    assert needed["8:3"] is None


def test_servers_of_a_mount_are_found_in_the_kernels_own_tables(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self/mountinfo").write_text(
        "36 1 0:40 / /data\\040set rw,relatime - nfs4 srv:/x rw,vers=4.2,proto=tcp,port=0,addr=10.0.0.7\n"
        "37 1 0:41 / /fast rw - nfs srv:/y rw,vers=3,proto=rdma,port=20049,addr=10.0.0.7\n"
        "38 1 0:42 / /smb rw - cifs //srv/z rw,port=1445,addr=fd00::7\n"
        "39 1 0:43 / /ceph rw - ceph 10.0.0.1:6789:/ rw\n"
        "40 1 8:16 / /block rw - ext4 /dev/sdb rw\n"
        "41 1 259:1 / /nvme rw - xfs /dev/nvme0n1 rw\n"
        "42 1 8:32 / /local rw - xfs /dev/sdc rw\n"
    )
    sysfs = tmp_path / "sys"
    disk = sysfs / "devices/platform/host3/session2/target3:0:0/3:0:0:0/block/sdb"
    space = sysfs / "devices/virtual/nvme-subsystem/nvme-subsys0/nvme0n1"
    local = sysfs / "devices/pci0/block/sdc"
    controller = space.parent / "nvme0"
    connection = sysfs / "class/iscsi_connection/connection2:0"
    for folder in (disk, space, local, controller, connection, sysfs / "dev/block"):
        folder.mkdir(parents=True)
    for number, folder in (("8:16", disk), ("259:1", space), ("8:32", local)):
        (folder / "dev").write_text(number)
        (sysfs / "dev/block" / number).symlink_to(folder)
    (connection / "address").write_text("10.0.1.1\n")
    (connection / "port").write_text("3260\n")
    (controller / "transport").write_text("tcp\n")
    (controller / "address").write_text("traddr=10.0.2.1,trsvcid=4420,src_addr=10.0.2.9\n")
    found = storage_mounts.mounts(tmp_path)

    def servers(path: str) -> tuple[Server, ...] | str:
        mount = storage_mounts.at(found, path)
        assert mount is not None
        answer, reason = storage_mounts.servers(mount, sysfs)
        return answer or reason

    assert servers("/data set/checkpoints") == (Server("10.0.0.7", 2049),)
    assert servers("/smb") == (Server("fd00::7", 1445),)
    assert servers("/block") == (Server("10.0.1.1", 3260),)
    assert servers("/nvme/x") == (Server("10.0.2.1", 4420),)
    assert "rdma-link" in servers("/fast")
    assert "give endpoint" in servers("/ceph")
    assert "has no server" in servers("/local")
