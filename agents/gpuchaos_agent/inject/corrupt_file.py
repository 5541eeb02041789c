"""`memory-corruption` with `plane: file`: bits flipped in a checkpoint or tensor file, and flipped back.

Which bytes, and what they were, is in the journal before. The file is found again wherever it was moved to
(`lost_file`); what the job has written anew is never touched: a byte is put back only where it is as we left it and so
are the bytes around it. Contents change and nothing else: length, owner and mode stay, and the time of the last change
is put back (a disk that flips bits sets no clock either); only the inode's own change time tells, and a mark for other
faults (`file_mark`).
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shlex
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import structlog

from gpuchaos_agent.inject import file_mark, file_systems, lost_file, tensor_files
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.tensor_files import NotUnderstoodError, Region, Tensors
from gpuchaos_agent.journal import JournalEntry

_log = structlog.get_logger(__name__)

#: Smaller files are no checkpoints, bytes.
SMALLEST: Final = 64
#: Up to this size the whole file's SHA-256 is taken, bytes: a quarter of a second; of larger ones the blocks hit.
_WHOLE: Final = 256 << 20
_BLOCK: Final = 1 << 20
#: So many bytes on each side of a flipped one tell whether it is still the same content.
_AROUND: Final = 32
_CHUNK: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Flip:
    """One byte: where it is, what it was, what it is with the bits flipped, and the bytes around it (hexadecimal)."""

    offset: int
    before: int
    after: int
    around: str


def unavailable(env: Env) -> str | None:
    """Why no file of this node may be changed, or None."""
    return None if env.corruptible else "the agent's settings name no folder (corruptible) whose files may be changed"


def resolved(path: str) -> Path:
    """Where the file really is: `latest.pt` is a link in many a folder."""
    return Path(path).resolve()


def why_not(env: Env, path: str, bits: int, region: str) -> str | None:
    """Why bits of this file cannot be flipped, or None. Changes nothing."""
    if reason := unavailable(env):
        return reason
    if not path.startswith("/"):
        return f"path must be absolute, and {path} is not"
    try:
        with _open(env, resolved(path), os.O_RDWR) as file:
            if (held := file_mark.refusal(file)) is not None:
                return f"{path}: {held}"
            length = sum(part.length for part in _regions(file, region).regions)
    except (InjectError, NotUnderstoodError) as error:
        return str(error)
    return f"{path} has {length} bytes of {region}, too few for {bits} bits" if bits > length * 8 else None


def plan(env: Env, path: str, bits: int, region: str, seed: int) -> Payload:
    """Which bits, by the seed, and what the file was.

    Raises:
        InjectError: it has changed since the check.
    """
    real = resolved(path)
    try:
        with _open(env, real, os.O_RDONLY) as file:
            tensors = _regions(file, region)
            chosen = _choose(tensors, bits, random.Random(seed))
            flips = [_flip(file, offset, mask) for offset, mask in sorted(chosen.items())]
            told = os.fstat(file)
            whole = told.st_size <= _WHOLE
            return {
                **lost_file.planned(file, _root(env, real), env),
                "size": told.st_size,
                "mtime_ns": told.st_mtime_ns,
                "format": tensors.kind,
                "seed": seed,
                "bits": bits,
                "flips": json.dumps([[flip.offset, flip.before, flip.after, flip.around] for flip in flips]),
                "tensors": ", ".join(dict.fromkeys(_named(tensors, flip.offset) for flip in flips))[:1000],
                "sha256": _sha256(file, None if whole else flips),
                "sha256_of": "file" if whole else f"the blocks of {_BLOCK} bytes that are hit",
            }
    except NotUnderstoodError as error:
        raise InjectError(f"{path}: {error}") from error


def commands(entry: JournalEntry) -> tuple[str, ...]:
    """One `dd` a byte, there and back. Without a seed the bits are drawn for each fault, and it says so."""
    path = shlex.quote(str(entry.payload.get("path")))
    flips = _flips(entry)
    drawn = entry.params.get("seed") is None
    note = f"  # drawn for this fault; another draws others: seed={entry.payload.get('seed')} repeats this"
    return tuple(
        f"printf '\\x{value:02x}' | dd of={path} bs=1 seek={flip.offset} count=1 conv=notrunc{note if drawn else ''}"
        for values in ("after", "before")
        for flip in flips
        for value in (getattr(flip, values),)
    )


def inject(env: Env, entry: JournalEntry) -> None:
    """Marks exactly the file of the plan, and flips the bits.

    Raises:
        InjectError: it is another file now, its bytes are others, or another fault has flipped some.
    """
    path = Path(str(entry.payload["path"]))
    with _open(env, path, os.O_RDWR) as file:
        told = os.fstat(file)
        planned = entry.payload.get("inode"), entry.payload.get("size")
        if (told.st_ino, told.st_size) != planned or not file_systems.is_on(path, entry.payload, env):
            raise InjectError(f"{path} has been replaced since it was looked at")
        file_mark.take(file, entry.fault_id)
        flips = _flips(entry)
        if any(_byte(file, flip.offset) != flip.before for flip in flips):
            raise InjectError(f"{path} has been written since it was looked at")
        _write(file, {flip.offset: flip.after for flip in flips})


def evidence(env: Env, entry: JournalEntry) -> Evidence:
    """The bytes that differ, as the file system gives them to anybody, and the file's SHA-256 now."""
    flips = _flips(entry)
    with _found(env, entry, os.O_RDONLY) as file:
        if file is None:
            return Evidence(moved=False, detail={"path": None})
        path = Path(f"/proc/self/fd/{file}").readlink()
        differing = [flip for flip in flips if _byte(file, flip.offset) == flip.after]
        digest = _sha256(file, None if entry.payload.get("sha256_of") == "file" else flips)
    detail: Payload = {
        "path": str(path),
        "format": entry.payload.get("format"),
        "bytes_differing": len(differing),
        "bits_flipped": sum((flip.before ^ flip.after).bit_count() for flip in differing),
        "offsets": ",".join(str(flip.offset) for flip in differing),
        "tensors": entry.payload.get("tensors"),
        "sha256_before": entry.payload.get("sha256"),
        "sha256": digest,
    }
    return Evidence(len(differing) == len(flips) and digest != entry.payload.get("sha256"), detail)


def undo(env: Env, entry: JournalEntry) -> None:
    """Puts back the bytes that are as we left them. A file that was deleted, or written anew, is the job's.

    Raises:
        InjectError: the file is not to be found or not to be written now, or another fault's flips are in it.
    """
    with _found(env, entry, os.O_RDWR) as file:
        if file is None:
            file_mark.forget(Path(str(entry.payload.get("path"))), entry.payload.get("inode"), entry.fault_id)
            return
        if (reason := _others(file, entry)) is None:
            _write(file, {flip.offset: flip.before for flip in _standing(file, entry)})
            _set_time_back(file, entry)
            reason = _untold(file, entry)
        if reason is not None:
            raise InjectError(f"{entry.payload.get('path')}: {reason}")
        file_mark.release(file, entry.fault_id)
        strange = [str(flip.offset) for flip in _flips(entry) if _byte(file, flip.offset) not in (flip.before, None)]
        if strange:
            _log.warning(
                "bytes are neither flipped nor as before: the job wrote them",
                path=entry.payload.get("path"),
                offsets=",".join(strange),
            )


def verify(env: Env, entry: JournalEntry) -> bool:
    """No byte is as we left it: each is as it was, or the job has written it, or the file was deleted."""
    with _found(env, entry, os.O_RDONLY) as file:
        if file is None:
            return True
        held = file_mark.holder(file)
        if held is not None and held[0] == entry.fault_id:
            return False
        return not (_others(file, entry) or _untold(file, entry) or list(_standing(file, entry)))


# Choosing


def _regions(file: int, region: str) -> Tensors:
    size = os.fstat(file).st_size
    if region == "any":
        kind = "any"
        with suppress(NotUnderstoodError):
            kind = tensor_files.read(file).kind
        return Tensors(kind, (Region("file", 0, size),))
    found = tensor_files.read(file)
    if not found.regions:
        why = f"its {found.deflated} arrays are deflated" if found.deflated else "it has none"
        raise NotUnderstoodError(f"no weight's bits can be flipped in it: {why}; region: any takes every byte")
    return found


def _choose(tensors: Tensors, bits: int, chance: random.Random) -> dict[int, int]:
    """Distinct bits, each of every tensor's bytes as likely as any other: offset → mask."""
    chosen: dict[int, int] = {}
    for number in chance.sample(range(tensors.length * 8), bits):
        left, bit = divmod(number, 8)
        for region in tensors.regions:
            if left < region.length:
                offset = region.start + left
                chosen[offset] = chosen.get(offset, 0) | 1 << bit
                break
            left -= region.length
    return chosen


def _named(tensors: Tensors, offset: int) -> str:
    return next((one.name for one in tensors.regions if one.start <= offset < one.start + one.length), "")


# The file


@contextmanager
def _open(env: Env, path: Path, flags: int) -> Iterator[int]:
    """The regular file at a path without links, open; below one of the folders in which files may be changed."""
    try:
        with _opened(path, flags) as file:
            told = os.fstat(file)
            # As the kernel has it: a folder on the way may have become a link.
            _root(env, Path(f"/proc/self/fd/{file}").readlink())
            if not stat.S_ISREG(told.st_mode):
                raise InjectError(f"{path} is no regular file")
            if told.st_nlink != 1:
                raise InjectError(f"{path} has {told.st_nlink} names: another of them may be elsewhere")
            if told.st_mode & (stat.S_ISUID | stat.S_ISGID):
                raise InjectError(f"{path} runs with its owner's rights, which writing would take from it")
            if told.st_size < SMALLEST:
                raise InjectError(f"{path} has {told.st_size} bytes, and {SMALLEST} are the least")
            yield file
    except OSError as error:
        raise InjectError(f"{path}: {error.strerror}") from error


@contextmanager
def _opened(path: Path, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        yield file
    finally:
        os.close(file)


def _root(env: Env, path: Path) -> Path:
    """The folder of the settings that a path without links is below."""
    roots = (folder.resolve() for folder in env.corruptible)
    found = next((root for root in roots if path.is_relative_to(root)), None)
    if found is None:
        raise InjectError(f"{path} is in none of the folders whose files may be changed (corruptible)")
    return found


def _found(env: Env, entry: JournalEntry, flags: int) -> AbstractContextManager[int | None]:
    return lost_file.found(env, entry, flags, lambda file: any(_standing(file, entry)))


def _others(file: int, entry: JournalEntry) -> str | None:
    """Why nothing may be put back while another fault's mark is on the file, or None."""
    if all(_byte(file, flip.offset) in (flip.before, None) for flip in _flips(entry)):
        return None
    return file_mark.refusal(file, entry.fault_id)


def _untold(file: int, entry: JournalEntry) -> str | None:
    """Why bytes are not as before although nobody has written the file: that leaves no time only if a fault did it."""
    if os.fstat(file).st_mtime_ns != entry.payload.get("mtime_ns"):
        return None
    strange = [flip.offset for flip in _flips(entry) if _byte(file, flip.offset) not in (flip.before, None)]
    if not strange:
        return None
    return f"bytes at {', '.join(map(str, strange))} are as nobody has written them: another fault's flips are there"


def _standing(file: int, entry: JournalEntry) -> Iterator[Flip]:
    """The flips that are there: the byte as we left it, amid the bytes that were around it, as far as there are any."""
    flips = _flips(entry)
    left = {flip.offset: flip for flip in flips}
    size = entry.payload.get("size")
    for flip in flips:
        around = _around(file, flip.offset, left, size if isinstance(size, int) else None)
        if _byte(file, flip.offset) == flip.after and flip.around.startswith(around):
            yield flip


def _flip(file: int, offset: int, mask: int) -> Flip:
    before = _byte(file, offset) or 0
    return Flip(offset, before, before ^ mask, _around(file, offset, {}, None))


def _around(file: int, offset: int, flips: Mapping[int, Flip], size: int | None) -> str:
    """The bytes around an offset, without its own and with flipped neighbours as they were; below `size` alone."""
    start = max(0, offset - _AROUND)
    end = offset + _AROUND + 1 if size is None else min(size, offset + _AROUND + 1)
    found = bytearray(os.pread(file, end - start, start))
    for at, flip in flips.items():
        if start <= at < start + len(found) and found[at - start] == flip.after:
            found[at - start] = flip.before
    if offset - start < len(found):
        found[offset - start] = 0
    return found.hex()


def _byte(file: int, offset: int) -> int | None:
    found = os.pread(file, 1, offset)
    return found[0] if found else None


def _write(file: int, values: Mapping[int, int]) -> None:
    """Writes single bytes, through to the disk, and leaves the time of the last change as it was."""
    told = os.fstat(file)
    for offset, value in values.items():
        os.pwrite(file, bytes([value]), offset)
    if values:
        os.fsync(file)
        with suppress(OSError):  # not its owner and not root
            os.utime(file, ns=(told.st_atime_ns, told.st_mtime_ns))


def _set_time_back(file: int, entry: JournalEntry) -> None:
    """Where an agent was killed between bytes and time: if all of the file is as it was, so is its time.

    Of a file of which only blocks are known, somebody may have written elsewhere: its time stays.
    """
    told, before = os.fstat(file), entry.payload.get("mtime_ns")
    if not isinstance(before, int) or told.st_mtime_ns == before or entry.payload.get("sha256_of") != "file":
        return
    if _sha256(file, None) == entry.payload.get("sha256"):
        with suppress(OSError):  # not its owner and not root
            os.utime(file, ns=(told.st_atime_ns, before))


def _sha256(file: int, blocks: Iterable[Flip] | None) -> str:
    """Of the whole file, or of the blocks that these flips are in."""
    digest = hashlib.sha256()
    size = os.fstat(file).st_size
    starts = range(0, size, _CHUNK) if blocks is None else sorted({flip.offset // _BLOCK * _BLOCK for flip in blocks})
    for start in starts:
        digest.update(os.pread(file, _CHUNK, start))
    return digest.hexdigest()


def _flips(entry: JournalEntry) -> list[Flip]:
    flips = [Flip(*one) for one in json.loads(str(entry.payload.get("flips") or "[]"))]
    if any(not isinstance(flip.around, str) for flip in flips):
        by_hand = ", ".join(f"{flip.before:#04x} at byte {flip.offset}" for flip in flips)
        raise InjectError(f"journalled by another version: write {by_hand} of {entry.payload.get('path')} by hand")
    return flips
