"""Agents killed (SIGKILL) at random points while they do a fault to something real: nothing is left after a restart.

Some 360 kills over 26 forms of all faults, at lines of the agent's own code and at moments of the clock in turn.
The agent is `gpuchaos-agent inject`, started again as `gpuchaos-agent undo --all`; with a control plane, a broker and
a dead man's switch it is killed in `test_inject_kills_agent.py`.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from kill_cases import CASES, standing_on, unknown
from kill_course import course
from kill_ground import Ground, ground
from kill_scene import Kill, seed

pytestmark = pytest.mark.root

FORMS = [(fault, form) for fault, forms in CASES.items() for form in forms]
#: What is aimed at and how, one kill each; a restart's is two.
AIMS = [
    ("before", "clock"),
    ("journal", "lines"),
    ("effect", "lines"),
    ("effect", "clock"),
    ("effect", "lines"),
    ("stands", "clock"),
    ("undo", "lines"),
    ("undo", "clock"),
    ("undo", "lines"),
    ("restart", "lines"),
    ("restart", "clock"),
]
#: Where orders may still be on their way the undo of a half-done effect takes a minute.
AIMS_OF_POWER = [*AIMS[:3], *AIMS[5:]]
#: What each form must have been hit in, by one of these → what is aimed at again while it was not, by lines.
HITS = {
    frozenset({"between journal and effect", "in the effect's steps"}): "effect",
    frozenset({"while it stands"}): "restart",
    frozenset({"in the undo"}): "undo",
    frozenset({"in the restart's undo"}): "restart",
}
TRIES = 20


@pytest.fixture(scope="module")
def land(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    with ground(tmp_path_factory.mktemp("ground")) as made:
        yield made


def test_every_fault_that_the_agent_has_is_killed_here() -> None:
    assert not unknown()


@pytest.mark.parametrize("fault", CASES)
def test_agent_killed_once_at_a_random_point_leaves_nothing_after_it_was_started_again(
    land: Ground, tmp_path: Path, fault: str
) -> None:
    form = next(iter(CASES[fault]))
    with (
        standing_on(land, tmp_path / "thing", fault, form) as thing,
        course(tmp_path / "thing", fault, thing, seed(f"{fault} {form}")) as killing,
    ):
        killing.measure()
        aims = AIMS[5:8] if fault == "power-cycle" else AIMS[1:9]
        killing.kill(*killing.chance.choice(aims))
        sys.stdout.write("".join(f"{kill}\n" for kill in killing.kills))


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("fault", "form"), FORMS, ids=["-".join(each) for each in FORMS])
def test_agents_killed_all_over_the_life_of_a_fault_leave_nothing_after_they_were_started_again(
    land: Ground, tmp_path: Path, fault: str, form: str
) -> None:
    with (
        standing_on(land, tmp_path / "thing", fault, form) as thing,
        course(tmp_path / "thing", fault, thing, seed(f"{fault} {form}")) as killing,
    ):
        killing.measure()
        killing.measure_restart()
        for aim, how in AIMS_OF_POWER if fault == "power-cycle" else AIMS:
            sys.stdout.write(f"{killing.kill(aim, how)}\n")
        for _ in range(TRIES):
            if aims := unmet(killing.kills):
                killing.kill(aims[0], "lines")
        hits = Counter(kill.hit for kill in killing.kills)
        sys.stdout.write(f"{len(killing.kills)} kills: {dict(hits)}\n")
        assert not unmet(killing.kills), hits


def unmet(kills: list[Kill]) -> list[str]:
    """What has to be aimed at again."""
    hits = {kill.hit for kill in kills}
    return [aim for words, aim in HITS.items() if not words & hits]
