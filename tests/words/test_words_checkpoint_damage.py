"""A checkpoint that was read and found damaged is told so; a stream that need not be one says nothing.

What Python's own readers and numpy's say is what they say here, of bytes that are damaged here.
"""

# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import gzip
import io
import lzma
import pickle
import time
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import numpy as np
import pytest
from app_words_kit import events, finding, one, said
from workload.storage import MODEL, Checkpoints
from workload.tensors import pack

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.words import checkpoint_damage

SAFETENSORS: Final = "safetensors_rust.SafetensorError: Error while deserializing header: "


def damaged(content: bytes, at: int, mask: int = 4) -> bytes:
    changed = bytearray(content)
    changed[at] ^= mask
    return bytes(changed)


def words_of(read: Callable[[], object]) -> str:
    """The last line of the traceback that reading damaged bytes gives, as Python prints it."""
    with pytest.raises(Exception) as raised:  # noqa: PT011  (whatever a reader raises is what a log has)
        read()
    kind = type(raised.value)
    return f"{kind.__module__}.{kind.__qualname__}: {raised.value}".removeprefix("builtins.")


@pytest.mark.parametrize(
    ("text", "cause"),
    [
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "length"),
        (
            "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory. This is an internal miniz error. If you are seeing this error, there is a high likelihood that your checkpoint file is corrupted.",
            "length",
        ),
        ("RuntimeError: PytorchStreamReader failed reading zip archive: not a ZIP archive", "structure"),
        (
            "[rank3]: RuntimeError: PytorchStreamReader failed reading file data/104: invalid header or archive is corrupted",
            "structure",
        ),
        ("RuntimeError: PytorchStreamReader failed reading file data/2: CRC-32 check failed", "checksum"),
        (
            "RuntimeError: [enforce fail at inline_container.cc:180] . file in archive is not in a subdirectory: data.pkl",
            "structure",
        ),
        ("RuntimeError: unexpected EOF, expected 170260432 more bytes. The file might be corrupted.", "length"),
        ("RuntimeError: storage has wrong size: expected 2930331299881099915 got 128", "length"),
        ("RuntimeError: storage has wrong byte size: expected 1018874368 got 0", "length"),
        ("RuntimeError: Invalid magic number; corrupt file?", "structure"),
        (SAFETENSORS + "MetadataIncompleteBuffer", "length"),
        (SAFETENSORS + "incomplete metadata, file not fully covered", "length"),
        (SAFETENSORS + "HeaderTooSmall", "length"),
        (SAFETENSORS + "InvalidHeaderLength", "length"),
        (SAFETENSORS + "HeaderTooLarge", "structure"),
        (SAFETENSORS + "header too large", "structure"),
        (SAFETENSORS + "InvalidHeaderDeserialization", "structure"),
        (SAFETENSORS + "invalid JSON in header: EOF while parsing a value at line 1 column 0", "structure"),
        (SAFETENSORS + "invalid UTF-8 in header: invalid utf-8 sequence of 1 bytes from index 8", "structure"),
        (
            "safetensors._safetensors_rust.SafetensorError: Error while deserializing: incomplete metadata, file not fully covered",
            "length",
        ),
        (
            "tensorflow.python.framework.errors_impl.DataLossError: Checksum does not match: stored 4061069822 vs. calculated on the restored bytes 2733927205",
            "checksum",
        ),
        ("W tensorflow/core/framework/op_kernel.cc:975] Data loss: file is too short to be an sstable", "length"),
        (
            "Data loss: Unable to open table file /ckpt/model-9: Data loss: not an sstable (bad magic number): perhaps your file is in a different file format",
            "structure",
        ),
        ("ValueError: DATA_LOSS: CRC-32C checksum verification failed: expected=1713499277, actual=18948", "checksum"),
    ],
)
def test_a_damaged_checkpoint_is_told_with_what_is_known_of_the_damage(text: str, cause: str) -> None:
    found = one(text)
    assert (found.fault, found.evidence["cause"]) == ("checkpoint_corrupt", cause)
    assert found.evidence["action"] in catalogue.actions()


ARCHIVE: Final = io.BytesIO()
np.savez(ARCHIVE, weights=np.arange(100.0))
NPZ: Final = ARCHIVE.getvalue()
SINGLE: Final = io.BytesIO()
np.save(SINGLE, np.arange(100.0))
NPY: Final = SINGLE.getvalue()


def member(content: bytes) -> bytes:
    return zipfile.ZipFile(io.BytesIO(content)).read("weights.npy")


@pytest.mark.parametrize(
    ("read", "cause"),
    [
        (lambda: np.load(io.BytesIO(damaged(NPZ, 400)))["weights"], "checksum"),
        (lambda: zipfile.ZipFile(io.BytesIO(NPZ[:-30])), "length"),
        (lambda: member(damaged(NPZ, 0)), "structure"),
        (lambda: member(damaged(NPZ, NPZ.rfind(b"PK\x01\x02"))), "structure"),
        (lambda: member(damaged(NPZ, 30)), "structure"),
        (lambda: np.load(io.BytesIO(NPY[:300])), "length"),
        (lambda: np.load(io.BytesIO(NPY[:20])), "length"),
        (lambda: np.lib.format.read_magic(io.BytesIO(damaged(NPY, 0))), "structure"),
        (lambda: pickle.loads(b"\x0f" + pickle.dumps({"step": 1})), "structure"),  # noqa: S301  (damaged here)
    ],
)
def test_what_readers_of_tensors_really_say_of_damaged_bytes_is_understood(
    read: Callable[[], object], cause: str
) -> None:
    found = one(words_of(read))
    assert (found.fault, found.evidence["cause"]) == ("checkpoint_corrupt", cause)


@pytest.mark.parametrize(
    ("read", "cause"),
    [
        (lambda: pickle.loads(pickle.dumps("x" * 300)[:100]), "length"),  # noqa: S301  (cut here)
        (lambda: pickle.loads(b""), "length"),  # noqa: S301
        (lambda: gzip.decompress(gzip.compress(b"abc" * 99)[:-12]), "length"),
        (lambda: gzip.decompress(damaged(gzip.compress(b"abc" * 99), -6)), "checksum"),
        (lambda: gzip.decompress(damaged(gzip.compress(b"abc" * 99), 0)), "structure"),
        (lambda: zlib.decompress(damaged(zlib.compress(b"abc" * 99), -1)), "checksum"),
        (lambda: zlib.decompress(damaged(zlib.compress(b"abc" * 99), 0)), "structure"),
        (lambda: zlib.decompress(zlib.compress(b"abc" * 99)[:-5]), "length"),
        (lambda: lzma.decompress(damaged(lzma.compress(b"abc" * 999), 40)), "checksum"),
    ],
)
def test_what_any_stream_may_say_counts_only_where_a_checkpoint_is_named(
    read: Callable[[], object], cause: str
) -> None:
    words = words_of(read)
    assert said(words) == "none", "a download, or a parent process that died, says the same"
    found = one(f"cannot resume from /data/ckpt/step_200.pt: {words}")
    assert (found.fault, found.evidence["cause"]) == ("checkpoint_corrupt", cause)


def test_a_refusal_of_the_example_workload_is_told_with_the_checkpoints_name(tmp_path: Path) -> None:
    store = Checkpoints(tmp_path, 4, checksums=True)
    content = pack({"w1": ((2, 2), bytes(16))})
    names = [store.save({"step": step}, content) for step in (1, 2, 3)]
    for name, change in ((names[1], lambda old: damaged(old, -1)), (names[2], lambda old: damaged(old, 9, 0xFF))):
        path = tmp_path / name / MODEL
        path.write_bytes(change(path.read_bytes()))
    said_of, _ = store.load()
    assert said_of["found"] == names[0]
    lines = [
        f"[rank0]: checkpoint {each['name']} refused: {each['why']}; taking the one before"
        for each in said_of["refused"]
    ]
    causes = {str(found.evidence["checkpoint"]): found.evidence["cause"] for line in lines if (found := finding(line))}
    assert causes == {names[2]: "structure", names[1]: "checksum"}
    (event,) = events(*lines)
    assert event.finding.fault == "checkpoint_corrupt"


@pytest.mark.parametrize(
    "text",
    [
        "[rank0]: saved checkpoint step-00000040 in 0.004 s",
        "[rank0]: resumed from checkpoint step-00000040 (global_step 40)",
        "[rank0]: no checkpoint to resume from, starting at step 0",
        "checkpoint /ckpt/last.pt loaded, sha256 of 312 tensors verified",
        "verifying checkpoint: 0 corrupt files found",
        "connection to db refused: sha256 of the password differs",
        "RuntimeError: PytorchStreamReader failed reading file data/7: file read failed",
        "RuntimeError: PytorchStreamReader failed locating file constants.pkl: file not found",
        SAFETENSORS + 'IoError(Os { code: 2, kind: NotFound, message: "No such file or directory" })',
        SAFETENSORS + "I/O error: Connection reset by peer (os error 104)",
        "_pickle.UnpicklingError: A load persistent id instruction was encountered, but no persistent_load function was specified.",
        "_pickle.UnpicklingError: Weights only load failed. In PyTorch 2.6, we changed the default value of the `weights_only` argument",
        "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/last.pt'",
        "EOFError: Ran out of input",
    ],
)
def test_a_line_that_tells_no_damage_says_nothing(text: str) -> None:
    assert said(text) == "none"


def test_eight_ranks_that_refuse_the_same_checkpoint_are_one_event() -> None:
    (event,) = events(
        *(
            f"[rank{rank}]: RuntimeError: PytorchStreamReader failed reading file data/{rank}: CRC-32 check failed"
            for rank in range(8)
        )
    )
    assert event.count == 8


@pytest.mark.parametrize("hint", checkpoint_damage.HINTS)
@pytest.mark.parametrize("piece", ["", " ", "a", "0", ": ", "reading file ", "sha256 of ", "ckpt "])
def test_no_line_takes_long(hint: str, piece: str) -> None:
    record = LogRecord("checkpoint x refused: " + (hint + piece) * (16_000 // len(hint + piece)), writer=Writer.PROGRAM)
    spent = []
    for _ in range(3):
        began = time.thread_time()
        hear(record)
        spent.append(time.thread_time() - began)
    assert min(spent) < 0.010
