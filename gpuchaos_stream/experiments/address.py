"""`host:port`, as plans write it."""

from __future__ import annotations


def parse_address(text: str) -> tuple[str, int]:
    """Host and port of `host:port` or `[v6]:port`.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]")
    if not colon or not bare or not port.isdigit() or not 0 < int(port) < 65536 or (":" in bare and host == bare):
        raise ValueError(f"{text!r} is no address; write it like db:5432 or [fd00::1]:5432")
    return bare, int(port)
