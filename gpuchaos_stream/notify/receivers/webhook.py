"""Any receiver: a signed webhook with Standard Webhooks headers and a body shaped as Alertmanager's version 4.

The shape is what incident tools read already; the signature is what tells them that it is ours.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import ClassVar, Final, Literal

from pydantic import Field

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.receivers.base import (
    AM_SEVERITY,
    Batch,
    Receiver,
    Request,
    body,
    common,
    notes,
    rfc3339,
)
from gpuchaos_stream.notify.secret import Secret, SecretError, value

#: Alertmanager's way of writing "not yet".
_NEVER: Final = "0001-01-01T00:00:00Z"
#: Length of a signing secret that the specification allows, bytes.
_LEAST, _MOST = 24, 64


class Webhook(Receiver):
    """`type: webhook`. With several secrets each signs, so that the receiver's can be changed at leisure."""

    most: ClassVar[int] = 10

    type: Literal["webhook"]
    url: str | Secret
    signing: tuple[Secret, ...] = Field(default=(), description="whsec_ and base64 of 24 to 64 bytes, each")
    authorization: Secret | None = Field(default=None, description="the whole value of the header Authorization")

    def request(self, batch: Batch, now: float) -> Request:
        """The signed request."""
        keys = [each.read() for each in self.signing]
        authorization = self.authorization.read() if self.authorization else None
        url = value(self.url)
        content = body(_alertmanager_v4(batch, self.name))
        stamp = str(int(now))
        headers = {"Content-Type": "application/json", "webhook-id": batch.id, "webhook-timestamp": stamp}
        if keys:
            headers["webhook-signature"] = " ".join(sign(key, batch.id, stamp, content) for key in keys)
        if authorization:
            headers["Authorization"] = authorization
        return Request(
            url,
            content,
            headers,
            secrets=(*keys, *filter(None, [authorization]), *([url] if isinstance(self.url, Secret) else [])),
        )


def sign(secret: str, message_id: str, timestamp: str, content: bytes) -> str:
    """A signature of Standard Webhooks 1.0, symmetric: `v1,` and base64 of HMAC-SHA256 over `id.timestamp.body`.

    Raises:
        SecretError: the secret is not `whsec_` and base64 of 24 to 64 bytes.
    """
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except binascii.Error as error:
        raise SecretError("a signing secret is not base64 after whsec_") from error
    if not _LEAST <= len(key) <= _MOST:
        raise SecretError(f"a signing secret has {len(key)} bytes; {_LEAST} to {_MOST} are allowed")
    signed = b".".join((message_id.encode(), timestamp.encode(), content))
    return "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()


def _alertmanager_v4(batch: Batch, receiver: str) -> dict[str, object]:
    labels = [_labels(message) for message in batch.messages]
    said = [notes(message) for message in batch.messages]
    return {
        "version": "4",
        "groupKey": stable_id("group", *(part for pair in sorted(batch.group.items()) for part in pair)),
        "truncatedAlerts": 0,
        "status": "firing" if any(message.firing for message in batch.messages) else "resolved",
        "receiver": receiver,
        "groupLabels": dict(batch.group),
        "commonLabels": common(labels),
        "commonAnnotations": common(said),
        "externalURL": next((message.link for message in batch.messages if message.link), ""),
        "alerts": [
            {
                # A notice is over when it is told: shown as resolved, it leaves nothing open at the receiver.
                "status": "firing" if message.firing else "resolved",
                "labels": own_labels,
                "annotations": own_notes,
                "startsAt": rfc3339(message.starts),
                "endsAt": _NEVER if message.firing else rfc3339(message.ends or message.starts),
                "generatorURL": message.link or "",
                "fingerprint": message.key[:16],
            }
            for message, own_labels, own_notes in zip(batch.messages, labels, said, strict=True)
        ],
    }


def _labels(message: Message) -> dict[str, str]:
    event = {"event": str(message.kind)} if message.kind is Kind.NOTICE else {}
    return {**message.labels, "severity": AM_SEVERITY[message.severity], **event}


RECEIVER = Webhook
