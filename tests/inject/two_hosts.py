"""An echo on a host of the laboratory, for what is cut, slowed or reset."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator

from lab.hosts import Host
from lab.waiting import DEADLINE_S


@contextlib.contextmanager
def serving(at: Host, port: int) -> Iterator[None]:
    """A TCP and a UDP echo on all addresses of the host."""
    with at.inside():
        listener = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=256)
        datagrams = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        datagrams.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        datagrams.bind(("::", port))
    ended = threading.Event()
    threads = [
        threading.Thread(target=_accept, args=(listener, ended), daemon=True),
        threading.Thread(target=_answer, args=(datagrams, ended), daemon=True),
    ]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ended.set()
        for thread in threads:
            thread.join(DEADLINE_S)
        listener.close()
        datagrams.close()


def _accept(listener: socket.socket, ended: threading.Event) -> None:
    listener.settimeout(0.05)
    while not ended.is_set():
        with contextlib.suppress(OSError):
            connection, _ = listener.accept()
            threading.Thread(target=_say_it_back, args=(connection, ended), daemon=True).start()


def _say_it_back(connection: socket.socket, ended: threading.Event) -> None:
    with connection:
        connection.settimeout(0.05)
        while not ended.is_set():
            try:
                said = connection.recv(64)
                if not said:
                    return
                connection.sendall(said)
            except TimeoutError:
                continue
            except OSError:
                return


def _answer(datagrams: socket.socket, ended: threading.Event) -> None:
    datagrams.settimeout(0.05)
    while not ended.is_set():
        with contextlib.suppress(OSError):
            said, sender = datagrams.recvfrom(64)
            datagrams.sendto(said, sender)
