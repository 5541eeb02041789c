"""`service-latency` by netem: packets to one service wait in a queue of their own on the way out; all others do not.

The device's default queue is exchanged for four bands, of which the fourth is netem's and has only what a filter
sends there. A queue that somebody has configured is never replaced. Without ours the kernel makes the default anew.
"""

from __future__ import annotations

import json
import zlib
from typing import Any, Final

from gpuchaos_agent.inject import capabilities, tools
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.service_latency_params import Service, ServiceLatencyParams, bytes_per_s, seconds
from gpuchaos_agent.inject.service_latency_probe import ask, send
from gpuchaos_agent.inject.storage_mode import same_boot, word
from gpuchaos_agent.journal import JournalEntry

#: As pfifo_fast has it: the fourth band is nobody's.
_BANDS: Final = "bands 4 priomap 1 2 2 2 1 2 0 0 1 1 1 1 1 1 1 1"
#: A queue without a handle of its own is the kernel's default.
_DEFAULT: Final = "0:"
#: Packets that netem holds at once; they must not be lost for want of room.
_LIMIT: Final = 100_000
#: How much of the delay has to be seen: the queue's clock and the other way may differ a little.
_SEEN: Final = 0.8


def why_not(asked: ServiceLatencyParams, service: Service) -> str | None:
    """Why this kernel, or the device that leads to the service, cannot do it, or None."""
    absent = tools.missing("tc", "ip", "unshare") or capabilities.lacking("CAP_NET_ADMIN", "CAP_SYS_ADMIN")
    if absent is not None:
        return absent
    try:
        if matcher(asked) is None:
            return "this kernel has no netem (sch_netem, sch_prio, and cls_flower or cls_u32)"
        for device in devices(service):
            queue = _root(device)
            if queue is not None and queue.get("handle") != _DEFAULT:
                return f"{device} has a queue of its own ({queue.get('kind')} {queue.get('handle')}), which stays"
        if service.addresses:
            _handshake(asked, service)
    except InjectError as error:
        return str(error)
    return None


def matcher(asked: ServiceLatencyParams) -> str | None:
    """The classifier that this kernel has, tried out in a network namespace of its own; None without netem."""
    loopback = Service(("127.0.0.1", "::1"), 1)
    for kind in ("flower", "u32"):
        lines = _setup("lo", "1:", asked, loopback, kind)
        try:
            tools.run(["unshare", "--net", tools.find("tc") or "tc", "-batch", "-"], stdin=lines)
        except InjectError:
            continue
        return kind
    return None


def devices(service: Service) -> tuple[str, ...]:
    """The devices by which packets for the service leave."""
    found: dict[str, None] = {}
    for address in service.addresses:
        for route in json.loads(tools.run(["ip", "-json", "route", "get", address])):
            found[str(route["dev"])] = None
    return tuple(found)


def plan(asked: ServiceLatencyParams, service: Service, fault_id: str) -> Payload:
    """The devices, and the handle by which the queues are known as this fault's."""
    kind = matcher(asked)
    if kind is None:
        raise InjectError("this kernel has no netem any more")
    handle = f"{0x1000 + zlib.crc32(fault_id.encode()) % 0xE000:x}:"
    on = devices(service)
    lines = "".join(_setup(device, handle, asked, service, kind) for device in on)
    before = _handshake(asked, service)
    return {
        "devices": ",".join(on),
        "handle": handle,
        "tc": lines,
        "kind": "connect" if before is not None else "packets",
        "before_ms": None if before is None else round(before * 1000, 2),
    }


def commands(entry: JournalEntry) -> tuple[str, ...]:
    """What tc is told."""
    made = tuple(f"tc {line}" for line in word(entry, "tc").splitlines())
    return made + tuple(f"tc qdisc del dev {device} root" for device in _devices(entry))


def inject(env: Env, entry: JournalEntry) -> None:
    """Makes the queues and then the filters; half of it has no effect on anybody."""
    if not same_boot(env, entry):
        raise InjectError("this was planned before a reboot")
    tools.run(["tc", "-batch", "-"], stdin=word(entry, "tc"))


def evidence(asked: ServiceLatencyParams, entry: JournalEntry) -> Evidence:
    """Packets of ours that went through netem, and how long a handshake takes now."""
    address, port = word(entry, "addresses").split(",")[0], int(word(entry, "port"))
    during, answered = None, True
    if asked.protocol == "tcp":
        try:
            during = ask(address, port, "connect", b"").seconds
        except OSError:
            answered = False
    else:
        send(address, port)
    through = [_netem(device, word(entry, "handle")) for device in _devices(entry)]
    packets = sum(int(queue.get("packets", 0)) + int(queue.get("qlen", 0)) for queue in through)
    dropped = sum(int(queue.get("drops", 0)) for queue in through)
    late = asked.protocol == "udp" or not asked.delay or is_late(asked, entry, during, answered=answered)
    detail: Payload = {"packets": packets, "dropped": dropped, "devices": entry.payload.get("devices")}
    return Evidence(packets + dropped > 0 and late, {**measured(entry, during), **detail})


def is_late(asked: ServiceLatencyParams, entry: JournalEntry, during: float | None, *, answered: bool = True) -> bool:
    """Whether a round trip takes longer by the delay, or did not come back at all in the time that there is."""
    before = entry.payload.get("before_ms")
    if during is None or not isinstance(before, float | int):
        return answered
    return during >= before / 1000 * 0.5 + _SEEN * (seconds(asked.delay) - seconds(asked.jitter))


def measured(entry: JournalEntry, during: float | None) -> Payload:
    """What was timed, in words for the evidence; `late` where the answer had not come when there was no more time."""
    return {
        "method": entry.payload.get("method"),
        "measured": entry.payload.get("kind"),
        "before_ms": entry.payload.get("before_ms"),
        "during_ms": round(during * 1000, 2) if during is not None else None,
    }


def undo(env: Env, entry: JournalEntry) -> None:
    """Removes the queue of each device if it is this fault's."""
    for device in _standing(env, entry):
        tools.run(["tc", "qdisc", "del", "dev", device, "root"])


def verify(env: Env, entry: JournalEntry) -> bool:
    """No device has this fault's queue."""
    return not _standing(env, entry)


def bound(asked: ServiceLatencyParams) -> str:
    """Netem's options."""
    words = [f"limit {_LIMIT}"]
    if asked.delay is not None:
        words.append(f"delay {asked.delay}" + (f" {asked.jitter}" if asked.jitter else ""))
    if asked.loss_percent is not None:
        words.append(f"loss {asked.loss_percent:g}%")
    if bytes_per_s(asked.bandwidth):
        words.append(f"rate {asked.bandwidth}")
    return " ".join(words)


def _setup(device: str, handle: str, asked: ServiceLatencyParams, service: Service, kind: str) -> str:
    lines = [
        f"qdisc add dev {device} root handle {handle} prio {_BANDS}",
        f"qdisc add dev {device} parent {handle}4 netem {bound(asked)}",
    ]
    number = {"tcp": 6, "udp": 17}[asked.protocol]
    for priority, (family, addresses) in enumerate((("ip", service.four), ("ipv6", service.six)), start=1):
        for address in addresses:
            if kind == "flower":
                match = f"ip_proto {asked.protocol} dst_ip {address} dst_port {service.port}"
            else:
                ip = {"ip": "ip", "ipv6": "ip6"}[family]
                match = (
                    f"match {ip} protocol {number} 0xff match {ip} dst {address} match {ip} dport {service.port} 0xffff"
                )
            lines.append(
                f"filter add dev {device} parent {handle} protocol {family} prio {priority} {kind} {match} "
                + (f"classid {handle}4" if kind == "flower" else f"flowid {handle}4")
            )
    return "\n".join(lines) + "\n"


def _handshake(asked: ServiceLatencyParams, service: Service) -> float | None:
    """What a handshake takes, seconds; None for UDP."""
    if asked.protocol != "tcp":
        return None
    try:
        return ask(service.addresses[0], service.port, "connect", b"").seconds
    except OSError as error:
        raise InjectError(f"{asked.service} does not answer: {error.strerror or error}") from error


def _devices(entry: JournalEntry) -> list[str]:
    return word(entry, "devices").split(",")


def _standing(env: Env, entry: JournalEntry) -> list[str]:
    if not same_boot(env, entry):
        return []
    return [device for device in _devices(entry) if (_root(device) or {}).get("handle") == word(entry, "handle")]


def _root(device: str) -> dict[str, Any] | None:
    return next((queue for queue in _queues(device) if queue.get("root")), None)


def _netem(device: str, handle: str) -> dict[str, Any]:
    return next((q for q in _queues(device) if q.get("kind") == "netem" and q.get("parent") == f"{handle}4"), {})


def _queues(device: str) -> list[dict[str, Any]]:
    try:
        found = json.loads(tools.run(["tc", "-json", "-statistics", "qdisc", "show", "dev", device]) or "[]")
    except InjectError as error:
        if "Cannot find device" in str(error):
            return []
        raise
    except ValueError as error:
        raise InjectError(f"tc: no answer that can be read about {device}") from error
    return list(found)
