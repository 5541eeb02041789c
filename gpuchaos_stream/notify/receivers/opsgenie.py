"""Opsgenie, and Jira Service Management's operations, which took over its API: set `base_url`."""

from __future__ import annotations

from typing import Final, Literal
from urllib.parse import quote

from pydantic import Field

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.receivers.base import Batch, Receiver, Request, body
from gpuchaos_stream.notify.secret import Secret

#: Longest fields, characters.
_MESSAGE: Final = 130
_ALIAS: Final = 250
_DESCRIPTION: Final = 15_000
_NOTE: Final = 25_000
_TAG: Final = 50

_PRIORITY: Final = {Severity.CRITICAL: "P1", Severity.ERROR: "P2", Severity.WARNING: "P3", Severity.INFO: "P5"}


class Opsgenie(Receiver):
    """`type: opsgenie`. Notices are not told: it has nothing but alerts that someone must close."""

    type: Literal["opsgenie"]
    api_key: Secret
    base_url: str = Field(
        default="https://api.opsgenie.com",
        description="https://api.eu.opsgenie.com in the EU, https://api.atlassian.com/jsm/ops/integration for JSM",
    )

    def takes(self, message: Message) -> bool:
        """Alerts only."""
        return message.kind is not Kind.NOTICE

    def request(self, batch: Batch, now: float) -> Request:  # noqa: ARG002  (it has its own clock)
        """Opens, adds a note to, or closes the alert of the batch's one message."""
        (message,) = batch.messages
        key = self.api_key.read()
        alias = message.key[:_ALIAS]
        alerts = f"{self.base_url.rstrip('/')}/v2/alerts"
        by_alias = f"{alerts}/{quote(alias, safe='')}"
        note = f"{message.title}\n{message.description}"[:_NOTE]
        if message.kind is Kind.OPENED:
            url, content = alerts, _alert(message, alias)
        elif message.kind is Kind.UPDATED:
            url, content = f"{by_alias}/notes?identifierType=alias", {"note": note, "source": "gpuchaos"}
        else:
            url, content = f"{by_alias}/close?identifierType=alias", {"note": note, "source": "gpuchaos"}
        headers = {"Content-Type": "application/json", "Authorization": f"GenieKey {key}"}
        return Request(url, body(content), headers, secrets=(key,))


def _alert(message: Message, alias: str) -> dict[str, object]:
    return {
        "message": message.title[:_MESSAGE],
        "alias": alias,
        "description": message.description[:_DESCRIPTION],
        "priority": _PRIORITY[message.severity],
        "source": "gpuchaos",
        "entity": message.labels.get("experiment", message.cluster),
        "tags": [tag[:_TAG] for tag in (message.name, message.cluster, message.labels.get("signal", "")) if tag],
        "details": {**message.labels, **({"link": message.link} if message.link else {})},
    }


RECEIVER = Opsgenie
