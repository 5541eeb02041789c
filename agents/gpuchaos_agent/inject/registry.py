"""All faults, by name. A new one is a file beside this one and a line in the table."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from gpuchaos_agent.inject.base import Env, FaultStrategy

#: Name → module:class, each made with the `Env`.
STRATEGIES: Final[dict[str, str]] = {
    "process-stop": "gpuchaos_agent.inject.process_stop:ProcessStop",
    "memory-corruption": "gpuchaos_agent.inject.memory_corruption:MemoryCorruption",
}


def build(env: Env) -> dict[str, FaultStrategy]:
    """Every strategy of the table, made for this node."""
    made: dict[str, FaultStrategy] = {}
    for name, path in STRATEGIES.items():
        module, _, attribute = path.partition(":")
        made[name] = getattr(importlib.import_module(module), attribute)(env)
    return made
