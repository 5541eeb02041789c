"""`memory-corruption` with `plane: file`: bits of weights, flipped and flipped back, and nothing else touched."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuchaos_agent.inject import tensor_files
from gpuchaos_agent.inject.base import Env, InjectError
from gpuchaos_agent.inject.memory_corruption import MemoryCorruption, MemoryCorruptionParams
from gpuchaos_agent.inject.tensor_files import NotUnderstoodError
from gpuchaos_agent.journal import JournalEntry, Scalar

NODE = "node/n1"
WEIGHTS = np.arange(4096, dtype=np.float32)


def safetensors() -> bytes:
    header = json.dumps(
        {
            "__metadata__": {"format": "pt"},
            "wte": {"dtype": "F32", "shape": [64, 64], "data_offsets": [0, 16384]},
            "bias": {"dtype": "F32", "shape": [16], "data_offsets": [16384, 16448]},
            "none": {"dtype": "F32", "shape": [0], "data_offsets": [16448, 16448]},
        }
    ).encode()
    return struct.pack("<Q", len(header)) + header + WEIGHTS.tobytes() + WEIGHTS[:16].tobytes()


def torch_zip() -> bytes:
    """As `torch.save` lays it out: stored entries, each padded by its local header's extra field."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        for name, content in (
            ("model/data.pkl", b"\x80\x02}q\x00" * 40),
            ("model/byteorder", b"little"),
            ("model/data/0", WEIGHTS.tobytes()),
            ("model/data/1", WEIGHTS[:32].tobytes()),
            ("model/version", b"3\n"),
            ("model/.data/serialization_id", b"0" * 40),
        ):
            info = zipfile.ZipInfo(name)
            info.extra = struct.pack("<HH", 0x4246, 37) + b"Z" * 37
            archive.writestr(info, content)
    return made.getvalue()


def npz(*, deflated: bool = False) -> bytes:
    made = io.BytesIO()
    (np.savez_compressed if deflated else np.savez)(made, w=WEIGHTS, b=WEIGHTS[:16])
    return made.getvalue()


def npy() -> bytes:
    made = io.BytesIO()
    np.save(made, WEIGHTS)
    return made.getvalue()


FORMATS: dict[str, tuple[str, Callable[[], bytes]]] = {
    "safetensors": ("model.safetensors", safetensors),
    "torch": ("step-100.pt", torch_zip),
    "npz": ("state.npz", npz),
    "npy": ("weights.npy", npy),
}


def weight_bytes(kind: str, content: bytes) -> bytes:
    """All weights of a file, by somebody else's reader."""
    if kind == "safetensors":
        return content[8 + struct.unpack("<Q", content[:8])[0] :]
    if kind == "npy":
        return bytes(np.load(io.BytesIO(content)).tobytes())
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        found = b""
        for info in archive.infolist():
            if kind == "torch" and "/data/" in info.filename and info.filename.rpartition("/")[2].isdecimal():
                found += content[content.index(info.filename.encode()) + len(info.filename) + 41 :][: info.file_size]
            if kind == "npz":
                raw = content[content.index(info.filename.encode()) :]
                found += raw[raw.index(b"\n", raw.index(b"NUMPY")) + 1 :][: info.file_size - 128]
        return found


@dataclass
class Folder:
    """A folder whose files may be changed, and the strategy of its node."""

    path: Path

    def strategy(self, boot_id: str = "b") -> MemoryCorruption:
        return MemoryCorruption(Env(node="n1", boot_id=boot_id, corruptible=(self.path,)))

    def put(self, kind: str) -> Path:
        name, make = FORMATS[kind]
        (self.path / name).write_bytes(make())
        return self.path / name

    def entry(self, path: Path, fault_id: str = "f1", **params: Scalar) -> JournalEntry:
        given: dict[str, Scalar] = {"plane": "file", "path": str(path), **params}
        strategy = self.strategy()
        assert strategy.check(NODE, given) is None
        made = JournalEntry(
            fault_id=fault_id,
            experiment_id="e1",
            command_id="c1",
            fault="memory-corruption",
            entity=NODE,
            params=given,
            payload=strategy.plan(NODE, given, fault_id),
            boot_id="b",
            order=0,
            created=0,
            lease_s=10,
            lease_expires=10,
            lease_deadline=10,
        )
        return JournalEntry.model_validate_json(made.model_dump_json())  # as from the journal


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    (tmp_path / "checkpoints").mkdir()
    return Folder(tmp_path / "checkpoints")


def differing(one: bytes, other: bytes) -> int:
    assert len(one) == len(other)
    return sum((a ^ b).bit_count() for a, b in zip(one, other, strict=True))


@pytest.mark.parametrize("bits", [1, 64])
@pytest.mark.parametrize("kind", FORMATS)
def test_exactly_so_many_bits_of_weights_differ_and_afterwards_the_file_is_the_same_byte_for_byte(
    folder: Folder, kind: str, bits: int
) -> None:
    path = folder.put(kind)
    os.utime(path, ns=(1_000_000_000, 2_000_000_001))
    before, told = path.read_bytes(), path.stat()
    entry = folder.entry(path, bits=bits)
    assert entry.payload["sha256"] == hashlib.sha256(before).hexdigest()
    strategy = folder.strategy()
    assert strategy.verify(entry)
    assert not strategy.evidence(entry).moved
    strategy.inject(entry)
    evidence = strategy.evidence(entry)
    assert evidence.moved
    assert evidence.detail["bits_flipped"] == bits
    assert evidence.detail["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest() != entry.payload["sha256"]
    after = path.read_bytes()
    assert differing(before, after) == bits
    assert differing(weight_bytes(kind, before), weight_bytes(kind, after)) == bits, "all of them are weights"
    assert str(evidence.detail["tensors"])
    now = path.stat()
    for field in ("st_ino", "st_size", "st_mode", "st_uid", "st_gid", "st_mtime_ns"):
        assert getattr(now, field) == getattr(told, field)
    assert not strategy.verify(entry)
    for _ in range(2):
        folder.strategy().undo(entry)
        assert folder.strategy().verify(entry)
        assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == told.st_mtime_ns
    assert os.listdir(folder.path) == [path.name]  # noqa: PTH208


@pytest.mark.parametrize("kind", ["safetensors", "npy"])
def test_reader_of_the_format_reads_the_damaged_file_without_noticing(folder: Folder, kind: str) -> None:
    path = folder.put(kind)
    folder.strategy().inject(folder.entry(path, bits=8))
    array = np.load(path) if kind == "npy" else np.frombuffer(path.read_bytes()[-16448:-64], dtype=np.float32)
    assert array.shape == WEIGHTS.shape
    assert not np.array_equal(array, WEIGHTS)


def test_undo_by_another_process_from_the_journal_alone_and_of_another_boot(folder: Folder) -> None:
    path = folder.put("torch")
    before = path.read_bytes()
    entry = folder.entry(path, bits=9)
    folder.strategy().inject(entry)
    program = (
        "import sys; from gpuchaos_agent.inject.base import Env; from gpuchaos_agent.journal import JournalEntry;"
        "from gpuchaos_agent.inject.memory_corruption import MemoryCorruption as M;"
        "e = JournalEntry.model_validate_json(sys.stdin.read()); m = M(Env(node='n1', boot_id='another'));"
        "m.undo(e); sys.exit(not m.verify(e))"
    )
    done = subprocess.run([sys.executable, "-c", program], input=entry.model_dump_json(), text=True, check=False)
    assert done.returncode == 0
    assert path.read_bytes() == before


@pytest.mark.parametrize("written", range(4))
def test_half_an_injection_is_undone_as_a_whole(folder: Folder, written: int) -> None:
    path = folder.put("npy")
    before = path.read_bytes()
    entry = folder.entry(path, bits=4, seed=7)
    flips = json.loads(str(entry.payload["flips"]))
    with path.open("r+b") as file:  # as after a kill between two bytes
        for offset, _, after, _ in flips[:written]:
            file.seek(offset)
            file.write(bytes([after]))
    folder.strategy().undo(entry)
    assert folder.strategy().verify(entry)
    assert path.read_bytes() == before


def test_neighbouring_flips_do_not_hide_each_other(folder: Folder) -> None:
    path = folder.path / "small"
    path.write_bytes(bytes(range(64)))
    entry = folder.entry(path, bits=64, region="any")
    folder.strategy().inject(entry)
    assert differing(path.read_bytes(), bytes(range(64))) == 64
    folder.strategy().undo(entry)
    assert path.read_bytes() == bytes(range(64))


def test_file_that_the_job_has_replaced_meanwhile_is_left_alone(folder: Folder) -> None:
    path = folder.put("safetensors")
    entry = folder.entry(path)
    folder.strategy().inject(entry)
    fresh = folder.path / "new.tmp"
    shutil.copy(path, fresh)  # the job has read the damaged weights, and writes them as its own
    fresh.replace(path)
    theirs = path.read_bytes()
    folder.strategy().undo(entry)
    assert folder.strategy().verify(entry)
    assert path.read_bytes() == theirs


def test_file_that_the_job_has_rewritten_in_place_keeps_what_the_job_wrote(folder: Folder) -> None:
    path = folder.put("npy")
    entry = folder.entry(path, bits=3)
    folder.strategy().inject(entry)
    theirs = bytearray(path.read_bytes())
    theirs[128:] = (WEIGHTS + 1).tobytes()
    offset, _, after, _ = json.loads(str(entry.payload["flips"]))[0]
    theirs[offset] = after  # by chance what we had left there
    with path.open("r+b") as file:
        file.write(theirs)
    stamp = path.stat().st_mtime_ns
    folder.strategy().undo(entry)
    assert folder.strategy().verify(entry)
    assert path.read_bytes() == theirs
    assert path.stat().st_mtime_ns == stamp


@pytest.mark.parametrize("killed_in", ["inject", "undo"])
def test_agent_killed_between_the_bytes_and_their_time_leaves_the_undo_to_set_the_time_back(
    folder: Folder, killed_in: str
) -> None:
    path = folder.put("npy")
    os.utime(path, ns=(1_000_000_000, 2_000_000_001))
    before = path.read_bytes()
    entry = folder.entry(path, bits=3)
    place = 2 if killed_in == "inject" else 1  # of offset, before, after, around
    with path.open("r+b") as file:
        for flip in json.loads(str(entry.payload["flips"])):
            os.pwrite(file.fileno(), bytes([flip[place]]), flip[0])
    assert path.stat().st_mtime_ns != 2_000_000_001
    folder.strategy().undo(entry)
    assert path.read_bytes() == before
    assert path.stat().st_mtime_ns == 2_000_000_001


def test_file_that_was_renamed_meanwhile_is_found_and_one_that_was_deleted_is_over(folder: Folder) -> None:
    run = folder.path / "run" / "step-100.tmp"
    run.mkdir(parents=True)
    path = run / "model.npy"
    path.write_bytes(npy())
    before = path.read_bytes()
    entry = folder.entry(path)
    folder.strategy().inject(entry)
    run.rename(run.with_name("step-100"))
    moved = run.with_name("step-100") / "model.npy"
    assert not folder.strategy().verify(entry)
    folder.strategy().undo(entry)
    assert moved.read_bytes() == before
    assert folder.strategy().verify(entry)
    moved.unlink()
    folder.strategy().undo(entry)
    assert folder.strategy().verify(entry)


def test_same_seed_flips_the_same_bits_and_a_fault_without_one_its_own(folder: Folder) -> None:
    path = folder.put("npy")
    assert folder.entry(path, seed=1).payload["flips"] == folder.entry(path, "f2", seed=1).payload["flips"]
    assert folder.entry(path).payload["flips"] != folder.entry(path, "f2").payload["flips"]


def test_dry_run_prints_commands_that_flip_and_flip_back(folder: Folder) -> None:
    path = folder.put("npy")
    before = path.read_bytes()
    entry = folder.entry(path, bits=5)
    strategy = folder.strategy()
    commands = strategy.commands(entry)
    half = len(commands) // 2
    for some, standing in ((commands[:half], True), (commands[half:], False)):
        for command in some:
            subprocess.run(["bash", "-c", f"{command} 2>/dev/null"], check=True)
        assert strategy.verify(entry) is not standing
    assert path.read_bytes() == before


def test_what_must_not_be_changed_is_refused_with_the_reason(folder: Folder, tmp_path: Path) -> None:
    path = folder.put("npy")
    outside = tmp_path / "outside.npy"
    outside.write_bytes(npy())
    (folder.path / "way-out").symlink_to(tmp_path)
    (folder.path / "small").write_bytes(b"x" * 63)
    (folder.path / "text").write_bytes(b"no weights here " * 16)
    (folder.path / "deflated.npz").write_bytes(npz(deflated=True))
    os.mkfifo(folder.path / "fifo")
    os.link(folder.put("torch"), folder.path / "second-name")
    suid = folder.put("npz")
    suid.chmod(0o644 | stat.S_ISUID)
    strategy = folder.strategy()

    def why(name: str, target: str = NODE, **params: Scalar) -> str:
        return strategy.check(target, {"plane": "file", "path": str(folder.path / name), **params}) or "allowed"

    assert why("small") == f"{folder.path}/small has 63 bytes, and 64 are the least"
    assert "neither safetensors" in why("text")
    assert why("text", region="any") == "allowed"
    assert "2 arrays are deflated" in why("deflated.npz")
    assert "no regular file" in why("fifo", region="any")
    assert "2 names" in why("second-name")
    assert "owner's rights" in why(suid.name)
    assert "none of the folders" in why("way-out/outside.npy")
    assert "none of the folders" in why("../outside.npy")
    assert "directory" in why(".").lower()
    assert "No such file" in why("nothing")
    assert "absolute" in (strategy.check(NODE, {"plane": "file", "path": "weights.npy"}) or "")
    assert "must be node/n1" in why(path.name, target="gpu/n1/0")
    assert "settings name no folder" in (
        MemoryCorruption(Env(node="n1", boot_id="b")).check(NODE, {"plane": "file", "path": str(path)}) or ""
    )


def test_link_within_the_folder_leads_to_the_file_and_both_name_one_resource(folder: Folder) -> None:
    path = folder.put("npy")
    link = folder.path / "latest"
    link.symlink_to(path.name)
    before = path.read_bytes()
    entry = folder.entry(link)
    strategy = folder.strategy()
    assert strategy.resources(NODE, entry.params) == strategy.resources(NODE, {**entry.params, "path": str(path)})
    strategy.inject(entry)
    assert path.read_bytes() != before
    link.unlink()
    strategy.undo(entry)
    assert path.read_bytes() == before


def test_file_that_changed_between_plan_and_inject_is_not_touched(folder: Folder) -> None:
    path = folder.put("npy")
    entry = folder.entry(path)
    offset = json.loads(str(entry.payload["flips"]))[0][0]
    changed = bytearray(path.read_bytes())
    changed[offset] ^= 0x55
    with path.open("r+b") as file:
        file.write(changed)
    with pytest.raises(InjectError, match="written since"):
        folder.strategy().inject(entry)
    fresh = folder.path / "new"
    fresh.write_bytes(npy())
    fresh.replace(path)
    with pytest.raises(InjectError, match="replaced since"):
        folder.strategy().inject(entry)
    assert path.read_bytes() == npy()


@pytest.mark.parametrize("params", [{"bits": 0}, {"bits": 65}, {"region": "header"}, {"plane": "dimm"}, {"seed": -1}])
def test_parameters_that_are_none_are_refused_before_anything_is_looked_at(params: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="1 validation error"):
        MemoryCorruptionParams.model_validate(params)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=150, deadline=None)
@given(data=st.data(), kind=st.sampled_from(sorted(FORMATS)))
def test_no_damage_to_a_file_makes_its_parser_do_anything_but_refuse(
    tmp_path: Path, data: st.DataObject, kind: str
) -> None:
    content = bytearray(FORMATS[kind][1]())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))]
    path = tmp_path / "damaged"
    path.write_bytes(content)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        found = tensor_files.read(descriptor)
    except NotUnderstoodError:
        return
    finally:
        os.close(descriptor)
    for region in found.regions:
        assert 0 <= region.start < region.start + region.length <= len(content)


def test_zip_of_the_large_kind_is_read_by_its_own_offsets(tmp_path: Path) -> None:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_STORED) as archive:
        with archive.open("m/data/0", "w", force_zip64=True) as entry:
            entry.write(WEIGHTS.tobytes())
        archive.writestr("m/data.pkl", b"p")
    path = tmp_path / "large.pt"
    path.write_bytes(made.getvalue())
    descriptor = os.open(path, os.O_RDONLY)
    found = tensor_files.read(descriptor)
    os.close(descriptor)
    (region,) = found.regions
    assert path.read_bytes()[region.start : region.start + region.length] == WEIGHTS.tobytes()
