"""`gpuchaos dev`: everything that an experiment needs, on this machine, until Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import secrets
import shlex
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click
from pydantic import SecretStr

from gpuchaos_stream.commandline import exits
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.guard.rules import load as load_rules
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.observe import logs
from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import READY, SERVING, House
from gpuchaos_stream.stream.options import DEFAULT_CLUSTER
from gpuchaos_stream.stream.settings import PREFIX, KafkaSettings, environment, load
from gpuchaos_stream.stream.watchdog import EXIT_STATUS

#: This machine as a node of the cluster, in a cell of its own, and the small job on it that may be injured.
HOST: Final = "host-0"
HOST_CELL: Final = "host"
HOST_JOB: Final = "toy"
#: Seconds between two looks at whether all parts live.
LOOK_S: Final = 0.25

_WORKER: Final = "worker"
_PAGE: Final = "page"
#: Where the worker and the page say that they are to be found.
_URL: Final = re.compile(r"^(?:ready: |.*\"page\": ?\")(http://[^\s\"]+)", re.MULTILINE)


@click.command()
@click.option("--broker", type=click.Choice(["embedded", "kafka"]), help="broker to start  [default: embedded]")
@click.option("--bootstrap-servers", metavar="HOST:PORT,…", help="start no broker, use this one; no other worker may")
@click.option(
    "--kafka-config", type=click.Path(path_type=Path, dir_okay=False), help="start no broker, use that of this file"
)
@click.option("--nodes", default=64, show_default=True, type=click.IntRange(1), help="simulated nodes")
@click.option("--cells", default=4, show_default=True, type=click.IntRange(1), help="cells they are spread over")
@click.option("--sim/--no-sim", default=True, show_default=True, help="simulate a cluster")
@click.option("--agent/--no-agent", default=True, show_default=True, help="run an agent and a small job here")
@click.option("--page/--no-page", default=True, show_default=True, help="serve the live page")
@click.option(
    "--rules",
    type=click.Path(path_type=Path),
    multiple=True,
    help="rule files or folders for the worker  [default: shipped]",
)
@click.option(
    "--folder", type=click.Path(path_type=Path, file_okay=False), help="for keys and logs, kept  [default: temporary]"
)
@exits({0: "ended by Ctrl-C or SIGTERM", 1: "the broker died", 2: "bad input, or a part did not start"})
def dev(
    *,
    broker: Kind | None,
    bootstrap_servers: str | None,
    kafka_config: Path | None,
    nodes: int,
    cells: int,
    sim: bool,
    agent: bool,
    page: bool,
    rules: tuple[Path, ...],
    folder: Path | None,
) -> None:
    """Start a broker, keys, topics, a worker, a simulated cluster, an agent and the page; stop them all at Ctrl-C.

    Prints what to export in another terminal.
    """
    logs.configure(level="WARNING")
    if cells > nodes:
        raise UserError("gpuchaos dev", f"--cells {cells} for --nodes {nodes}", "use fewer cells")
    settings = _running_broker(broker, bootstrap_servers, kafka_config)
    kind: Kind | None = None if settings else broker or "embedded"
    load_rules(rules or [shipped_rules()])  # what is wrong with them is said here, and not in a log
    _end_as_after_ctrl_c()
    with _folder(folder) as place:
        try:
            with House(place, broker=kind, settings=settings) as house:
                click.echo(f"{f'{kind} broker' if kind else 'broker'} at {house.settings.bootstrap_servers}")
                simulated = ("--nodes", str(nodes), "--cells", str(cells)) if sim else None
                _start(house, sim=simulated, agent=agent, page=page, rules=rules)
                _say_how_to_go_on(house)
                supervisor = Supervisor(house)
                while True:
                    supervisor.look()
                    time.sleep(LOOK_S)
        except KeyboardInterrupt:
            click.echo("everything is stopped")


def _running_broker(
    broker: Kind | None, bootstrap_servers: str | None, kafka_config: Path | None
) -> KafkaSettings | None:
    """How to reach the broker that runs; None where one is to be started."""
    if bootstrap_servers is not None or kafka_config is not None:
        if broker is not None:
            raise UserError("gpuchaos dev", "--broker starts one, and another is given", "leave one of them out")
        return load(kafka_config, bootstrap_servers=bootstrap_servers)
    # What is set for another Kafka (its certificates, its users) is not for ours, and the parts would inherit it.
    for name in [name for name in os.environ if name.startswith(PREFIX)]:
        del os.environ[name]
    return None


def _end_as_after_ctrl_c() -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup wants it
            signal.signal(number, signal.default_int_handler)


@contextmanager
def _folder(folder: Path | None) -> Iterator[Path]:
    """`folder`, or a temporary one that goes unless something failed."""
    if folder is not None:
        yield folder.resolve()
        return
    place = Path(tempfile.mkdtemp(prefix="gpuchaos-dev-"))
    try:
        yield place
    except BaseException:
        click.echo(f"the logs are in {place}", err=True)
        raise
    shutil.rmtree(place, ignore_errors=True)


def _start(house: House, *, sim: Sequence[str] | None, agent: bool, page: bool, rules: Sequence[Path]) -> None:
    """Starts all parts and waits until each is ready."""
    house.worker(_WORKER, *(word for path in rules for word in ("--rules", str(path))))
    if page:
        house.page("--token-file", str(_make_token(house)))
    if sim is not None:
        house.sim("--cluster", DEFAULT_CLUSTER, *sim)
    if agent:
        _start_agent(house)
    for child in house.children:
        child.wait_for(SERVING if child.name == _PAGE else READY)
        click.echo(f"{child.name} is ready")


def _start_agent(house: House) -> None:
    """A small real job and the agent that knows it: what process-stop may be aimed at on this machine."""
    files = {"log": str(house.folder / "toy.log"), "pidfile": str(_pidfile(house))}
    words = [word for name, path in files.items() for word in (f"--{name}", path)]
    house.start(HOST_JOB, sys.executable, "-m", "gpuchaos_stream.sim.toy_job", *words).wait_for(READY)
    config = house.folder / "agent.yaml"
    config.write_text(json.dumps({"jobs": [{"job": HOST_JOB} | files]}))
    cluster = ("--cluster", DEFAULT_CLUSTER, "--cell", HOST_CELL)
    house.agent(HOST, *cluster, "--http-port", "0", "--config", str(config))


def _make_token(house: House) -> Path:
    path = house.folder / "tokens"
    path.touch(mode=0o600)
    path.write_text(f"dev:{secrets.token_urlsafe(24)}\n")
    return path


def _pidfile(house: House) -> Path:
    return house.folder / "toy.pid"


def _say_how_to_go_on(house: House) -> None:
    lines = ["", "In another terminal:", "", *exports(house), ""]
    lines += [f"key ring  {house.keyring}", f"logs      {house.folder / 'logs'}"]
    for child in house.children:
        if child.name == _WORKER:
            lines.append(f"worker    {_url(child)}")
        elif child.name == _PAGE:
            token = (house.folder / "tokens").read_text().partition(":")[2].strip()
            lines.append(f"page      {_url(child)}, its token for stopping things is {token}")
        elif child.name == HOST_JOB:
            pid = _pidfile(house).read_text()
            lines.append(f"target    process/{HOST}/{pid}, the process of job {HOST_JOB} on this machine")
    lines += ["", "Ctrl-C stops everything."]
    click.echo("\n".join(lines))


def exports(house: House) -> Iterator[str]:
    """Lines for another shell: the settings that differ from the defaults. Passwords are not shown."""
    settings = house.settings
    given = environment(settings)
    for name, field in KafkaSettings.model_fields.items():
        variable = PREFIX + name.upper()
        if isinstance(getattr(settings, name), SecretStr):
            yield f"# and {variable}, as you have it"
        elif name == "bootstrap_servers" or getattr(settings, name) != field.default:
            yield f"export {variable}={shlex.quote(given[variable])}"
    yield f"export GPUCHAOS_KEY={shlex.quote(str(house.key(Role.OPERATOR)))}"
    yield f"export GPUCHAOS_CLUSTER={DEFAULT_CLUSTER}"


def _url(child: Child) -> str:
    found = _URL.search(child.said())
    return found[1] if found else "not ready yet"


class Supervisor:
    """Looks after the parts: a worker that its watchdog ended is started again, any other death is said once."""

    def __init__(self, house: House) -> None:
        self._house = house
        self._dead: set[str] = set()
        self._starting: Child | None = None

    def look(self) -> None:
        """One look at every part.

        Raises:
            ClickException: the broker has ended; nothing can go on without it.
        """
        broker = self._house.broker
        if broker is not None and not broker.running:
            raise click.ClickException(f"the {broker.kind} broker has ended, and so does all else")
        for child in self._house.children:
            if child.name not in self._dead and not child.running:
                self._ended(child)
        if self._starting is not None and READY in self._starting.said():
            click.echo(f"{self._starting.name} is ready: {_url(self._starting)}")
            self._starting = None

    def _ended(self, child: Child) -> None:
        if child.name == _WORKER and child.status == EXIT_STATUS:
            click.echo(f"{child.name} ended with status {EXIT_STATUS}: commits stood still; it is started again")
            self._starting = child.start()
        else:
            self._dead.add(child.name)
            click.echo(f"{child.name} has ended with status {child.status}, the rest goes on; {child.tail()}")
