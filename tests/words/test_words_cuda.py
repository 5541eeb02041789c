# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import one, said

from gpuchaos_stream.events.base import Severity


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("RuntimeError: CUDA error: uncorrectable ECC error encountered", "gpu_ecc_dbe"),
        (
            "torch.AcceleratorError: CUDA error: uncorrectable NVLink error detected during the execution",
            "gpu_nvlink_error",
        ),
        ("n1:7:8 [1] enqueue.cc:1 NCCL WARN Cuda failure 214 'uncorrectable ECC error encountered'", "gpu_ecc_dbe"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "gpu_mmu_fault"),
        ("RuntimeError: CUDA error: unspecified launch failure", "gpu_engine_exception"),
        ("RuntimeError: CUDA error: device-side assert triggered", "worker_failed"),
        ("Error 802: CUDA error: system not yet initialized", "gpu_init_failed"),
        ("docs: an illegal memory access was encountered when CUDA kernels are wrong", "none"),
        ("CUDA graphs captured", "none"),
        ("Setting CUDA_VISIBLE_DEVICES=0", "none"),
    ],
)
def test_errors_are_read_by_their_words(text: str, fault: str) -> None:
    assert said(text) == fault


def test_a_device_that_is_busy_or_unavailable_needs_a_reset() -> None:
    found = one("CUDA error: CUDA-capable device(s) is/are busy or unavailable")
    assert (found.fault, found.severity) == ("gpu_reset_required", Severity.CRITICAL)


def test_memory_that_was_asked_for_in_vain_is_the_applications_affair() -> None:
    found = one(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a total capacity of 79.11 GiB "
        "of which 1.20 GiB is free."
    )
    assert found.fault == "app_out_of_memory"
    assert (found.evidence["gpu_index"], found.evidence["wanted"], found.evidence["scope"]) == (3, "2.50 GiB", "app")
