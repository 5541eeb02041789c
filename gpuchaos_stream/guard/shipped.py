"""Where the rules that come with the product lie: in a wheel beside the package, in a checkout at its root."""

from __future__ import annotations

from pathlib import Path

import gpuchaos_stream
from gpuchaos_stream.errors import UserError


def shipped_rules() -> Path:
    """The folder of the shipped rules, with their tests in `tests/` below it.

    Raises:
        UserError: it is neither in the installed package nor in the checkout.
    """
    package = Path(gpuchaos_stream.__file__).parent
    for folder in (package / "shipped" / "rules", package.parent / "rules"):
        if any(folder.glob("*.yaml")):
            return folder
    raise UserError(str(package), "the shipped rules are not there", "install the package again, or name a folder")
