"""Command line: `run` trains in a folder until it is stopped, `resume` has it start again, `status` says how it is."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

from workload.launcher import BusyError, Launcher
from workload.metadata import problem
from workload.settings import Folder, Settings
from workload.status import Status, serve

_FIXED = ("seed", "batch", "width")


def main(words: list[str] | None = None) -> int:
    """Returns the exit status: 0, 1 where the run failed, 2 where it cannot be."""
    arguments = _parser().parse_args(words)
    return {"run": _run, "resume": _resume, "status": _status}[arguments.command](arguments)


def _parser() -> argparse.ArgumentParser:
    default = Settings()
    parser = argparse.ArgumentParser(prog="python -m workload", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="trains until the last step or SIGTERM")
    add = run.add_argument
    add("--folder", type=Path, required=True, metavar="DIR", help="where all of it is kept; a run there goes on")
    add("--ranks", type=int, default=default.ranks)
    add("--steps", type=int, default=default.steps, help="0: until stopped")
    add(
        "--database", default="", metavar="URL", help="postgresql://USER[:PASSWORD]@HOST:PORT/NAME or redis://HOST:PORT"
    )
    add("--tls", action="store_true", help="mutual TLS between the ranks, by a CA of the run's own")
    add("--checksums", action=argparse.BooleanOptionalAction, default=True, help="refuse damaged checkpoints")
    add("--checkpoints", default="", metavar="DIR", help="a volume of their own")
    add("--checkpoint-every", type=int, default=default.checkpoint_every, metavar="STEPS")
    add("--keep", type=int, default=default.keep, metavar="N", help="checkpoints kept")
    add("--storage-timeout", type=float, default=default.storage_timeout, metavar="S")
    add("--watchdog", type=float, default=default.watchdog, metavar="S", help="longest collective")
    add("--relink-every", type=int, default=default.relink_every, metavar="STEPS", help="links are opened anew")
    add("--hosts", default=",".join(default.hosts), help="addresses of the ranks, in turn")
    add("--netns", default="", help="network namespaces of the ranks, in turn: names or paths")
    add("--port", type=int, default=0, help="of rank 0, the others follow; 0: free ones")
    add("--cert-lifetime", type=float, default=default.cert_lifetime, metavar="S")
    add("--renew", action=argparse.BooleanOptionalAction, default=True, help="renew certificates")
    add("--renew-every", type=float, default=default.renew_every, metavar="S", help="between two looks at each one")
    add("--pause", type=float, default=default.pause, metavar="S", help="idle time of each step")
    add("--batch", type=int, default=default.batch, help="samples of a step, of all ranks")
    add("--width", type=int, default=default.width, help="hidden units")
    add("--seed", type=int, default=default.seed)
    add("--log-every", type=int, default=default.log_every, metavar="STEPS")
    add("--max-restarts", type=int, default=default.max_restarts)
    add("--status-port", type=int, default=0, help="page with /status and /metrics; 0: none")
    resume = commands.add_parser("resume", help="has all ranks start again from the newest good checkpoint")
    resume.add_argument("folder", type=Path, metavar="DIR")
    status = commands.add_parser("status", help="how a run is")
    status.add_argument("folder", type=Path, metavar="DIR")
    status.add_argument("-o", "--output", choices=("text", "json"), default="text")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    given = {name: value for name, value in vars(arguments).items() if name not in ("command", "folder")}
    for name in ("hosts", "netns"):
        given[name] = [each.strip() for each in given[name].split(",") if each.strip()]
    given["checkpoints"] = str(Path(given["checkpoints"]).absolute()) if given["checkpoints"] else ""
    settings = Settings.of(given)
    folder = Folder(arguments.folder.absolute())
    wrong = settings.problem() or (problem(settings.database) if settings.database else "")
    if not wrong and folder.ledger.exists():
        before = folder.settings()
        wrong = "; ".join(
            f"this folder's run has {name} {getattr(before, name)}, not {getattr(settings, name)}"
            for name in _FIXED
            if getattr(before, name) != getattr(settings, name)
        )
    if wrong:
        return _say(wrong)
    try:
        launcher = Launcher(folder, settings)
        page = serve(Status(folder), settings.status_port) if settings.status_port else None
    except (BusyError, OSError) as error:
        return _say(str(error))
    last = launcher.port + settings.ranks - 1
    sys.stdout.write(f"{settings.ranks} ranks on ports {launcher.port}-{last}, log {folder.log}\n")
    if page is not None:
        sys.stdout.write(f"status at http://127.0.0.1:{settings.status_port}/status\n")
    sys.stdout.flush()
    return launcher.run()


def _resume(arguments: argparse.Namespace) -> int:
    try:
        os.kill(int(Folder(arguments.folder.absolute()).pid("launcher").read_text()), signal.SIGUSR1)
    except (OSError, ValueError):
        return _say(f"{arguments.folder}: no run goes on there")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    try:
        status = Status(Folder(arguments.folder.absolute()))
    except (OSError, ValueError):
        return _say(f"{arguments.folder}: there is no run")
    said = status.read()
    status.close()
    text = json.dumps(said, indent=2) if arguments.output == "json" else "\n".join(_flat(said))
    sys.stdout.write(f"{text}\n")
    return 0


def _flat(said: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for name, value in said.items():
        if isinstance(value, dict):
            found += _flat(value, f"{prefix}{name}.")
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            for number, each in enumerate(value):
                found += _flat(each, f"{prefix}{name}.{number}.")
        else:
            found.append(f"{prefix}{name}: {value}")
    return found


def _say(text: str) -> int:
    sys.stderr.write(f"workload: {text}\n")
    return 2
