"""Links of network and InfiniBand ports going down and up, as their drivers say it.

InfiniBand: `mlx5_core BDF mlx5_0: Port: 1 Link DOWN|INIT|ACTIVE` (Linux 6.14, MLNX_OFED earlier). Ethernet: the
wording is each driver's own (`Link up`, `NIC Link is Up 10 Gbps`, …); a table holds the drivers, because
disks and PCIe slots have links as well. One line says little: a link that comes up is how every boot ends, so
what is concluded is counted over the lines of one port.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import NONE, TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.conclude import filled
from gpuchaos_agent.words.table import BDF, LONGEST
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("Link ", "link up", "link down", "link is ", "E-Switch: ", "Cable unplugged")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})

#: Drivers whose links are read, with how bad a link that is down is: a training job needs the ports of the
#: first group, the others also are in management networks.
DRIVERS: Final = {
    **dict.fromkeys(("mlx5_core", "mlx4_en", "mlx4_core"), Severity.ERROR),
    **dict.fromkeys(
        (
            *("atlantic", "be2net", "bnx2x", "bnxt_en", "cxgb4", "e1000", "e1000e", "enic", "gve", "hns3", "i40e"),
            *("iavf", "ice", "igb", "igc", "ionic", "ixgbe", "ixgbevf", "nfp", "qede", "r8169", "sfc", "tg3"),
        ),
        Severity.WARNING,
    ),
}
#: Downs in one event from which on it is flapping. NVSentinel's monitor draws the same line (carrier changes > 2).
FLAP_DOWNS: Final = 2

_IB: Final = re.compile(
    rf"(?:mlx5_core (?P<bdf>{BDF}) |infiniband )(?P<local>\w{{1,32}}): "
    r"Port: (?P<port>\d{1,3}) Link (?P<state>DOWN|INIT|ARMED|ACTIVE)\b"
)
_NETDEV: Final = re.compile(
    r"(?P<driver>[a-z0-9_]{2,16})(?:: | )"
    rf"(?:(?P<bdf>{BDF})(?:: | ))?"
    r"(?:(?P<netdev>(?!(?:NIC|Device|[Ll]ink)\b)[A-Za-z][\w.@-]{0,15})(?: \(un\w{1,32}\))?(?:: | ))?"
    r"(?:[a-z0-9_]{2,16}: )?(?:[\w.@-]{1,15} )?(?:NIC |Device )?[Ll]ink (?:is )?(?P<state>[Uu]p|UP|[Dd]own|DOWN)\b"
)
#: An administrator unloads the driver (mlx5 `eswitch.c`). Unloading says it of the function, disabling is read
#: as of the card's first function, since all of a card's functions go down with it.
_UNLOAD: Final = re.compile(rf"mlx5_core (?P<bdf>{BDF}): E-Switch: (?P<what>Unload vfs|Disable): mode\(")
_UNPLUGGED: Final = re.compile(
    rf"mlx5_core (?P<bdf>{BDF}): (?:\w{{1,64}}:\d{{1,6}}:\(pid -?\d{{1,10}}\): )?"
    r"Port module event: module \d{1,3}, Cable unplugged"
)


def conclude_link(parts: Sequence[Finding]) -> Finding:
    """One port's lines: down, flapping, brought down by an administrator, back up, or only come up (nothing).

    An up after an up is a down that was not printed (mlx5 does not always print it). `count` is how often the
    link went down.
    """
    downs = unseen = 0
    down = was_up = False
    for part in parts:
        state = part.evidence.get("state")
        if state == "down":
            downs, down = downs + (not down), True
        elif state == "up":
            unseen += was_up and not down
            down, was_up = False, True
    chosen = next((part for part in parts if part.fault != NONE), parts[0])
    made = filled(chosen, parts)
    evidence = made.evidence
    evidence.pop("state", None)
    made = replace(made, device=str(evidence.get("local") or made.device), part=Part.FAULT)
    if evidence.get("cause") == "driver_unload":
        evidence["action"] = "none"
        return replace(made, fault="nic_link_down", severity=Severity.INFO)
    if downs + unseen >= FLAP_DOWNS:
        evidence.update(action="check_cable", count=downs + unseen)
        return replace(made, fault="nic_link_flap", severity=Severity.WARNING)
    if downs and not down:
        evidence["cleared"] = True
        return replace(made, severity=Severity.INFO)
    return made if downs else replace(made, fault=NONE, severity=Severity.INFO)


FAMILIES: Final = (Family("nic_link", gap_s=60.0, conclude=conclude_link),)


def read(record: LogRecord) -> Finding | None:
    """A change of a link. Findings of one port share the PCI address as device, the conclusion names the port."""
    text = record.text[:LONGEST]
    unload = _UNLOAD.match(text)
    if unload is not None:
        bdf = unload["bdf"].lower()
        bdf = bdf if unload["what"] == "Unload vfs" else f"{bdf[:-1]}0"
        return _finding(text, bdf, {"cause": "driver_unload"}, Part.DETAIL)
    unplugged = _UNPLUGGED.match(text)
    if unplugged is not None:
        return _finding(text, unplugged["bdf"].lower(), {"cause": "cable_unplugged"}, Part.DETAIL)
    return _infiniband(text) or _netdev(text)


def _infiniband(text: str) -> Finding | None:
    line = _IB.match(text)
    if line is None:
        return None
    evidence: Evidence = {"local": line["local"], "port": int(line["port"])}
    if line["bdf"]:
        evidence["bdf"] = line["bdf"].lower()
    device = str(evidence.get("bdf") or line["local"])
    finding = _of_state(text, device, evidence, line["state"], Severity.ERROR)
    return replace(finding, kind="port", local=line["local"])


def _netdev(text: str) -> Finding | None:
    line = _NETDEV.match(text)
    if line is None or line["driver"] not in DRIVERS or not (line["bdf"] or line["netdev"]):
        return None
    evidence: Evidence = {name: line[name] for name in ("bdf", "netdev") if line[name]}
    device = str(evidence.get("bdf") or line["netdev"]).lower()
    if line["bdf"]:
        evidence["bdf"] = device
    return _of_state(text, device, evidence, line["state"], DRIVERS[line["driver"]])


def _of_state(text: str, device: str, evidence: Evidence, word: str, severity: Severity) -> Finding:
    if word in {"INIT", "ARMED"}:
        return _finding(text, device, {**evidence, "state": "init"}, Part.DETAIL)
    if word.lower() in {"up", "active"}:
        return _finding(text, device, {**evidence, "state": "up"}, Part.FAULT)
    down = _finding(text, device, {**evidence, "state": "down", "action": "check_cable"}, Part.FAULT)
    return replace(down, fault="nic_link_down", severity=severity)


def _finding(text: str, device: str, evidence: Evidence, part: Part) -> Finding:
    said: Evidence = {**evidence, "text": text[:TEXT_KEPT]}
    return Finding(NONE, Severity.INFO, evidence=said, device=device, family="nic_link", part=part)
