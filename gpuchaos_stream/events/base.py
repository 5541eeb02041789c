"""What all events share: strictness, identity, time, and the names of entities."""

from __future__ import annotations

import hashlib
from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

#: Seconds since the Unix epoch, on the broker's clock where the agent knows its offset from it.
#: The bound tells seconds from milliseconds, and leaves infinity out.
Timestamp = Annotated[float, Field(ge=0, lt=1e11, description="seconds since the Unix epoch")]

#: `kind/node/local` (`gpu/n003/2`, `port/n003/mlx5_0`), `kind/name` for what spans nodes (`job/llama`).
Entity = Annotated[str, Field(pattern=r"^[a-z_]+(/[^/\s]+){1,2}$", description="kind/node/local or kind/name")]


class Severity(StrEnum):
    """How bad a fact is, worst last. The order is the enum's order (`Severity.rank`)."""

    INFO = "info"
    WARNING = "warning"
    ERROR = "error"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info up to 3 for critical."""
        return list(Severity).index(self)


class Wire(BaseModel):
    """Base of everything read from a topic: unknown fields are tolerated, so that a newer writer is understood."""

    model_config = ConfigDict(extra="ignore", frozen=True, ser_json_inf_nan="null", protected_namespaces=())


class Authored(BaseModel):
    """Base of everything that people write: an unknown field is a mistake to be named, not to be ignored."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())


class Event(Wire):
    """Base of an event: what happened, where, when. `id` is unique and makes a repeat recognisable."""

    schema_version: Literal[1] = 1
    id: str = Field(min_length=1, max_length=200)
    time: Timestamp
    cluster: str = Field(min_length=1, max_length=100)


def stable_id(*parts: object) -> str:
    """A 20-digit hexadecimal id made of `parts` alone, so that a replay or a restart makes the same one."""
    text = "\x1f".join(str(part) for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()[:20]


def entity_kind(entity: str) -> str:
    """`gpu` of `gpu/n003/2`."""
    return entity.split("/", 1)[0]


def entity_node(entity: str) -> str | None:
    """`n003` of `gpu/n003/2` and of `node/n003`; None for what spans nodes (`job/llama`, `cell/c1`)."""
    parts = entity.split("/")
    if len(parts) == 3 or parts[0] == "node":
        return parts[1]
    return None
