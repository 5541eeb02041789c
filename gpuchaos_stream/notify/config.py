"""The file that says who is told of what: `gpuchaos notify --config`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import Field

from gpuchaos_stream.errors import UserError, UserErrors, nearest
from gpuchaos_stream.events.base import Authored
from gpuchaos_stream.experiments.plan import Duration
from gpuchaos_stream.notify.receivers.base import Receiver
from gpuchaos_stream.notify.receivers.registry import kinds
from gpuchaos_stream.notify.routing import Route
from gpuchaos_stream.notify.secret import SecretError, value
from gpuchaos_stream.yamlfile import Document, read

_ADDRESSES: Final = ("url", "base_url")


class _File(Authored):
    """The file, its receivers not yet read: each has its own fields, by its `type`."""

    api_version: Literal["gpuchaos/v1"]
    kind: Literal["Notify"]
    receivers: tuple[dict[str, Any], ...] = Field(min_length=1)
    routes: tuple[Route, ...] = Field(min_length=1)
    link: str | None = Field(
        default=None, description="page of an experiment, with {experiment_id} and {cluster} in it"
    )
    give_up_after: Duration = Field(default=86_400.0, description="an undelivered message is set aside after this")


class Config(Authored):
    """Receivers by name, routes in order."""

    receivers: dict[str, Receiver]
    routes: tuple[Route, ...]
    link: str | None = None
    give_up_after: float = 86_400.0

    def link_of(self, cluster: str, experiment_id: str | None) -> str | None:
        """Address of an experiment's page, None where there is none."""
        if self.link is None or experiment_id is None or not re.fullmatch(r"[\w.-]+", experiment_id + cluster):
            return None
        return self.link.replace("{experiment_id}", experiment_id).replace("{cluster}", cluster)


def load(path: Path, *, secrets: bool = True) -> Config:
    """Reads the file. With `secrets` each is tried, so that a missing one is told at the start and not in the night.

    Raises:
        UserError: every mistake with file, line, field and what to do.
    """
    document = read(path)
    file = document.validate(_File)
    errors: list[UserError] = []
    receivers: dict[str, Receiver] = {}
    for index, given in enumerate(file.receivers):
        try:
            receiver = _receiver(document, index, given, secrets=secrets)
        except UserErrors as error:
            errors += error.errors
        except UserError as error:
            errors.append(error)
        else:
            if receiver.name in receivers:
                where = document.where(("receivers", index, "name"))
                errors.append(UserError(where, f"receiver {receiver.name!r} is there twice", "give it another name"))
            receivers[receiver.name] = receiver
    if not errors:
        errors += _unknown_receivers(document, file, receivers)
    if file.link is not None and urlsplit(file.link).scheme not in ("http", "https"):
        errors.append(UserError(document.where(("link",)), "field 'link' is no http address", "write https://…"))
    if errors:
        raise UserErrors(errors)
    return Config(receivers=receivers, routes=file.routes, link=file.link, give_up_after=file.give_up_after)


def _receiver(document: Document, index: int, given: dict[str, Any], *, secrets: bool) -> Receiver:
    known = kinds()
    loc = ("receivers", index)
    kind = given.get("type")
    if kind is None:
        raise UserError(
            document.where(loc), f"receivers.{index}: field 'type' is missing", f"known are {', '.join(known)}"
        )
    if kind not in known:
        where = document.where((*loc, "type"))
        raise UserError(where, f"receivers.{index}: unknown type {kind!r}", nearest(str(kind), known))
    lines = {key[2:]: line for key, line in document.lines.items() if key[:2] == loc}
    receiver = Document(document.path, given, lines).validate(known[kind])
    for secret in receiver.secrets() if secrets else ():
        try:
            secret.read()
        except SecretError as error:
            raise UserError(document.where(loc), f"receiver {receiver.name!r}: {error}", "make it readable") from error
    for name in _ADDRESSES:
        given_address = getattr(receiver, name, None)
        if given_address is not None and (secrets or isinstance(given_address, str)):
            problem = _bad_address(value(given_address), receiver)
            if problem:
                where = document.where((*loc, name))
                raise UserError(where, f"receiver {receiver.name!r}: field {name!r} {problem[0]}", problem[1])
    if receiver.ca_file is not None and not receiver.ca_file.is_file():
        where = document.where((*loc, "ca_file"))
        raise UserError(where, f"receiver {receiver.name!r}: {receiver.ca_file} is no file", "name a PEM file")
    return receiver


def _bad_address(address: str, receiver: Receiver) -> tuple[str, str] | None:
    """What is wrong with a receiver's address; the address itself may be a secret and is not shown."""
    try:
        parts = urlsplit(address)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "is no address", "write https://HOST/…"
    if parts.scheme not in ("http", "https") or not host:
        return "is no http address", "write https://HOST/…"
    if parts.username is not None:
        return "has a password in it", "use `authorization`"
    if parts.scheme == "http" and not receiver.allow_private:
        return "is without TLS", "write https://, or allow_private: true for one in your own network"
    return None


def _unknown_receivers(document: Document, file: _File, receivers: dict[str, Receiver]) -> list[UserError]:
    return [
        UserError(
            document.where(("routes", index, "receivers")),
            f"routes.{index}: no receiver is called {name!r}",
            nearest(name, receivers),
        )
        for index, route in enumerate(file.routes)
        for name in route.receivers
        if name not in receivers
    ]
