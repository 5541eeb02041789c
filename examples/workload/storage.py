"""All that touches the checkpoints' volume, in a process of its own: a volume that hangs holds it, not the training.

    python -m workload.storage FOLDER KEEP CHECKSUMS

Frames on stdin and stdout: 4 bytes of length, JSON, and `size` bytes. `save` writes a checkpoint whole (another name,
fsync, rename), `load` gives the newest good one and names those that it refused, `check` says which are good.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import struct
import sys
import time
from pathlib import Path
from typing import IO, Any

from workload.tensors import digests, unpack

MODEL = "model.safetensors"
MANIFEST = "manifest.json"
#: A link to the newest one.
LATEST = "latest"


class Checkpoints:
    """The checkpoints in one folder, named by their step."""

    def __init__(self, folder: Path, keep: int, *, checksums: bool) -> None:
        self._folder = folder
        self._keep = keep
        self._checksums = checksums
        self._parent = os.getppid()

    def save(self, meta: dict[str, Any], content: bytes) -> str:
        """Writes one and drops those beyond `keep`.

        Raises:
            OSError: it could not be written; nothing of it is left under its name.
        """
        step = int(meta["step"])
        final = self._folder / f"step-{step:08d}"
        beside = self._folder / f".saving-{os.getpid()}-{final.name}"
        manifest = {**meta, "time": time.time(), "bytes": len(content), "tensors": digests(content)}
        manifest["sha256"] = _own_digest(manifest)
        try:
            beside.mkdir(parents=True)
            _write(beside / MODEL, content)
            _write(beside / MANIFEST, json.dumps(manifest, indent=1).encode())
            _sync(beside)
            self._publish(beside, final)
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(final / MODEL)) from error  # the name that others know
        finally:
            with contextlib.suppress(OSError):
                for left in self._folder.glob(".[so]*-step-*"):
                    shutil.rmtree(left, ignore_errors=True)
        for old in self.all()[: -self._keep]:
            gone = self._folder / f".old-{os.getpid()}-{old.name}"
            with contextlib.suppress(OSError):
                old.rename(gone)  # at once, so that nobody finds half of it
                shutil.rmtree(gone)
        return final.name

    def _publish(self, beside: Path, final: Path) -> None:
        if os.getppid() != self._parent:  # nobody waits any more: the volume hung for too long
            raise OSError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT))
        if final.exists():  # of an earlier attempt: the same step is the same content, unless it was damaged
            final.rename(self._folder / f".old-{os.getpid()}-{final.name}")
        beside.rename(final)
        link = self._folder / f".old-{os.getpid()}-{LATEST}"
        link.unlink(missing_ok=True)
        link.symlink_to(final.name)
        link.replace(self._folder / LATEST)
        _sync(self._folder)

    def all(self) -> list[Path]:
        """Those that are there, the oldest first."""
        try:
            names = sorted(entry.name for entry in self._folder.iterdir() if entry.name.startswith("step-"))
        except FileNotFoundError:
            return []
        return [self._folder / name for name in names]

    def load(self, before: int | None = None) -> tuple[dict[str, Any], bytes]:
        """The newest one that is good, and `refused` ones newer than it. `before`: only of earlier steps.

        Raises:
            OSError: the volume cannot be read.
        """
        refused: list[dict[str, str]] = []
        for path in reversed(self.all()):
            if before is not None and int(path.name.removeprefix("step-")) >= before:
                continue
            try:
                content, manifest = (path / MODEL).read_bytes(), json.loads((path / MANIFEST).read_bytes())
                why = self._fault(manifest, content)
                if not why:
                    return {"found": path.name, "manifest": manifest, "refused": refused}, content
            except (FileNotFoundError, ValueError, KeyError, TypeError) as error:
                why = f"unreadable: {error}"
            refused.append({"name": path.name, "why": why})
        return {"found": "", "manifest": {}, "refused": refused}, b""

    def check(self) -> dict[str, str]:
        """Name → what is wrong with it, empty where it is good; checksums are looked at in any case."""
        found = {}
        for path in self.all():
            try:
                manifest = json.loads((path / MANIFEST).read_bytes())
                found[path.name] = _damage(manifest, (path / MODEL).read_bytes())
            except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
                if path.exists():  # else it was dropped just now
                    found[path.name] = f"unreadable: {error}"
        return found

    def _fault(self, manifest: dict[str, Any], content: bytes) -> str:
        if self._checksums:
            return _damage(manifest, content)
        unpack(content)
        int(manifest["step"])
        return ""


def _damage(manifest: dict[str, Any], content: bytes) -> str:
    if manifest.get("sha256") != _own_digest(manifest):
        return "sha256 of its manifest differs"
    found = digests(content)
    differing = [name for name, digest in manifest["tensors"].items() if found.get(name) != digest]
    return f"sha256 of {', '.join(differing)} differs" if differing else ""


def _own_digest(manifest: dict[str, Any]) -> str:
    rest = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


def _write(path: Path, content: bytes) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(content)
        while view:
            view = view[os.write(fd, view) :]
        os.fsync(fd)
    finally:
        os.close(fd)


def _sync(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def put(stream: IO[bytes], head: dict[str, Any], content: bytes = b"") -> None:
    """One frame.

    Raises:
        OSError: nobody reads.
    """
    text = json.dumps({**head, "size": len(content)}).encode()
    stream.write(struct.pack("!I", len(text)) + text + content)
    stream.flush()


def get(stream: IO[bytes]) -> tuple[dict[str, Any], bytes] | None:
    """One frame; None at the end."""
    length = stream.read(4)
    if len(length) < 4:
        return None
    head = json.loads(stream.read(struct.unpack("!I", length)[0]))
    return head, stream.read(head["size"])


def main() -> int:
    """Answers until nobody asks."""
    checkpoints = Checkpoints(Path(sys.argv[1]), int(sys.argv[2]), checksums=sys.argv[3] == "yes")
    while (frame := get(sys.stdin.buffer)) is not None:
        asked, content = frame
        reply: dict[str, Any] = {}
        back = b""
        try:
            if asked["do"] == "save":
                reply = {"saved": checkpoints.save(asked["meta"], content)}
            elif asked["do"] == "load":
                reply, back = checkpoints.load(asked.get("before"))
            else:
                reply = {"checked": checkpoints.check()}
        except OSError as error:
            reply = {"errno": error.errno, "path": str(error.filename or sys.argv[1])}
        try:
            put(sys.stdout.buffer, reply, back)
        except BrokenPipeError:
            os._exit(0)  # the asker is gone; nothing is left to flush
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
