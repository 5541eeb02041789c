"""All collectors, by name. A new one is a file beside this one and a line in the table."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from gpuchaos_stream.errors import UserError, nearest

if TYPE_CHECKING:
    from gpuchaos_agent.collect.base import Collector, Sources

#: Name → module:class, each with `from_sources(Sources)`. The order is that of the groups in a frame.
COLLECTORS: Final[dict[str, str]] = {
    "node": "gpuchaos_agent.collect.node:NodeCollector",
    "gpu": "gpuchaos_agent.collect.gpu:GpuCollector",
    "rdma": "gpuchaos_agent.collect.rdma:RdmaCollector",
    "numa": "gpuchaos_agent.collect.numa:NumaCollector",
    "process": "gpuchaos_agent.collect.process:ProcessCollector",
    "kmsg": "gpuchaos_agent.collect.kmsg:KmsgCollector",
}


def build(sources: Sources, only: Iterable[str] | None = None) -> tuple[Collector, ...]:
    """The collectors of the table, or those named in `only`, in the table's order.

    Raises:
        UserError: `only` names a collector that is not in the table.
    """
    wanted = set(COLLECTORS) if only is None else set(only)
    for name in sorted(wanted - set(COLLECTORS)):
        raise UserError("collectors", f"no collector {name!r}", nearest(name, COLLECTORS))
    made: list[Collector] = []
    for name, path in COLLECTORS.items():
        if name in wanted:
            module, _, attribute = path.partition(":")
            made.append(getattr(importlib.import_module(module), attribute).from_sources(sources))
    return tuple(made)
