"""The API's description, which is committed as `schema/http/openapi.json`."""

from __future__ import annotations

from typing import Any

from gpuchaos_stream.web.app import create_app
from gpuchaos_stream.web.board import Board


def document() -> dict[str, Any]:
    """OpenAPI 3.1 of `/api/v1`."""
    return create_app(Board(epoch=""), clock=lambda: 0.0).openapi()
