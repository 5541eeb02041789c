"""Who may stop things: names and tokens from a file, read anew when it changes."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections import OrderedDict
from pathlib import Path
from typing import Final

import structlog

from gpuchaos_stream.errors import UserError

#: Shorter tokens can be guessed.
SHORTEST: Final = 20
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.@-]{0,63}")
_log = structlog.get_logger(__name__)


def read(path: Path) -> dict[bytes, str]:
    """SHA-256 of each token in a file → the name it stands for. One `name:token` a line; `#` begins a comment.

    Raises:
        UserError: the file cannot be read, has no token, or a line is wrong.
    """
    found = _read(path)
    if not found:
        raise UserError(str(path), "has no token", "write a line name:token, or leave --token-file out")
    return found


def _read(path: Path) -> dict[bytes, str]:
    try:
        lines = path.read_text("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no UTF-8 text"
        raise UserError(str(path), f"the token file cannot be read ({said})") from error
    found: dict[bytes, str] = {}
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if not line or line.startswith("#"):
            continue
        where = f"{path}:{number}"
        name, colon, token = line.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise UserError(where, "is not name:token", "a name has letters, digits, . _ @ -, at most 64")
        if len(token) < SHORTEST or not token.isascii() or not token.isprintable() or " " in token:
            raise UserError(
                where,
                f"the token of {name} is shorter than {SHORTEST} characters, or not of printable ASCII without spaces",
                "make one: openssl rand -hex 20",
            )
        key = _digest(token)
        if key in found:
            raise UserError(where, f"{name} has the same token as {found[key]}", "give each its own")
        found[key] = name
    return found


class Tokens:
    """The tokens of a file. A changed file counts at once, one without tokens too; of one that has become wrong, what
    was read before.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._known = read(path)
        self._seen = _stamp(path)

    def name(self, token: str) -> str | None:
        """Whose token that is; None: nobody's. Takes as long for every token."""
        self._refresh()
        digest = _digest(token)
        found = None
        for known, name in self._known.items():
            if hmac.compare_digest(known, digest):
                found = name
        return found

    def _refresh(self) -> None:
        stamp = _stamp(self._path)
        if stamp == self._seen:
            return
        self._seen = stamp
        try:
            self._known = _read(self._path)
            _log.info("tokens read anew", names=sorted(self._known.values()))
        except UserError as error:
            _log.error("the token file is wrong, the old tokens count", reason=str(error))


class Failures:
    """Wrong tokens by address: more than `most` within `window_s` are too many. At most 1,024 addresses are kept."""

    def __init__(self, most: int = 10, window_s: float = 60.0) -> None:
        self._most = most
        self._window = window_s
        self._failed: OrderedDict[str, list[float]] = OrderedDict()

    def add(self, address: str, now: float) -> float | None:
        """Notes one; where there are too many, the seconds until the next one is looked at as a single one."""
        times = [time for time in self._failed.pop(address, []) if now - time < self._window]
        times.append(now)
        self._failed[address] = times[-self._most - 1 :]
        while len(self._failed) > 1024:
            self._failed.popitem(last=False)
        return max(1.0, self._window - (now - times[0])) if len(times) > self._most else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


def _stamp(path: Path) -> tuple[int, int, int]:
    try:
        status = path.stat()
    except OSError:
        return 0, 0, 0
    return status.st_mtime_ns, status.st_size, status.st_ino
