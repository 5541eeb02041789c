"""The example workload under each of the nine faults, through the whole loop: broker, worker, agents, and back.

Root is needed: nodes are network namespaces, a volume is a mount, and a guest machine has the RDMA ports and the two
NUMA nodes. Nothing of this machine's own network is touched.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lab.hosts import move_out, needs
from lab.missing import MissingError

from gpuchaos_stream.errors import UserError, UserErrors
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.experiments import client
from gpuchaos_stream.observe import logs
from gpuchaos_stream.sim.demo_table import Narrator
from gpuchaos_stream.stream.bus import Bus
from gpuchaos_stream.stream.house import READY, House
from nine_faults import guest, here, table
from nine_faults.course import TOPICS, Course, Outcome
from nine_faults.here import ADDRESS, CONTROL, network
from nine_faults.trial import Site, Trial

FAULTS: Final = (*here.FAULTS, *guest.FAULTS)
#: How often a trial is tried whose fault the workload does not meet.
TRIES: Final = 3


@dataclass(frozen=True, slots=True)
class _Place:
    """A site that is made when its turn comes, from the main thread, and ends before the next one is made.

    The processors are the reason: a guest that is emulated beside another site's trials would spoil both.
    """

    faults: Sequence[str]
    made: Callable[[], AbstractContextManager[Site]]


def main(words: Sequence[str] | None = None) -> int:
    """Returns 0 where each fault had its effect, was detected and cost no data, 1 where not, 2 where it cannot be."""
    asked = _parser().parse_args(words)
    logs.configure(level="WARNING")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = asked.out or Path(tempfile.mkdtemp(prefix="gpuchaos-faults-"))
    narrator = Narrator()
    try:
        needs("ip", "nsenter")
        control = move_out("control")
        narrator.say(f"{asked.broker} broker, worker, agents and workload; all of it in {folder}")
        with contextlib.ExitStack() as stack:
            hosts = stack.enter_context(network(control))
            house = stack.enter_context(House(folder, broker=asked.broker, host=ADDRESS[CONTROL]))
            narrator.say("starting the worker")
            worker = house.worker()
            worker.wait_for(READY)
            sums = asked.checksums
            places = (
                _Place(here.FAULTS, lambda: here.here(house, hosts, folder / "here", checksums=sums)),
                _Place(guest.FAULTS, lambda: guest.guest(house, folder / "guest", checksums=sums)),
            )
            outcomes, untried = _all(places, house, asked.only or FAULTS, narrator)
    except KeyboardInterrupt:
        narrator.say("interrupted: everything that was started is stopped")
        return 130
    except (MissingError, UserError, UserErrors) as error:
        sys.stderr.write(f"nine_faults: {error}\n")
        return 2
    shown = table.as_json(outcomes) if asked.output == "json" else table.show(outcomes)
    sys.stdout.write(f"\n{shown}\n\n" if outcomes else "")
    for fault, why in untried.items():
        sys.stderr.write(f"not tried here: {fault}: {why}\n")
    if not outcomes or untried.keys() & set(asked.only):
        return 2
    wrong = [f"{outcome.fault}: {said}" for outcome in outcomes for said in table.complaints(outcome)]
    for line in wrong:
        sys.stderr.write(f"NOT AS EXPECTED: {line}\n")
    narrator.say(f"{len(wrong)} things are not as they must be" if wrong else "all of it as it must be")
    return 1 if wrong else 0


def _all(
    places: Sequence[_Place], house: House, wanted: Sequence[str], narrator: Narrator
) -> tuple[list[Outcome], dict[str, str]]:
    """What became of the faults that are wanted, and why some of them could not be tried on this machine."""
    outcomes: list[Outcome] = []
    untried: dict[str, str] = {}
    for place in places:
        its = [fault for fault in place.faults if fault in wanted]
        if not its:
            continue
        before = len(house.children)
        try:
            with contextlib.ExitStack() as stack:
                site = stack.enter_context(place.made())
                stack.callback(_end, house, before)
                outcomes += asyncio.run(_run(house, site, its, narrator))
        except MissingError as error:
            untried |= dict.fromkeys(its, str(error))
    return outcomes, untried


def _end(house: House, before: int) -> None:
    """Ends what a site has started in the house: the next site finds it as the first one did."""
    for child in reversed(house.children[before:]):
        child.stop()
    del house.children[before:]


async def _run(house: House, site: Site, wanted: Sequence[str], narrator: Narrator) -> list[Outcome]:
    signer = client.load_signer(house.key(Role.OPERATOR))
    async with Bus(house.settings, client_id="nine-faults") as bus, await bus.subscribe(TOPICS, "latest") as reader:
        course = Course(house, bus, reader, signer, site.cluster, narrator)
        outcomes = []
        for trial in site.trials:
            name = trial.plan().fault.name
            if name in wanted:
                narrator.say(f"waiting until the workload on {site.name} trains steadily")
                await asyncio.to_thread(site.ready)
                narrator.say(f"{name}: {trial.file} on {site.name}")
                outcomes.append(await _until_met(course, site, trial, narrator))
        return outcomes


async def _until_met(course: Course, site: Site, trial: Trial, narrator: Narrator) -> Outcome:
    for left in reversed(range(TRIES)):
        outcome = await course.run(site, trial)
        if left == 0 or trial.met(outcome.before, outcome.after):
            break
        narrator.say("the workload has not met the fault: once more")
    return outcome


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m nine_faults", description=__doc__)
    add = parser.add_argument
    add("--only", action="append", default=[], choices=FAULTS, metavar="FAULT", help="this one alone; may be repeated")
    add("--broker", choices=("embedded", "kafka"), default="embedded")
    add("--out", type=Path, metavar="DIR", help="for keys, logs and the run; a new one if not given")
    add("--checksums", action=argparse.BooleanOptionalAction, default=True, help="of the workload's checkpoints")
    add("-o", "--output", choices=("table", "json"), default="table")
    return parser


if __name__ == "__main__":
    sys.exit(main())
