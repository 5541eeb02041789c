"""`nvmlDeviceGetFieldValues`: many values by one call, each with an error and a type of its own."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Final

#: `nvmlFieldValue_t` (nvml.h): fieldId, scopeId, timestamp, latencyUsec, valueType, nvmlReturn, value. Unpacked as
#: bytes because the binding's attribute access costs more than the call, a hundred times a second.
_FIELD_VALUE: Final = struct.Struct("<IIqqIIQ")
_CONTENT: Final = struct.Struct("<Q")
#: `nvmlValueType_t` of values that fill their eight bytes: unsigned long, unsigned long long.
_WHOLE: Final = frozenset({2, 3})
#: The others: double, unsigned int, signed long long, signed int, unsigned short.
_TYPES: Final = {
    0: struct.Struct("<d"),
    1: struct.Struct("<I4x"),
    4: struct.Struct("<q"),
    5: struct.Struct("<i4x"),
    6: struct.Struct("<H6x"),
}
#: A value of all ones is "not available" (NVML_VALUE_NOT_AVAILABLE), at 32 and at 64 bits.
_BLANKS: Final = frozenset({0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF})


def ask(nvml: Any, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[tuple[int, float | None]]:
    """For each `(field, scope)` in order its error (0 is success) and its value, None where there is none.

    Raises:
        NVMLError: the whole call failed.
    """
    if not wanted:
        return []
    raw = bytes(nvml.nvmlDeviceGetFieldValues(handle, list(wanted)))
    found: list[tuple[int, float | None]] = []
    for _, _, _, _, kind, code, content in _FIELD_VALUE.iter_unpack(raw):
        if code:
            found.append((code, None))
            continue
        value: float = content
        if kind not in _WHOLE:
            form = _TYPES.get(kind)
            value = form.unpack(_CONTENT.pack(content))[0] if form is not None else math.nan
        found.append((0, None if value in _BLANKS or math.isnan(value) else float(value)))
    return found
