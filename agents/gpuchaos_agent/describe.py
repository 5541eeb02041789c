"""`python -m gpuchaos_agent.describe FILE`: what this agent says of its faults, as data for the control plane.

The control plane's tables are made without an agent: `make schema` writes the file.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from gpuchaos_agent.inject import registry


def described() -> dict[str, dict[str, Any]]:
    """Fault → layer, claims, and the JSON Schema of its parameters."""
    return {
        name: {
            "layer": strategy.layer,
            "certifies": list(strategy.certifies),
            "not_certified": list(strategy.not_certified),
            "params": _plain(strategy.params.model_json_schema()),
        }
        for name, strategy in registry.strategies().items()
    }


def text() -> str:
    """The same as it is kept under version control."""
    return json.dumps(described(), indent=2, sort_keys=True) + "\n"


def _plain(schema: Any) -> Any:
    """Without the titles that pydantic makes of names."""
    if isinstance(schema, dict):
        return {key: _plain(value) for key, value in schema.items() if key != "title" or not isinstance(value, str)}
    return [_plain(item) for item in schema] if isinstance(schema, list) else schema


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(text())
