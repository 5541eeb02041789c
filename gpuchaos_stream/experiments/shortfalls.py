"""Parameters with which a fault falls short of a claim that its form makes good otherwise.

A restart without a loss of power shows nothing of a node without power, whatever `power-cycle` is called. Each row is
a fault, the claims, when they are not made good, why, and what to write instead. Parameters that are not given count
with the agent's defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.experiments import parameters
from gpuchaos_stream.experiments.plan import Plan

#: The most packets that may be lost for a service to count as late, percent. A connection is tried seven times
#: (tcp_syn_retries, 6 on Linux): beyond half, more than one of a hundred fails instead (0.5 ** 7 = 0.8 %).
MOST_LOSS: Final = 50.0
#: RoCE v2's UDP port, as IANA has it.
_ROCE: Final = "4791"
_WITH_PORT: Final = re.compile(r"^(?:(?:tcp|udp)/|\[[^\]]*\]:|[^:]*:[^:]*$)")
_YES: Final = frozenset({"true", "1", "yes", "on", "y", "t"})


@dataclass(frozen=True, slots=True)
class Asked:
    """What a plan asks of its fault, as far as the agent's parameters are known here."""

    params: Mapping[str, object]
    duration: float

    def text(self, name: str) -> str:
        """A parameter as text; empty where there is none."""
        value = self.params.get(name)
        return "" if value is None else str(value).strip()

    def number(self, name: str) -> float:
        """A parameter as a number; 0 where it is none."""
        try:
            return float(self.text(name))
        except ValueError:
            return 0.0

    def flag(self, name: str) -> bool:
        """Whether a parameter says yes."""
        return self.text(name).lower() in _YES

    def listed(self, name: str) -> list[str]:
        """The parts of a comma list."""
        return [part.strip() for part in self.text(name).split(",") if part.strip()]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """With what the fault asked `when` finds true, `claims` are not made good: `why`, and what to write `instead`."""

    fault: str
    claims: tuple[str, ...]
    when: Callable[[Asked], bool]
    why: str
    instead: str


def _only_roce(asked: Asked) -> bool:
    ports = [*asked.listed("ports"), *(peer.rpartition(":")[2].rpartition("/")[2] for peer in _ported(asked))]
    return _of_services(asked) and bool(ports) and set(ports) == {_ROCE} and asked.text("protocol") != "tcp"


def _of_services(asked: Asked) -> bool:
    """Whether ports bound everything that is cut."""
    peers = asked.listed("peers")
    return bool(asked.text("ports")) or (bool(peers) and len(_ported(asked)) == len(peers))


def _ported(asked: Asked) -> list[str]:
    return [peer for peer in asked.listed("peers") if _WITH_PORT.match(peer)]


_AWAY: Final = ("node-isolation", "task-failover", "heartbeat-loss")
_PORT: Final = ("rdma-failure", "collective-failure")

#: Every row; of several that are true the first is told.
SHORTFALLS: Final[tuple[Shortfall, ...]] = (
    Shortfall(
        "power-cycle",
        ("node-loss",),
        lambda asked: asked.text("method") == "force-restart",
        "with method: force-restart the power stays on",
        "write method: power-cycle, force-off-on or auto",
    ),
    Shortfall(
        "network-partition",
        _AWAY,
        _only_roce,
        "port 4791 is RoCE, which passes the kernel's packets by: nothing at all is cut",
        "rdma-link makes a port fail; name peers without ports for the IP network",
    ),
    Shortfall(
        "network-partition",
        _AWAY,
        lambda asked: asked.number("loss_percent") < 100,
        "with loss_percent below 100 packets still arrive",
        "write loss_percent: 100 or leave it out; service-latency loses a share of one service's packets",
    ),
    Shortfall(
        "network-partition",
        _AWAY,
        _of_services,
        "only single ports are cut, and all else of the node is there",
        "name peers without ports, or peers: all; database-outage and service-latency are for one service",
    ),
    Shortfall(
        "network-partition",
        _AWAY,
        lambda asked: asked.text("protocol") not in {"", "any"},
        "only one protocol is cut, and all else of the node is there",
        "leave protocol out",
    ),
    Shortfall(
        "network-partition",
        ("heartbeat-loss",),
        lambda asked: not asked.flag("include_brokers"),
        "the agent's way to Kafka stays open, and its heartbeats arrive",
        "write include_brokers: true, and the brokers among the peers or peers: all",
    ),
    Shortfall(
        "rdma-link",
        _PORT,
        lambda asked: (
            asked.text("mode") == "flap" and asked.number("count") * asked.number("period_s") < asked.duration
        ),
        "the port flaps for count times period_s, which is over before the duration is: it is well for the rest",
        "write a count or period_s that fills the duration, or a shorter duration",
    ),
    Shortfall(
        "storage-disconnect",
        ("storage-failover",),
        lambda asked: asked.text("mode") == "erring" and asked.text("errors") == "writes",
        "with errors: writes, reads are answered as ever",
        "leave errors out, or write mode: unreachable or hanging",
    ),
    Shortfall(
        "service-latency",
        ("latency-tolerance",),
        lambda asked: asked.number("loss_percent") > MOST_LOSS,
        f"with more than {MOST_LOSS:g} % of its packets lost the service does not answer late: connections fail",
        f"write a delay, or loss_percent of at most {MOST_LOSS:g}; network-partition cuts a service off",
    ),
)


def of(plan: Plan, claim: str) -> Shortfall | None:
    """Why the plan's parameters do not make `claim` good, None where nothing speaks against it."""
    fault = plan.fault.name
    asked = Asked(parameters.defaults(fault) | plan.fault.params, plan.duration)
    rows = (row for row in SHORTFALLS if row.fault == fault and claim in row.claims)
    return next((row for row in rows if row.when(asked)), None)
