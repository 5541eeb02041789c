"""The speed of an Ethernet link, set lower and put back, by `ethtool`."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import tools
from gpuchaos_agent.inject.base import InjectError, Payload
from gpuchaos_agent.journal import Scalar
from gpuchaos_agent.kernelfs import netdevs, peek

#: A link is negotiated anew: 400G optics were seen to take ten seconds.
_TRAINED_S: Final = 15.0
_STEP_S: Final = 0.05
_MODE: Final = re.compile(r"\b(\d+)base\w*/(?:Full|Half)")


@dataclass(frozen=True, slots=True)
class Speed:
    """How a link is set: by negotiation, or fixed at `mbps`. `modes` are what it offers and `able` what it could."""

    negotiated: bool
    mbps: int
    duplex: str = "full"
    able: frozenset[str] = frozenset()
    modes: frozenset[str] = frozenset()

    def payload(self) -> Payload:
        """For the journal."""
        return {"speed_negotiated": self.negotiated, "speed_before": self.mbps, "duplex_before": self.duplex}

    @classmethod
    def of(cls, payload: Mapping[str, Scalar]) -> Speed:
        """What `payload` wrote."""
        mbps = payload.get("speed_before")
        return cls(
            bool(payload.get("speed_negotiated")),
            mbps if isinstance(mbps, int) else 0,
            str(payload.get("duplex_before") or "full"),
        )

    def command(self, name: str) -> list[str]:
        """What sets a link to this."""
        if self.negotiated:
            return ["ethtool", "-s", name, "autoneg", "on"]
        return ["ethtool", "-s", name, "speed", str(self.mbps), "duplex", self.duplex, "autoneg", "off"]

    def restore(self, name: str) -> None:
        """Sets the link to this unless it is so.

        Raises:
            InjectError: it could not.
        """
        if not self.holds(name):
            tools.run(self.command(name))

    def holds(self, name: str) -> bool:
        """Whether the link is set to this; what it has reached by now is the partner's doing as well."""
        now = read(name)
        return now.negotiated if self.negotiated else not now.negotiated and now.mbps == self.mbps


def read(name: str) -> Speed:
    """How the link of an interface is set.

    Raises:
        InjectError: `ethtool` is not there, or does not say.
    """
    fields: dict[str, str] = {}
    key = ""
    for line in tools.run(["ethtool", name]).splitlines():
        head, colon, value = line.partition(":")
        key = head.strip() if colon else key
        fields[key] = f"{fields.get(key, '')} {value if colon else line}".strip()
    speed = re.match(r"(\d+)Mb/s", fields.get("Speed", ""))
    return Speed(
        negotiated=fields.get("Auto-negotiation") == "on",
        mbps=int(speed[1]) if speed else 0,
        duplex=fields.get("Duplex", "full").lower(),
        able=frozenset(match[0] for match in _MODE.finditer(fields.get("Supported link modes", ""))),
        modes=frozenset(match[0] for match in _MODE.finditer(fields.get("Advertised link modes", ""))),
    )


def why_not(sysfs: Path, name: str, mbps: int | None) -> str | None:
    """Why the link cannot be slowed down to `mbps` and put back exactly, or None."""
    if mbps is None:
        return "a degraded port needs speed_mbps"
    if reason := tools.missing("ethtool"):
        return reason
    try:
        now = read(name)
    except InjectError as error:
        return str(error)
    slower = sorted({int(mode.partition("base")[0]) for mode in now.able})
    if mbps not in slower:
        return f"its link cannot be set to {mbps} Mb/s; it can {', '.join(map(str, slower)) or 'nothing that it says'}"
    at = current(sysfs, name)
    if not at or mbps >= at:
        return f"it runs at {at or '?'} Mb/s, and {mbps} Mb/s is no slower"
    if now.negotiated and now.modes != now.able:
        return "it offers a chosen part of its link modes, which could not be put back exactly"
    return None


def slow_command(name: str, mbps: int) -> list[str]:
    """What slows the link down."""
    return ["ethtool", "-s", name, "speed", str(mbps), "duplex", "full", "autoneg", "off"]


def slow(sysfs: Path, name: str, mbps: int) -> None:
    """Slows the link down, and waits until it has come back at that speed, for as long as links take to train.

    Raises:
        InjectError: it could not.
    """
    tools.run(slow_command(name, mbps))
    deadline = time.monotonic() + _TRAINED_S
    while current(sysfs, name) != mbps and time.monotonic() < deadline:
        time.sleep(_STEP_S)


def current(sysfs: Path, name: str) -> int | None:
    """Megabits a second that the link runs at now, None while there is none."""
    return peek.counter(f"{sysfs}/{netdevs.NET}/{name}/speed") or None
