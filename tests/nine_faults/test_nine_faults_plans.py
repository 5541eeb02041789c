"""Each site's plans are those of `examples/`, with its own places, and `experiment check` accepts them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest
from lab.bmc import IpmiNode
from lab.guest import Guest
from nine_faults import guest, here
from nine_faults.course import Outcome
from nine_faults.guest import GuestSite
from nine_faults.here import Here
from nine_faults.table import complaints, facts, show
from nine_faults.trial import EXAMPLES, Trial

from gpuchaos_agent.inject import registry
from gpuchaos_stream.events.experiment import ExperimentState
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.incident import Incident


class Machine:
    """A guest that says one pid."""

    def check(self, _command: str) -> str:
        return "4711\n"


def trials() -> dict[str, Trial]:
    sites = (
        Here(Path("/x"), Path("/x/run"), IpmiNode("ipmi://10.0.0.1:623", Path("/x"))),
        GuestSite(cast("Guest", Machine())),
    )
    return {trial.plan().fault.name: trial for site in sites for trial in site.trials}


def test_the_sites_together_try_every_fault_but_the_one_of_the_other_demo() -> None:
    assert set(here.FAULTS) | set(guest.FAULTS) == set(trials()) == registry.strategies().keys() - {"process-stop"}
    assert not set(here.FAULTS) & set(guest.FAULTS)


@pytest.mark.parametrize("name", sorted({*here.FAULTS, *guest.FAULTS}))
def test_no_place_of_the_example_is_left_in_a_plan(name: str) -> None:
    text = trials()[name].plan().model_dump_json()
    for place in ("n001", "n002", "/data/", "/etc/gpuchaos", "db:5432"):
        assert place not in text


def outcome(**changes: Any) -> Outcome:
    """A fault that had its effect, was seen, and was recovered from."""
    state = ExperimentState(
        id="e1", time=9.0, cluster="c", name="n", owner="o", status="finished", verdict="passed", plan={}, started=1.0
    )
    event = FaultEvent(
        id="f", time=2.0, cluster="c", phase="injected", fault="rdma-link", node="a", entity="node/a",
        experiment_id="e1", fault_id="f1", evidence={"state": "DOWN"},
    )  # fmt: skip
    evidence = {"fault_id": "f1", "score": 1, "time": 1, "distance": 1, "signature": 1, "sentence": "it is down"}
    anomaly = {
        "anomaly_id": "a1", "entity": "port/a/p0", "metric": "port_down", "start": 3.0, "end": None,
        "severity": "error", "evidence": evidence,
    }  # fmt: skip
    incident = Incident(
        id="i", time=3.0, cluster="c", cause="f1", experiment_id="e1", attributed=True, opened=3.0, severity="error",
        anomalies=(anomaly,),
    )  # fmt: skip
    made = Outcome(
        "here", "rdma-link", "n", {"steps_lost": 3, "refused": ["old"]},
        after={"steps_lost": 10, "data_lost": 0, "refused": ["old", "new"]}, state=state, injected=event,
        incidents={"i": incident},
    )  # fmt: skip
    for field, value in changes.items():
        setattr(made, field, value)
    return made


def test_a_fault_that_went_as_it_must_is_no_complaint_and_its_row_says_what_it_cost() -> None:
    row = facts(outcome())
    assert complaints(outcome()) == []
    assert (row["detected_by"], row["steps_lost"], row["samples_lost"]) == ("port_down on port/a/p0", 7, 0)
    assert row["checkpoints_refused"] == ["new"]
    assert "port_down on port/a/p0" in show([outcome()])


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"state": None}, "not finished"),
        ({"injected": None}, "no evidence"),
        ({"incidents": {}}, "nothing was charged"),
        ({"after": {"data_lost": 64}}, "samples lost: 64"),
        ({"after": {}}, "samples lost: None"),
        ({"after": {"data_lost": 0, "bad_weights_loaded": 1}}, "bad weights"),
    ],
)
def test_what_is_not_as_it_must_be_is_said(changes: dict[str, Any], says: str) -> None:
    assert any(says in line for line in complaints(outcome(**changes)))


def test_every_example_of_a_fault_of_the_nine_is_tried() -> None:
    tried = {trial.file for trial in trials().values()}
    others = {"stopped-rank.yaml", "hang-with-service-checks.yaml", "ecc-record.yaml"}
    assert {path.name for path in EXAMPLES.glob("*.yaml")} == tried | others


def test_a_damaged_checkpoint_that_nobody_read_is_no_trial_of_it() -> None:
    met = trials()["memory-corruption"].met
    before = {"refused": ["old"], "bad_weights_loaded": 0}
    assert not met(before, {"refused": ["old"], "bad_weights_loaded": 0})
    assert not met(before, {})
    assert met(before, {"refused": ["old", "new"], "bad_weights_loaded": 0})
    assert met(before, {"refused": ["old"], "bad_weights_loaded": 1})
