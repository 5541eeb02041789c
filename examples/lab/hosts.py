"""Hosts as network namespaces: a node, a peer, and a host for brokers, joined by virtual cables. Needs root.

A namespace is held by a process of ours and dies with it; nothing of the machine itself is touched.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from lab.missing import MissingError
from lab.waiting import until

CLONE_NEWNET = 0x40000000
#: The link of a host to its switch.
UPLINK = "eth0"
#: A port that nobody listens at (discard).
UNUSED = 9
_LIBC = ctypes.CDLL(None, use_errno=True)


def needs(*tools: str) -> None:
    """Makes sure of root and of these tools.

    Raises:
        MissingError: there is no root here, or a tool is not.
    """
    if os.geteuid() != 0:
        raise MissingError("needs root: network namespaces")
    for tool in tools:
        if shutil.which(tool) is None and shutil.which(tool, path="/usr/sbin:/sbin") is None:
            raise MissingError(f"{tool} is not here: run `make tools`")


def enter(pid: int) -> None:
    """Puts this thread into the network namespace of a process."""
    with Path(f"/proc/{pid}/ns/net").open("rb") as namespace:
        if _LIBC.setns(namespace.fileno(), CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), "setns")


@dataclass(frozen=True)
class Host:
    """One namespace."""

    name: str
    pid: int

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """What is done within is done on this host: sockets, tools, procfs."""
        with Path("/proc/self/ns/net").open("rb") as home:
            enter(self.pid)
            try:
                yield
            finally:
                if _LIBC.setns(home.fileno(), CLONE_NEWNET) != 0:
                    raise OSError(ctypes.get_errno(), "setns")

    def run(self, *argv: str) -> str:
        with self.inside():
            return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout

    def rules(self) -> str:
        """The whole ruleset of nftables, as it stands."""
        return self.run("nft", "list", "ruleset")

    def connect(self, address: str, port: int, timeout: float = 0.4) -> socket.socket:
        with self.inside():
            return socket.create_connection((address, port), timeout=timeout)

    def tcp(self, address: str, port: int, timeout: float = 0.4) -> str:
        """`answered`, `refused`, or `silence`: one connection and an echo."""
        try:
            with self.connect(address, port, timeout) as connection:
                return echo(connection)
        except ConnectionRefusedError:
            return "refused"
        except OSError:
            return "silence"

    def udp(self, address: str, port: int, times: int = 1) -> int:
        """How many of `times` datagrams were answered."""
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with self.inside(), socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.settimeout(0.15)
            answered = 0
            for number in range(times):
                with contextlib.suppress(OSError):
                    sender.sendto(b"%d" % number, (address, port))
            with contextlib.suppress(OSError):
                while answered < times:
                    sender.recv(64)
                    answered += 1
            return answered


def echo(connection: socket.socket, timeout: float = 0.4) -> str:
    """`answered` where the other end says what it was told, `reset`, or `silence`."""
    connection.settimeout(timeout)
    try:
        connection.sendall(b"hello")
        return "answered" if connection.recv(64) == b"hello" else "closed"
    except ConnectionResetError:
        return "reset"
    except OSError:
        return "silence"


def move_out(name: str) -> Host:
    """Puts this process into a namespace of its own, which its children share. Before it starts any thread.

    Raises:
        OSError: it may not.
    """
    if _LIBC.unshare(CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    made = Host(name, os.getpid())
    made.run("ip", "link", "set", "lo", "up")
    return made


@contextlib.contextmanager
def host(name: str) -> Iterator[Host]:
    """A namespace with its loopback up."""
    with subprocess.Popen(["unshare", "--net", "sleep", "infinity"]) as holder:
        try:
            mine = Path("/proc/self/ns/net").readlink()
            until(lambda: Path(f"/proc/{holder.pid}/ns/net").readlink() != mine)
            made = Host(name, holder.pid)
            made.run("ip", "link", "set", "lo", "up")
            yield made
        finally:
            holder.kill()


def cable(one: Host, other: Host, number: int) -> None:
    """`one` gets 10.77.NUMBER.1 and fd77:NUMBER::1, `other` the same with 2."""
    ends = (f"to-{other.name}", f"to-{one.name}")
    one.run("ip", "link", "add", ends[0], "type", "veth", "peer", "name", ends[1], "netns", str(other.pid))
    for at, end, last in ((one, ends[0], 1), (other, ends[1], 2)):
        at.run("ip", "addr", "add", f"10.77.{number}.{last}/24", "dev", end)
        at.run("ip", "addr", "add", f"fd77:{number}::{last}/64", "dev", end, "nodad")
        at.run("ip", "link", "set", end, "up")
    # An end knows its neighbour only a while after it is up, longest with IPv6: what comes before that is lost.
    for address in (f"10.77.{number}.2", f"fd77:{number}::2"):
        until(partial(_answers, one, address))


def switch(at: Host, address: str, hosts: dict[Host, str]) -> None:
    """A switch on `at`, which gets `address`, with a port for each of `hosts`; addresses have their prefix length."""
    at.run("ip", "link", "add", "switch", "type", "bridge")
    at.run("ip", "addr", "add", address, "dev", "switch")
    at.run("ip", "link", "set", "switch", "up")
    for other, its in hosts.items():
        port = f"to-{other.name}"
        at.run("ip", "link", "add", port, "type", "veth", "peer", "name", UPLINK, "netns", str(other.pid))
        at.run("ip", "link", "set", port, "master", "switch", "up")
        other.run("ip", "addr", "add", its, "dev", UPLINK)
        other.run("ip", "link", "set", UPLINK, "up")
    for its in hosts.values():
        until(partial(_answers, at, its.partition("/")[0]))


def _answers(at: Host, address: str) -> bool:
    return at.tcp(address, UNUSED) != "silence"
