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
            text = _text(message, min(room, _SECTION), titled=len(batch.messages) > 1)
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


def _text(message: Message, room: int, *, titled: bool) -> str:
    """All parts of a message in at most `room` characters."""
    first = [f"*{_escape(_title(message))}*"] if titled else []
    parts = [f"*{each.part}:* {_escape(each.text)}" for each in message.sections]
    last = [f"<{message.link}|experiment>"] if message.link else []
    # The longest parts give way: what to do stands last, and must not be what is cut off.
    left = room - sum(len(each) + 1 for each in (*first, *last)) - len(parts)
    most: dict[int, int] = {}
    for nth, index in enumerate(sorted(range(len(parts)), key=lambda index: len(parts[index]))):
        most[index] = min(len(parts[index]), max(left, 0) // (len(parts) - nth))
        left -= most[index]
    shown = [_cut_escaped(part, most[index]) for index, part in enumerate(parts)]
    return "\n".join((*first, *shown, *last))


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
