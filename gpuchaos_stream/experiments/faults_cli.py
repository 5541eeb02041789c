"""`gpuchaos faults`: what can be broken, what each fault shows, and which nodes can suffer it."""

from __future__ import annotations

import asyncio
import sys
import textwrap
from collections.abc import Iterable, Iterator
from typing import Any, Final

import click

from gpuchaos_stream.commandline import Group, exits, output_option
from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.envelope import BadMessageError, from_value
from gpuchaos_stream.events.node import NodeInfo
from gpuchaos_stream.experiments import parameters
from gpuchaos_stream.experiments.cli import Connection, connection_options
from gpuchaos_stream.experiments.faults import FAULTS, FaultKind
from gpuchaos_stream.experiments.safety import PROTECTED_LABEL
from gpuchaos_stream.output import Form, text

_WIDTH: Final = 120
_INDENT: Final = 16


@click.group(cls=Group, invoke_without_command=True)
@output_option
@click.pass_context
@exits()
def faults(context: click.Context, output: Form) -> None:
    """List every fault: the layer that it reaches, what it certifies and what never, its needs and parameters."""
    if context.invoked_subcommand is not None:
        return
    for kind in FAULTS.values():
        for row in rows(kind):
            click.echo(_page(row) + "\n" if output == "table" else text(row, output), nl=False)


@faults.command("check")
@click.option("--node", help="Only this node.")
@connection_options
@output_option
@exits({1: "one of the nodes can suffer none", 2: "no node, or not this one, has reported; or bad input"})
def check_nodes(node: str | None, connection: Connection, output: Form) -> None:
    """Say for each node which faults are possible there, why the others are not, and what they can be aimed at."""
    found = {info.node: info for info in asyncio.run(_nodes(connection))}
    if node is not None and node not in found:
        raise UserError(f"node {node}", f"cluster {connection.cluster!r} has not heard of it", nearest(node, found))
    if not found:
        raise UserError(f"cluster {connection.cluster}", "no node has reported", "is an agent running?")
    shown = [found[name] for name in ([node] if node is not None else sorted(found))]
    for info in shown:
        for line in _of_node(info, output):
            click.echo(line, nl=False)
    sys.exit(0 if all(info.faults_possible for info in shown) else 1)


def rows(kind: FaultKind) -> Iterator[dict[str, Any]]:
    """What is said of each form of a fault."""
    for form in kind.forms:
        yield {
            "fault": kind.name,
            "form": {kind.by: form.value} if kind.by else {},
            "available": kind.available,
            "layer": form.layer,
            "targets": form.targets,
            "certifies": form.certifies,
            "never": form.never,
            "needs": form.needs,
            "parameters": parameters.names(kind.name),
        }


def _page(row: dict[str, Any]) -> str:
    form = "".join(f" {name}={value}" for name, value in row["form"].items())
    lines = [f"{row['fault']}{form}" + ("" if row["available"] else "  (not yet available)")]
    aimed = " or ".join(f"{target}/NODE" + ("" if target == "node" else "/ID") for target in row["targets"])
    for name, said in (
        ("reaches", row["layer"]),
        ("aimed at", aimed),
        ("certifies", ", ".join(row["certifies"])),
        ("never certifies", ", ".join(row["never"])),
        ("needs", row["needs"]),
        ("parameters", ", ".join(row["parameters"]) or "none"),
    ):
        first = f"  {name}".ljust(_INDENT + 2) + " "
        lines += textwrap.wrap(said or "-", _WIDTH, initial_indent=first, subsequent_indent=" " * len(first))
    return "\n".join(lines) + "\n"


def _of_node(info: NodeInfo, output: Form) -> Iterable[str]:
    protected = info.labels.get(PROTECTED_LABEL, "").lower() == "true"
    if output != "table":
        body = {"possible": info.faults_possible, "impossible": info.faults_impossible, "protected": protected}
        body |= {"targets": _targets(info), "jobs": info.jobs}
        yield text({"node": info.node, **body}, output)
        return
    yield f"{info.node}  agent {info.agent_version or '-'}" + "  PROTECTED: no target of any plan" * protected + "\n"
    names = [*info.faults_possible, *info.faults_impossible]
    width = max(map(len, names), default=0)
    for name in sorted(names):
        yield f"  {name.ljust(width)}  {info.faults_impossible.get(name, 'possible')}\n"
    processes = f"process/{info.node}/PID for each process of {', '.join(info.jobs)}" if info.jobs else ""
    aims = ", ".join(filter(None, (*_targets(info), processes)))
    yield textwrap.fill(aims, _WIDTH, initial_indent="  aim at  ", subsequent_indent=" " * 10) + "\n"


def _targets(info: NodeInfo) -> list[str]:
    """The node and its devices, as a plan names them. Its processes come and go, and have no list."""
    gpus = [f"gpu/{info.node}/{gpu.index}" for gpu in info.gpus]
    return [f"node/{info.node}", *gpus, *(f"port/{info.node}/{port.name}" for port in info.ports)]


async def _nodes(connection: Connection) -> list[NodeInfo]:
    """The latest word of each node of the cluster."""
    found: dict[str, NodeInfo] = {}
    async with connection.bus() as bus:
        for record in await bus.snapshot((topics.NODES.name,)):
            try:
                event = from_value(topics.NODES.name, record.value)
            except BadMessageError:
                continue  # the control stage's dead letters tell of it
            if isinstance(event, NodeInfo) and event.cluster == connection.cluster:
                found[event.node] = event
    return list(found.values())
