"""What can be read: one file a kind of recording, found by looking into this package."""

from __future__ import annotations

import pkgutil


def names() -> tuple[str, ...]:
    """What `--kind` takes, in order. A kind has the name of its file, with `-` for `_`."""
    return tuple(sorted(info.name.replace("_", "-") for info in pkgutil.iter_modules(__path__)))
