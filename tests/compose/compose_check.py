"""The compose file and the Dockerfile as Docker's own code reads them: `go/main.go`, built once for each state."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, Final

from lab.missing import MissingError

ROOT: Final = Path(__file__).resolve().parents[2]
MODULE: Final = Path(__file__).resolve().parent / "go"
#: Services that this project builds, by image without its tag: the Dockerfile's target of each.
OURS: Final = {"gpuchaos-stream/worker": "worker", "gpuchaos-stream/agent": "agent"}


@cache
def program() -> Path:
    """The checker, built if it is not there: half a minute of processor time.

    Raises:
        MissingError: it is not there, and Go is not either.
    """
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((MODULE / name).read_bytes())
    cached = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpuchaos"
    built = cached / f"compose-{digest.hexdigest()[:16]}"
    go = shutil.which("go") or shutil.which("/usr/local/go/bin/go")
    if built.is_file():
        return built
    if go is None:
        raise MissingError("Go is not installed: Docker's reader of compose files is built from its module")
    cached.mkdir(parents=True, exist_ok=True)
    with built.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not built.is_file():
            made = built.with_suffix(".new")
            command = [go, "build", "-trimpath", "-buildvcs=false", "-ldflags=-s -w", "-o", str(made), "."]
            subprocess.run(
                command, cwd=MODULE, env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"}, check=True
            )
            made.replace(built)
    return built


def check(*words: str) -> tuple[int, str]:
    """Exit status and what it says: JSON, or the error."""
    # What a person has set for compose, or for the stack, is not the stack's.
    bare = {name: value for name, value in os.environ.items() if name in ("PATH", "HOME")}
    done = subprocess.run([program(), *words], cwd=ROOT, env=bare, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout if done.returncode == 0 else done.stderr


def read(*words: str) -> dict[str, Any]:
    """What it read."""
    status, said = check(*words)
    assert status == 0, said
    found: dict[str, Any] = json.loads(said)
    return found


@cache
def project() -> dict[str, Any]:
    """The compose file: `services`, `networks`, `volumes`. Paths are whole, anchors and variables resolved."""
    return read("compose", "docker-compose.yml")


@cache
def dockerfile() -> dict[str, Any]:
    """The Dockerfile: `stages` with their `Commands`, and `warnings`."""
    return read("dockerfile", "Dockerfile")


def image_of(service: dict[str, Any]) -> str:
    """Its image without the tag."""
    return str(service["image"]).rpartition(":")[0]
