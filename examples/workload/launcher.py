"""Starts the ranks, and all of them again where one ends: an elastic launcher, in torchrun's words."""

from __future__ import annotations

import contextlib
import fcntl
import os
import random
import select
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Final

from workload import lines
from workload.authority import Authority, renew
from workload.settings import Folder, Settings, environment, read_json, write_json

_LOOK_S: Final = 0.2
#: How long ranks that are left over have to end, and how long a killed one may take.
_GRACE_S: Final = 1.0
_KILLED_S: Final = 2.0
_LONGEST_WAIT_S: Final = 10.0
_LIVED_S: Final = 10.0


class BusyError(Exception):
    """The folder is another launcher's."""


@dataclass(frozen=True, slots=True)
class _Failure:
    rank: int
    pid: int
    code: int


class Launcher:
    """One run in one folder."""

    def __init__(self, folder: Folder, settings: Settings) -> None:
        self._folder = folder
        self._settings = settings
        self._stopping = self._resuming = False
        self._processes: list[subprocess.Popen[bytes]] = []
        folder.make()
        self._lock = folder.lock.open("w")
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise BusyError(f"{folder.path} is the folder of a run that is going on") from None
        folder.tell(settings)
        before = read_json(folder.state_file)
        self._state: dict[str, Any] = {
            "run": before.get("run") or uuid.uuid4().hex[:12],
            "state": "starting",
            "pid": os.getpid(),
            "attempt": before.get("attempt", 0),
            "restarts": before.get("restarts", 0),
            "port": settings.port or _free_ports(settings),
            "ranks": [],
            "last_failure": before.get("last_failure", ""),
        }
        self._authority = Authority(folder.tls, settings.cert_lifetime) if settings.tls else None

    @property
    def port(self) -> int:
        """Port of rank 0; rank N's is N higher."""
        return int(self._state["port"])

    def run(self) -> int:
        """Until the last step, a stop, or no attempts are left. Returns the exit status."""
        signal.signal(signal.SIGTERM, self._on_stop)
        signal.signal(signal.SIGINT, self._on_stop)
        signal.signal(signal.SIGHUP, self._on_hup)
        signal.signal(signal.SIGUSR1, self._on_resume)
        self._folder.pid("launcher").write_text(f"{os.getpid()}\n")
        log = os.open(self._folder.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        os.dup2(log, 1)
        os.dup2(log, 2)
        if self._authority is not None:
            self._renew()
            if self._settings.renew:
                threading.Thread(target=self._keep_renewing, name="renewer", daemon=True).start()
        left, failed_at_once = self._settings.max_restarts, 0
        while True:
            begun = time.monotonic()
            failure = self._attempt()
            if self._resuming and failure is None and not self._stopping:
                self._resuming = False
                lines.say(lines.launcher("Detected 1 new nodes from group_rank 0; will restart worker group"))
                self._tell(state="restarting", restarts=self._state["restarts"] + 1)
                continue
            if failure is None or self._stopping:
                return self._end(failure)
            self._tell(last_failure=f"rank{failure.rank} ended with {failure.code}")
            if left == 0:
                lines.say(lines.gave_up(failure.rank, failure.pid, failure.code))
                self._tell(state="failed")
                return 1
            failed_at_once = 0 if time.monotonic() - begun > _LIVED_S else failed_at_once + 1
            wait = min(_LONGEST_WAIT_S, 0.25 * 2 ** min(failed_at_once, 8))
            lines.say(lines.restarting(left, self._settings.max_restarts, wait))
            left -= 1
            self._tell(state="restarting", restarts=self._state["restarts"] + 1)
            deadline = time.monotonic() + wait
            while time.monotonic() < deadline and not self._stopping:
                time.sleep(0.05)
            if self._stopping:
                return self._end(None)

    def _end(self, failure: _Failure | None) -> int:
        self._tell(state="stopped" if self._stopping else "finished", ranks=[])
        lines.say(
            lines.launcher(f"run {self._state['state']}" + (f", rank{failure.rank} not cleanly" if failure else ""))
        )
        return 0 if failure is None else 1

    def _attempt(self) -> _Failure | None:
        """One start of all ranks; what failed first, None where all ended well."""
        attempt = self._state["attempt"] + 1
        for rank in range(self._settings.ranks):
            self._folder.pid(rank).unlink(missing_ok=True)
            self._folder.heartbeat(rank).unlink(missing_ok=True)
        self._processes = [self._start(rank, attempt) for rank in range(self._settings.ranks)]
        places = [
            {"rank": rank, "pid": process.pid, "address": f"{self._settings.host(rank)}:{self.port + rank}"}
            for rank, process in enumerate(self._processes)
        ]
        self._tell(state="running", attempt=attempt, ranks=places)
        lines.say(lines.launcher(f"Worker group started: attempt {attempt}, ranks {self._settings.ranks}"))
        fds = {os.pidfd_open(process.pid): rank for rank, process in enumerate(self._processes)}
        try:
            return self._watch(fds)
        finally:
            for fd in fds:
                os.close(fd)

    def _watch(self, fds: dict[int, int]) -> _Failure | None:
        waiting = dict(fds)
        told: float | None = None
        while waiting:
            if self._stopping and told is None:
                told = time.monotonic()
                for process in self._processes:
                    process.send_signal(signal.SIGTERM)
            if self._resuming and not self._stopping:
                self._interrupt()
                return None
            if told is not None and time.monotonic() - told > 2 * self._settings.storage_timeout + 5.0:
                return self._failed(min(waiting.values()))
            ended, _, _ = select.select(list(waiting), [], [], _LOOK_S)
            for fd in ended:
                rank = waiting.pop(fd)
                if self._processes[rank].wait() != 0:
                    return self._failed(rank)
        return None

    def _interrupt(self) -> None:
        """Ends all ranks where they are, and none of them sees another one go."""
        for number in (signal.SIGSTOP, signal.SIGINT, signal.SIGCONT):
            for process in self._processes:
                process.send_signal(number)
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_KILLED_S)

    def _failed(self, rank: int) -> _Failure:
        """The first that failed ends them all."""
        process = self._processes[rank]
        code = process.poll()
        if code is not None:
            lines.say(lines.worker_failed(rank, process.pid, code, sys.executable))
        left = [each for each in self._processes if each.poll() is None]
        for each in left:
            lines.say(lines.closing(each.pid))
            each.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and any(each.poll() is None for each in left):
            time.sleep(0.02)
        for each in left:
            if each.poll() is None:
                lines.say(lines.forced(each.pid))
                each.kill()
        deadline = time.monotonic() + _KILLED_S
        for each in left:
            with contextlib.suppress(subprocess.TimeoutExpired):
                each.wait(max(0.0, deadline - time.monotonic()))
        return _Failure(rank, process.pid, process.poll() or -signal.SIGKILL)

    def _start(self, rank: int, attempt: int) -> subprocess.Popen[bytes]:
        settings = self._settings
        command = [
            *(sys.executable, "-m", "workload.rank", str(self._folder.path)),
            *(str(rank), str(attempt), str(self.port)),
        ]
        if settings.netns:
            command = ["nsenter", f"--net={Path('/run/netns') / settings.netns[rank % len(settings.netns)]}", *command]
        variables = {
            **environment(),
            **dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1"),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(settings.ranks),
            "MASTER_ADDR": settings.host(0),
            "MASTER_PORT": str(self.port),
            "TORCHELASTIC_RUN_ID": str(self._state["run"]),
            "TORCHELASTIC_RESTART_COUNT": str(self._state["restarts"]),
        }
        return subprocess.Popen(command, env=variables, stdin=subprocess.DEVNULL)

    def _keep_renewing(self) -> None:
        while True:
            time.sleep(self._settings.renew_every)
            self._renew()

    def _renew(self) -> None:
        if self._authority is not None:
            renew(self._authority, {rank: self._settings.host(rank) for rank in range(self._settings.ranks)}, self._hup)

    def _hup(self, rank: int) -> None:
        """Has a rank reload; its pid file is there once it listens to the signal."""
        with contextlib.suppress(OSError, ValueError):
            pid = int(self._folder.pid(rank).read_text())
            if pid in {process.pid for process in self._processes if process.poll() is None}:
                os.kill(pid, signal.SIGHUP)

    def _tell(self, **more: object) -> None:
        self._state |= more
        try:
            write_json(self._folder.state_file, self._state)
        except OSError as error:
            lines.say(lines.launcher(f"state not written: {lines.error_text(error)}", "W"))

    def _on_stop(self, _signal: int, _frame: FrameType | None) -> None:
        self._stopping = True

    def _on_resume(self, _signal: int, _frame: FrameType | None) -> None:
        self._resuming = True

    def _on_hup(self, _signal: int, _frame: FrameType | None) -> None:
        for rank in range(self._settings.ranks):
            self._hup(rank)


def _free_ports(settings: Settings) -> int:
    """The first of as many free ports as there are ranks; a fixed one where the ranks live in other namespaces."""
    if settings.netns:
        return 29500
    for _ in range(200):
        first = random.randrange(20000, 30000 - settings.ranks)
        with contextlib.ExitStack() as held:
            try:
                for rank in range(settings.ranks):
                    host = settings.host(rank)
                    family = socket.AF_INET6 if ":" in host else socket.AF_INET
                    one = held.enter_context(socket.socket(family, socket.SOCK_STREAM))
                    one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    one.bind((host, first + rank))
            except OSError:
                continue
        return first
    raise BusyError(f"no {settings.ranks} free ports in a row; name one with --port")
