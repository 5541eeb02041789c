"""The table of a partition: what is kept comes first, then what is cut goes to a chain that counts and drops."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from gpuchaos_agent.inject.endpoints import Selector, merged
from gpuchaos_agent.inject.nft import PRIORITY

#: Without neighbour discovery not even what is kept could be reached by IPv6; ARP is of another family anyway.
_NEIGHBOURS: Final = (
    "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept"
)
#: What `reject` itself sends leaves through the output chain too, and must not be eaten there.
_REPLIES: Final = (
    "tcp flags & rst == rst accept",
    "icmp type destination-unreachable accept",
    "icmpv6 type destination-unreachable accept",
)


@dataclass(frozen=True, slots=True)
class Cut:
    """A partition in packets. `kept` are the ways that stay open; `loss_percent` 100 cuts all."""

    cut: tuple[Selector, ...]
    kept: tuple[Selector, ...] = ()
    inward: bool = True
    outward: bool = True
    loss_percent: int = 100
    reject: bool = False
    interface: str | None = None

    def body(self) -> str:
        """The table's content, for `nft.apply`."""
        blocks = [f"  counter {name}_{way} {{ }}" for way in ("in", "out") for name in ("seen", "dropped")]
        for way in ("in", "out"):
            blocks += [_chain(f"hit_{way}", self._hit(way)), _chain(f"cut_{way}", self._cut(way))]
        blocks += [
            _chain("input", ['iifname "lo" accept', _NEIGHBOURS, *self._keep("saddr"), *self._in()], "input"),
            _chain(
                "output",
                ['oifname "lo" accept', _NEIGHBOURS, *self._answers(), *self._keep("daddr"), *self._out()],
                "output",
            ),
            _chain("forward", [*self._keep("saddr"), *self._keep("daddr"), *self._in(), *self._out()], "forward"),
        ]
        return "\n".join(blocks)

    def _hit(self, way: str) -> list[str]:
        chance = "" if self.loss_percent == 100 else f"numgen random mod 100 < {self.loss_percent} "
        return [f'counter name "seen_{way}"', f"{chance}goto cut_{way}"]

    def _cut(self, way: str) -> list[str]:
        counted = f'counter name "dropped_{way}"'
        if not self.reject:
            return [f"{counted} drop"]
        return [
            f"meta l4proto tcp {counted} reject with tcp reset",
            f"{counted} reject with icmpx type admin-prohibited",
        ]

    def _keep(self, side: str) -> list[str]:
        return [f"{match}accept" for selector in self.kept for match in selector.matches(side, either_end=False)]

    def _answers(self) -> tuple[str, ...]:
        return _REPLIES if self.reject else ()

    def _in(self) -> list[str]:
        return self._to("iifname", "saddr", "in") if self.inward else []

    def _out(self) -> list[str]:
        return self._to("oifname", "daddr", "out") if self.outward else []

    def _to(self, device: str, side: str, way: str) -> list[str]:
        through = f'{device} "{self.interface}" ' if self.interface else ""
        # `goto`: a packet that two rules match runs its risk once.
        return [f"{through}{match}goto hit_{way}" for selector in self.cut for match in selector.matches(side)]


def grouped(selectors: Iterable[Selector]) -> tuple[Selector, ...]:
    """The same traffic in as few selectors as may be: those of the same ports and protocol share a set."""
    groups: dict[tuple[tuple[str, ...], str | None], list[Selector]] = {}
    for selector in selectors:
        groups.setdefault((selector.ports, selector.protocol), []).append(selector)
    return tuple(
        Selector(
            # One that means any address takes the others in.
            () if any(not s.networks for s in members) else merged(n for s in members for n in s.networks),
            ports,
            protocol,
        )
        for (ports, protocol), members in groups.items()
    )


def _chain(name: str, rules: Iterable[str], hook: str | None = None) -> str:
    head = [f"type filter hook {hook} priority {PRIORITY}; policy accept;"] if hook else []
    lines = "\n".join(f"    {line}" for line in (*head, *rules))
    return f"  chain {name} {{\n{lines}\n  }}"
