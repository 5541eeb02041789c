"""Slack: an incoming webhook. Its address is the secret."""

from __future__ import annotations

from typing import Any, ClassVar, Final, Literal

from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.receivers.base import Batch, Receiver, Request, body
from gpuchaos_stream.notify.secret import Secret

#: Bounds of Slack, characters; all texts together must stay below about 13,000.
_HEADER: Final = 150
_SECTION: Final = 3000
_ALL: Final = 12_000

_SIGN: Final = {Severity.INFO: "ℹ️", Severity.WARNING: "⚠️", Severity.ERROR: "🔶", Severity.CRITICAL: "🔴"}


class Slack(Receiver):
    """`type: slack`. Several messages of a group are one post; a post is never changed afterwards."""

    most: ClassVar[int] = 10

    type: Literal["slack"]
    url: Secret

    def request(self, batch: Batch, now: float) -> Request:  # noqa: ARG002  (a post has Slack's own time)
        """The post."""
        url = self.url.read()
        first = batch.messages[0]
        title = _title(first) if len(batch.messages) == 1 else f"{len(batch.messages)} messages from {first.cluster}"
        blocks: list[dict[str, Any]] = [
            {"type": "header", "text": {"type": "plain_text", "text": _cut(title, _HEADER), "emoji": True}}
        ]
        room = (_ALL - _HEADER) // len(batch.messages)
        for message in batch.messages:
            text = _text(message, titled=len(batch.messages) > 1)
            blocks.append(
                {"type": "section", "text": {"type": "mrkdwn", "text": _cut_escaped(text, min(room, _SECTION))}}
            )
        return Request(
            url,
            body({"text": _cut_escaped(_escape(title), _SECTION), "blocks": blocks}),
            {"Content-Type": "application/json"},
            secrets=(url,),
        )


def _title(message: Message) -> str:
    sign = "✅" if message.kind is Kind.RESOLVED else _SIGN[message.severity]
    return f"{sign} {'resolved: ' if message.kind is Kind.RESOLVED else ''}{message.title}"


def _text(message: Message, *, titled: bool) -> str:
    lines = [f"*{_escape(_title(message))}*"] if titled else []
    lines += [f"*{each.part}:* {_escape(each.text)}" for each in message.sections]
    if message.link:
        lines.append(f"<{message.link}|experiment>")
    return "\n".join(lines)


def _escape(text: str) -> str:
    """Slack's three characters, and what a text could format with."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _cut_escaped(text: str, limit: int) -> str:
    """As `_cut`, but not in the middle of an escape or a link."""
    if len(text) <= limit:
        return text
    cut = text[: limit - 1]
    for opening, closing in (("&", ";"), ("<", ">")):
        if cut.rfind(opening) > cut.rfind(closing):
            cut = cut[: cut.rfind(opening)]
    return cut + "…"


RECEIVER = Slack
