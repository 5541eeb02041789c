"""Text made safe to stand in XML, HTML and SVG: nothing that an event says can become markup, or hide itself."""

from __future__ import annotations

import html
import re
from typing import Final

#: What XML 1.0 cannot hold, lone surrogates, and marks that turn the direction of what follows.
_NOT_TEXT: Final = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def clean(value: object) -> str:
    """`value` as one run of printable text; what is none is shown as U+FFFD."""
    return _NOT_TEXT.sub("\ufffd", str(value))


def escape(value: object) -> str:
    """`value` for the text and the attributes of HTML and XML."""
    return html.escape(clean(value), quote=True)


def shorten(value: str, most: int) -> str:
    """At most `most` characters, the end cut with an ellipsis."""
    return value if len(value) <= most else value[: most - 1] + "\u2026"
