"""What every receiver is: settings that people write, and the request that says a batch of messages."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, ClassVar, Final

from pydantic import Field

from gpuchaos_stream.events.base import Authored, Severity
from gpuchaos_stream.experiments.plan import Duration
from gpuchaos_stream.notify.message import Message
from gpuchaos_stream.notify.secret import Secret

#: Severities in Alertmanager's convention, which knows three.
AM_SEVERITY: Final = {
    Severity.INFO: "info",
    Severity.WARNING: "warning",
    Severity.ERROR: "critical",
    Severity.CRITICAL: "critical",
}


@dataclass(frozen=True, slots=True)
class Batch:
    """What goes out as one: messages in order. `id` stays the same for every attempt. `group`: its common labels."""

    id: str
    messages: tuple[Message, ...]
    group: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request. `secrets` are what an answer may echo and no log may show."""

    url: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    method: str = "POST"
    secrets: tuple[str, ...] = ()


class Receiver(Authored):
    """Base of a receiver's settings. A file beside this one has a subclass and names it `RECEIVER`."""

    #: Most messages that one request can say; 1: each goes alone, whatever the route's grouping.
    most: ClassVar[int] = 1

    name: str = Field(pattern=r"^[a-z][a-z0-9-]{0,49}$", description="what routes and metrics call it")
    timeout: Duration = Field(default=15.0, description="for one attempt, from the name's look-up to the last byte")
    allow_private: bool = Field(default=False, description="it may be at a private or local address, and without TLS")
    ca_file: Path | None = Field(default=None, description="PEM of the authority of its certificate; the system's else")

    def takes(self, message: Message) -> bool:  # noqa: ARG002  (for those that do not take everything)
        """Whether a message can be said to it at all."""
        return True

    def request(self, batch: Batch, now: float) -> Request:
        """The request that says `batch` at `now`, epoch seconds.

        Raises:
            SecretError: a secret cannot be had.
        """
        raise NotImplementedError

    def secrets(self) -> tuple[Secret, ...]:
        """All its secrets, to be tried at the start."""
        found: list[Secret] = []
        for name in type(self).model_fields:
            value = getattr(self, name)
            found += [each for each in (value if isinstance(value, tuple) else (value,)) if isinstance(each, Secret)]
        return tuple(found)


def body(data: Any) -> bytes:
    """JSON as it is sent; half of a surrogate pair, which is no text, becomes a question mark."""
    return json.dumps(data, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def rfc3339(time: float) -> str:
    """Epoch seconds as RFC 3339 in UTC, milliseconds."""
    return datetime.fromtimestamp(time, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def notes(message: Message) -> dict[str, str]:
    """The parts of a message under the names that alert tools show: `summary`, `description`, and one each."""
    parts = {str(each.part).lower().replace(" ", "_"): each.text for each in message.sections}
    return {"summary": message.title, "description": message.description, **parts}


def common(dicts: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The pairs that all of them have."""
    first = dicts[0] if dicts else {}
    return {name: value for name, value in first.items() if all(each.get(name) == value for each in dicts)}
