"""A TCP proxy that delays, and the redirect into it, for as long as it lives. Run as a program by `service_latency`.

`MARKER SETTINGS` (JSON, see `Settings`). Connections that are redirected here are passed on to where they were going
(SO_ORIGINAL_DST); what each side sends is held back. The rules belong to this process (`flags owner`): the kernel
removes them when it ends, however it ends, so a dead proxy is no outage. Only the library is imported.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject.freeze_guard import GRACE_S, deadline

#: The proxy's own connections are known by this group and not redirected again. Nobody else has it.
GROUP: Final = 1735353187
_SO_ORIGINAL_DST: Final = 80
_LOOK_S: Final = 0.2
_CHUNK: Final = 1 << 18
#: Most that is held back of one direction of one connection, bytes; then its sender has to wait.
_HELD: Final = 16 << 20
_BACKLOG: Final = 512
_CONNECT_S: Final = 10.0
#: A program is woken a little late each time: so much of it is made up for, and may leave at once, seconds.
_CATCH_UP_S: Final = 0.05


@dataclasses.dataclass(frozen=True, slots=True)
class Settings:
    """`delay_s` and `jitter_s` for each direction of `directions` (`out`: to the service; `in`: from it).

    `bytes_per_s` limits a direction of all connections together, None does not. `rules` are nft commands, one a
    line, with PORT4 and PORT6 for the proxy's ports; `entry` is the journal's file, `until` the lease's end. `mark`
    is what the owner of the rules is known by as well. At its end connections have `drain_s` to end by themselves.
    """

    rules: list[str]
    table: str
    entry: str
    until: float
    directions: list[str]
    delay_s: float = 0.0
    jitter_s: float = 0.0
    bytes_per_s: float | None = None
    listen4: str | None = "127.0.0.1"
    listen6: str | None = None
    nft: str = "nft"
    mark: str = ""
    drain_s: float = 0.0


class Pace:
    """How fast bytes may leave in one direction, all connections together."""

    def __init__(self, bytes_per_s: float | None) -> None:
        #: The most that leaves at once, bytes; None: all there is.
        self.step = None if bytes_per_s is None else 4096
        self._rate = bytes_per_s
        self._free_at = 0.0

    def take(self, size: int, now: float) -> float:
        """When `size` bytes that could leave `now` will have left."""
        if self._rate is None:
            return now
        self._free_at = max(self._free_at, now - _CATCH_UP_S) + size / self._rate
        return max(self._free_at, now)


class Line:
    """One direction of one connection: what was read comes out later, in order, and so does its end."""

    def __init__(self, settings: Settings, way: str, pace: Pace, rng: random.Random) -> None:
        held = way in settings.directions
        self._delay = settings.delay_s if held else 0.0
        self._jitter = settings.jitter_s if held else 0.0
        self._pace = pace if held else Pace(None)
        self._rng = rng
        self._last = 0.0
        self._queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        self._size = 0
        self._room = asyncio.Event()

    async def run(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until the end of `reader` was passed on."""
        async with asyncio.TaskGroup() as both:
            both.create_task(self._read(reader))
            both.create_task(self._write(writer))

    def at_once(self) -> None:
        """From here on nothing is held back; what is held already comes out in its order."""
        self._delay = self._jitter = 0.0
        self._pace = Pace(None)

    def wait(self) -> float:
        """How long what is sent now is held back, seconds."""
        return max(0.0, self._delay + self._rng.uniform(-self._jitter, self._jitter)) if self._delay else 0.0

    async def _read(self, reader: asyncio.StreamReader) -> None:
        data = b"-"
        while data:
            data = await reader.read(_CHUNK)
            now = time.monotonic()
            # Jitter changes when bytes come, never their order: this is a stream.
            self._last = max(self._last, now + self.wait())
            self._size += len(data)
            self._queue.put_nowait((self._last, data))
            while self._size > _HELD:
                self._room.clear()
                await self._room.wait()

    async def _write(self, writer: asyncio.StreamWriter) -> None:
        while True:
            due, data = await self._queue.get()
            step = self._pace.step or max(1, len(data))
            for part in (data[at : at + step] for at in range(0, len(data), step)):
                due = self._pace.take(len(part), max(due, time.monotonic()))
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                writer.write(part)
                await writer.drain()
            if not data:
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if writer.can_write_eof():
                    writer.write_eof()
                return
            self._size -= len(data)
            self._room.set()


class Proxy:
    """All connections of one fault."""

    def __init__(self, settings: Settings, rng: random.Random) -> None:
        self._settings = settings
        self._rng = rng
        self._paces = {way: Pace(settings.bytes_per_s) for way in ("out", "in")}
        self._own: set[tuple[str, int]] = set()
        self._lines: set[Line] = set()
        self._none_left = asyncio.Event()

    async def listen(self) -> tuple[list[asyncio.Server], dict[str, int]]:
        """The servers, and the ports that the kernel gave them, by the name that the rules have for them."""
        servers, ports = [], {}
        for name, host in (("PORT4", self._settings.listen4), ("PORT6", self._settings.listen6)):
            if host is not None:
                server = await asyncio.start_server(self._passed_on, host, 0, backlog=_BACKLOG, limit=_CHUNK)
                ports[name] = int(server.sockets[0].getsockname()[1])
                self._own.add((host, ports[name]))
                servers.append(server)
        return servers, ports

    async def _passed_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        onward: asyncio.StreamWriter | None = None
        lines: dict[str, Line] = {}
        try:
            host, port = original(writer.get_extra_info("socket"))
            if port in {each for _, each in self._own}:
                raise ConnectionRefusedError  # nobody was redirected: this would go round for ever
            lines = {way: Line(self._settings, way, self._paces[way], self._rng) for way in ("out", "in")}
            self._lines.update(lines.values())
            # The client's handshake is over already; what it would have taken is made up for here.
            await asyncio.sleep(lines["out"].wait())
            back, forth = await asyncio.wait_for(asyncio.open_connection(host, port, limit=_CHUNK), _CONNECT_S)
            onward = forth
            async with asyncio.TaskGroup() as both:
                both.create_task(lines["in"].run(back, writer))
                await asyncio.sleep(lines["in"].wait())
                both.create_task(lines["out"].run(reader, forth))
        except* (OSError, TimeoutError):
            _reset(writer)
        finally:
            for each in (writer, onward):
                if each is not None:
                    each.close()
            self._lines -= set(lines.values())
            if not self._lines:
                self._none_left.set()

    async def drain(self) -> None:
        """Connections go on without delay until they end, or for `drain_s`: an undo is to break nobody's."""
        for line in self._lines:
            line.at_once()
        self._none_left.clear()
        if self._lines:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._none_left.wait(), self._settings.drain_s)


def original(connection: socket.socket) -> tuple[str, int]:
    """Where a redirected connection was going.

    Raises:
        OSError: it was not redirected.
    """
    if connection.family == socket.AF_INET6:
        raw = connection.getsockopt(socket.IPPROTO_IPV6, _SO_ORIGINAL_DST, 28)
        port, address = struct.unpack_from("!2xH4x16s", raw)
        return socket.inet_ntop(socket.AF_INET6, address), port
    raw = connection.getsockopt(socket.IPPROTO_IP, _SO_ORIGINAL_DST, 16)
    port, address = struct.unpack_from("!2xH4s", raw)
    return socket.inet_ntop(socket.AF_INET, address), port


def redirect(settings: Settings, ports: dict[str, int]) -> subprocess.Popen[bytes] | None:
    """Makes the rules and keeps them: the process that owns them, None on a kernel that knows no owners.

    Raises:
        OSError: the rules cannot be made.
    """
    lines = []
    for rule in settings.rules:
        line = rule
        for name, port in ports.items():
            line = line.replace(name, str(port))
        lines.append(line)
    owned = [lines[0].replace(settings.table, f"{settings.table} {{ flags owner; }}", 1), *lines[1:]]
    # `-I` adds a folder to look for files in, which changes nothing: it carries the mark.
    command = [settings.nft, "-i", *(["-I", settings.mark] if settings.mark else [])]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    assert holder.stdin is not None  # noqa: S101  (asked for above)
    # One line is one transaction.
    holder.stdin.write("; ".join(owned).encode() + b"\n")
    holder.stdin.flush()
    until = time.monotonic() + 5
    while time.monotonic() < until and holder.poll() is None:
        if _there(settings):
            return holder
        time.sleep(0.01)
    holder.kill()
    holder.wait()
    made = subprocess.run(
        [settings.nft, "-f", "-"], input="\n".join(lines) + "\n", capture_output=True, text=True, check=False
    )
    if made.returncode:
        raise OSError(0, f"nft: {made.stderr.strip()[:300]}")
    return None


def _let_by(settings: Settings, holder: subprocess.Popen[bytes] | None) -> None:
    """From here on every new connection goes to the service itself.

    The redirect stays behind: with the last one gone the kernel would forget what it redirected before.
    """
    hooks = [line.split()[4] for line in settings.rules if line.startswith("add chain ")]
    lines = "; ".join(f"insert rule inet {settings.table} {hook} accept" for hook in hooks)
    if holder is not None and holder.stdin is not None:
        with contextlib.suppress(OSError):
            holder.stdin.write(lines.encode() + b"\n")
            holder.stdin.flush()
    else:
        subprocess.run([settings.nft, lines], capture_output=True, check=False)


def _remove(settings: Settings, holder: subprocess.Popen[bytes] | None) -> None:
    """What is left of the rules."""
    if holder is not None:
        holder.kill()
        holder.wait()
    else:
        delete = [settings.nft, "delete", "table", "inet", settings.table]
        subprocess.run(delete, capture_output=True, check=False)


def _there(settings: Settings) -> bool:
    command = [settings.nft, "list", "table", "inet", settings.table]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    return listed.returncode == 0 and "redirect to" in listed.stdout


def _reset(writer: asyncio.StreamWriter) -> None:
    """What the service does not take is refused to its client as well, by a reset."""
    with contextlib.suppress(OSError):
        connection = writer.get_extra_info("socket")
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def serve(settings: Settings) -> None:
    """Redirects, says `ready`, and ends at SIGTERM or when the fault is over."""
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        loop.add_signal_handler(number, ended.set)
    proxy = Proxy(settings, random.Random())
    servers, ports = await proxy.listen()
    entry = Path(settings.entry)
    holder = redirect(settings, ports)
    try:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        while not ended.is_set():
            until = deadline(entry, settings.until)
            if until is None or time.clock_gettime(time.CLOCK_BOOTTIME) > until + GRACE_S:
                break
            if holder is not None and holder.poll() is not None:
                break
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(ended.wait(), _LOOK_S)
    finally:
        _let_by(settings, holder)
        for server in servers:
            server.close()
        await proxy.drain()
        _remove(settings, holder)


def main(arguments: list[str]) -> int:
    """The proxy as a program."""
    settings = Settings(**json.loads(arguments[1]))
    if deadline(Path(settings.entry), settings.until) is None:
        sys.stderr.write(f"{settings.entry}: no such fault stands\n")
        return 1
    try:
        os.setegid(GROUP)
        asyncio.run(serve(settings))
    except OSError as error:
        sys.stderr.write(f"{error.strerror or error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
