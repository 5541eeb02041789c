"""What became of each port's link: went down, came back, flaps, waits for a subnet manager, was switched off.

A port that was never active is not in use, and never a fault. One link goes down once, however it is noticed: by the
port's state, by the port's own count of downs, or by the carrier of its network interface; so the three are never
added. Ports of virtual functions have the cable of their physical one and say nothing while that one is down.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.kernelfs.ports import Physical, State
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

#: A port that stays INIT for longer than this has no subnet manager, seconds.
NO_SM_AFTER_S: Final = 60.0
#: This many downs within this time are a flapping link. soperator and gpud count over hours; a link that is down
#: twice in a minute has already stopped a collective twice.
FLAP_DOWNS: Final = 2
FLAP_WITHIN_S: Final = 60.0
#: A count of downs may come this much later than the state that belongs to it, seconds.
SAME_DOWN_S: Final = 5.0
#: How long a port may take to be active again after a reboot or a driver that was loaded anew, seconds: training and
#: the subnet manager's sweep.
BOOT_S: Final = 180.0
#: Ports that are remembered; names of virtual functions come and go.
MOST_KNOWN: Final = 1024


@dataclass(frozen=True, slots=True)
class Look:
    """One port at one tick.

    `active` is whether it carries traffic, None where that could not be read. `switched_off` is that an
    administrator has it down. `downs` and `carrier_downs` are increments since the last tick, None where unknown.
    `cable_of` names the port whose cable this one shares. `carrier` is its network interface's, `members` says of
    each interface bonded with that one whether it has its own. `cause` is what is known of why it is not active.
    """

    name: str
    active: bool | None
    state: State | None = None
    physical: Physical | None = None
    switched_off: bool = False
    downs: int | None = None
    carrier_downs: int | None = None
    cable_of: str | None = None
    carrier: bool | None = None
    cause: str | None = None
    members: dict[str, bool | None] = field(default_factory=dict)
    evidence: Evidence = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kept:
    """What is kept of a port over a restart: whether it is to be active, and which fault was told and stands."""

    expected: bool = False
    told: str | None = None
    down_since: float = 0.0


@dataclass(slots=True)
class _Port:
    expected: bool = False  # it was active, and nothing has been said of its being down
    hold_until: float = 0.0  # after a reboot it may be down until then
    away: bool = False  # its device was not there
    active: bool | None = None  # at the last tick
    changed: float = float("-inf")
    told: str | None = None  # the fault that was said and not yet taken back
    down_since: float = 0.0
    init_since: float | None = None
    no_manager: bool = False
    below: int = 0  # ticks that a virtual function's port was down while its physical one was active
    downs: dict[str, deque[tuple[float, int]]] = field(default_factory=dict)
    flapped: float = float("-inf")
    blinked: float = float("-inf")
    members: dict[str, bool] = field(default_factory=dict)


class Links:
    """Remembers ports from one tick to the next. `boot` makes the keys of facts those of this boot."""

    def __init__(self, boot: str) -> None:
        self._boot = boot
        self._ports: dict[str, _Port] = {}

    def recall(self, name: str, kept: Kept, *, until: float = 0.0) -> None:
        """What an earlier run of the agent knew of the port: if it was active and is not (after `until`, where the
        node was rebooted), it has gone down; what was told already is not told again.
        """
        known = self._ports.setdefault(name, _Port())
        known.expected, known.hold_until = kept.expected, until
        known.told, known.down_since = kept.told, kept.down_since

    def kept(self, name: str) -> Kept:
        """What a later run shall `recall`."""
        known = self._ports.get(name, _Port())
        return Kept(known.expected, known.told, known.down_since)

    def step(self, looks: Sequence[Look], now: float) -> list[Fact]:
        """The facts of one tick of all ports."""
        by_name = {look.name: look for look in looks}
        facts: list[Fact] = []
        for look in looks:
            known = self._known(look.name, now)
            cable = by_name.get(look.cable_of or "")
            if cable is not None and not self._speaks_for_itself(known, look, cable):
                known.active = look.active
                continue
            facts += self._bonded(known, look, now)
            if cable is None:
                facts += self._downs(known, look, now)
            facts += self._state(known, look, now)
            if look.active is not None:
                if known.active is not None and look.active != known.active:
                    known.changed = now
                known.active = look.active
        return facts

    def keep(self, names: Iterable[str]) -> None:
        """Only these ports are there. What is known of the others is kept for when they come back."""
        alive = set(names)
        for name, port in self._ports.items():
            port.away = port.away or name not in alive
        gone = [name for name, port in self._ports.items() if port.away]
        for name in gone[: max(0, len(self._ports) - MOST_KNOWN)]:
            del self._ports[name]

    def _known(self, name: str, now: float) -> _Port:
        known = self._ports.setdefault(name, _Port())
        if known.away:  # its driver was loaded anew, and it trains
            known.away, known.active, known.hold_until = False, None, now + BOOT_S
        return known

    @staticmethod
    def _speaks_for_itself(known: _Port, look: Look, cable: Look) -> bool:
        """A virtual function's port is heard when it comes up, and when it alone is down, twice in a row: its
        physical one may have gone down between the two reads of one tick.
        """
        if look.active:
            known.below = 0
            return True
        known.below = known.below + 1 if cable.active else 0
        return known.below >= 2

    def _state(self, known: _Port, look: Look, now: float) -> list[Fact]:
        if look.active:
            return self._back(known, look, now)
        if look.active is None:
            return []
        if look.state in {State.INIT, State.ARMED}:
            return self._without_manager(known, look, now)
        known.init_since = None
        if known.told is not None:
            return []
        if look.switched_off:
            was, known.expected, known.told, known.down_since = known.expected, False, "port_disabled", now
            severity = Severity.WARNING if was else Severity.INFO
            return [self._fact("port_disabled", severity, look, now, action="enable_port" if was else "none")]
        if not known.expected or now < known.hold_until:
            return []
        known.expected, known.told, known.down_since = False, "port_down", now
        return [self._fact("port_down", Severity.ERROR, look, now, cause=look.cause, action="check_cable")]

    def _back(self, known: _Port, look: Look, now: float) -> list[Fact]:
        facts: list[Fact] = []
        if known.told is not None:
            down_s = round(now - known.down_since, 1)
            facts.append(self._fact(known.told, Severity.INFO, look, now, recovered=True, down_s=down_s))
        if known.no_manager:
            facts.append(self._fact("no_subnet_manager", Severity.INFO, look, now, recovered=True))
        known.told, known.init_since, known.no_manager = None, None, False
        known.expected, known.hold_until = True, 0.0
        return facts

    def _without_manager(self, known: _Port, look: Look, now: float) -> list[Fact]:
        """The link is up and the port stays INIT: not a cable's fault, the subnet manager's."""
        if look.state is not State.INIT or look.physical is not Physical.LINK_UP:
            known.init_since = None
            return []
        if known.init_since is None:
            known.init_since = now
        waited = now - known.init_since
        if waited <= NO_SM_AFTER_S:
            return []
        known.init_since, known.no_manager = now, True  # said again each minute while it lasts
        return [
            self._fact(
                "no_subnet_manager",
                Severity.ERROR,
                look,
                now,
                waited_s=round(waited, 1),
                action="start_subnet_manager",
            )
        ]

    def _downs(self, known: _Port, look: Look, now: float) -> list[Fact]:
        """Flaps, and a link that was down only between two readings."""
        if known.active is None:
            return self._downs_while_away(look, now)
        fell = known.active is True and look.active is False
        seen = {"state": int(fell), "counter": look.downs or 0, "carrier": look.carrier_downs or 0}
        for source, count in seen.items():
            times = known.downs.setdefault(source, deque(maxlen=64))
            if count > 0:
                times.append((now, count))
            while times and now - times[0][0] > FLAP_WITHIN_S:
                times.popleft()
        if not any(seen.values()):
            return []
        count = max(sum(n for _, n in times) for times in known.downs.values())
        if count >= FLAP_DOWNS:
            if now - known.flapped < FLAP_WITHIN_S:
                return []
            known.flapped = now
            return [self._fact("nic_link_flap", Severity.WARNING, look, now, count=count, action="check_cable")]
        unseen = look.active is True and known.active is True and now - known.changed > SAME_DOWN_S
        if not unseen or now - known.blinked <= SAME_DOWN_S:
            return []
        known.blinked = now
        cause = "down and up again between two readings"
        return [self._fact("nic_link_down", Severity.WARNING, look, now, count=count, cause=cause, action="monitor")]

    def _downs_while_away(self, look: Look, now: float) -> list[Fact]:
        """The count has grown since an earlier run of the agent; when, nobody knows."""
        if not look.downs or not look.active:
            return []
        cause = "down and up again while the agent was not running"
        return [
            self._fact("nic_link_down", Severity.WARNING, look, now, count=look.downs, cause=cause, action="monitor")
        ]

    def _bonded(self, known: _Port, look: Look, now: float) -> list[Fact]:
        """A bond stays active without one of its cables, at a part of its rate."""
        facts: list[Fact] = []
        for name, carrier in look.members.items():
            if carrier is None or len(look.members) < 2:
                continue
            before = known.members.get(name)
            known.members[name] = carrier
            if before is None or before == carrier:
                continue
            cause = f"one of {len(look.members)} members of its bond"
            more = {"recovered": True} if carrier else {"action": "check_cable"}
            severity = Severity.INFO if carrier else Severity.WARNING
            facts.append(self._fact("nic_link_down", severity, look, now, netdev=name, cause=cause, **more))
        return facts

    def _fact(self, fault: str, severity: Severity, look: Look, now: float, **more: str | float | None) -> Fact:
        evidence: Evidence = {name: value for name, value in {**look.evidence, **more}.items() if value is not None}
        what = "up" if more.get("recovered") else "is"
        member = f"/{evidence['netdev']}" if "netdev" in more else ""
        return Fact(
            key=f"rdma/{self._boot}/{look.name}{member}/{fault}/{what}/{now:.0f}",
            fault=fault,
            severity=severity,
            time=now,
            kind="port",
            local=look.name,
            origin=Origin.DRIVER,
            evidence=evidence,
        )
