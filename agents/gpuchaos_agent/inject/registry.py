"""All faults, found by looking into this package: a new one is a file beside this one and no other edit.

A module is a fault if it has `STRATEGY`, a class that is made with an `Env` (see `base.FaultStrategy`).
"""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from typing import TYPE_CHECKING, Any

from gpuchaos_agent import inject

if TYPE_CHECKING:
    from gpuchaos_agent.inject.base import Env, FaultStrategy


@cache
def strategies() -> dict[str, Any]:
    """Name → class, by name."""
    found = []
    for info in pkgutil.iter_modules(inject.__path__):
        module = importlib.import_module(f"{inject.__name__}.{info.name}")
        if hasattr(module, "STRATEGY"):
            found.append(module.STRATEGY)
    return {made.name: made for made in sorted(found, key=lambda made: str(made.name))}


def build(env: Env) -> dict[str, FaultStrategy]:
    """Every strategy there is, made for this node."""
    return {name: made(env) for name, made in strategies().items()}
