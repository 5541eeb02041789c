"""Asking the storage process, never for longer than a volume may take."""

from __future__ import annotations

import contextlib
import errno
import os
import queue
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from workload.lines import error_text, say
from workload.settings import environment, write_json
from workload.storage import get, put


class Volume:
    """The checkpoints' volume through a process that can be given up."""

    def __init__(self, folder: Path, keep: int, *, checksums: bool, timeout: float) -> None:
        self._folder = folder
        self._command = [
            *(sys.executable, "-m", "workload.storage", str(folder), str(keep)),
            "yes" if checksums else "no",
        ]
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None
        self._given_up: list[subprocess.Popen[bytes]] = []

    def ask(self, question: dict[str, Any], content: bytes = b"") -> tuple[dict[str, Any], bytes]:
        """The answer.

        Raises:
            OSError: as the volume said it, ETIMEDOUT where it said nothing in time.
        """
        process = self._process or self._start()
        answers: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None] = queue.SimpleQueue()
        threading.Thread(target=_exchange, args=(process, question, content, answers), daemon=True).start()
        try:
            answer = answers.get(timeout=self._timeout)
        except queue.Empty:
            self._give_up()
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), str(self._folder)) from None
        if answer is None:
            self._give_up()
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(self._folder))
        if "errno" in answer[0]:
            raise OSError(answer[0]["errno"], os.strerror(answer[0]["errno"]), answer[0]["path"])
        return answer

    def close(self) -> None:
        """Ends the process."""
        if self._process is not None:
            self._give_up()

    def _start(self) -> subprocess.Popen[bytes]:
        self._given_up = [process for process in self._given_up if process.poll() is None]
        if self._given_up:  # one that hangs is enough: it shows that nothing changed
            raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT), str(self._folder))
        self._process = subprocess.Popen(
            self._command, env=environment(), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        return self._process

    def _give_up(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)
            self._given_up.append(process)


def _exchange(
    process: subprocess.Popen[bytes],
    question: dict[str, Any],
    content: bytes,
    answers: queue.SimpleQueue[tuple[dict[str, Any], bytes] | None],
) -> None:
    answer = None
    with contextlib.suppress(OSError, ValueError):
        if process.stdin is not None and process.stdout is not None:
            put(process.stdin, question, content)
            answer = get(process.stdout)
    answers.put(answer)


class Saver:
    """Saves checkpoints beside the training; one at a time, and one that fails stops nothing."""

    def __init__(self, volume: Volume, stats: Path, rank: int) -> None:
        self._volume = volume
        self._stats_file = stats
        self._rank = rank
        self._jobs: queue.Queue[tuple[dict[str, Any], bytes] | None] = queue.Queue(maxsize=1)
        self._stats: dict[str, Any] = {"saved": 0, "failed": 0, "skipped": 0, "last_step": 0, "last_error": ""}
        self._failing = 0
        self._thread = threading.Thread(target=self._run, name="saver", daemon=True)
        self._thread.start()

    def save(self, meta: dict[str, Any], content: bytes) -> None:
        """Hands one over; where the last one is still being written, this one is left out."""
        try:
            self._jobs.put_nowait((meta, content))
        except queue.Full:
            self._stats["skipped"] += 1
            say(f"[rank{self._rank}]: checkpoint step={meta['step']} left out: the one before is still being written")

    def finish(self, timeout: float) -> None:
        """Waits for what was handed over."""
        self._jobs.put(None)
        self._thread.join(timeout)
        self._volume.close()

    def _run(self) -> None:
        while (job := self._jobs.get()) is not None:
            self._save(*job)
            with contextlib.suppress(OSError):
                write_json(self._stats_file, self._stats)

    def _save(self, meta: dict[str, Any], content: bytes) -> None:
        begun = time.monotonic()
        try:
            name = self._volume.ask({"do": "save", "meta": meta}, content)[0]["saved"]
        except OSError as error:
            self._failing += 1
            self._stats |= {"failed": self._stats["failed"] + 1, "last_error": error_text(error)}
            say(
                f"[rank{self._rank}]: Traceback (most recent call last): saving checkpoint step={meta['step']}\n"
                f"[rank{self._rank}]: {error_text(error)}\n"
                f"[rank{self._rank}]: checkpoint step={meta['step']} could not be saved; training goes on"
            )
            return
        after = f" (after {self._failing} that failed)" if self._failing else ""
        self._failing = 0
        self._stats |= {"saved": self._stats["saved"] + 1, "last_step": meta["step"], "last_error": ""}
        say(f"[rank{self._rank}]: saved checkpoint {name} in {time.monotonic() - begun:.3f} s{after}")
