"""The agent's settings: command line, then `GPUCHAOS_AGENT_…`, then a YAML file, then the defaults."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    SettingsError,
)

from gpuchaos_agent.collect.base import JobSource, Sources
from gpuchaos_agent.inject.base import Bmc
from gpuchaos_agent.lease import LONGEST_S
from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.events.base import Authored
from gpuchaos_stream.yamlfile import Document, read

PREFIX: Final = "GPUCHAOS_AGENT_"

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="letters, digits, . _ -")]


#: Without `user:password@`: an address is written into the journal and shown to people.
BmcUrl = Annotated[str, Field(pattern=r"^(https?|ipmi)://[^@/?#\s]+(\?cipher=\d+)?/?$")]


class Job(Authored):
    """A process of a job on this node: `pid` or `pidfile` names it, `log` tells its progress.

    `numa_node` is the node of its GPU where the machine does not tell it.
    """

    job: Name
    pid: int | None = Field(default=None, gt=1)
    pidfile: Path | None = None
    log: Path | None = None
    gpu: str | None = None
    numa_node: int | None = Field(default=None, ge=0)
    step_pattern: str | None = None
    time_pattern: str | None = None
    metrics_url: str | None = Field(default=None, pattern="^https?://")
    heartbeat: Path | None = None

    @model_validator(mode="after")
    def _named_once(self) -> Self:
        if self.pid is not None and self.pidfile is not None:
            raise ValueError("pid and pidfile exclude each other: keep one")
        return self

    def source(self) -> JobSource:
        """As the collectors take it."""
        return JobSource(**self.model_dump())


class BmcAccess(Authored):
    """How to reach one node's BMC. `insecure` leaves its certificate unchecked."""

    url: BmcUrl
    user: str = ""
    password_file: Path | None = None
    system: str | None = None
    ca_file: Path | None = None
    insecure: bool = False

    def bmc(self) -> Bmc:
        """As strategies take it."""
        return Bmc(**self.model_dump())


def _default_state_dir() -> Path:
    if os.geteuid() == 0:
        return Path("/var/lib/gpuchaos-agent")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "gpuchaos-agent"


class AgentSettings(BaseSettings):
    """Make it with `load`, which explains what is wrong. Times are in seconds."""

    model_config = SettingsConfigDict(env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", frozen=True)

    cluster: Name = "local"
    cell: Name = "cell-0"
    node: Name = Field(default_factory=lambda: socket.gethostname().split(".")[0] or "node")
    rack: Name | None = None
    leaf: Name | None = Field(default=None, description="leaf switch")
    domain: Name | None = Field(default=None, description="NVLink domain")
    labels: dict[str, str] = {}
    jobs: tuple[Job, ...] = ()
    rails: dict[str, str] = Field(default={}, description="RDMA port → rail")
    keyring: Path | None = Field(default=None, description="keyring.json; without it no command is believed")
    state_dir: Path = Field(default_factory=_default_state_dir)
    sysfs: Path = Path("/sys")
    procfs: Path = Path("/proc")
    kmsg: Path = Path("/dev/kmsg")
    kernel_log: Literal["auto", "kmsg", "journal", "syslog"] = Field(
        default="auto", description="auto: kmsg, else the journal, else the syslog file"
    )
    syslog: Path = Field(default=Path("/var/log/syslog"), description="where kernel lines are when kmsg is closed")
    place: Path | None = Field(default=None, description="YAML file: rack, leaf, domain and rails of this node")
    dcgm_url: str | None = Field(default=None, pattern="^https?://", description="page of a DCGM exporter")
    app_logs: dict[str, Path] = Field(default={}, description="name → further log of a program to read")
    collectors: tuple[str, ...] | None = Field(default=None, description="only these; all where absent")
    interval: float = Field(default=1.0, ge=0.1, le=60, description="between two frames")
    check_interval: float = Field(default=0.25, ge=0.02, le=5, description="between two looks at leases")
    frames_kept: int = Field(default=600, ge=1, description="while the broker is away")
    protected: tuple[str, ...] = Field(default=(), description="command names that no fault may touch")
    any_process: bool = Field(default=False, description="process-stop of processes that belong to no job")
    corruptible: tuple[Path, ...] = Field(default=(), description="folders in which memory-corruption may flip bits")
    longest_lease: float = Field(default=LONGEST_S, gt=0)
    most_faults: int = Field(default=16, ge=0)
    deadman: bool = Field(default=True, description="a second process that undoes when this one is gone")
    http_host: str = "127.0.0.1"
    http_port: int | None = Field(default=9470, ge=0, le=65535, description="metrics and health; 0 takes a free one")
    kafka: Path | None = Field(default=None, description="YAML file with the KAFKA_… settings")
    bmc_url: BmcUrl | None = Field(default=None, description="this node's BMC: https://HOST (Redfish) or ipmi://HOST")
    bmc_user: str = ""
    bmc_password_file: Path | None = Field(default=None, description="read when it is used, never told")
    bmc_system: str | None = Field(default=None, description="id of this node where the BMC has several systems")
    bmc_ca_file: Path | None = Field(default=None, description="CA of the BMC's certificate; the system's if not given")
    bmc_insecure: bool = Field(default=False, description="leaves the certificate of this node's BMC unchecked")
    bmcs: dict[Name, BmcAccess] = Field(
        default={}, description="node → BMC of another node that this agent may power-cycle"
    )
    reload_commands: dict[Name, tuple[str, ...]] = Field(
        default={}, description="name → command that makes a service read its certificate again"
    )

    @property
    def journal_dir(self) -> Path:
        """Where the undo journal is."""
        return self.state_dir / "journal"

    def sources(self, *, keep_position: bool = True) -> Sources:
        """As the collectors take it. Without `keep_position` nothing is written."""
        return Sources(
            sysfs=self.sysfs,
            procfs=self.procfs,
            kmsg=self.kmsg,
            state_dir=self.state_dir if keep_position else None,
            jobs=tuple(job.source() for job in self.jobs),
            rails=dict(self.rails),
            place=self.place,
            kernel_log=self.kernel_log,
            syslog=self.syslog,
            dcgm_url=self.dcgm_url,
            app_logs=dict(self.app_logs),
        )

    def bmc_access(self) -> Bmc | None:
        """How to reach this node's BMC, None where it is not set."""
        if self.bmc_url is None:
            return None
        return Bmc(
            self.bmc_url,
            self.bmc_user,
            self.bmc_password_file,
            self.bmc_system,
            ca_file=self.bmc_ca_file,
            insecure=self.bmc_insecure,
        )

    def reach(self) -> dict[str, Any]:
        """Fields of `Env`: the BMCs that this agent may drive, what it may run, and whose files it may change."""
        bmcs = {node: access.bmc() for node, access in self.bmcs.items()}
        return {
            "bmc": self.bmc_access(),
            "bmcs": bmcs,
            "reload_commands": dict(self.reload_commands),
            "corruptible": self.corruptible,
        }

    def gpu_of(self, pid: int) -> str | None:
        """The GPU that the settings name for the job of `pid`."""
        return next((job.gpu for job in self.jobs if pid == _pid_of(job)), None)

    def job_of(self, pid: int) -> str | None:
        """The job that names `pid`, itself or in its pidfile."""
        return next((job.job for job in self.jobs if pid == _pid_of(job)), None)


def load(file: Path | None = None, **given: Any) -> AgentSettings:
    """The settings; `given` is the command line, where None counts as not given.

    Raises:
        UserError: a value that is none, an unknown field; with file and line where it came from the file.
    """
    document = read(file) if file is not None else None
    from_file = _from_file(document)

    class Layered(AgentSettings):
        @classmethod
        def settings_customise_sources(
            cls,
            settings_cls: type[BaseSettings],
            init_settings: PydanticBaseSettingsSource,
            env_settings: PydanticBaseSettingsSource,
            dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003  (the base's signature)
            file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
        ) -> tuple[PydanticBaseSettingsSource, ...]:
            return (init_settings, env_settings, InitSettingsSource(settings_cls, from_file))

    try:
        return Layered(**{name: value for name, value in given.items() if value is not None})
    except ValidationError as error:
        raise _explained(error, document) from error
    except SettingsError as error:
        raise UserError(f"{PREFIX}…", str(error), "lists and mappings are written as JSON there") from error


def _from_file(document: Document | None) -> dict[str, Any]:
    if document is None:
        return {}
    if not isinstance(document.data, dict):
        raise UserError(document.where(()), "is no mapping of settings", "write `name: value` lines")
    for name in document.data:
        if name not in AgentSettings.model_fields:
            raise UserError(
                document.where((name,)), f"unknown field {name!r}", nearest(str(name), AgentSettings.model_fields)
            )
    return document.data


def _explained(error: ValidationError, document: Document | None) -> UserError:
    first = error.errors(include_url=False, include_context=False)[0]
    loc = tuple(first["loc"])
    name = ".".join(str(part) for part in loc)
    problem = str(first["msg"]).removeprefix("Value error, ")
    if first["type"] == "extra_forbidden":
        problem = "unknown field"
    in_file = document is not None and bool(loc) and loc[0] in document.data
    where = document.where(loc) if document is not None and in_file else "agent settings"
    top = str(loc[0]).upper() if loc else ""
    return UserError(where, f"{name}: {problem}", f"it comes from the command line, {PREFIX}{top}, or the file")


def _pid_of(job: Job) -> int | None:
    if job.pidfile is None:
        return job.pid
    try:
        return int(job.pidfile.read_text().strip())
    except (OSError, ValueError):
        return None
