"""What the agent's commands print, as objects: for JSON and YAML."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.inject.base import FaultStrategy
from gpuchaos_agent.journal import Damaged
from gpuchaos_agent.offline import Outcome
from gpuchaos_agent.snapshot import Taken
from gpuchaos_stream.events.codec import pack, unpack_full


def frame(
    settings: AgentSettings, taken: Taken, errors: dict[str, int], strategies: Mapping[str, FaultStrategy]
) -> dict[str, Any]:
    """One frame of this machine, packed and unpacked, with what could not be read and what can be broken here."""
    made = taken.frame(cluster=settings.cluster, cell=settings.cell, node=settings.node, boot="once", seq=0)
    wire = pack(made)
    read = unpack_full(wire)
    groups = [
        {
            "kind": group.kind,
            "devices": [
                {
                    "id": device,
                    **{name: values[at] for name, values in group.labels.items() if values[at]},
                    **{metric: columns[number][at] for number, metric in enumerate(group.metrics)},
                }
                for at, device in enumerate(group.ids)
            ],
        }
        for group, columns in zip(read.layout.groups, read.values, strict=True)
    ]
    head = read.model_dump(include={"schema_version", "cluster", "cell", "node", "time", "clock_offset_s"})
    return {
        **head,
        "wire_bytes": len(wire),
        "numbers": read.layout.width,
        "absent": read.absent,
        "groups": groups,
        "places": {
            "gpus": [gpu.model_dump() for gpu in taken.places.gpus],
            "ports": [port.model_dump() for port in taken.places.ports],
            "jobs": list(taken.places.jobs),
            "numa": list(taken.places.numa),
        },
        "facts": [{"fault": f.fault, "severity": f.severity, "evidence": f.evidence} for f in taken.facts],
        "sources": taken.info,
        "collectors_failed": errors,
        "faults": {name: s.unavailable() or "possible" for name, s in strategies.items()},
        # As it would be sent: of the schema of the telemetry topic.
        "frame": read.model_dump(mode="json"),
    }


def undone(outcomes: Iterable[Outcome], damaged: Iterable[Damaged]) -> Iterator[dict[str, Any]]:
    """What became of each fault of the journal; `kept`: where a damaged entry lies, of which no more is known."""
    for item in outcomes:
        entry = item.entry
        yield {
            "fault_id": entry.fault_id,
            "fault": entry.fault,
            "entity": entry.entity,
            "undone": item.problem is None,
            "problem": item.problem,
            "kept": None,
        }
    for broken in damaged:
        yield {
            "fault_id": broken.fault_id,
            "fault": None,
            "entity": None,
            "undone": False,
            "problem": broken.problem,
            "kept": str(broken.aside),
        }


def faults(strategies: Mapping[str, FaultStrategy]) -> Iterator[dict[str, Any]]:
    """Each fault, whether it is possible here and why not, what it certifies and what never."""
    for name, strategy in strategies.items():
        reason = strategy.unavailable()
        yield {
            "fault": name,
            "layer": strategy.layer,
            "possible": not reason,
            "reason": reason or "",
            "certifies": list(strategy.certifies),
            "never": list(strategy.not_certified),
        }
