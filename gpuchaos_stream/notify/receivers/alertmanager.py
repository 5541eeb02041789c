"""Prometheus Alertmanager, API v2: alerts that are posted again before they end, and silences for experiments.

Its resolve of an alert must carry everything that the alert had, or annotations are wiped; and an alert that is not
posted again resolves by itself. Both are kept to here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final, Literal
from urllib.parse import quote

from pydantic import Field

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.experiments.plan import Duration
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.receivers.base import AM_SEVERITY, Batch, Receiver, Request, body, notes, rfc3339
from gpuchaos_stream.notify.secret import Secret, value

#: An alert or a silence that is not renewed for so many rounds ends by itself: a notifier that died leaves nothing.
_ROUNDS: Final = 4


class Alertmanager(Receiver):
    """`type: alertmanager`. Name every member of a cluster as a receiver of its own, as Prometheus does."""

    most: ClassVar[int] = 50

    type: Literal["alertmanager"]
    url: str | Secret = Field(description="its address, with its path prefix if it has one")
    authorization: Secret | None = Field(default=None, description="the whole value of the header Authorization")
    renew: Duration = Field(default=60.0, description="alerts and silences are renewed so often, and end after four")
    silence: bool = Field(default=False, description="silence alerts that bear a running experiment's label")

    def takes(self, message: Message) -> bool:
        """Alerts only: what is over when it is told is no alert."""
        return message.kind is not Kind.NOTICE

    def request(self, batch: Batch, now: float) -> Request:
        """Posts the alerts of `batch`; one whose severity label has changed is ended under its old labels."""
        return self.post(batch.messages, now)

    def post(self, messages: Sequence[Message], now: float) -> Request:
        """Posts the alerts, open ones until four rounds from `now`, epoch seconds."""
        alerts: list[dict[str, object]] = []
        for message in messages:
            if message.was is not None and AM_SEVERITY[message.was] != AM_SEVERITY[message.severity]:
                alerts.append(_alert(message, message.was, now))
            ends = now + _ROUNDS * self.renew if message.firing else min(message.ends or now, now)
            alerts.append(_alert(message, message.severity, ends))
        return self._request("POST", "alerts", alerts)

    def silence_of(self, experiment_id: str, silence_id: str | None, starts: float, now: float) -> Request:
        """Makes or renews the silence of a running experiment: what bears its label, abort signals excepted.

        Alertmanager renews a silence only where `starts` (epoch seconds) is what it knows; else it makes another.
        """
        content: dict[str, object] = {
            "matchers": [
                {"name": "experiment_id", "value": experiment_id, "isRegex": False, "isEqual": True},
                {"name": "signal", "value": "abort", "isRegex": False, "isEqual": False},
            ],
            "startsAt": rfc3339(starts),
            "endsAt": rfc3339(now + _ROUNDS * self.renew),
            "createdBy": "gpuchaos notify",
            "comment": f"blast radius of the running experiment {experiment_id}",
        }
        return self._request("POST", "silences", content | ({"id": silence_id} if silence_id else {}))

    def unsilence(self, silence_id: str) -> Request:
        """Ends a silence."""
        return self._request("DELETE", f"silence/{quote(silence_id, safe='')}", None)

    def _request(self, method: str, path: str, content: object) -> Request:
        authorization = self.authorization.read() if self.authorization else None
        headers = {"Content-Type": "application/json"} if content is not None else {}
        if authorization:
            headers["Authorization"] = authorization
        return Request(
            f"{value(self.url).rstrip('/')}/api/v2/{path}",
            body(content) if content is not None else b"",
            headers,
            method,
            secrets=tuple(filter(None, [authorization])),
        )


def _alert(message: Message, severity: Severity, ends: float) -> dict[str, object]:
    return {
        "labels": {**message.labels, "severity": AM_SEVERITY[severity]},
        "annotations": notes(message),
        "startsAt": rfc3339(min(message.starts, ends)),
        "endsAt": rfc3339(ends),
        **({"generatorURL": message.link} if message.link else {}),
    }


RECEIVER = Alertmanager
