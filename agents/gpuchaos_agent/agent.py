"""`gpuchaos-agent`: the command line of the node agent."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import re
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, Final, NoReturn

import structlog

from gpuchaos_agent import clock, config, environment, offline, said, slim, traces, trial
from gpuchaos_agent.collect import registry as collectors
from gpuchaos_agent.inject import registry as faults
from gpuchaos_agent.journal import Journal
from gpuchaos_agent.lock import take
from gpuchaos_agent.read import kinds
from gpuchaos_agent.snapshot import Snapshot
from gpuchaos_stream import __version__, output
from gpuchaos_stream.errors import UserError, nearest
from gpuchaos_stream.observe import logs, tracing

#: So long a start waits for what an earlier run left behind, seconds; what hangs must not keep a node unseen.
_TAKE_BACK_S: Final = 5.0

_EPILOG: Final = """
commands:
  run          (default) send telemetry and facts, obey signed commands
  undo --all   take back what the undo journal holds; needs no broker, no keys and no running agent
  undo --forget FAULT_ID   forget what a person has taken back by hand, for what the agent cannot take back
  faults       what this node can suffer, what each fault certifies and what it does not
  inject FAULT TARGET   one fault here by hand, for --seconds, with --param name=value; --dry-run prints the commands
  read PATH    what a recording says: a kernel or application log, a capture, nvidia-smi, numactl, a DCGM page
  capture OUT  what the collectors read here, as a file for a bug report that `read` understands

Settings also come from GPUCHAOS_AGENT_... and the --config file, the broker's from KAFKA_... .
exit status:
  0    well
  1    something is left on the node
  2    bad input, or no broker answers: the message says what to change
  70   a fault of gpuchaos-agent itself, with its traceback
  129, 130, 143   ended by a hang-up, Ctrl-C, SIGTERM; of inject: and everything is gone again
  141  who read the output has gone (`| head`)
"""


def main(argv: list[str] | None = None) -> None:
    """Entry point. A `UserError` is printed and ends with status 2; none but a bug of ours has a traceback."""
    options = _parser().parse_args(argv)
    try:
        status = _COMMANDS["once" if options.once or options.print else options.command](options)
        sys.stdout.flush()
    except UserError as error:
        print(error, file=sys.stderr)  # noqa: T201
        status = 2
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        output.forget_stdout()
        status = output.NOBODY_READS
    except Exception:  # noqa: BLE001  (a bug of ours must not read as "something is left on the node")
        traceback.print_exc()
        status = 70
    sys.exit(status)


def _run(options: argparse.Namespace) -> int:
    # Imported here: looking and undoing need no Kafka.
    from gpuchaos_agent.runtime import Agent  # noqa: PLC0415
    from gpuchaos_stream.stream import settings as kafka  # noqa: PLC0415

    slim.few_heaps()
    settings = _settings(options)
    logs.configure(level=options.log_level.upper())
    taken_back = _take_back(settings)
    tracing.configure(traces.SERVICE, instance=settings.node)
    traces.Traces(cluster=settings.cluster, node=settings.node).undone(taken_back)
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the bus says in our words when the broker is away
    structlog.contextvars.bind_contextvars(node=settings.node)
    agent = Agent(settings, kafka.load(settings.kafka, bootstrap_servers=options.bootstrap_servers))

    async def work() -> bool:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        return await agent.run(stop)

    return 0 if asyncio.run(work()) else 1


def _take_back(settings: config.AgentSettings) -> list[offline.Outcome]:
    """What an earlier run left goes first: before keys, broker or collectors can keep this run from starting."""
    outcomes: list[offline.Outcome] = []
    if settings.journal_dir.is_dir():
        lock = take(settings.state_dir)
        try:
            journal = Journal(settings.journal_dir)
            boot_id = clock.boot_id(settings.procfs)
            whose = {
                "agent restarted": lambda entry: entry.boot_id == boot_id,
                "node rebooted": lambda entry: entry.boot_id != boot_id,
            }
            for reason, only in whose.items():
                # What takes longer goes on beside the start, and the agent that starts sees to it.
                outcomes += offline.undo(
                    journal, _strategies(settings), clock.now(), reason, only=only, within_s=_TAKE_BACK_S
                )[0]
        finally:
            lock.close()
    return outcomes


def _once(options: argparse.Namespace) -> int:
    """One frame of this machine, packed, unpacked, and printed with what could not be read; as JSON for people, too."""
    settings = _settings(options)
    snapshot = Snapshot(collectors.build(settings.sources(keep_position=False), settings.collectors))
    try:
        snapshot.take(time.time())
        time.sleep(min(settings.interval, 1.0))  # rates need two readings
        taken = snapshot.take(time.time())
    finally:
        snapshot.close()
    found = said.frame(settings, taken, snapshot.errors, _strategies(settings))
    if options.output == "table":
        print(json.dumps(found, indent=2, allow_nan=False))  # noqa: T201
    else:
        output.write([found], options.output)
    return 0


def _undo(options: argparse.Namespace) -> int:
    settings = _settings(options)
    if not options.all and not options.forget:
        raise UserError("undo", "what is to be undone?", "write undo --all")
    if not settings.journal_dir.is_dir():
        if options.output == "table":
            print(f"no journal in {settings.journal_dir}: nothing to undo")  # noqa: T201
        return 0
    journal = _journal(settings)
    if options.forget:
        return _forget(journal, options.forget)
    outcomes, damaged = offline.undo(journal, _strategies(settings), clock.now(), "undone by a person: undo --all")
    status = 1 if damaged or any(item.problem is not None for item in outcomes) else 0
    if options.output != "table":
        output.write(said.undone(outcomes, damaged), options.output)
        return status
    for item in outcomes:
        state = "undone" if item.problem is None else f"NOT UNDONE: {item.problem}"
        print(f"{item.entry.fault_id}  {item.entry.fault}  {item.entry.entity}  {state}")  # noqa: T201
    for broken in damaged:
        print(  # noqa: T201
            f"{broken.fault_id}  UNREADABLE: {broken.problem}; kept as {broken.aside}\n"
            f"  its fault may stand: look into the file, take the fault back by hand, and then\n"
            f"  gpuchaos-agent undo --forget {broken.fault_id}"
        )
    if not outcomes and not damaged:
        print("nothing to undo")  # noqa: T201
    return status


def _forget(journal: Journal, fault_id: str) -> int:
    """On a person's word alone: what it was may stand for ever."""
    if not journal.forget(fault_id):
        raise UserError("--forget", f"the journal holds nothing of {fault_id!r}", "see gpuchaos-agent undo --all")
    print(f"{fault_id}  forgotten: nobody takes it back any more")  # noqa: T201
    return 0


def _journal(settings: config.AgentSettings) -> Journal:
    try:
        return Journal(settings.journal_dir)
    except OSError as error:
        where = str(settings.journal_dir)
        raise UserError(where, f"cannot be written: {error.strerror}", "make room there, or set --state-dir") from error


def _faults(options: argparse.Namespace) -> int:
    found = _strategies(_settings(options))
    if options.output != "table":
        output.write(said.faults(found), options.output)
        return 0
    for name, strategy in found.items():
        print(f"{name}: {strategy.layer}")  # noqa: T201
        print(f"  here           {strategy.unavailable() or 'possible'}")  # noqa: T201
        print(f"  certifies      {', '.join(strategy.certifies)}")  # noqa: T201
        print(f"  certifies NOT  {', '.join(strategy.not_certified)}")  # noqa: T201
    return 0


def _say(text: str) -> None:
    print(text, flush=True)  # noqa: T201  (who reads it in a file wants to know while it stands)


def _inject(options: argparse.Namespace) -> int:
    """By hand: no broker, no keys; the running agent of this node must not be in the way."""
    settings = _settings(options)
    if not options.path or not options.target:
        raise UserError("inject", "needs a fault and a target", "write gpuchaos-agent inject FAULT TARGET")
    from gpuchaos_agent.deadman import DeadMan  # noqa: PLC0415

    seconds = trial.duration(options.seconds, settings.longest_lease)
    env = environment.of(settings, brokers=brokers(settings, options.bootstrap_servers))
    strategies = faults.build(env)
    asked: dict[str, Any] = {
        "fault": str(options.path),
        "target": options.target,
        "params": trial.parameters(options.param or []),
        "seconds": seconds,
        "boot_id": env.boot_id,
        "now": clock.now(),
    }
    if options.dry_run:
        entry = trial.entry_for(strategies, None, **asked)
        for line in strategies[entry.fault].commands(entry):
            print(line)  # noqa: T201
        return 0
    lock = take(settings.state_dir)
    try:
        journal = _journal(settings)
        entry = trial.entry_for(strategies, journal, **asked)
        deadman = DeadMan(journal=settings.journal_dir, env=env, interval_s=max(settings.check_interval, 0.25))
        if settings.deadman:
            deadman.ensure()
        status = trial.run(entry, strategies, journal, seconds=seconds, now=clock.now, say=_say, until=trial.ending())
        if entry.fault_id not in {left.fault_id for left in journal.read()[0]}:
            deadman.dismiss()
        return status
    finally:
        lock.close()


def brokers(settings: config.AgentSettings, given: str | None) -> tuple[str, ...]:
    """Those that somebody has named: by hand there is no broker but those, and a default is none."""
    from gpuchaos_stream.stream import settings as kafka  # noqa: PLC0415

    found = kafka.load(settings.kafka, bootstrap_servers=given)
    return tuple(found.servers) if "bootstrap_servers" in found.model_fields_set else ()


def _read(options: argparse.Namespace) -> int:
    # Imported here, as below: an agent at work needs none of it.
    from gpuchaos_agent.read import command  # noqa: PLC0415

    path = _path(options, "name the recording: gpuchaos-agent read FILE")
    return command.read(path, kind=options.kind, output=options.output, out=command.printable())


def _capture(options: argparse.Namespace) -> int:
    from gpuchaos_agent.read import command  # noqa: PLC0415

    settings = _settings(options)
    path = _path(options, "name the file to write: gpuchaos-agent capture OUT.jsonl")
    return command.write_capture(path, sysfs=settings.sysfs, procfs=settings.procfs, out=sys.stdout)


def _path(options: argparse.Namespace, fix: str) -> Path:
    if options.path is None:
        raise UserError(options.command, "needs a file", fix)
    return Path(options.path)


_COMMANDS: Final = {
    "run": _run,
    "undo": _undo,
    "faults": _faults,
    "inject": _inject,
    "read": _read,
    "capture": _capture,
    "once": _once,
}


def _strategies(settings: config.AgentSettings) -> Any:
    return faults.build(environment.of(settings))


def _settings(options: argparse.Namespace) -> config.AgentSettings:
    given = {name: getattr(options, name) for name in _FLAGS}
    if options.job:
        given["jobs"] = tuple(_job(text) for text in options.job)
    if options.no_deadman:
        given["deadman"] = False
    return config.load(options.config, **given)


def _job(text: str) -> dict[str, str]:
    """`job=llama,pid=1234,log=/var/log/llama.log` as a mapping."""
    pairs = [part.partition("=") for part in text.split(",")]
    if any(not name or not equals for name, equals, _ in pairs):
        raise UserError("--job", f"{text!r} is no list of name=value", "write job=NAME,pid=PID,log=FILE")
    return {name.strip(): value.strip() for name, _, value in pairs}


#: Settings that have a flag of their own → its help.
_FLAGS: Final = {
    "cluster": "name of the cluster",
    "cell": "scalable unit (rack, NVLink domain) whose nodes are compared with each other",
    "node": "name of this node; its host name if not given",
    "rack": "rack",
    "domain": "NVLink domain",
    "keyring": "keyring.json with the public keys that are believed",
    "state_dir": "where journal, positions and unsent events are kept",
    "sysfs": "root of sysfs",
    "procfs": "root of procfs",
    "kmsg": "kernel log",
    "interval": "seconds between two frames",
    "check_interval": "seconds between two looks at leases",
    "http_port": "port of /metrics, /healthz, /readyz on loopback; 0 takes a free one",
    "kafka": "YAML file with the KAFKA_... settings",
}


class _Parser(argparse.ArgumentParser):
    """Says what was meant, in one line: the usage is a screen, and none of it is about the slip."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        for word in sys.argv[1:] if args is None else args:
            name = word.partition("=")[0]
            known = [each for action in self._actions for each in action.option_strings]
            if name.startswith("--") and name != "--" and not any(each.startswith(name) for each in known):
                hint = nearest(name, known)
                self.error(f"no such option {name!r}" + f"; {hint}" * hint.startswith("did you mean"))
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        if (wrong := re.match(r"argument command: invalid choice: '([^']*)'", message)) is not None:
            message = f"no such command {wrong[1]!r}; {nearest(wrong[1], tuple(_COMMANDS)[:-1])}"
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n".replace("?; see", "? See"))


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(
        prog="gpuchaos-agent",
        description="The node agent: telemetry, facts, injected faults and their undo.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("command", nargs="?", choices=tuple(_COMMANDS)[:-1], default="run")
    parser.add_argument("path", nargs="?", help="with read and capture: the file; with inject: the fault")
    parser.add_argument("target", nargs="?", help="with inject: kind/NODE/ID")
    parser.add_argument("--param", action="append", metavar="NAME=VALUE", help="with inject: a parameter of the fault")
    parser.add_argument("--seconds", type=float, default=10.0, help="with inject: how long it stands")
    parser.add_argument("--dry-run", action="store_true", help="with inject: print what would be done, and do nothing")
    parser.add_argument("--kind", help=f"with read: what the file is; guessed if not given: {', '.join(kinds.names())}")
    parser.add_argument("-o", "--output", choices=output.FORMS, default="table", help=output.HELP)
    parser.add_argument("--version", action="version", version=f"gpuchaos-agent {__version__}")
    parser.add_argument("--once", action="store_true", help="read this machine once and end; needs no broker")
    parser.add_argument("--print", action="store_true", help="the same as --once: the frame is printed as JSON")
    parser.add_argument("--all", action="store_true", help="with undo: everything in the journal")
    parser.add_argument("--forget", metavar="FAULT_ID", help="with undo: a person has taken this one back by hand")
    parser.add_argument("--config", type=Path, help="YAML file with settings")
    parser.add_argument("--bootstrap-servers", help="Kafka brokers, host:port; else KAFKA_BOOTSTRAP_SERVERS")
    parser.add_argument(
        "--job", action="append", metavar="job=NAME,pid=PID,log=FILE", help="a process of a job; also pidfile=, gpu="
    )
    parser.add_argument("--no-deadman", action="store_true", help="no second process that undoes after a crash")
    parser.add_argument("--log-level", default="info", choices=("debug", "info", "warning", "error"))
    for name, text in _FLAGS.items():
        parser.add_argument("--" + name.replace("_", "-"), help=text)
    return parser


if __name__ == "__main__":
    main()
