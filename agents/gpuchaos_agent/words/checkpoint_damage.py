"""Reading checkpoints: files of checkpoints and of tensors that were read and found damaged.

Evidence `cause` is what the words tell and no more. `checksum`: bytes are others than those that were written.
`length`: the file ends elsewhere than it says; a writer that was ended, a volume that was full and damage look the
same. `structure`: a header, a directory or a record in it makes no sense.

Formats: `inline_container.cc`, miniz and `serialization.py` of torch 1.5 to 2.10 (torch.distributed.checkpoint,
DeepSpeed and Megatron read through them), safetensors 0.2 to 0.6, Python's pickle, zipfile, gzip, zlib, lzma and
numpy, python-lz4 and zstandard, TensorFlow's tensor bundles, tensorstore (Orbax), the workload in `examples/`.
A cause that is not the file's (`file read failed`, `I/O error`) is no damage.
"""

from __future__ import annotations

from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.checkpoint import CHECKPOINT
from gpuchaos_agent.words.table import Rule
from gpuchaos_agent.words.wordings import LOOKED_AT, first, wording

HINTS: Final = (
    "PytorchStreamReader failed ",
    "file in archive is not in a subdirectory: ",
    "The file might be corrupted",
    "storage has wrong ",
    "Invalid magic number; corrupt file?",
    "Error while deserializing",
    "UnpicklingError: ",
    "Ran out of input",
    "Bad CRC-32 for file ",
    "BadZip",
    "EOF: reading array ",
    "Failed to read all data for array",
    "the magic string is not correct; expected ",
    "mmap length is greater than file size",
    "Compressed file ended before the end-of-stream marker",
    "BadGzipFile: ",
    "while decompressing data: ",
    "LZMAError: ",
    "LZ4F_decompress failed with code: ",
    "zstd decompress error: ",
    "Checksum does not match: stored ",
    "an sstable",
    "CRC-32C checksum verification failed: ",
    " refused: ",
)
WRITERS: Final = frozenset({Writer.PROGRAM})


def _damaged(text: str, cause: str, form: str) -> Rule:
    return wording(text, "checkpoint_corrupt", action="resume_from_older", cause=cause, format=form)


_READER: Final = r"PytorchStreamReader failed (?:reading file (?P<file>[^:\n]{1,200})|[^:\n]{1,200}): "
_HEADER: Final = r"Error while deserializing(?: header)?: "
_REFUSED: Final = r"checkpoint (?P<checkpoint>[^\s:]{1,120}) refused: "

#: Said of a checkpoint or of a file of tensors, whatever stands around it.
WORDINGS: Final = (
    _damaged(_READER + r"failed finding central directory", "length", "torch"),
    _damaged(
        _READER + r"(?:invalid header or archive is corrupted|not a ZIP archive|unexpected decompressed size|"
        r"decompression failed or archive is corrupted)",
        "structure",
        "torch",
    ),
    _damaged(_READER + r"CRC-32 check failed", "checksum", "torch"),
    _damaged(r"file in archive is not in a subdirectory: (?P<file>[^\n]{1,200})", "structure", "torch"),
    _damaged(
        r"unexpected EOF, expected (?P<missing_bytes>\d{1,20}) more bytes\. The file might be corrupted",
        "length",
        "torch",
    ),
    _damaged(r"storage has wrong (?:byte )?size: expected -?\d{1,20} got -?\d{1,20}", "length", "torch"),
    _damaged(r"Invalid magic number; corrupt file\?", "structure", "torch"),
    _damaged(
        _HEADER + r"(?:MetadataIncompleteBuffer|incomplete metadata, file not fully covered|HeaderTooSmall|"
        r"header too small|InvalidHeaderLength|invalid header length)",
        "length",
        "safetensors",
    ),
    _damaged(
        _HEADER + r"(?:HeaderTooLarge|header too large|InvalidHeader|invalid (?:UTF-8|JSON) in header|"
        r"TensorInvalidInfo|invalid shape, dtype, or offset|InvalidOffset|invalid offset for tensor|"
        r"ValidationOverflow|overflow computing buffer size)",
        "structure",
        "safetensors",
    ),
    _damaged(r"UnpicklingError: invalid load key, '", "structure", "pickle"),
    _damaged(r"Bad CRC-32 for file '(?P<file>[^'\n]{1,200})'", "checksum", "zip"),
    _damaged(r"BadZip[fF]ile: (?:File is not a zip file|Truncated (?:file header|central directory))", "length", "zip"),
    _damaged(
        r"BadZip[fF]ile: (?:Bad magic number for (?:central directory|file header)|File name in directory )",
        "structure",
        "zip",
    ),
    _damaged(
        r"EOF: reading array (?:data|header), expected \d{1,20} bytes got \d{1,20}|Failed to read all data for array",
        "length",
        "numpy",
    ),
    _damaged(r"the magic string is not correct; expected b'\\x93NUMPY'", "structure", "numpy"),
    _damaged(
        r"Checksum does not match: stored \d{1,10} vs\. calculated on the restored bytes \d{1,10}",
        "checksum",
        "tensorflow",
    ),
    _damaged(r"file is too short to be an sstable", "length", "tensorflow"),
    _damaged(r"not an sstable \(bad magic number\)", "structure", "tensorflow"),
    _damaged(r"CRC-32C checksum verification failed: expected=\d{1,10}, actual=\d{1,10}", "checksum", "tensorstore"),
    _damaged(_REFUSED + r"sha256 of [^\n]{1,300} differs", "checksum", "safetensors"),
    _damaged(_REFUSED + r"unreadable: ", "structure", "safetensors"),
)
#: What any reader of any stream says (a parent process that died, a download): only where a checkpoint is named.
OF_ANY_STREAM: Final = (
    _damaged(r"UnpicklingError: pickle data was truncated|EOFError: Ran out of input", "length", "pickle"),
    _damaged(r"BadGzipFile: (?:CRC check failed|Incorrect length of data)", "checksum", "gzip"),
    _damaged(r"BadGzipFile: Not a gzipped file", "structure", "gzip"),
    _damaged(r"Compressed file ended before the end-of-stream marker was reached", "length", "gzip"),
    _damaged(r"Error -3 while decompressing data: incorrect data check", "checksum", "zlib"),
    _damaged(r"Error -3 while decompressing data: ", "structure", "zlib"),
    _damaged(r"Error -5 while decompressing data: ", "length", "zlib"),
    _damaged(r"LZMAError: Corrupt input data", "checksum", "lzma"),
    _damaged(r"LZMAError: Compressed data ended before the end-of-stream marker", "length", "lzma"),
    _damaged(r"LZ4F_decompress failed with code: ERROR_\w{0,20}[cC]hecksum_invalid", "checksum", "lz4"),
    _damaged(r"LZ4F_decompress failed with code: ERROR_", "structure", "lz4"),
    _damaged(r"zstd decompress error: Restored data doesn't match checksum", "checksum", "zstd"),
    _damaged(r"zstd decompress error: ", "structure", "zstd"),
    _damaged(r"mmap length is greater than file size", "length", "numpy"),
)


def read(record: LogRecord) -> Finding | None:
    """What a reader that found a checkpoint damaged says; nothing of a stream that need not be one."""
    finding = first(WORDINGS, record, family="checkpoint_damage")
    if finding is None and CHECKPOINT.search(record.text[:LOOKED_AT]):
        finding = first(OF_ANY_STREAM, record, family="checkpoint_damage")
    return finding


#: All ranks read the same checkpoint, and a run that resumes may refuse several, one after another.
FAMILIES: Final = (Family("checkpoint_damage", gap_s=30.0, any_device=True),)
