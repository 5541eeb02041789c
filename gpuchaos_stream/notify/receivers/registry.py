"""All receivers, found by looking into this package: a new one is a file beside this one and no other edit."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache

from gpuchaos_stream.notify import receivers
from gpuchaos_stream.notify.receivers.base import Receiver


@cache
def kinds() -> dict[str, type[Receiver]]:
    """What people write as `type` → the settings' model."""
    found = {}
    for info in pkgutil.iter_modules(receivers.__path__):
        module = importlib.import_module(f"{receivers.__name__}.{info.name}")
        if hasattr(module, "RECEIVER"):
            found[info.name] = module.RECEIVER
    return dict(sorted(found.items()))
