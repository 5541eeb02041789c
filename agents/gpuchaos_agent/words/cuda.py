"""CUDA errors as programs print them (`cudaGetErrorString`, CUDA 10 to 13), and memory that was asked for in vain.

An error of CUDA is sticky: it is told by whatever call comes next, so the line in the program says nothing. It names
neither a GPU nor a link: the kernel log has them under the same pid. What an application does to itself has the
scope `app` and is no fault of the node.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import Family, Finding
from gpuchaos_agent.words.wordings import first, wording
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("CUDA", "Cuda failure", "cudaError", "OutOfMemoryError")
WRITERS: Final = frozenset({Writer.PROGRAM})

#: CUDA's words count only behind one of these: a text about an error is none.
_SAID: Final = re.compile(
    r"CUDA [Ee]rror:? |CUDA failure|Cuda failure|CUDA driver error:? |RuntimeError: CUDA|cudaError\w{3,60}"
)

WORDINGS: Final = (
    wording(
        r"CUDA out of memory\. Tried to allocate (?P<wanted>[\d.]{1,20} [KMGT]iB)"
        r"(?:[^\n]{0,40}?GPU (?P<gpu_index>\d{1,3}))?",
        "app_out_of_memory",
        action="lower_memory",
        scope="app",
    ),
    wording(
        r"CUDA out of memory|(?:CUDA error: |Cuda failure (?:\d{1,4} )?'|cudaErrorMemoryAllocation:? ?)out of memory",
        "app_out_of_memory",
        action="lower_memory",
        scope="app",
    ),
    wording(r"uncorrectable ECC error encountered", "gpu_ecc_dbe", action="drain_then_reset"),
    wording(r"uncorrectable NVLink error detected during the execution", "gpu_nvlink_error", action="read_kernel_log"),
    wording(
        r"[Ii]nvalid access of peer GPU memory over nvlink or a hardware error",
        "gpu_nvlink_contained",
        action="read_kernel_log",
    ),
    wording(
        r"CUDA-capable device\(s\) is/are busy or unavailable",
        "gpu_reset_required",
        Severity.CRITICAL,
        "drain_then_reset",
    ),
    wording(r"system not yet initialized", "gpu_init_failed", action="start_fabric_manager", cause="fabric_not_ready"),
    wording(
        r"no CUDA-capable device is detected|initialization error|unknown error",
        "gpu_init_failed",
        action="read_kernel_log",
    ),
    wording(
        r"system has unsupported display driver / cuda driver combination|driver version is insufficient",
        "gpu_driver_mismatch",
        action="update_software",
    ),
    wording(r"an illegal memory access was encountered", "gpu_mmu_fault", action="restart_app", scope="app"),
    wording(
        r"unspecified launch failure|an illegal instruction was encountered|misaligned address|"
        r"invalid program counter|hardware stack error",
        "gpu_engine_exception",
        action="restart_app",
        scope="app",
    ),
    wording(r"device-side assert triggered", "worker_failed", action="restart_app", scope="app", cause="assert"),
)


def read(record: LogRecord) -> Finding | None:
    """What CUDA says through a program."""
    finding = first(WORDINGS, record)
    if finding is None or not (_SAID.search(record.text) or finding.fault == "app_out_of_memory"):
        return None
    return replace(finding, family="cuda")


FAMILIES: Final = (Family("cuda", gap_s=30.0, any_device=True),)
