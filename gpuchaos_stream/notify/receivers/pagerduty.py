"""PagerDuty: Events API v2 for alerts, change events for starts and ends, which page nobody."""

from __future__ import annotations

from typing import Final, Literal

from pydantic import Field

from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.receivers.base import Batch, Receiver, Request, body, rfc3339
from gpuchaos_stream.notify.secret import Secret

#: Longest `payload.summary` and `dedup_key`, characters.
_SUMMARY: Final = 1024
_DEDUP_KEY: Final = 255


class PagerDuty(Receiver):
    """`type: pagerduty`. One message a request; a resolve carries the key that the trigger had."""

    type: Literal["pagerduty"]
    routing_key: Secret = Field(description="the integration key of the service")
    base_url: str = Field(
        default="https://events.pagerduty.com", description="https://events.eu.pagerduty.com in the EU"
    )

    def request(self, batch: Batch, now: float) -> Request:  # noqa: ARG002  (its times are the events')
        """The event of the batch's one message."""
        (message,) = batch.messages
        key = self.routing_key.read()
        path, content = (
            ("change/enqueue", _change(message)) if message.kind is Kind.NOTICE else ("enqueue", _event(message))
        )
        return Request(
            f"{self.base_url.rstrip('/')}/v2/{path}",
            body({"routing_key": key, **content}),
            {"Content-Type": "application/json"},
            secrets=(key,),
        )


def _event(message: Message) -> dict[str, object]:
    resolve = message.kind is Kind.RESOLVED
    return {
        "event_action": "resolve" if resolve else "trigger",
        "dedup_key": message.key[:_DEDUP_KEY],
        "payload": {
            "summary": message.title[:_SUMMARY],
            "source": message.cluster,
            "severity": str(message.severity),
            "timestamp": rfc3339(message.starts),
            "component": message.labels.get("experiment", message.cluster),
            "group": message.cluster,
            "class": message.name,
            "custom_details": _details(message),
        },
        "client": "GPUChaos Stream",
        **_links(message),
    }


def _change(message: Message) -> dict[str, object]:
    return {
        "payload": {
            "summary": message.title[:_SUMMARY],
            "source": message.cluster,
            "timestamp": rfc3339(message.starts),
            "custom_details": _details(message),
        },
        **_links(message),
    }


def _details(message: Message) -> dict[str, str]:
    return {**{str(each.part): each.text for each in message.sections}, **message.labels}


def _links(message: Message) -> dict[str, object]:
    return {"links": [{"href": message.link, "text": "experiment"}]} if message.link else {}


RECEIVER = PagerDuty
