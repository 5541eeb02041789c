"""`gpuchaos demo`: the whole loop on this machine. Three experiments, a table, exit 0 if all went as it must."""

from __future__ import annotations

import asyncio
import json
import secrets
import shlex
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import click
import yaml

from gpuchaos_stream.commandline import exits
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.envelope import BadMessageError, from_value
from gpuchaos_stream.events.experiment import ExperimentState, Status
from gpuchaos_stream.events.incident import Incident
from gpuchaos_stream.experiments import client
from gpuchaos_stream.guard.rules import rule_files
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.observe import logs
from gpuchaos_stream.sim import demo_table
from gpuchaos_stream.sim.demo_table import Narrator
from gpuchaos_stream.sim.scenarios import (
    CLUSTER,
    FAILING_GPU,
    FAILS_AFTER_S,
    HOST,
    HOST_CELL,
    HOST_JOB,
    Scenario,
    scenarios,
)
from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.house import READY, House

#: Seconds after which an experiment that has not finished is given up.
EXPERIMENT_S: Final = 90.0
#: The shipped rule that halts an experiment while a real failure hurts another job. The third experiment is to
#: show such a failure being told apart, so here the rule notifies, and the experiment goes on to its verdict.
TOLD_NOT_HALTED: Final = "unattributed-critical-on-other-job"
#: The least number of simulated nodes: the scenarios name nodes up to n051.
LEAST_NODES: Final = 64


@click.command()
@click.option("--broker", type=click.Choice(["embedded", "kafka"]), default="embedded", show_default=True)
@click.option("--fast", is_flag=True, help="Run the three experiments at the same time.")
@click.option("--nodes", default=LEAST_NODES, show_default=True, help="Simulated nodes, in 4 cells.")
@click.option("--seed", default=1, show_default=True, help="Seed of the simulation.")
@click.option("--out", type=click.Path(path_type=Path), help="Folder for recording and logs  [default: a new one]")
@exits({0: "each experiment ended as it must", 1: "one did not"})
def demo(broker: Kind, fast: bool, nodes: int, seed: int, out: Path | None) -> None:
    """Run three experiments on a broker, a worker, a real agent on this machine and a simulated cluster.

    The first hangs a real process here and recovers; the second spreads past its limit and is halted; during the
    third an unrelated GPU really fails and is told apart.
    """
    if nodes < LEAST_NODES:
        raise UserError("gpuchaos demo", f"--nodes {nodes}", f"the experiments need at least {LEAST_NODES}")
    logs.configure(level="WARNING")
    folder = out or Path(tempfile.mkdtemp(prefix="gpuchaos-demo-"))
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ended from outside, it tidies up as after Ctrl-C
    narrator = Narrator()
    narrator.say(f"starting {broker} broker, worker, agent and {nodes} simulated nodes; all of it in {folder}")
    try:
        with House(folder, broker=broker) as house:
            plans = _furnish(house, nodes, seed, narrator)
            states, incidents = asyncio.run(_run(house, plans, narrator, together=fast))
    except KeyboardInterrupt:
        narrator.say("interrupted: everything that was started is stopped")
        sys.exit(130)
    demo_table.show(states, [scenario.title for scenario in plans])
    complaints = [
        f"{scenario.plan.name}: {complaint}"
        for scenario, state in zip(plans, states, strict=True)
        for complaint in scenario.complaints(state, incidents)
    ]
    click.echo(f"the same verdicts again, from the recording: {_replay_command(folder / 'demo.jsonl.zst')}")
    for complaint in complaints:
        click.echo(f"NOT AS EXPECTED: {complaint}", err=True)
    narrator.say("not all verdicts are the expected ones" if complaints else "all verdicts are the expected ones")
    sys.exit(1 if complaints else 0)


def _replay_command(recording: Path) -> str:
    """The line to paste: with the program as it was started, which need not be on PATH."""
    started = sys.argv[0]
    program = [started] if Path(started).name == "gpuchaos" else [sys.executable, "-m", "gpuchaos_stream.cli"]
    return shlex.join([*program, "replay", str(recording)])


def _furnish(house: House, nodes: int, seed: int, narrator: Narrator) -> tuple[Scenario, ...]:
    """Starts everything and waits until it is ready."""
    rules = _rules(house.folder)
    narrator.say(f"rules are the shipped ones, but {TOLD_NOT_HALTED} notifies here instead of halting")
    worker = house.worker("worker", "--rules", str(rules))
    recorder = house.start(
        "record",
        sys.executable,
        "-m",
        "gpuchaos_stream.cli",
        "record",
        str(house.folder / "demo.jsonl.zst"),
        "--from-start",
        "--keyring",
        str(house.keyring),
        "--rules",
        str(rules),
    )
    log, pidfile = house.folder / "toy.log", house.folder / "toy.pid"
    job = house.start(
        "job",
        sys.executable,
        "-m",
        "gpuchaos_stream.sim.toy_job",
        "--log",
        str(log),
        "--pidfile",
        str(pidfile),
    )
    job.wait_for(READY)
    recorder.wait_for(READY)
    agent = house.agent(HOST, "--config", str(_agent_config(house.folder, log, pidfile)))
    plans = scenarios(int(pidfile.read_text()))
    failure = {"cause": "faulty-gpu", "entity": FAILING_GPU, "after": FAILS_AFTER_S, "of": plans[-1].plan.name}
    failures = house.folder / "failures.yaml"
    failures.write_text(yaml.safe_dump({"failures": [failure]}))
    sim = house.sim(
        *("--cluster", CLUSTER, "--nodes", str(nodes), "--cells", "4", "--seed", str(seed)),
        *("--failures", str(failures), "--truth", str(house.folder / "truth.jsonl")),
    )
    for child in (worker, agent, sim):
        child.wait_for(READY)
        narrator.say(f"{child.name} is ready")
    return plans


def _rules(folder: Path) -> Path:
    """The shipped rules, `TOLD_NOT_HALTED` with the action `notify`."""
    rules = folder / "rules"
    rules.mkdir(exist_ok=True)
    for path in rule_files([shipped_rules()]):
        content = yaml.safe_load(path.read_text())
        for group in content.get("groups", ()):
            for rule in group["rules"]:
                if rule["name"] == TOLD_NOT_HALTED:
                    rule["action"] = "notify"
        (rules / path.name).write_text(yaml.safe_dump(content, sort_keys=False))
    return rules


def _agent_config(folder: Path, log: Path, pidfile: Path) -> Path:
    path = folder / "agent.yaml"
    settings: dict[str, Any] = {
        "cluster": CLUSTER,
        "cell": HOST_CELL,
        "http_port": 0,
        "jobs": [{"job": HOST_JOB, "pidfile": str(pidfile), "log": str(log)}],
    }
    path.write_text(json.dumps(settings))
    return path


async def _run(
    house: House, plans: Sequence[Scenario], narrator: Narrator, *, together: bool
) -> tuple[list[ExperimentState | None], list[Incident]]:
    signer = client.load_signer(house.key(Role.OPERATOR))
    names = (topics.EXPERIMENTS.name, topics.INCIDENTS.name)
    async with Bus(house.settings, client_id="gpuchaos-demo") as bus, await bus.subscribe(names, "latest") as reader:
        watch = _Watch(house, reader, narrator)
        for group in [plans] if together else [(plan,) for plan in plans]:
            ids = {f"{scenario.plan.name}-{secrets.token_hex(4)}": scenario.plan for scenario in group}
            for experiment_id, plan in ids.items():
                command = client.start_command(plan, cluster=CLUSTER, experiment_id=experiment_id)
                await client.send(bus, signer, command)
            await watch.until_finished(set(ids))
        by_name = {state.name: state for state in watch.states.values() if state.status is Status.FINISHED}
        return [by_name.get(scenario.plan.name) for scenario in plans], list(watch.incidents.values())


class _Watch:
    """Follows experiments and incidents, and notices when a part of the house has died."""

    def __init__(self, house: House, reader: Any, narrator: Narrator) -> None:
        self._house = house
        self._reader = reader
        self._narrator = narrator
        self.states: dict[str, ExperimentState] = {}
        self.incidents: dict[str, Incident] = {}

    async def until_finished(self, ids: set[str]) -> None:
        """Returns when all of `ids` have finished, or after `EXPERIMENT_S` seconds.

        Raises:
            UserError: a process of the house has ended.
        """
        deadline = self._narrator.elapsed + EXPERIMENT_S
        while self._narrator.elapsed < deadline:
            for record in await self._reader.batch(0.3):
                self._take(record)
            if all(key in self.states and self.states[key].status is Status.FINISHED for key in ids):
                return
            for child in self._house.children:
                if not child.running:
                    raise UserError(child.name, f"ended with status {child.status}", child.tail())

    def _take(self, record: Any) -> None:
        try:
            event = from_value(record.topic, record.value)
        except BadMessageError:
            return
        if isinstance(event, ExperimentState) and event.cluster == CLUSTER:
            self.states[event.id] = event
            self._narrator.experiment(event)
        elif isinstance(event, Incident) and event.cluster == CLUSTER:
            self.incidents[event.id] = event
            self._narrator.incident(event)
