from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import workload_kit  # noqa: F401  (puts the examples on the path)
from workload.ledger import Audit, Ledger
from workload.model import Data, Order, place
from workload.settings import SAMPLES

BATCH = 64


def step(number: int, digest: str = "", attempt: int = 1, **more: Any) -> dict[str, Any]:
    epoch, position = place(number, BATCH)
    indices = int(Order(1).batch(number, BATCH).sum())
    said = {"step": number, "attempt": attempt, "epoch": epoch, "position": position, "count": BATCH}
    return {**said, "indices": indices, "loss": 1.0, "digest": digest or f"d{number}", "time": 0.0, **more}


def resume(at: int, digest: str = "", attempt: int = 1, *refused: str) -> dict[str, Any]:
    return {
        "resume": at,
        "attempt": attempt,
        "from": f"step-{at:08d}" if at else "",
        "digest": digest or f"d{at}",
        "refused": list(refused),
    }


def audit(path: Path, *lines: dict[str, Any]) -> Audit:
    ledger = Ledger(path / "ledger.jsonl")
    for line in lines:
        ledger.add(line)
    return Audit(path / "ledger.jsonl", 1, BATCH).read()


def test_steps_in_a_row_lose_nothing(tmp_path: Path) -> None:
    found = audit(tmp_path, resume(0), *map(step, range(1, 40)))
    assert (found.step, found.data_lost(), found.steps_lost, found.bad_weights) == (39, 0, 0, 0)


def test_steps_after_the_checkpoint_are_lost_and_trained_again(tmp_path: Path) -> None:
    again = [step(number, attempt=2) for number in range(6, 12)]
    found = audit(tmp_path, resume(0), *map(step, range(1, 10)), resume(5, "", 2, "step-00000008"), *again)
    assert (found.step, found.steps_lost, found.data_lost(), found.replayed_other) == (11, 4, 0, 0)
    assert (found.resumed_from, found.refused) == ("step-00000005", ["step-00000008"])


@pytest.mark.parametrize("wrong", [{"indices": 5}, {"count": 48}, {"position": 0}, {"epoch": 1}])
def test_samples_that_a_rank_left_out_or_doubled_show(tmp_path: Path, wrong: dict[str, int]) -> None:
    found = audit(tmp_path, resume(0), step(1), step(2) | wrong, step(3))
    assert found.data_lost() == BATCH


def test_a_step_that_is_missing_or_there_twice_shows(tmp_path: Path) -> None:
    assert audit(tmp_path, resume(0), step(1), step(3)).data_lost() == BATCH
    (tmp_path / "ledger.jsonl").unlink()
    assert audit(tmp_path, resume(0), step(1), step(2), step(2)).data_lost() == BATCH


def test_weights_that_are_not_those_of_the_step_show(tmp_path: Path) -> None:
    found = audit(tmp_path, resume(0), step(1), step(2), resume(2, "other", 2), step(3, attempt=2))
    assert found.bad_weights == 1


def test_a_replay_that_comes_out_otherwise_shows(tmp_path: Path) -> None:
    found = audit(tmp_path, resume(0), step(1), step(2), resume(1, "", 2), step(2, "other", 2))
    assert found.replayed_other == 1


def test_reading_again_takes_only_what_is_new(tmp_path: Path) -> None:
    found = audit(tmp_path, resume(0), step(1))
    path = tmp_path / "ledger.jsonl"
    half = json.dumps(step(2))
    with path.open("a") as file:
        file.write(half[:20])
    assert found.read().step == 1
    with path.open("a") as file:
        file.write(half[20:] + "\n")
    assert (found.read().step, found.data_lost()) == (2, 0)


def test_what_a_full_disk_refused_is_written_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(tmp_path / "ledger.jsonl")
    ledger.add(resume(0))
    write = os.write

    def full(fd: int, data: bytes) -> int:
        if len(data) > 40:
            return write(fd, data[:40])  # as the last block of a disk takes a part
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    ledger.add(step(1))
    ledger.add(step(2))
    monkeypatch.setattr(os, "write", write)
    ledger.add(step(3))
    found = Audit(tmp_path / "ledger.jsonl", 1, BATCH).read()
    assert (found.step, found.data_lost()) == (3, 0)


def test_each_epoch_holds_every_sample_once_whatever_the_number_of_ranks() -> None:
    data = Data(1)
    for ranks, epoch in ((4, 0), (2, 1)):
        seen = [
            index
            for number in range(epoch * SAMPLES // 256 + 1, (epoch + 1) * SAMPLES // 256 + 1)
            for rank in range(ranks)
            for index in data.batch(number, 256, rank, ranks).tolist()
        ]
        assert sorted(seen) == list(range(SAMPLES))
