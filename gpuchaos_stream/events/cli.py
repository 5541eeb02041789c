"""`gpuchaos schema` and `gpuchaos keys`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from gpuchaos_stream.commandline import Group, exits, output_option
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.schema import incompatible, schemas, text
from gpuchaos_stream.events.signing import KeyRing, Signer
from gpuchaos_stream.output import Form, table, write

#: How long an old key is believed after a rotation, seconds: agents read their ring anew within it.
OVERLAP_S = 7 * 24 * 3600.0


@click.command()
@click.option(
    "--write", "folder", type=click.Path(path_type=Path, file_okay=False), help="write one file per topic there"
)
@click.option(
    "--check", type=click.Path(path_type=Path, exists=True, file_okay=False), help="compare with the files there"
)
@exits({1: "with --check: a change is incompatible"})
def schema(folder: Path | None, check: Path | None) -> None:
    """The contract as JSON Schema: print it, write it, or compare it with an older one."""
    current = schemas()
    if folder is not None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for name, body in current.items():
                (folder / f"{name}.json").write_text(text(body))
        except OSError as error:
            raise UserError(str(folder), f"cannot be written ({error.strerror})", "name a folder of yours") from error
        click.echo(f"{len(current)} schemas in {folder}/")
    elif check is not None:
        problems = []
        found = sorted(check.glob("*.json"))
        if not found:
            raise UserError(str(check), "no schema is in it", "write one there: gpuchaos schema --write FOLDER")
        for path in found:
            if path.stem not in current:
                problems.append(f"{path.stem}: is gone")
                continue
            problems += [f"{path.stem}: {p}" for p in incompatible(_schema(path), current[path.stem])]
        for problem in problems:
            click.echo(problem)
        sys.exit(1 if problems else 0)
    else:
        click.echo(json.dumps(current, indent=2, sort_keys=True))


def _schema(path: Path) -> Any:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise UserError(
            str(path), f"is no schema ({error})", "write it anew: gpuchaos schema --write FOLDER"
        ) from error
    if not isinstance(found, dict):
        raise UserError(str(path), "is no schema", "write it anew: gpuchaos schema --write FOLDER")
    return found


@click.group(cls=Group)
def keys() -> None:
    """Make, rotate and list the keys that sign commands."""


_DIR = click.option(
    "--dir", "directory", type=click.Path(path_type=Path, file_okay=False), default=Path("keys"), show_default=True
)
_ROLE = click.option("--role", type=click.Choice([r.value for r in Role]), required=True)


@keys.command()
@_DIR
@_ROLE
@click.option("--owner", default="", help="who holds it; shown in the ring")
@output_option
@exits()
def make(directory: Path, role: str, owner: str, output: Form) -> None:
    """Make a key for ROLE and add its public half to the ring in DIR/keyring.json."""
    target = directory / f"{role}.json"
    if target.exists():
        raise UserError(str(target), "exists already", "rotate it with `gpuchaos keys rotate`, or choose another --dir")
    _issue(directory, Role(role), owner, _ring(directory), output)


@keys.command()
@_DIR
@_ROLE
@click.option("--owner", default="", help="who holds it; shown in the ring")
@click.option("--overlap", type=float, default=OVERLAP_S, help="seconds that the old key is still believed")
@output_option
@exits()
def rotate(directory: Path, role: str, owner: str, overlap: float, output: Form) -> None:
    """Replace the key of ROLE: the old one stays believed for a while, so that nothing in flight is refused."""
    import time  # noqa: PLC0415  (an edge: this is where time enters)

    target = directory / f"{role}.json"
    if not target.exists():
        raise UserError(str(target), "there is no key to rotate", "make one with `gpuchaos keys make`")
    ring = _ring(directory)
    end = time.time() + overlap
    old = ring.find(_load(target).key_id)
    if old is not None:
        ring = ring.with_key(
            old.model_copy(update={"not_after": end if old.not_after is None else min(end, old.not_after)})
        )
    _issue(directory, Role(role), owner, ring, output)


@keys.command("list")
@_DIR
@output_option
@exits()
def list_keys(directory: Path, output: Form) -> None:
    """The public keys that are believed."""
    path = directory / "keyring.json"
    if not path.exists():
        raise UserError(str(path), "there is no key ring", "make one with `gpuchaos keys make`, or name its --dir")
    found = _ring(directory).keys
    if output == "table":
        rows = [(key.key_id, key.role.value, _until(key.not_after), key.owner) for key in found]
        table(("key", "role", "believed", "owner"), rows)
    else:
        write(found, output)


def _issue(directory: Path, role: Role, owner: str, ring: KeyRing, output: Form) -> None:
    signer = Signer.generate(role)
    trusted = signer.trusted(owner=owner)
    try:
        # The ring first: a key that signs before it is believed would be refused everywhere.
        ring.with_key(trusted).save(directory / "keyring.json")
        signer.save(directory / f"{role}.json")
    except OSError as error:
        raise UserError(str(directory), f"cannot be written ({error.strerror})", "name a --dir of yours") from error
    if output != "table":
        write([trusted], output)
    else:
        click.echo(f"{directory / f'{role}.json'}: {signer.key_id} (private: keep it)")
        click.echo(f"{directory / 'keyring.json'}: public keys, for every agent and worker")


def _until(not_after: float | None) -> str:
    if not_after is None:
        return "no end"
    return f"until {datetime.fromtimestamp(not_after, UTC):%Y-%m-%dT%H:%M:%SZ}"


def _ring(directory: Path) -> KeyRing:
    path = directory / "keyring.json"
    if not path.exists():
        return KeyRing()
    try:
        return KeyRing.load(path)
    except (OSError, ValueError) as error:
        raise UserError(
            str(path), f"not a key ring ({error})", "restore it, or make new keys in another --dir"
        ) from error


def _load(path: Path) -> Signer:
    try:
        return Signer.load(path)
    except (OSError, ValueError) as error:
        raise UserError(str(path), str(error), "make a key with `gpuchaos keys make`") from error
