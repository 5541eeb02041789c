"""The log, in the forms of PyTorch (`ProcessGroupNCCL.cpp`, torch elastic) and of NCCL (`misc/socket.cc`)."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from dataclasses import dataclass
from typing import Final

_API: Final = "torch/distributed/elastic/multiprocessing/api.py"
_AGENT: Final = "torch/distributed/elastic/agent/server/api.py"
_HOST: Final = socket.gethostname()


def say(text: str) -> None:
    """One or more lines into the log, each write whole. A log that cannot be written stops nothing."""
    data = "".join(f"{line}\n" for line in text.splitlines()).encode()
    with contextlib.suppress(OSError):
        os.write(1, data)


def error_text(error: OSError) -> str:
    """As Python prints it, the errno and the path included."""
    return f"{type(error).__name__}: {error}"


class Refrain:
    """Says a thing again only where it changed, or after some seconds."""

    def __init__(self, every: float = 2.0) -> None:
        self._every = every
        self._last: tuple[str, float] = ("", 0.0)

    def say(self, text: str, key: str = "") -> None:
        """Says `text`, unless what `key` names was said just now."""
        now = time.monotonic()
        if (key or text) != self._last[0] or now - self._last[1] > self._every:
            self._last = (key or text, now)
            say(text)


@dataclass(frozen=True, slots=True)
class Work:
    """One collective under way. `started`: of the monotonic clock."""

    seq: int
    op: str
    numel: int
    started: float


def timed_out(rank: int, work: Work, timeout: float, ran: float, lagging: list[int]) -> str:
    """What the watchdog says before it ends the process."""
    caught = (
        f"[Rank {rank}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={work.seq}, OpType={work.op}, "
        f"NumelIn={work.numel}, NumelOut={work.numel}, Timeout(ms)={timeout * 1000:.0f}) "
        f"ran for {ran * 1000:.0f} milliseconds before timing out."
    )
    group = f"[PG ID 0 PG GUID 0(default_pg) Rank {rank}]"
    status = (
        f"{_head(rank, 'E', 2268)} {group}  failure detected by watchdog at work sequence id: {work.seq} PG status: "
        f"last enqueued work: {work.seq}, last completed work: {work.seq - 1}"
    )
    behind = (
        f"\t - To our best knowledge, ranks [{', '.join(map(str, lagging))}] are the lagging ranks that caused this "
        "timeout. They never joined any collectives"
    )
    some = (
        f"{_head(rank, 'E', 681)} [Rank {rank}] Some NCCL operations have failed or timed out. Due to the asynchronous "
        "nature of CUDA kernels, subsequent GPU operations might run on corrupted/incomplete data."
    )
    down = f"{_head(rank, 'E', 695)} [Rank {rank}] To avoid data inconsistency, we are taking the entire process down."
    lines = [f"{_head(rank, 'E', 632)} {caught}", status, *([behind] if lagging else []), some, down]
    lines += [
        "terminate called after throwing an instance of 'c10::DistBackendError'",
        f"  what():  {group} Process group watchdog thread terminated with exception: {caught}",
    ]
    return "\n".join(lines)


def peer_lost(rank: int, what: str, line: int) -> str:
    """NCCL's warning, and the exception that PyTorch makes of it."""
    me = f"[rank{rank}]:"
    tid = threading.get_native_id()
    error = (
        f"{me} torch.distributed.DistBackendError: NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:"
        "2251, remote process exited or there was a network error, NCCL version 2.21.5"
    )
    remote = (
        f"{me} ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely."
    )
    warned = f"{_HOST}:{os.getpid()}:{tid} [{rank}] misc/socket.cc:{line} NCCL WARN {what}"
    return "\n".join((warned, error, remote, f"{me} Last error:", f"{me} {what}"))


def not_joined(rank: int, host: str, port: int, waited: float) -> str:
    """A peer that could not be connected to."""
    return (
        f"[rank{rank}]: torch.distributed.DistNetworkError: The client socket has timed out after "
        f"{waited * 1000:.0f}ms while trying to connect to ({host}, {port})."
    )


def worker_failed(rank: int, pid: int, code: int, binary: str) -> str:
    """The launcher of a worker that ended by itself."""
    return f"{_glog('E')} {_API}:874] failed (exitcode: {code}) local_rank: {rank} (pid: {pid}) of binary: {binary}"


def closing(pid: int) -> str:
    """The launcher stops a worker that is left."""
    return f"{_glog('W')} {_API}:900] Sending process {pid} closing signal SIGTERM"


def forced(pid: int) -> str:
    """A worker that did not end."""
    return (
        f"{_glog('W')} {_API}:919] Unable to shutdown process {pid} via Signals.SIGTERM, forcefully exiting via "
        "Signals.SIGKILL"
    )


def restarting(left: int, most: int, wait: float) -> str:
    """The group is started again."""
    return (
        f"{_glog('I')} {_AGENT}:912] [default] Worker group FAILED. {left}/{most} attempts left; will restart worker "
        f"group in {wait:.1f} s"
    )


def gave_up(rank: int, pid: int, code: int) -> str:
    """The last words of a launcher that has no attempts left."""
    stamp = time.strftime("%Y-%m-%d_%H:%M:%S")
    return "\n".join(
        (
            "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: ",
            "=" * 60,
            "workload FAILED",
            "-" * 60,
            "Root Cause (first observed failure):",
            "[0]:",
            f"  time      : {stamp}",
            f"  host      : {_HOST}",
            f"  rank      : {rank} (local_rank: {rank})",
            f"  exitcode  : {code} (pid: {pid})",
            "  error_file: <N/A>",
            "=" * 60,
        )
    )


def launcher(text: str, level: str = "I") -> str:
    """Anything else the launcher says."""
    return f"{_glog(level)} {_AGENT}:880] [default] {text}"


def _head(rank: int, level: str, line: int) -> str:
    now = time.time_ns()
    at = time.localtime(now // 1_000_000_000)
    stamp = f"{at.tm_mon}{at.tm_mday:02d} {time.strftime('%H:%M:%S', at)}.{now % 1_000_000_000:09d}"
    return f"[rank{rank}]:[{level}{stamp} ProcessGroupNCCL.cpp:{line}]"


def _glog(level: str) -> str:
    now = time.time_ns()
    at = time.localtime(now // 1_000_000_000)
    return f"{level}{time.strftime('%m%d %H:%M:%S', at)}.{now // 1000 % 1_000_000:06d} {os.getpid()}"
