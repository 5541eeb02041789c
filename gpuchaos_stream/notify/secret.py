"""Secrets by file or by environment variable, never in the configuration itself, never in a log."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Self

from pydantic import Field, model_validator

from gpuchaos_stream.events.base import Authored


class SecretError(ValueError):
    """A secret cannot be had; the text names where it was looked for, never its value."""


class Secret(Authored):
    """Where a secret is. Read anew for every use, so that a rotated one is taken without a restart."""

    file: Path | None = Field(default=None, description="a file that holds it alone")
    env: str | None = Field(default=None, description="an environment variable that holds it")

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        if (self.file is None) == (self.env is None):
            raise ValueError("a secret is either {file: PATH} or {env: NAME}")
        return self

    def read(self) -> str:
        """The secret, without the white space around it.

        Raises:
            SecretError: it cannot be read, or is empty.
        """
        if self.file is not None:
            try:
                text = self.file.read_text("utf-8").strip()
            except (OSError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
                raise SecretError(f"secret file {self.file}: {reason}") from error
            where = f"secret file {self.file}"
        else:
            text = os.environ.get(self.env or "", "").strip()
            where = f"environment variable {self.env}"
        if not text or not text.isprintable() or not text.isascii():
            raise SecretError(f"{where}: {'is empty' if not text else 'is not one line of ASCII text'}")
        return text


def value(given: str | Secret) -> str:
    """A setting that may be a secret or not.

    Raises:
        SecretError: it is a secret that cannot be had.
    """
    return given.read() if isinstance(given, Secret) else given
