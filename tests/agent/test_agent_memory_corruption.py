"""`memory-corruption`: on a file that stands for the kernel log, and on the real one."""

from __future__ import annotations

import os
import time
import uuid
from pathlib import Path

import pytest
from pydantic import ValidationError

from gpuchaos_agent import clock
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.memory_corruption import TEXTS, MemoryCorruption, MemoryCorruptionParams
from gpuchaos_agent.journal import JournalEntry
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.hear import hear

TARGET = "gpu/n1/0"


def strategy(kmsg: Path, **fields: object) -> MemoryCorruption:
    return MemoryCorruption(Env(node="n1", boot_id="b", kmsg=kmsg, **fields))  # type: ignore[arg-type]


def entry(of: MemoryCorruption, fault_id: str = "f1", **params: object) -> JournalEntry:
    given = {"pci": "00000000:3B:00.0", **params}
    return JournalEntry(
        fault_id=fault_id,
        experiment_id="e1",
        command_id="c1",
        fault="memory-corruption",
        entity=TARGET,
        params=given,  # type: ignore[arg-type]
        payload=of.plan(TARGET, given, fault_id),  # type: ignore[arg-type]
        boot_id="b",
        order=0,
        created=0,
        lease_s=10,
        lease_expires=10,
        lease_deadline=10,
    )


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "kmsg"
    path.write_text("6,1,1,-;NVRM: loading driver\n")
    return path


@pytest.mark.parametrize("xid", sorted(TEXTS))
def test_the_record_is_in_the_drivers_words_and_our_own_parser_knows_the_xid_and_the_mark(log: Path, xid: int) -> None:
    corruption = strategy(log)
    text = str(entry(corruption, xid=xid).payload["text"])
    heard = hear(LogRecord(text, writer=Writer.INJECTED))
    assert heard is not None
    assert heard.injected_mark
    assert (heard.finding.evidence["fault_id"], heard.finding.evidence["xid"]) == ("f1", xid)
    assert text.startswith(f"NVRM: Xid (PCI:0000:3b:00): {xid}, ")
    assert text.endswith(" gpuchaos-injected=f1")


def test_the_clearing_record_is_no_fault_to_our_own_parser(log: Path) -> None:
    corruption = strategy(log)
    fault = entry(corruption)
    corruption.inject(fault)
    corruption.undo(fault)
    cleared = log.read_text().splitlines()[-1].removeprefix("<4>")
    assert hear(LogRecord(cleared, writer=Writer.INJECTED)) is None


def test_it_is_read_back_cleared_and_verified(log: Path) -> None:
    corruption = strategy(log)
    fault = entry(corruption)
    assert corruption.verify(fault)
    assert not corruption.evidence(fault).moved
    corruption.inject(fault)
    assert corruption.evidence(fault).moved
    assert not corruption.verify(fault)
    corruption.undo(fault)
    assert corruption.verify(fault)
    lines = log.read_text().count("\n")
    corruption.undo(fault)
    assert log.read_text().count("\n") == lines


def test_the_undo_of_one_fault_leaves_another_standing(log: Path) -> None:
    corruption = strategy(log)
    one, other = entry(corruption, "f1"), entry(corruption, "f11")
    corruption.inject(one)
    corruption.inject(other)
    corruption.undo(other)
    assert not corruption.verify(one)
    assert corruption.verify(other)


def test_it_is_refused_where_it_cannot_reach_its_layer(log: Path, tmp_path: Path) -> None:
    pci = {"pci": "0000:3b:00.0"}
    assert strategy(log).check(TARGET, pci) is None
    assert strategy(log, gpu_pci=lambda index: "0000:3b:00.0" if index == "0" else None).check(TARGET, {}) is None
    assert "PCI address" in (strategy(log).check(TARGET, {}) or "")
    assert "no " in (strategy(tmp_path / "nothing").check(TARGET, pci) or "")
    assert "target" in (strategy(log).check("process/n1/7", pci) or "")
    assert "target" in (strategy(log).check("gpu/n2/0", pci) or "")


@pytest.mark.parametrize(
    "params", [{"xid": 79}, {"xid": "x"}, {"pci": "3b"}, {"pci": "0000:3b:00.0 \nNVRM:"}, {"a": 1}]
)
def test_parameters_that_are_none_are_refused(params: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        MemoryCorruptionParams.model_validate(params)


@pytest.mark.root
@pytest.mark.skipif(not os.access("/dev/kmsg", os.R_OK | os.W_OK), reason="needs a kernel log that can be written")
def test_on_the_real_kernel_log_it_is_a_process_speaking_and_is_cleared() -> None:
    corruption = strategy(Path("/dev/kmsg"))
    fault = entry(corruption, f"test-{uuid.uuid4().hex[:8]}")
    began = time.monotonic()
    corruption.inject(fault)
    evidence = corruption.evidence(fault)
    assert evidence.moved
    prefix = int(str(evidence.detail["record"]).split(",", 1)[0])
    assert prefix >> 3 >= 1, "facility 0 is the kernel's own"
    assert prefix & 7 == 4
    assert not corruption.verify(fault)
    corruption.undo(fault)
    assert corruption.verify(fault)
    assert time.monotonic() - began < 2


def test_the_boot_id_is_the_kernels() -> None:
    assert clock.boot_id() == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
