"""All collectors, found by looking into this package: a new one is a file beside this one and no other edit.

A module is a source if it has `COLLECTOR`, a class with `name`, `kinds`, `ORDER` and `from_sources(Sources)`.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

from gpuchaos_agent import collect
from gpuchaos_stream.errors import UserError, nearest

if TYPE_CHECKING:
    from gpuchaos_agent.collect.base import Collector, Sources


@cache
def collectors() -> dict[str, Any]:
    """Name → class, in the order of the groups in a frame (`ORDER`, then name)."""
    found = []
    for info in pkgutil.iter_modules(collect.__path__):
        module = importlib.import_module(f"{collect.__name__}.{info.name}")
        if hasattr(module, "COLLECTOR"):
            found.append(module.COLLECTOR)
    return {made.name: made for made in sorted(found, key=lambda made: (made.ORDER, made.name))}


def build(sources: Sources, only: Iterable[str] | None = None) -> tuple[Collector, ...]:
    """The collectors there are, or those named in `only`, in their order.

    Raises:
        UserError: `only` names a collector that does not exist.
    """
    known = collectors()
    wanted = set(known) if only is None else set(only)
    for name in sorted(wanted - set(known)):
        raise UserError("collectors", f"no collector {name!r}", nearest(name, known))
    return tuple(made.from_sources(sources) for name, made in known.items() if name in wanted)
