"""How to reach Kafka: `KAFKA_…` in the environment, `.env`, or a YAML file, in this order of precedence."""

from __future__ import annotations

import difflib
import os
import re
import ssl
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import Field, SecretStr, ValidationError, field_validator, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.yamlfile import Document, read

Protocol = Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"]
Mechanism = Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"]

PREFIX: Final = "KAFKA_"

#: How much a variable must be like one of ours to be taken for a slip: Kubernetes and Kafka itself set others.
_ALIKE: Final = 0.85

_SERVER: Final = re.compile(r"^(\[[0-9A-Fa-f:.]+\]|[^\s:,/]+):(\d{1,5})$")


class KafkaSettings(BaseSettings):
    """Where the brokers are and how to be let in. Make it with `load`, which explains what is wrong.

    `session_timeout_s` must lie between the broker's `group.min.session.timeout.ms` (6 s by default) and
    `group.max.session.timeout.ms` (30 min); the defaults, 10 and 3, find a dead worker in 10 s and survive
    two lost heartbeats.
    """

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_file=".env", env_file_encoding="utf-8", extra="ignore", frozen=True
    )

    bootstrap_servers: str = Field(default="127.0.0.1:9092", description="host:port, several separated by commas")
    security_protocol: Protocol = "PLAINTEXT"
    ca_file: Path | None = Field(default=None, description="PEM of the authority; the system's where absent")
    cert_file: Path | None = Field(default=None, description="PEM of the client's certificate (mutual TLS)")
    key_file: Path | None = Field(default=None, description="PEM of the client's key, unencrypted")
    sasl_mechanism: Mechanism = "PLAIN"
    sasl_username: str | None = None
    sasl_password: SecretStr | None = None
    session_timeout_s: float = Field(default=10.0, gt=0, le=1800)
    heartbeat_interval_s: float = Field(default=3.0, gt=0)

    @field_validator("bootstrap_servers")
    @classmethod
    def _addresses(cls, text: str) -> str:
        servers = [part.strip() for part in text.split(",") if part.strip()]
        for server in servers:
            match = _SERVER.match(server)
            if match is None or not 0 < int(match[2]) < 65536:
                raise ValueError(f"{server!r} is not host:port")
        if not servers:
            raise ValueError("no broker is named: write host:port")
        return ",".join(servers)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        files = {"ca_file": self.ca_file, "cert_file": self.cert_file, "key_file": self.key_file}
        given = [name for name, path in files.items() if path is not None]
        if given and not self.uses_tls:
            raise ValueError(
                f"{given[0]} is set, but security_protocol {self.security_protocol} does not encrypt: "
                "use SSL or SASL_SSL, or leave the file out"
            )
        if (self.cert_file is None) != (self.key_file is None):
            raise ValueError("cert_file and key_file go together: set both or neither")
        for name, path in files.items():
            if path is not None and not path.is_file():
                raise ValueError(f"{name} {str(path)!r} is no file")
        credentials = self.sasl_username is not None or self.sasl_password is not None
        if self.uses_sasl and (self.sasl_username is None or self.sasl_password is None):
            raise ValueError(f"{self.security_protocol} needs sasl_username and sasl_password")
        if credentials and not self.uses_sasl:
            raise ValueError(
                f"sasl_username or sasl_password is set, but security_protocol {self.security_protocol} never sends "
                "them: use SASL_SSL (or SASL_PLAINTEXT), or leave them out"
            )
        if self.heartbeat_interval_s * 2 > self.session_timeout_s:
            raise ValueError("heartbeat_interval_s must be at most half of session_timeout_s")
        return self

    @property
    def uses_tls(self) -> bool:
        """Whether the connection is encrypted."""
        return self.security_protocol in ("SSL", "SASL_SSL")

    @property
    def uses_sasl(self) -> bool:
        """Whether a user name and a password are sent."""
        return self.security_protocol.startswith("SASL_")

    @property
    def servers(self) -> tuple[str, ...]:
        """Each broker as `host:port`."""
        return tuple(self.bootstrap_servers.split(","))


def load(file: Path | None = None, **overrides: Any) -> KafkaSettings:
    """The settings from `overrides` (command line; None counts as not given), the environment, `.env`, `file`.

    Raises:
        UserError: a value that is none, a combination that cannot work, an unknown field in `file`.
    """
    for text in misspelt(os.environ):
        _say_once(text)
    document = read(file) if file is not None else None
    from_file = _from_file(document)

    class Layered(KafkaSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (the base's signature)
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, env_settings, dotenv_settings, InitSettingsSource(settings_cls, from_file))

    given = {name: value for name, value in overrides.items() if value is not None}
    try:
        return Layered(**given)
    except ValidationError as error:
        raise _explained(error, document) from error


def misspelt(names: Iterable[str]) -> list[str]:
    """One line for each variable that is nearly one of ours, and would be ignored."""
    known = [PREFIX + name.upper() for name in KafkaSettings.model_fields]
    found = []
    for name in sorted(set(names)):
        if name.startswith(PREFIX) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=_ALIKE)
            found += [f"{name} is not read; did you mean {each}?" for each in near]
    return found


@cache
def _say_once(text: str) -> None:
    print(text, file=sys.stderr)  # noqa: T201  (read by programs with and without click)


def aiokafka_options(settings: KafkaSettings) -> dict[str, Any]:
    """Keyword arguments that every aiokafka client takes: addresses, encryption, credentials.

    Raises:
        UserError: a certificate file that cannot be loaded.
    """
    options: dict[str, Any] = {
        "bootstrap_servers": list(settings.servers),
        "security_protocol": settings.security_protocol,
        "ssl_context": tls_context(settings),
    }
    if settings.uses_sasl and settings.sasl_password is not None:
        options |= {
            "sasl_mechanism": settings.sasl_mechanism,
            "sasl_plain_username": settings.sasl_username,
            "sasl_plain_password": settings.sasl_password.get_secret_value(),
        }
    return options


def tls_context(settings: KafkaSettings) -> ssl.SSLContext | None:
    """A context that checks the broker's name and certificate; None where nothing is encrypted.

    Raises:
        UserError: a file that is no PEM, or a key that is not the certificate's.
    """
    if not settings.uses_tls:
        return None
    try:
        context = ssl.create_default_context(cafile=None if settings.ca_file is None else str(settings.ca_file))
    except ssl.SSLError as error:
        raise UserError(str(settings.ca_file), f"no PEM certificate ({error.reason})", "check KAFKA_CA_FILE") from error
    if settings.cert_file is not None and settings.key_file is not None:
        try:
            context.load_cert_chain(settings.cert_file, settings.key_file)
        except ssl.SSLError as error:
            raise UserError(
                f"{settings.cert_file}, {settings.key_file}",
                f"certificate and key do not load ({error.reason})",
                "check that both are PEM and belong together",
            ) from error
    return context


def environment(settings: KafkaSettings) -> dict[str, str]:
    """The settings as environment variables, for a child process that is to reach the same brokers."""
    result: dict[str, str] = {}
    for name in KafkaSettings.model_fields:
        value = getattr(settings, name)
        if value is None:
            continue
        text = value.get_secret_value() if isinstance(value, SecretStr) else str(value)
        result[PREFIX + name.upper()] = text
    return result


def _from_file(document: Document | None) -> dict[str, Any]:
    if document is None:
        return {}
    if not isinstance(document.data, dict):
        raise UserError(str(document.path), "must be a mapping of names to values", "write `bootstrap_servers: …`")
    known = set(KafkaSettings.model_fields)
    for name in document.data:
        if name not in known:
            raise UserError(document.where((str(name),)), f"unknown field {name!r}", nearest(str(name), known))
    return dict(document.data)


def _explained(error: ValidationError, document: Document | None) -> UserError:
    first = error.errors(include_url=False, include_context=False)[0]
    name = ".".join(str(part) for part in first["loc"])
    in_file = document is not None and name in document.data
    where = document.where((name,)) if document is not None and in_file else "Kafka settings"
    problem = str(first["msg"]).removeprefix("Value error, ")
    if name:
        return UserError(where, f"{name}: {problem}", f"it comes from {PREFIX}{name.upper()}, .env or the file")
    return UserError(where, problem, f"see the {PREFIX}… variables")
