"""Where faults are done to something real: the node's host, a host away from it, and how its network looks."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lab.hosts import Host, cable, host, needs
from lab.waiting import until
from two_hosts import serving

from gpuchaos_agent.journal import Scalar

NODE, AWAY = "n1", "10.77.1.2"
ECHO, POSTGRES, REDIS = 7000, 5432, 6379


@dataclass(frozen=True)
class Ground:
    """The node's host and a host away from it with services; `sysfs` is a mount of the node's own."""

    node: Host
    away: Host
    sysfs: Path


@dataclass(frozen=True)
class Thing:
    """What a fault is done to. `effect` is how it looks; `still_s` how long it has to look so, seconds.

    `kept` is a folder in which every file must be as it was: bytes, mode, owner, time of the last change.
    """

    target: str
    params: dict[str, Scalar]
    effect: Callable[[], object]
    config: dict[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] = ()
    kept: Path | None = None
    still_s: float = 0.0


@contextmanager
def ground(folder: Path) -> Iterator[Ground]:
    """Two hosts with a cable between them, and an echo on the other one."""
    needs("nft", "ip", "unshare", "tc")
    sysfs = folder / "sysfs"
    sysfs.mkdir()
    with ExitStack() as stack:
        node, away = stack.enter_context(host("node")), stack.enter_context(host("away"))
        cable(node, away, 1)
        stack.enter_context(serving(away, ECHO))
        # What a sysfs shows of the network is that of the namespace in which it was mounted.
        node.run("mount", "-t", "sysfs", "none", str(sysfs))
        stack.callback(subprocess.run, ["umount", str(sysfs)], check=True)
        yield Ground(node, away, sysfs)


def rules() -> str:
    """The whole ruleset of nftables."""
    # An agent that starts has nft check a table, which the kernel shows for a moment and never makes.
    return told("nft", "list", "ruleset").replace("table inet gpuchaos_probe {\n}\n", "")


def links() -> list[str]:
    """All that interfaces, routes, neighbours and queues are. Addresses that are being looked for doubles settle."""
    until(lambda: not told("ip", "-6", "addr", "show", "tentative"))
    found = [line.partition(" qdisc")[0] for line in told("ip", "-o", "link", "show").splitlines()]
    found += [line.partition("valid_lft")[0] for line in told("ip", "-o", "addr", "show").splitlines()]
    for family in ("-4", "-6"):
        found += told("ip", family, "route", "show", "table", "all").splitlines()
        found += told("ip", family, "neigh", "show", "nud", "permanent").splitlines()
    found += [line.partition(" refcnt")[0] for line in told("tc", "qdisc", "show").splitlines()]
    return sorted(found)


def told(*argv: str) -> str:
    return subprocess.run(argv, check=True, capture_output=True, text=True, timeout=20).stdout
