"""Addresses in texts and names, each replaced by a word: the same one wherever the same address stands."""

from __future__ import annotations

import re
from typing import Final

_HEX: Final = r"[0-9a-fA-F]"
#: What is hidden, the longest first. A PCI address (`0000:3b:00.0`) is none of them, nor a version of three parts.
_ADDRESS: Final = re.compile(
    rf"(?<![\w:])(?:"
    rf"(?P<gid>(?:{_HEX}{{4}}:){{7}}{_HEX}{{4}})"
    rf"|(?P<guid>(?:{_HEX}{{4}}:){{3}}{_HEX}{{4}})"
    rf"|(?P<mac>(?:{_HEX}{{2}}:){{5,19}}{_HEX}{{2}})"
    r"|(?P<ip>(?:\d{1,3}\.){3}\d{1,3})"
    rf"|(?P<ipv6>(?:{_HEX}{{1,4}}:){{1,7}}:(?:{_HEX}{{1,4}}:){{0,6}}{_HEX}{{0,4}})"
    r")(?![\w:.])"
)
#: Names that systemd and rdma-core make of an address: `enx00aabbccddee`, `ibx<GUID>`, `rocex<GUID>`.
_NAME: Final = re.compile(
    rf"(?<![A-Za-z0-9])(?P<kind>(?:en|wl|ww|sl|ib|roce|iw|opa|usnic)x)(?:{_HEX}{{16}}|{_HEX}{{12}})(?!{_HEX})"
)
#: Bytes that name nobody: all zero, all one.
_NOBODY: Final = frozenset("0:."), frozenset("f:"), frozenset("F:")


class Redactor:
    """Replaces addresses. What it hid is numbered, so that two that were the same stay the same."""

    def __init__(self) -> None:
        self._words: dict[str, str] = {}

    def __call__(self, text: str) -> str:
        """The text without addresses."""
        text = _NAME.sub(lambda found: found["kind"] + self._number(found[0]), text)
        return _ADDRESS.sub(self._hidden, text)

    def _hidden(self, found: re.Match[str]) -> str:
        address = found[0]
        if any(nobody.issuperset(address) for nobody in _NOBODY):
            return address
        return f"{found.lastgroup}{self._number(address.lower())}"

    def _number(self, address: str) -> str:
        return self._words.setdefault(address, str(len(self._words)))
