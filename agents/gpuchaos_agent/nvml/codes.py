"""What NVML's errors mean to us. Numbers are those of nvml.h, `nvmlReturn_t` (drivers 450 to 615)."""

from __future__ import annotations

from typing import Any, Final

INVALID_ARGUMENT: Final = 2
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
TIMEOUT: Final = 10
FUNCTION_NOT_FOUND: Final = 13
GPU_IS_LOST: Final = 15
RESET_REQUIRED: Final = 16
VERSION_MISMATCH: Final = 18
UNKNOWN: Final = 999

#: Asked once and not again until the driver is loaded anew: INVALID_ARGUMENT (a field that this device does not have),
#: NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND (the driver is older than the binding),
#: ARGUMENT_VERSION_MISMATCH, DEPRECATED.
UNSUPPORTED: Final = frozenset({INVALID_ARGUMENT, NOT_SUPPORTED, 4, FUNCTION_NOT_FOUND, 25, 26})
#: The library must be started anew: UNINITIALIZED, DRIVER_NOT_LOADED, LIB_RM_VERSION_MISMATCH.
RESTART: Final = frozenset({1, 9, VERSION_MISMATCH})
#: Error → fault name and first action: GPU_IS_LOST, RESET_REQUIRED.
LOSSES: Final[dict[int, tuple[str, str]]] = {
    GPU_IS_LOST: ("gpu_lost", "reboot_node"),
    RESET_REQUIRED: ("gpu_reset_required", "reset_gpu"),
}
#: Error of the start → why there are no GPUs, for a person.
NO_START: Final[dict[int, str]] = {
    1: "NVML is not initialised",
    9: "the NVIDIA driver is not loaded",
    4: "no permission to talk to the NVIDIA driver",
    12: "NVML library not found",
    VERSION_MISMATCH: "driver and NVML library are of different versions; the driver was replaced while it was loaded",
}


class CardError(Exception):
    """A card answers nothing any more: `code` is one of `LOSSES`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class LibraryError(Exception):
    """The library answers nothing any more: `code` is one of `RESTART`."""

    def __init__(self, code: int) -> None:
        super().__init__(code)
        self.code = code


class NotRunningError(Exception):
    """The library is down, or was started anew since: nothing was asked."""


def code_of(error: Exception) -> int:
    """The number of an `NVMLError`; FUNCTION_NOT_FOUND for the binding's own complaint of an old driver."""
    if type(error).__name__ == "NVMLLibraryMismatchError":
        return FUNCTION_NOT_FOUND
    return int(getattr(error, "value", UNKNOWN))


def text(value: str | bytes) -> str:
    """Strings are bytes before nvidia-ml-py 11.525; what is no UTF-8 keeps a mark in its place."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def failures(nvml: Any) -> tuple[type[Exception], ...]:
    """What a call of the binding may raise: its errors, a call that it lacks, and its strict decoding of strings."""
    mismatch = getattr(nvml, "NVMLLibraryMismatchError", nvml.NVMLError)
    return (nvml.NVMLError, mismatch, AttributeError, UnicodeDecodeError)
