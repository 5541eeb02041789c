"""A capture of sysfs and procfs (`gpuchaos-agent capture`): the live collectors over it, as if nothing changed."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import BinaryIO, Final

from gpuchaos_agent.collect import registry
from gpuchaos_agent.collect.base import Evidence, Fact, Group, Reading, Sources
from gpuchaos_agent.kernelfs import files, numa_nodes, ports
from gpuchaos_agent.read import planting
from gpuchaos_agent.read.base import Conclusion, Sample
from gpuchaos_stream.events.base import Severity

NAME: Final = "capture"
SUMMARY: Final = "a capture of sysfs and procfs"

#: The collectors that read such trees alone.
COLLECTORS: Final = ("node", "rdma", "numa", "place")
#: The capture is one moment. It is read as if it stayed so for this long, seconds: what is bad only when it lasts
#: (a port without a subnet manager, 60 s) is said, with `assumed` beside it.
ASSUMED_S: Final = 61.0


def likelihood(sample: Sample) -> float:
    """As sure as lines are objects with a path below /sys or /proc."""
    lines = sample.lines[:20]
    return 0.98 * sum(map(_is_entry, lines)) / len(lines) if lines else 0.0


def conclude(stream: BinaryIO) -> Iterator[Conclusion]:
    """What the collectors find: facts first, then what is there (NUMA nodes, ports, devices of unknown node)."""
    with tempfile.TemporaryDirectory(prefix="gpuchaos-read-") as folder:
        root = Path(folder)
        planted, bad = planting.plant(stream, root)
        sources = Sources(sysfs=root / "sys", procfs=root / "proc", kmsg=root / "kmsg")
        for collector in registry.build(sources, [name for name in COLLECTORS if name in registry.collectors()]):
            at_once = collector.read(0.0).facts
            reading = collector.read(ASSUMED_S)
            yield from map(_at_once, at_once)
            said = {(fact.fault, fact.local) for fact in at_once}
            yield from (_lasting(fact) for fact in reading.facts if (fact.fault, fact.local) not in said)
            yield from _values(reading)
            collector.close()
        yield from _numa(sources.sysfs)
        yield from _ports(sources.sysfs)
        yield from _devices(sources.sysfs)
        if bad:
            yield Conclusion(severity=Severity.WARNING, details={"says": f"{bad} of {planted + bad} lines unreadable"})


def _is_entry(line: str) -> bool:
    try:
        entry = json.loads(line)
    except (ValueError, RecursionError):
        return False
    return isinstance(entry, dict) and str(entry.get("path", "")).startswith(("/sys/", "/proc/"))


def _at_once(fact: Fact) -> Conclusion:
    return Conclusion(fact.fault, fact.severity, fact.local, fact.evidence)


def _lasting(fact: Fact) -> Conclusion:
    return Conclusion(
        fact.fault, fact.severity, fact.local, {**fact.evidence, "assumed": f"as it was for {ASSUMED_S:g} s"}
    )


def _values(reading: Reading) -> Iterator[Conclusion]:
    """The numbers of each device; rates are left out, since one moment has none."""
    for group in reading.groups:
        yield from _rows(group)


def _rows(group: Group) -> Iterator[Conclusion]:
    for at, device in enumerate(group.layout.ids):
        values: Evidence = {
            metric: group.columns[number][at]
            for number, metric in enumerate(group.layout.metrics)
            if not metric.endswith("_rate") and group.columns[number][at] is not None
        }
        if values:
            name = {"numa": f"node{device}", "node": "node"}.get(group.layout.kind, device)
            yield Conclusion(device=name, details=values)


def _numa(sysfs: Path) -> Iterator[Conclusion]:
    """One line for the machine's nodes; those with CPUs are told from those that are memory alone."""
    root = sysfs / numa_nodes.NODES
    nodes = numa_nodes.read(root)
    if not nodes.online:
        return
    far = {node: ",".join(f"{other}:{much}" for other, much in row.items()) for node, row in nodes.distance.items()}
    yield Conclusion(
        details={
            "nodes": _listed(nodes.online),
            "total": len(nodes.online),
            "online": files.text(root / "online"),
            "possible": files.text(root / "possible"),
            "cpu_nodes": _listed(nodes.cpu_nodes),
            "memory_only_nodes": _listed(node for node in nodes.online if node not in nodes.cpus),
        }
    )
    for node in nodes.online:
        cpus = files.text(root / f"node{node}/cpulist")
        yield Conclusion(device=f"node{node}", details={"cpus": cpus, "distances": far.get(node)})


def _ports(sysfs: Path) -> Iterator[Conclusion]:
    """How many there are, and one line a port. The rate of a port that is not active is a default, and left out."""
    devices = ports.devices(sysfs)
    if devices:
        names = ",".join(device.name for device in devices)
        yield Conclusion(
            details={"rdma_devices": len(devices), "names": names, "ports": sum(len(d.ports) for d in devices)}
        )
    for device in devices:
        for port in device.ports:
            state, physical = ports.state(port), ports.physical_state(port)
            active = state is ports.State.ACTIVE
            yield Conclusion(
                device=port.name,
                details={
                    "bdf": device.address,
                    "vendor": device.family.vendor,
                    "driver": device.driver or device.family.name,
                    "link_layer": port.link_layer,
                    "state": None if state is None else state.name,
                    "physical_state": None if physical is None else physical.name,
                    "rate": ports.rate_text(port) if active else None,
                    "netdev": port.netdev,
                    "counters": len(port.counters),
                    "hw_counters": len(port.hw_counters),
                },
            )


def _devices(sysfs: Path) -> Iterator[Conclusion]:
    """One line for PCI devices: how many there are, and on which node those are that say so (-1 is unknown)."""
    root = sysfs / "bus/pci/devices"
    online = numa_nodes.online(sysfs / numa_nodes.NODES)
    where = {name: files.number(root / name / "numa_node") for name in files.names(root)}
    known = {name: numa_nodes.device_node(node, online) for name, node in where.items()}
    if known:
        yield Conclusion(
            details={
                "pci_devices": len(known),
                "numa_unknown": sum(node is None for node in known.values()),
                "numa_known": ",".join(f"{name}:{node}" for name, node in known.items() if node is not None),
            }
        )


def _listed(nodes: Iterable[int]) -> str:
    return ",".join(map(str, nodes))
