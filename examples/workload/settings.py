"""What a run is told, and where it keeps what."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Final

#: Synthetic samples of one epoch; a batch must divide it.
SAMPLES: Final = 65536


@dataclass(frozen=True, slots=True)
class Settings:
    """Options of `run`; the ranks read them from the folder. Times in seconds; `steps` 0: until stopped."""

    ranks: int = 4
    steps: int = 0
    seed: int = 1
    batch: int = 64
    width: int = 128
    pause: float = 0.06
    database: str = ""
    tls: bool = False
    checksums: bool = True
    checkpoints: str = ""
    checkpoint_every: int = 50
    keep: int = 4
    storage_timeout: float = 5.0
    watchdog: float = 10.0
    relink_every: int = 50
    hosts: tuple[str, ...] = ("127.0.0.1",)
    netns: tuple[str, ...] = ()
    port: int = 0
    cert_lifetime: float = 600.0
    renew: bool = True
    renew_every: float = 1.0
    log_every: int = 1
    max_restarts: int = 1000
    status_port: int = 0

    def problem(self) -> str:
        """Why these cannot work; empty where they can."""
        if self.ranks < 1 or self.batch % self.ranks or SAMPLES % self.batch:
            return f"the batch ({self.batch}) must be a multiple of the ranks ({self.ranks}) and divide {SAMPLES}"
        if min(self.watchdog, self.storage_timeout, self.cert_lifetime, self.renew_every) <= 0 or self.pause < 0:
            return "times must be above zero"
        if min(self.checkpoint_every, self.keep, self.relink_every, self.log_every, self.width) < 1:
            return "counts must be at least one"
        if self.keep < 2 and self.checksums:
            return "keep at least 2 checkpoints: where one is refused, the one before it is taken"
        return ""

    def host(self, rank: int) -> str:
        """Address at which a rank listens."""
        return self.hosts[rank % len(self.hosts)]

    @classmethod
    def of(cls, raw: dict[str, Any]) -> Settings:
        """From JSON; names that are not known are left out."""
        known = {field.name for field in fields(cls)}
        lists = {"hosts", "netns"}
        given: dict[str, Any] = {name: value for name, value in raw.items() if name in known}
        given |= {name: tuple(given[name]) for name in lists & given.keys()}
        return cls(**given)


class Folder:
    """The files of one run."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.settings_file = path / "settings.json"
        self.state_file = path / "state.json"
        self.saves_file = path / "saves.json"
        self.metadata_file = path / "metadata.json"
        self.cache = path / "metadata.sqlite"
        self.ledger = path / "ledger.jsonl"
        self.log = path / "train.log"
        self.lock = path / "lock"
        self.tls = path / "tls"
        self.heartbeats = path / "heartbeat"
        self.pids = path / "pids"

    def make(self) -> None:
        """The folders."""
        for folder in (self.path, self.heartbeats, self.pids):
            folder.mkdir(parents=True, exist_ok=True)

    def settings(self) -> Settings:
        """What the run was told.

        Raises:
            OSError, ValueError: there is no run.
        """
        return Settings.of(json.loads(self.settings_file.read_text()))

    def tell(self, settings: Settings) -> None:
        """Writes what the run is told."""
        write_json(self.settings_file, asdict(settings))

    def checkpoints(self, settings: Settings) -> Path:
        """Where checkpoints go: a volume of their own, if one was named."""
        return Path(settings.checkpoints) if settings.checkpoints else self.path / "checkpoints"

    def heartbeat(self, rank: int) -> Path:
        """Sign of life of one rank."""
        return self.heartbeats / f"rank{rank}.json"

    def pid(self, rank: int | str) -> Path:
        """File with the process id of a rank (a number) or of the launcher."""
        return self.pids / (f"rank{rank}.pid" if isinstance(rank, int) else f"{rank}.pid")


def environment() -> dict[str, str]:
    """For processes of this package, from wherever they are started."""
    code = str(Path(__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, (code, os.environ.get("PYTHONPATH", ""))))}


def write_json(path: Path, content: object) -> None:
    """Whole or not at all.

    Raises:
        OSError: it cannot be written.
    """
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        beside.write_text(json.dumps(content) + "\n")
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def read_json(path: Path) -> dict[str, Any]:
    """What a file says; empty where it says nothing."""
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}
