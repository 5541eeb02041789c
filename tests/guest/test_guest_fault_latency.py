"""`service-latency` by netem, on a kernel that has it: two hosts, two services, and only one of them is slow."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Final

import pytest
from guest_fault import PYTHON, inject, refused, undo, undo_what_stands, until
from lab.guest import Guest

#: The agent starts a few times in each test, on emulated processors.
pytestmark = pytest.mark.timeout(600)

FAULT: Final = "service-latency"
STATE: Final = "/run/latency-state"
MAKE: Final = """
set -e
ip netns add service
ip link add slow0 type veth peer name eth0 netns service
ip addr add 10.79.0.1/24 dev slow0; ip addr add fd00:79::1/64 dev slow0 nodad; ip link set slow0 up
ip -n service addr add 10.79.0.2/24 dev eth0; ip -n service addr add fd00:79::2/64 dev eth0 nodad
ip -n service link set eth0 up; ip -n service link set lo up
"""
BREAK: Final = "kill $(cat /run/service.pid); ip netns del service; ip link del slow0 2>/dev/null; true"
SERVE: Final = """
import select, socket
kinds = [(socket.SOCK_STREAM, port) for port in (5432, 6379)] + [(socket.SOCK_DGRAM, 5432)]
open_ = []
for kind, port in kinds:
    s = socket.socket(socket.AF_INET6, kind)
    s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    s.bind(("::", port))
    if kind == socket.SOCK_STREAM:
        s.listen()
    open_.append(s)
print("serving", flush=True)
while True:
    for s in select.select(open_, [], [])[0]:
        if s.type == socket.SOCK_STREAM:
            s.accept()[0].close()
        else:
            s.sendto(*s.recvfrom(64))
"""
#: Milliseconds of a handshake, the shortest of three: processors are emulated, and busy.
CONNECT: Final = """
import socket, sys, time
def once():
    began = time.monotonic()
    socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10).close()
    return time.monotonic() - began
print(round(min(once() for _ in range(3)) * 1000))
"""
LOOK: Final = "tc qdisc show dev slow0; tc filter show dev slow0; nft list ruleset"


@pytest.fixture
def service(guest: Guest) -> Iterator[Guest]:
    guest.check("modprobe -a sch_netem sch_prio sch_htb cls_flower cls_u32 veth")
    guest.check(MAKE)
    program = f"{PYTHON} -I -S -c {shlex.quote(SERVE)}"
    guest.check(
        f"setsid ip netns exec service {program} </dev/null >/run/service.log 2>&1 & echo $! > /run/service.pid"
    )
    until(guest, "grep -q serving /run/service.log", "the service listens")
    yield guest
    undo_what_stands(guest, STATE)
    guest.check(BREAK)


def connect(guest: Guest, address: str, port: int) -> int:
    return int(guest.check(f"{PYTHON} -I -S -c {shlex.quote(CONNECT)} {address} {port}", timeout=40))


@pytest.mark.parametrize("address", ["10.79.0.2", "fd00:79::2"])
def test_one_service_is_slow_its_neighbour_on_the_same_device_is_not(service: Guest, address: str) -> None:
    before = service.run(LOOK).out
    assert connect(service, address, 5432) < 100
    end = f"[{address}]:5432" if ":" in address else f"{address}:5432"
    said = inject(service, STATE, FAULT, service=end, delay="200ms", jitter="10ms")
    assert "method=netem" in said
    assert "measured=connect" in said
    assert connect(service, address, 5432) >= 190
    assert connect(service, address, 6379) < 100
    undo(service, STATE)
    assert connect(service, address, 5432) < 100
    assert service.run(LOOK).out == before


def test_datagrams_of_one_service_are_lost_and_counted(service: Guest) -> None:
    before = service.run(LOOK).out
    said = inject(service, STATE, FAULT, service="10.79.0.2:5432", protocol="udp", loss_percent=100)
    assert "method=netem" in said
    assert "dropped=3" in said
    assert connect(service, "10.79.0.2", 5432) < 100
    undo(service, STATE)
    assert service.run(LOOK).out == before


def test_queue_that_somebody_configured_is_not_replaced(service: Guest) -> None:
    service.check("tc qdisc add dev slow0 root handle 5: htb default 1")
    said = refused(service, STATE, FAULT, service="10.79.0.2:5432", delay="100ms", method="netem")
    assert "queue of its own (htb 5:)" in said
    assert "htb 5:" in service.check("tc qdisc show dev slow0")
