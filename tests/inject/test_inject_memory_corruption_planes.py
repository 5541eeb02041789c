"""`memory-corruption`: its planes, DCGM by a stand-in for its tool, the machine check on a fixture tree."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from journal_entries import journalled

from gpuchaos_agent.inject import corrupt_machine
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.memory_corruption import PLANES, MemoryCorruption
from gpuchaos_agent.journal import JournalEntry, Scalar


@pytest.fixture
def env(tmp_path: Path) -> Env:
    """A kernel log that is a file, and mce-inject as plain files."""
    (tmp_path / "kmsg").write_text("6,1,1,-;NVRM: loading driver\n")
    folder = tmp_path / "sys" / corrupt_machine.FOLDER
    folder.mkdir(parents=True)
    for name in ("flags", "status", "addr", "cpu", "bank"):
        (folder / name).write_text("")
    return Env(node="n1", boot_id="b", kmsg=tmp_path / "kmsg", sysfs=tmp_path / "sys", corruptible=(tmp_path,))


def entry(of: MemoryCorruption, target: str, **params: Scalar) -> JournalEntry:
    assert of.check(target, params) is None
    return journalled("memory-corruption", target, params, of.plan(target, params, "f1"), boot_id="b")


def test_what_the_fault_certifies_is_what_some_plane_does_and_never_what_none_does() -> None:
    certified = {claim for plane in PLANES.values() for claim in plane.certifies}
    assert set(MemoryCorruption.certifies) == certified
    refused = {claim for plane in PLANES.values() for claim in plane.not_certified}
    assert set(MemoryCorruption.not_certified) == refused - certified
    for plane in PLANES.values():
        assert not set(plane.certifies) & set(plane.not_certified)


def test_dcgms_field_is_injected_and_put_back_with_the_record(
    env: Env, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, Scalar] = {"pci": "0000:3b:00.0", "xid": 95, "dcgm": True}
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    corruption = MemoryCorruption(env)
    assert "dcgmi not found" in (corruption.check("gpu/n1/0", asked) or "")
    tool = tmp_path / "dcgmi"
    tool.write_text(f'#!/bin/sh\necho "$*" >> {tmp_path}/told\n')
    tool.chmod(0o755)
    assert "by number" in (corruption.check("gpu/n1/GPU-4711", asked) or "")
    fault = entry(corruption, "gpu/n1/0", **asked)
    corruption.inject(fault)
    assert corruption.evidence(fault).detail["dcgm_field"] == 230
    for _ in range(2):
        corruption.undo(fault)
        assert corruption.verify(fault)
    told = (tmp_path / "told").read_text().splitlines()
    assert told == [f"test --inject --gpuid 0 -f 230 -v {value}" for value in (95, 0)]
    assert [line.removeprefix("dcgmi ") for line in corruption.commands(fault) if line.startswith("dcgmi")] == told
    assert "cleared" in env.kmsg.read_text().splitlines()[-1]


def test_machine_check_counts_only_where_the_kernel_itself_tells_of_its_address(env: Env) -> None:
    corruption = MemoryCorruption(env)
    fault = entry(corruption, "node/n1", plane="machine-check", bank=8, cpu=1)
    assert corruption.verify(fault)
    corruption.inject(fault)
    folder = env.sysfs / corrupt_machine.FOLDER
    written = {path.name: path.read_text().strip() for path in folder.iterdir()}
    assert (written["flags"], written["cpu"], written["bank"]) == ("sw", "1", "8")
    assert int(written["status"], 16) >> 61 == 0b100, "valid, no overflow, corrected: never one that could panic"
    said = f"mce: [Hardware Error]: TSC 0 ADDR {int(written['addr'], 16):x} PPIN 0\n"
    with env.kmsg.open("a") as log:
        log.write(f"12,7,7,-;{said}")
    assert not corruption.evidence(fault).moved, "a process wrote it"
    with env.kmsg.open("a") as log:
        log.write(f"4,8,8,-;{said}")
    assert corruption.evidence(fault).moved
    assert not corruption.verify(fault)
    for _ in range(2):
        corruption.undo(fault)
        assert corruption.verify(fault)
    assert env.kmsg.read_text().count("machine check cleared") == 1


def test_machine_check_that_the_kernel_refuses_is_said_and_undone(env: Env) -> None:
    corruption = MemoryCorruption(env)
    fault = entry(corruption, "node/n1", plane="machine-check")
    (env.sysfs / corrupt_machine.FOLDER / "bank").unlink()
    (env.sysfs / corrupt_machine.FOLDER / "bank").mkdir()
    with pytest.raises(InjectError, match="bank: Is a directory"):
        corruption.inject(fault)
    assert not corruption.verify(fault), "the mark stands already"
    corruption.undo(fault)
    assert corruption.verify(fault)


def test_node_without_any_plane_says_why_for_each(tmp_path: Path) -> None:
    nothing = MemoryCorruption(Env(node="n1", boot_id="b", kmsg=tmp_path / "kmsg", sysfs=tmp_path))
    reason = nothing.unavailable() or ""
    for part in ("no " + str(tmp_path / "kmsg"), "corruptible", "mce-inject"):
        assert part in reason


def test_dry_run_of_a_record_is_a_shell_command_that_writes_just_that(env: Env) -> None:
    corruption = MemoryCorruption(env)
    fault = entry(corruption, "gpu/n1/0", pci="0000:3b:00.0", xid=48)
    written, cleared = corruption.commands(fault)
    subprocess.run(["sh", "-c", written.replace(" > ", " >> ")], check=True)
    assert not corruption.verify(fault)
    subprocess.run(["sh", "-c", cleared.replace(" > ", " >> ")], check=True)
    assert corruption.verify(fault)
