r"""Records of /dev/kmsg (Documentation/ABI/testing/dev-kmsg): `prefix,seq,usec,flags;text`, then tag lines.

`prefix` is facility * 8 + level. The kernel speaks with facility 0; the kernel itself raises what a process
writes to facility 1 at least, so the difference cannot be forged. Control characters, backslashes and bytes
over 126 arrive as `\xNN`; lines that begin with a blank are tags of the record above (`DEVICE=+pci:…`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import ClassVar, Final

from gpuchaos_agent.logs.lines import LineFramer
from gpuchaos_agent.logs.record import LogRecord, Writer

_HEAD: Final = re.compile(rb"(\d{1,10}),(\d{1,20}),(\d{1,20}),([^;\n]{0,200});(.*)\Z", re.DOTALL)
_ESCAPED: Final = re.compile(rb"\\x([0-9a-fA-F]{2})")
_NUMBER: Final = re.compile(rb"\d{1,10},(\d{1,20}),")
_NUMBERS: Final = re.compile(rb"\n\d{1,10},(\d{1,20}),")


def unescape(raw: bytes) -> str:
    r"""The text with `\xNN` made bytes again; what is no UTF-8 becomes U+FFFD."""
    if b"\\" in raw:
        raw = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), raw)
    return raw.decode("utf-8", "replace")


def escape(text: str) -> bytes:
    r"""As the kernel writes it: printable ASCII as it is, all else as `\xNN`."""
    return b"".join(bytes([byte]) if 32 <= byte < 127 and byte != 0x5C else b"\\x%02x" % byte for byte in text.encode())


class KmsgFramer(LineFramer):
    """Cuts bytes of /dev/kmsg, or of a copy of it, into records.

    A jump in the sequence numbers is counted in `lost`. Copies may hold a number twice, or begin anew with the
    next boot: only a jump forward is a gap. `seq` is that of the last record, made or skipped.
    """

    CONTINUES: ClassVar[frozenset[bytes]] = frozenset({b" "})

    def __init__(self, hints: Iterable[str] | None = None) -> None:
        super().__init__(hints)
        self.seq: int | None = None

    def whole(self, data: bytes) -> LogRecord | None:
        """The one record that a read of the device gives; None where it is of no interest, or none."""
        if self._wanted is not None and self._wanted.search(data) is None:
            self.skipped += 1
            self._pass_over(data)
            return None
        found = [*self.feed(data), *self.flush()]
        return found[0] if found else None

    @staticmethod
    def _written(hint: str) -> bytes:
        return escape(hint)

    def _pass_over(self, head: bytes) -> None:
        number = _NUMBER.match(head)
        if number is None:
            self.bad += 1
        else:
            self._numbered(int(number[1]))

    def _pass(self, data: bytes, start: int, end: int, done: list[LogRecord]) -> None:
        """As above; records with their tags are counted at once where nothing else is among them."""
        numbers = list(map(int, _NUMBERS.findall(data, start - 1, end)))
        tags = data.count(b"\n ", start, end)
        if len(numbers) + tags != data.count(b"\n", start, end) or (tags and self._has_long_record(data, start, end)):
            super()._pass(data, start, end, done)
            return
        self.skipped += len(numbers)
        first = numbers[0]
        if self.seq == first - 1 and numbers == list(range(first, first + len(numbers))):
            self.seq = numbers[-1]
            return
        for number in numbers:
            self._numbered(number)

    def _has_long_record(self, data: bytes, start: int, end: int) -> bool:
        """Whether a record may have more tags than are kept."""
        while end - start > self.LONGEST:
            found = _NUMBERS.search(data, start + self.LONGEST // 2, start + self.LONGEST)
            if found is None:
                return True
            start = found.start() + 1
        return False

    def _pass_lines(self, data: bytes, start: int, end: int) -> None:
        lines = data[start : end - 1].split(b"\n")
        self.skipped += len(lines)
        for line in lines:
            self._pass_over(line)

    def _record(self, lines: Sequence[bytes]) -> LogRecord | None:
        head = _HEAD.match(lines[0])
        if head is None:
            self.bad += 1
            return None
        prefix, seq = int(head[1]), int(head[2])
        self._numbered(seq)
        tags = {}
        for line in lines[1:]:
            name, _, value = unescape(line[1:]).partition("=")
            tags[name] = value
        facility = prefix >> 3
        return LogRecord(
            text=unescape(head[5]),
            writer=Writer.INJECTED if facility else Writer.KERNEL,
            usec=int(head[3]),
            seq=seq,
            facility=facility,
            level=prefix & 7,
            tags=tags,
        )

    def _numbered(self, seq: int) -> None:
        if self.seq is not None and seq > self.seq + 1:
            self.lost += seq - self.seq - 1
        self.seq = seq
