from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
import workload_kit  # noqa: F401  (puts the examples on the path)
from workload.model import Model
from workload.storage import MANIFEST, MODEL, Checkpoints
from workload.tensors import pack, unpack

#: Minutes of real time-outs together; the fast ones are in test_workload_status.py.
pytestmark = pytest.mark.soak


def content(seed: int = 1) -> bytes:
    model = Model(8, seed)
    return pack({name: (view.shape, view.tobytes()) for name, view in model.tensors().items()})


def saved(folder: Path, *steps: int, keep: int = 4) -> Checkpoints:
    checkpoints = Checkpoints(folder, keep, checksums=True)
    for step in steps:
        checkpoints.save({"step": step, "sampler": {"epoch": 0, "position": step * 64}}, content(step))
    return checkpoints


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_is_loaded_and_only_so_many_are_kept(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2, 3, 4, 5, keep=3)
    assert names(tmp_path) == ["step-00000003", "step-00000004", "step-00000005"]
    reply, loaded = checkpoints.load()
    assert (reply["found"], reply["refused"], loaded) == ("step-00000005", [], content(5))


def test_every_bit_of_every_file_is_guarded(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    made = np.random.default_rng(7)
    for path in (tmp_path / "step-00000002" / MODEL, tmp_path / "step-00000002" / MANIFEST):
        good = path.read_bytes()
        for offset in made.integers(0, len(good), 150):
            for bit in made.integers(0, 8, 2):
                bad = bytearray(good)
                bad[offset] ^= 1 << bit
                path.write_bytes(bad)
                reply, _ = checkpoints.load()
                # A bit of JSON may be one that says nothing (a space, the case of a digit of an exponent).
                same = path.name == MANIFEST and _means_the_same(good, bytes(bad))
                assert reply["found"] == ("step-00000002" if same else "step-00000001"), (path.name, offset, bit)
        path.write_bytes(good)
    assert checkpoints.load()[0]["found"] == "step-00000002"
    assert checkpoints.check() == {"step-00000001": "", "step-00000002": ""}


def _means_the_same(one: bytes, other: bytes) -> bool:
    try:
        return bool(json.loads(one) == json.loads(other))
    except ValueError:
        return False


@pytest.mark.parametrize("damage", ["cut", "gone", "empty", "no manifest", "huge header"])
def test_damaged_files_are_refused_by_name(tmp_path: Path, damage: str) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    model = tmp_path / "step-00000002" / MODEL
    if damage == "cut":
        model.write_bytes(model.read_bytes()[:-4])
    elif damage == "gone":
        model.unlink()
    elif damage == "empty":
        model.write_bytes(b"")
    elif damage == "no manifest":
        (model.parent / MANIFEST).unlink()
    else:
        model.write_bytes(b"\xff" * 8 + model.read_bytes()[8:])
    reply, _ = checkpoints.load()
    assert (reply["found"], [each["name"] for each in reply["refused"]]) == ("step-00000001", ["step-00000002"])
    assert checkpoints.check()["step-00000002"]


def test_without_checksums_only_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    saved(tmp_path, 1, 2)
    model = tmp_path / "step-00000002" / MODEL
    changed = bytearray(model.read_bytes())
    changed[-1] ^= 1
    model.write_bytes(changed)
    careless = Checkpoints(tmp_path, 4, checksums=False)
    assert careless.load()[0]["found"] == "step-00000002"
    assert careless.check()["step-00000002"].startswith("sha256 of optimizer.")
    model.write_bytes(b"")
    assert careless.load()[0]["found"] == "step-00000001"


def test_saving_a_step_again_replaces_it(tmp_path: Path) -> None:
    checkpoints = saved(tmp_path, 1, 2)
    (tmp_path / "step-00000002" / MODEL).write_bytes(b"damaged")
    (tmp_path / ".saving-1-step-00000009").mkdir()  # left by a process that was killed
    checkpoints.save({"step": 2, "sampler": {}}, content(2))
    assert names(tmp_path) == ["step-00000001", "step-00000002"]
    assert checkpoints.check() == {"step-00000001": "", "step-00000002": ""}


def test_a_failed_save_leaves_what_was_there_and_names_the_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints = saved(tmp_path, 1)

    def full(_fd: int) -> None:
        raise OSError(28, os.strerror(28))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match=r"No space left on device: '.*/step-00000002/model.safetensors'"):
        checkpoints.save({"step": 2, "sampler": {}}, content(2))
    assert names(tmp_path) == ["step-00000001"]


def test_no_checkpoints_are_none(tmp_path: Path) -> None:
    assert Checkpoints(tmp_path / "none", 4, checksums=True).load()[0]["found"] == ""


def test_the_file_is_in_the_safetensors_form() -> None:
    data = content()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    assert length % 8 == 0
    assert header["layer1.weight"] == {"dtype": "F32", "shape": [32, 8], "data_offsets": [0, 1024]}
    assert max(entry["data_offsets"][1] for entry in header.values()) == len(data) - 8 - length
    assert unpack(data)["layer2.bias"][0] == (10,)
