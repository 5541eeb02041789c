"""`power-cycle`: a node loses its power by order of its management controller (Redfish or IPMI), and gets it back.

The order comes from the agent of another node: one that took its own power away could not give it back. So this
fault's target is `node/X` for each X whose BMC is in the settings (`bmcs`). Where the controller has a power cycle
of its own, the node comes back by itself; where it has none, the power is off for as long as the fault stands.
Either way the undo sees to it that the power is on, and that no order to switch it off is still on its way.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field

from gpuchaos_agent import clock
from gpuchaos_agent.inject import bmc, tools
from gpuchaos_agent.inject.base import Bmc, Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.bmc import (
    OFF,
    ON,
    BmcError,
    Driver,
    Look,
    NotSentError,
    Order,
    UnansweredError,
    UnsupportedError,
)
from gpuchaos_agent.inject.ipmi import Ipmi
from gpuchaos_agent.inject.params import one_place
from gpuchaos_agent.inject.redfish import Redfish
from gpuchaos_agent.journal import EntryState, JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

#: Method → orders to try, in this order; the next one only where the controller cannot carry out the one before.
_ORDERS: Final[dict[str, tuple[Order, ...]]] = {
    "auto": (Order.CYCLE, Order.OFF),
    "power-cycle": (Order.CYCLE,),
    "force-off-on": (Order.OFF,),
    "force-restart": (Order.RESTART,),
}
#: After these the node comes back without anybody's help.
_RETURNS: Final = frozenset({Order.CYCLE, Order.RESTART})
#: Between two looks at the power, seconds.
_LOOK_S: Final = 0.25
#: The undo waits so long for the power to be on before it is called again, seconds.
_UNDO_S: Final = 15.0
#: An order may take effect so long after it went out, seconds.
_SLOWEST_S: Final = 30.0
#: The same from when the fault was journalled, for a process that did not see it: questions and order may take 30 s.
_SETTLED_S: Final = 60.0
_KNOCK_S: Final = 0.5


class PowerCycleParams(Authored):
    """`method`: see `_ORDERS`. `within`: seconds in which the power must be seen off. `witness`: an address of the
    node that answers while it runs (`host:port`). `driver`: the node whose agent gives the order, as a check.
    `force`: allows the agent's own node, if it comes back without help.
    """

    method: Literal["auto", "power-cycle", "force-off-on", "force-restart"] = "auto"
    within: float = Field(default=15.0, ge=1, le=20)
    witness: Annotated[str, AfterValidator(one_place)] | None = None
    driver: str | None = Field(default=None, pattern=r"^[^/\s]+$", description="a node's name")
    force: bool = False


@dataclass(slots=True)
class _Seen:
    """What this process saw while it injected. `sent` is None where nothing went out."""

    sent: Order | None = None
    sent_at: float = 0.0
    off_after_s: float | None = None
    reset: bool = False
    witness_gone: bool = False
    last: str = ""

    @property
    def moved(self) -> bool:
        return self.off_after_s is not None or self.reset or self.witness_gone


class PowerCycle:
    """The power of another node; see the module."""

    name = "power-cycle"
    layer = "the node's power, by its management controller (Redfish, IPMI)"
    certifies = ("node-loss", "task-failover")
    not_certified = ("network-partition", "gpu-failure", "hang-detection", "checkpoint-integrity")
    params: type[Authored] = PowerCycleParams
    #: The target is not the agent's node.
    remote = True

    def __init__(self, env: Env, drive: Callable[[Bmc], Driver] | None = None) -> None:
        self._env = env
        self._drive = drive or _driver
        self._seen: dict[str, _Seen] = {}

    def unavailable(self) -> str | None:
        """Needs a BMC in the settings, and ipmitool where it speaks IPMI only."""
        known = [*self._env.bmcs.values(), *([self._env.bmc] if self._env.bmc else [])]
        if not known:
            return "no BMC is in this agent's settings (bmcs: {NODE: {url: ..., user: ..., password_file: ...}})"
        if all(access.url.startswith("ipmi:") for access in known):
            return tools.missing("ipmitool")
        return None

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Asks the controller: the node must be on, and one of the orders possible."""
        asked = PowerCycleParams.model_validate(params)
        node = _node(target)
        access = self._access(node)
        if access is None:
            known = ", ".join(sorted(self._env.bmcs)) or "none"
            return f"the target must be node/X with a BMC in this agent's settings ({known}), not {target}"
        if asked.driver is not None and asked.driver != self._env.node:
            return f"the plan wants {asked.driver} to give the order, and this is {self._env.node}"
        if node in self._env.protected:
            return f"node {node} is protected"
        if node == self._env.node and not asked.force:
            return f"{node} is this agent's own node, and nobody would be left to undo: order it from another one"
        reason = bmc.unfit(access) or (tools.missing("ipmitool") if access.url.startswith("ipmi:") else None)
        if reason is not None:
            return reason
        try:
            look = self._drive(access).look()
        except BmcError as error:
            return str(error)
        return self._why_not(node, asked, look)

    def _why_not(self, node: str, asked: PowerCycleParams, look: Look) -> str | None:
        if look.power != ON:
            return f"the power of {node} is {look.power}, not {ON}"
        orders = self._orders(node, asked, look)
        if not orders:
            able = ", ".join(look.able) or "nothing"
            return f"the BMC of {node} allows no {asked.method} that could be undone from here; it allows {able}"
        if Order.ON not in look.able and set(orders) - _RETURNS:
            return f"the BMC of {node} could not switch the power on again"
        if Order.RESTART in orders and asked.witness is None and not look.reset_mark:
            return "a restart leaves the power on, and this BMC tells no time of the last reset: give a witness"
        if asked.witness is not None and not _answers(asked.witness):
            return f"the witness {asked.witness} does not answer"
        return None

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:  # noqa: ARG002
        """The way to the controller and the orders; the password stays in its file."""
        asked = PowerCycleParams.model_validate(params)
        node = _node(target)
        access = self._access(node)
        if access is None:
            raise InjectError(f"the BMC of {target} is not in the settings any more")
        look = self._drive(access).look()
        orders = self._orders(node, asked, look)
        return {
            "node": node,
            **bmc.flat(access),
            "orders": ",".join(orders),
            "power_before": look.power,
            "reset_mark": look.reset_mark,
        }

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The node's power."""
        return frozenset({f"power:{_node(target)}"})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """The first order that will be tried, and power on."""
        driver = self._drive(bmc.unflat(entry.payload))
        first = next(iter(_listed(entry)), Order.OFF)
        return (driver.typed(first), driver.typed(Order.ON))

    def inject(self, entry: JournalEntry) -> None:
        """Sends the first order that the controller takes, and looks until the power is off, `within` at most."""
        seen = self._seen[entry.fault_id] = _Seen()
        driver = self._drive(bmc.unflat(entry.payload))
        refused: list[str] = []
        began = time.monotonic()
        for order in _listed(entry):
            seen.sent, seen.sent_at = order, time.monotonic()  # from here on it may be on its way
            try:
                driver.send(order)
            except UnsupportedError as error:
                refused.append(str(error))
                seen.sent = None
                continue
            except NotSentError:
                seen.sent = None
                raise
            except UnansweredError:
                pass  # it may be on its way: what is seen decides
            break
        if seen.sent is None:
            raise InjectError("; ".join(refused) or "no order is possible")
        self._watch(entry, driver, seen, began)

    def _watch(self, entry: JournalEntry, driver: Driver, seen: _Seen, began: float) -> None:
        asked = PowerCycleParams.model_validate(entry.params)
        before = str(entry.payload.get("reset_mark") or "")
        deadline = time.monotonic() + asked.within
        silent = 0
        while not seen.moved and time.monotonic() < deadline:
            try:
                look = driver.look()
            except BmcError as error:
                seen.last = str(error)  # some controllers fall silent while they work
            else:
                seen.last = look.power
                if look.power == OFF:
                    seen.off_after_s = round(time.monotonic() - began, 3)
                seen.reset = bool(before) and look.reset_mark not in {"", before}
            if asked.witness is not None:
                silent = 0 if _answers(asked.witness) else silent + 1
                seen.witness_gone = silent >= 2
            if not seen.moved:
                time.sleep(_LOOK_S)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """The power seen off, a reset that the controller tells of, or the witness gone."""
        seen = self._seen.get(entry.fault_id, _Seen())
        detail: Payload = {
            "bmc": urlsplit(str(entry.payload.get("url")))
            .scheme.replace("https", "redfish")
            .replace("http", "redfish"),
            "order": str(seen.sent) if seen.sent else None,
            "power_before": entry.payload.get("power_before"),
            "power": seen.last or None,
            "off_after_s": seen.off_after_s,
            "reset_told": seen.reset,
            "witness_gone": seen.witness_gone,
            "comes_back": "by itself" if seen.sent in _RETURNS else "when it is undone",
        }
        return Evidence(seen.moved, detail)

    def undo(self, entry: JournalEntry) -> None:
        """Power on, and seen on; where an order to switch it off may still be on its way, until that is over."""
        if self._never_was(entry):
            return
        driver = self._drive(bmc.unflat(entry.payload))
        until = time.monotonic() + self._unsettled_s(entry)
        look = driver.look()
        while look.power == ON and time.monotonic() < until:
            time.sleep(_LOOK_S)
            look = driver.look()
        deadline = time.monotonic() + _UNDO_S
        told = False
        while look.power != ON:
            if look.power == OFF and not told:
                driver.send(Order.ON)
                told = True
            if time.monotonic() >= deadline:
                raise InjectError(f"the power of {entry.payload.get('node')} is {look.power}, and was told to be on")
            time.sleep(_LOOK_S)
            look = driver.look()

    def verify(self, entry: JournalEntry) -> bool:
        """The power is on."""
        return self._never_was(entry) or self._drive(bmc.unflat(entry.payload)).look().power == ON

    def _never_was(self, entry: JournalEntry) -> bool:
        """Nothing went out, as this process knows; or it is our own node, which runs, in another boot."""
        if entry.payload.get("node") == self._env.node and entry.boot_id != self._env.boot_id:
            return True
        seen = self._seen.get(entry.fault_id)
        return seen is not None and seen.sent is None

    def _unsettled_s(self, entry: JournalEntry) -> float:
        """How long from now an order of this fault could still take effect, seconds; 0 where it was seen to."""
        seen = self._seen.get(entry.fault_id)
        if entry.state is not EntryState.PLANNED or (seen is not None and seen.moved):
            return 0.0
        if seen is not None:
            return seen.sent_at + _SLOWEST_S - time.monotonic()
        at = clock.now()
        # On the clock that nobody sets, as long as it is the same one.
        same = entry.boot_id == self._env.boot_id
        age = at.boot - (entry.lease_deadline - entry.lease_s) if same else at.wall - entry.created
        return min(_SETTLED_S, _SETTLED_S - age)

    def _access(self, node: str) -> Bmc | None:
        own = self._env.bmc if node == self._env.node else None
        return self._env.bmcs.get(node) or own

    def _orders(self, node: str, asked: PowerCycleParams, look: Look) -> tuple[Order, ...]:
        possible = tuple(order for order in _ORDERS[asked.method] if order in look.able)
        own = node == self._env.node
        return tuple(order for order in possible if order in _RETURNS) if own else possible


def _driver(access: Bmc) -> Driver:
    reason = bmc.unfit(access)
    if reason is not None:
        raise BmcError(reason)
    return Ipmi(access) if access.url.startswith("ipmi:") else Redfish(access)


def _listed(entry: JournalEntry) -> tuple[Order, ...]:
    return tuple(Order(word) for word in str(entry.payload.get("orders") or "").split(",") if word)


def _node(target: str) -> str:
    kind, _, node = target.partition("/")
    return node if kind == "node" and "/" not in node else ""


def _answers(address: str) -> bool:
    """Whether somebody accepts a connection there."""
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S):
            return True
    except (OSError, OverflowError):
        return False


STRATEGY = PowerCycle
