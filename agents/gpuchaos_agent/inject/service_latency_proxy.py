"""`service-latency` by a proxy (`proxy.py`): new TCP connections to one service are redirected into it by nftables.

For kernels without netem, and for what netem cannot do: both directions. Connections that stand already are not
redirected, and those that go through the proxy end with it: the evidence says how many there were.
"""

from __future__ import annotations

import dataclasses
import ipaddress
import json
import shlex
import time
from typing import Final

from gpuchaos_agent.inject import hold, nft, tools
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.proxy import GROUP, Settings
from gpuchaos_agent.inject.service_latency_netem import is_late, measured
from gpuchaos_agent.inject.service_latency_params import Service, ServiceLatencyParams, bytes_per_s, seconds
from gpuchaos_agent.inject.service_latency_probe import ask, baseline, plain
from gpuchaos_agent.inject.storage_mode import same_boot, word
from gpuchaos_agent.journal import JournalEntry
from gpuchaos_agent.kernelfs import files

_MODULE: Final = "gpuchaos_agent.inject.proxy"
#: Before the place at which others translate destinations (-100): a service's virtual address is still itself here.
_PRIORITY: Final = -110
#: Only the first packet of a connection: where nobody tracked connections before, all of them look new.
_FIRST: Final = "tcp flags & (syn | ack) == syn"
_COMES_UP_S: Final = 15.0
#: The kernel removes the rules of a process that has ended in this time, seconds.
_REMOVED_S: Final = 2.0
#: TCP_ESTABLISHED in /proc/net/tcp.
_ESTABLISHED: Final = "01"
#: An IPv4 address as IPv6 sockets show it begins so there.
_MAPPED: Final = "0000000000000000FFFF0000"


def why_not(asked: ServiceLatencyParams, service: Service | None = None) -> str | None:
    """Needs nft and the right to use it, and a service whose answer can be timed."""
    reason = nft.unavailable()
    if reason is None and service is not None:
        try:
            _baseline(asked, service)
        except InjectError as error:
            return str(error)
    return reason


def plan(env: Env, asked: ServiceLatencyParams, service: Service, fault_id: str) -> Payload:
    """The table, the rules, and what an answer of the service is and takes."""
    kind, before = _baseline(asked, service)
    table = nft.table_name(fault_id)
    return {
        "table": table,
        "rules": "\n".join(rules(table, service, forwarded=asked.forwarded)),
        "holder": hold.marker(env.state_dir, fault_id),
        "kind": kind,
        "untouched": _untouched(env, service),
        "before_ms": round(before * 1000, 2),
    }


def rules(table: str, service: Service, *, forwarded: bool) -> list[str]:
    """Commands of nft; PORT4 and PORT6 are the proxy's."""
    chains = {"output": f"meta skgid != {GROUP} "}
    if forwarded:
        chains["prerouting"] = ""
    lines = [f"add table inet {table}", f"add counter inet {table} redirected"]
    for hook, who in chains.items():
        lines.append(f"add chain inet {table} {hook} {{ type nat hook {hook} priority {_PRIORITY}; policy accept; }}")
        for family, port, addresses in (("ip", "PORT4", service.four), ("ip6", "PORT6", service.six)):
            if addresses:
                lines.append(
                    f"add rule inet {table} {hook} {who}{family} daddr {nft.one_of(addresses)} tcp dport "
                    f'{service.port} {_FIRST} counter name "redirected" redirect to :{port}'
                )
    return lines


def commands(entry: JournalEntry) -> tuple[str, ...]:
    """The proxy and its rules; the ports are chosen when it starts."""
    proxy = f"python -m {_MODULE} {shlex.quote(word(entry, 'holder'))} SETTINGS"
    made = tuple(f"nft {shlex.quote(line)}" for line in word(entry, "rules").splitlines())
    return (proxy, *made, f"kill the proxy; nft delete table inet {word(entry, 'table')}")


def inject(env: Env, asked: ServiceLatencyParams, entry: JournalEntry) -> None:
    """Starts the proxy, which makes the rules when it listens and says then that it is ready."""
    if not same_boot(env, entry):
        raise InjectError("this was planned before a reboot")
    has_four, has_six = ("PORT4" in word(entry, "rules")), ("PORT6" in word(entry, "rules"))
    settings = Settings(
        rules=word(entry, "rules").splitlines(),
        table=word(entry, "table"),
        entry=str(env.state_dir / "journal" / f"{entry.fault_id}.json"),
        until=entry.lease_deadline,
        directions=["out", "in"] if asked.direction == "both" else [asked.direction],
        delay_s=seconds(asked.delay),
        jitter_s=seconds(asked.jitter),
        bytes_per_s=bytes_per_s(asked.bandwidth),
        listen4=("0.0.0.0" if asked.forwarded else "127.0.0.1") if has_four else None,  # noqa: S104  (pods come from outside)
        listen6=("::" if asked.forwarded else "::1") if has_six else None,
        nft=tools.find("nft") or "nft",
        mark=word(entry, "holder"),
        drain_s=seconds(asked.drain),
    )
    hold.start(
        _MODULE,
        [word(entry, "holder"), json.dumps(dataclasses.asdict(settings))],
        log=env.state_dir / "holders.log",
        ready_s=_COMES_UP_S,
    )


def evidence(asked: ServiceLatencyParams, entry: JournalEntry) -> Evidence:
    """Connections that were redirected, and how long an answer takes now."""
    address, port = word(entry, "addresses").split(",")[0], int(word(entry, "port"))
    during, answered = None, True
    try:
        during = ask(address, port, word(entry, "kind"), plain(asked.probe or "")).seconds
    except OSError:
        answered = False
    redirected = nft.counters(word(entry, "table"))["redirected"].packets
    late = not asked.delay or is_late(asked, entry, during, answered=answered)
    detail: Payload = {"redirected": redirected, "answered": answered, "untouched": entry.payload.get("untouched")}
    return Evidence(redirected > 0 and answered and late, {**measured(entry, during), **detail})


def undo(env: Env, entry: JournalEntry) -> None:
    """Ends the proxy, and with it the rules; removes them where they are nobody's."""
    drain_s = seconds(str(entry.params.get("drain") or "2s"))
    hold.end(word(entry, "holder"), wait_s=drain_s + 1.0)
    if nft.gone_with_boot(entry, env.boot_id):
        return
    table, until = word(entry, "table"), time.monotonic() + _REMOVED_S
    while nft.exists(table):
        try:
            nft.remove(table)
        except InjectError:
            # Still its dead owner's: the kernel is about to remove it.
            if time.monotonic() > until:
                raise
            time.sleep(0.02)


def verify(env: Env, entry: JournalEntry) -> bool:
    """No proxy and no table."""
    if hold.find(word(entry, "holder")):
        return False
    return nft.gone_with_boot(entry, env.boot_id) or not nft.exists(word(entry, "table"))


def _baseline(asked: ServiceLatencyParams, service: Service) -> tuple[str, float]:
    try:
        found = baseline(service.addresses[0], service.port, plain(asked.probe or ""))
    except OSError as error:
        raise InjectError(f"{asked.service} does not answer: {error.strerror or error}") from error
    if found is None or found.seconds is None:
        raise InjectError(
            f"{asked.service} says nothing by itself, to the end of input, or to the probe: what it takes cannot be "
            "measured; give probe, something that it answers"
        )
    return found.kind, found.seconds


def _untouched(env: Env, service: Service) -> int:
    """Connections of this node to the service as they stand: they go on as they are (proc_net_tcp: words swapped)."""
    ends = set[str]()
    for address in service.addresses:
        packed = ipaddress.ip_address(address).packed
        digits = "".join(packed[at : at + 4][::-1].hex() for at in range(0, len(packed), 4)).upper()
        ends |= {f"{digits}:{service.port:04X}", f"{_MAPPED}{digits}:{service.port:04X}"}
    lines = [
        line for name in ("tcp", "tcp6") for line in (files.text(env.procfs / "net" / name) or "").splitlines()[1:]
    ]
    return sum(len(f) > 3 and f[2] in ends and f[3] == _ESTABLISHED for f in map(str.split, lines))
