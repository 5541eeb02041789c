"""Real agents, with broker, signed commands and dead man's switch, killed while they do a fault to something real."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_cases import CASES, standing_on
from kill_control import CLUSTER, Control, control
from kill_ground import Ground, Thing, ground
from kill_scene import MARK, Kill, Scene, seed
from lab.waiting import until

from gpuchaos_stream.events.command import CommandKind
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.root, pytest.mark.soak, pytest.mark.timeout(900)]

LEASE_S = 60.0
#: A restart's undo, or that of the dead man's switch, may take so long.
_ENDS_S = 90.0
#: What is aimed at, and who dies: the agent alone (the switch undoes it), both (the restart does), or both and then
#: the restarted agent in its own undo.
ROUNDS = [("effect", "both"), ("stands", "alone"), ("undo", "both"), ("effect", "alone"), ("stands", "restarted")]


@pytest.fixture(scope="module")
def land(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("ground")) as made:
        yield made


class Killing(Scene):
    """An agent that is started again and again, and what a fault of its took that nobody killed, in `seconds`."""

    def __init__(self, fault: str, thing: Thing, folder: Path, house: House, told: Control, drawn: int) -> None:
        super().__init__(thing, folder, cluster=CLUSTER, http_port=0)
        self.chance = random.Random(drawn)
        self.seconds: dict[str, float] = {}
        self._fault, self._control, self._number = fault, told, 0
        argv = [sys.executable, "-m", "gpuchaos_agent.agent", "--keyring", str(house.keyring), *self.settings]
        self.agent: Child = house.start("agent", "env", f"{MARK}={self.mark}", *argv).wait_for(READY)

    def measure(self) -> None:
        """A fault from its beginning to its end, and the undo by a restart."""
        fault_id = self._inject()
        self._until_state(fault_id, "planned", "injected")
        began = time.monotonic()
        self._until_state(fault_id, "injected")
        self.seconds |= {"effect": time.monotonic() - began, "stands": 0.4}
        assert self.thing.effect() != self.before["effect"], "no effect was seen"
        began = time.monotonic()
        self._undo(fault_id)
        self._until_state(fault_id, "undone")
        self.seconds["undo"] = time.monotonic() - began
        self._ended(fault_id, "after a fault that nobody killed")
        fault_id = self._inject()
        self._until_state(fault_id, "injected")
        self._kill_both()
        began = time.monotonic()
        self.agent.start()
        self._until_state(fault_id, "undone")
        self.seconds["restart"] = time.monotonic() - began
        self.agent.wait_for(READY)
        self._ended(fault_id, "after a restart that nobody killed")

    def kill(self, aim: str, who: str) -> None:
        fault_id = self._inject()
        self._until_state(fault_id, *(("planned", "injected") if aim == "effect" else ("injected",)))
        if aim == "undo":
            self._undo(fault_id)
        after = self.chance.uniform(0.0, self.seconds[aim])
        time.sleep(after)  # the moment that was drawn
        moment = f"{who} after {after * 1000:.0f} ms"
        if who == "alone":
            state = self.states().get(fault_id)
            self.agent.kill()
            killed = self.note(aim, moment, state)
            self._until_state(fault_id, "undone", None)
            self.nothing_is_left(f"{killed}, by the dead man's switch")
        else:
            self._kill_both()
            killed = self.note(aim, moment, self.states().get(fault_id))
        self.agent.start()
        if who == "restarted":
            killed = self._kill_the_restarted(fault_id)
        self.agent.wait_for(READY)
        self._ended(fault_id, killed)

    def _kill_the_restarted(self, fault_id: str) -> Kill:
        after = self.chance.uniform(0.3, 1.0) * self.seconds["restart"]
        time.sleep(after)  # the moment that was drawn
        self._kill_both()
        killed = self.note("restart", f"after {after * 1000:.0f} ms", self.states().get(fault_id))
        self.agent.start()
        return killed

    def _inject(self) -> str:
        self._number += 1
        fault_id = f"f{self._number}"
        fields = {"fault_id": fault_id, "experiment_id": f"e{self._number}", "fault": self._fault}
        self._control.send(
            CommandKind.INJECT, entity=self.thing.target, params=self.thing.params, lease_s=LEASE_S, **fields
        )
        return fault_id

    def _undo(self, fault_id: str) -> None:
        self._control.send(CommandKind.UNDO, fault_id=fault_id, experiment_id=fault_id.replace("f", "e"))

    def _ended(self, fault_id: str, after: object) -> None:
        """As a control plane would: it asks for the undo until the agent has told it. Then nothing is left."""
        self._undo(fault_id)
        self._control.undone_is_told(fault_id)
        self.nothing_is_left(after)

    def _until_state(self, fault_id: str, *states: str | None) -> None:
        def so() -> bool:
            return self.states().get(fault_id) in states

        try:
            until(so, _ENDS_S)
        except TimeoutError:
            raise AssertionError(f"{fault_id} is {self.states()}, not {states}: {self.agent.tail()}") from None

    def _kill_both(self) -> None:
        """Leaves nobody who could undo. The switch is held first, so that it cannot act on the agent's end."""
        switches = [pid for pid, words in self.marked().items() if "gpuchaos_agent.deadman" in words]
        for pid in switches:
            os.kill(pid, signal.SIGSTOP)
        self.agent.kill()
        for pid in switches:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("fault", CASES)
def test_real_agent_killed_with_and_without_its_dead_mans_switch_leaves_nothing_of_its_fault(
    land: Ground, tmp_path: Path, fault: str
) -> None:
    form = next(iter(CASES[fault]))
    with (
        standing_on(land, tmp_path / "thing", fault, form) as thing,
        House(tmp_path / "house", broker="embedded") as house,
        control(house) as told,
    ):
        killing = Killing(fault, thing, tmp_path / "thing", house, told, seed(f"{fault} {form}"))
        try:
            killing.measure()
            for aim, who in ROUNDS:
                # Where orders may still be on their way the undo of a half-done effect takes a minute.
                killing.kill("stands" if fault == "power-cycle" and aim == "effect" else aim, who)
                sys.stdout.write(f"{killing.kills[-1]}\n")
            sys.stdout.write(f"{len(killing.kills)} kills\n")
        finally:
            killing.end()
        assert {kill.aim for kill in killing.kills} >= {"stands", "undo", "restart"}
