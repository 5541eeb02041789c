"""Options that the commands which talk to Kafka share."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.signing import KeyRing, Signer

Command = TypeVar("Command", bound=Callable[..., Any])

#: The cluster that is meant where none is named; an agent's settings have the same default.
DEFAULT_CLUSTER: Final = "local"


def cluster_option(command: Command) -> Command:
    """`--cluster`, by default `GPUCHAOS_CLUSTER`, then `DEFAULT_CLUSTER`."""
    return click.option(
        "--cluster",
        envvar="GPUCHAOS_CLUSTER",
        default=DEFAULT_CLUSTER,
        show_default=True,
        show_envvar=True,
        help="Name of the GPU cluster.",
    )(command)


def kafka_options(command: Command) -> Command:
    """`--bootstrap-servers` and `--kafka-config`; all other settings come from `KAFKA_…` or that file."""
    command = click.option(
        "--kafka-config",
        type=click.Path(path_type=Path, dir_okay=False),
        help="YAML file with Kafka settings (TLS, SASL); KAFKA_… in the environment goes before it",
    )(command)
    return click.option(
        "--bootstrap-servers", metavar="HOST:PORT,…", help="Kafka brokers  [env: KAFKA_BOOTSTRAP_SERVERS]"
    )(command)


def log_level_option(command: Command) -> Command:
    """Adds `--log-level`."""
    levels = click.Choice(("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL"), case_sensitive=False)
    return click.option("--log-level", type=levels, default="INFO", show_default=True)(command)


def hush_kafka_client() -> None:
    """Silences the Kafka client's own log, a screenful while no broker answers: the bus says it once, in our words."""
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)


def key_ring(path: Path) -> KeyRing:
    """The ring at `path`.

    Raises:
        UserError: it cannot be read or is none.
    """
    try:
        return KeyRing.load(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise UserError(str(path), f"not a key ring ({error})", "make one with `gpuchaos keys make`") from error


def private_key(path: Path) -> Signer:
    """The private key at `path`.

    Raises:
        UserError: it cannot be read or is none.
    """
    try:
        return Signer.load(path)
    except OSError as error:
        raise _unreadable(path, error) from error
    except ValueError as error:
        raise UserError(str(path), f"not a private key ({error})", "make one with `gpuchaos keys make`") from error


def control_key(path: Path, ring: KeyRing, ring_path: Path) -> Signer:
    """The control plane's private key at `path`, which those who have `ring` (read from `ring_path`) believe now.

    Raises:
        UserError: it cannot be read, is another role's, is not in the ring with the same public half, or has ended.
    """
    signer = private_key(path)
    made = signer.trusted()
    believed = ring.find(signer.key_id)
    if signer.role is not Role.CONTROL:
        raise UserError(
            str(path),
            f"is a key of role {signer.role}",
            "a worker needs the control plane's: gpuchaos keys make --role control",
        )
    if believed is None or (believed.public, believed.role) != (made.public, made.role):
        raise UserError(
            str(path),
            f"{signer.key_id} is not in {ring_path}; agents would refuse its commands",
            "name the ring that `gpuchaos keys make` wrote beside it",
        )
    if believed.not_after is not None and believed.not_after < time.time():
        raise UserError(
            str(path),
            f"{signer.key_id} has ended, says {ring_path}; agents would refuse its commands",
            "use the key that `gpuchaos keys rotate` made in its place",
        )
    return signer


def _unreadable(path: Path, error: OSError) -> UserError:
    return UserError(str(path), f"cannot be read ({error.strerror})", "make one with `gpuchaos keys make`")
