"""Simulated agents obey the same commands by the same rules as real ones."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sim_help import CONTROL, OPERATOR, STRANGER, Lab, command

from gpuchaos_stream.events.command import CommandKind, SignedCommand
from gpuchaos_stream.events.fault import FaultEvent
from gpuchaos_stream.events.signing import Signer
from gpuchaos_stream.sim.agents import UNDO_S

TARGET = "process/n002/4100"


def _inject(lab: Lab, **given: object) -> SignedCommand:
    fields = {"fault": "process-stop", "fault_id": "f1", "lease_s": 9.0, **given}
    return command(lab.now, CommandKind.INJECT, str(fields.pop("entity", TARGET)), **fields)


def _phases(events: list[FaultEvent]) -> list[str]:
    return [event.phase.value for event in events]


def test_an_inject_is_answered_when_the_effect_is_there_with_command_and_lease() -> None:
    lab = Lab()
    assert lab.send(_inject(lab)) == []
    sent = lab.now
    lab.run(1)
    (event,) = lab.said
    assert (event.phase, event.fault_id, event.experiment_id) == ("injected", "f1", "exp")
    assert event.command_id == "inject-f1-n002-0"
    assert event.lease_expires == pytest.approx(sent + 9.0)
    assert event.evidence["simulated"] is True
    assert sent < event.event_time < sent + 1
    assert lab.agents.active() == ["f1"]


def test_a_renewal_keeps_the_fault_and_its_absence_ends_it() -> None:
    lab = Lab()
    lab.send(_inject(lab))
    lab.run(8)
    (renewed,) = lab.send(command(lab.now, CommandKind.RENEW, TARGET, fault_id="f1", lease_s=9.0))
    assert renewed.phase == "renewed"
    assert renewed.lease_expires == pytest.approx(lab.now + 9.0)
    lab.run(8)
    assert lab.agents.active() == ["f1"]
    lab.run(3)
    assert lab.agents.active() == []
    assert lab.said[-1].phase == "undone"
    assert lab.said[-1].reason == "lease expired"


def test_an_undo_is_acknowledged_at_once_and_done_within_a_second() -> None:
    lab = Lab()
    lab.send(_inject(lab))
    lab.run(2)
    asked = lab.now
    assert _phases(lab.send(command(asked, CommandKind.UNDO, TARGET, fault_id="f1"))) == ["acknowledged"]
    lab.run(2)
    undone = lab.said[-1]
    assert (undone.phase, undone.command_id) == ("undone", "undo-f1-n002-0")
    assert UNDO_S[0] <= undone.event_time - asked <= UNDO_S[1]


def test_a_halt_of_an_experiment_ends_all_its_faults_on_the_node_and_no_later_one_begins() -> None:
    lab = Lab()
    lab.send(_inject(lab))
    lab.send(_inject(lab, fault_id="f2", entity="process/n002/4101"))
    lab.send(_inject(lab, fault_id="f3", entity="process/n003/4101"))
    lab.run(2)
    halt = command(lab.now, CommandKind.HALT, "node/n002", cause="rule:nodes")
    (answer,) = lab.send(halt)
    assert (answer.phase, answer.experiment_id, answer.evidence["faults"]) == ("acknowledged", "exp", 2)
    lab.run(2)
    assert lab.agents.active() == ["f3"]
    late = lab.send(_inject(lab, fault_id="f4"))
    assert _phases(late) == ["refused"]
    assert "ended" in late[0].reason


def test_a_halt_is_the_same_halt_however_often_it_comes() -> None:
    lab = Lab()
    lab.send(_inject(lab))
    lab.run(2)
    halt = command(lab.now, CommandKind.HALT, "node/n002")
    first = lab.send(halt)
    lab.run(2)
    done = lab.said[-1]
    again = lab.send(halt)
    assert again[0].id == first[0].id
    assert again[1] == done


def test_an_inject_that_was_overtaken_by_its_halt_never_begins() -> None:
    lab = Lab()
    lab.send(_inject(lab))
    lab.send(command(lab.now, CommandKind.HALT, "node/n002"))
    assert "undone" in lab.phases("f1")
    lab.run(3)
    assert "injected" not in lab.phases("f1")
    assert lab.cluster.truth == []


def test_an_undo_of_a_fault_that_never_was_here_says_that_it_is_not() -> None:
    lab = Lab()
    answers = lab.send(command(lab.now, CommandKind.UNDO, TARGET, fault_id="f9"))
    assert _phases(answers) == ["acknowledged", "undone"]
    assert answers[1].evidence == {"was_there": False}


def test_a_repeated_inject_is_reported_and_its_answer_told_again_without_a_second_effect() -> None:
    lab = Lab()
    signed = _inject(lab)
    lab.send(signed)
    lab.run(1)
    injected = lab.said[-1]
    refused, told = lab.send(signed)
    assert (refused.phase, refused.command_id, refused.evidence["refusal"]) == ("refused", None, "replayed")
    assert told == injected
    lab.send(command(lab.now, CommandKind.UNDO, TARGET, fault_id="f1"))
    lab.run(2)
    assert _phases(lab.send(signed)) == ["refused"]
    lab.run(2)
    assert lab.agents.active() == []


@pytest.mark.parametrize(
    ("signer", "kind", "refusal"),
    [
        (STRANGER, CommandKind.INJECT, "unknown_key"),
        (OPERATOR, CommandKind.INJECT, "not_allowed"),
        (OPERATOR, CommandKind.RENEW, "not_allowed"),
        (CONTROL, CommandKind.STOP, "not_allowed"),
    ],
)
def test_a_command_that_its_key_may_not_give_changes_nothing_and_is_reported(
    signer: Signer, kind: CommandKind, refusal: str
) -> None:
    lab = Lab()
    fields = {"fault": "process-stop", "fault_id": "f1", "lease_s": 9.0}
    (answer,) = lab.send(command(lab.now, kind, TARGET, signer=signer, **fields))
    assert (answer.phase, answer.evidence["refusal"], answer.fault_id) == ("refused", refusal, None)
    lab.run(2)
    assert lab.agents.active() == []


def test_an_operator_may_halt() -> None:
    lab = Lab()
    lab.send(_inject(lab))
    lab.run(2)
    lab.send(command(lab.now, CommandKind.HALT, "node/n002", signer=OPERATOR))
    lab.run(2)
    assert lab.agents.active() == []


def test_an_altered_command_is_refused() -> None:
    lab = Lab()
    signed = _inject(lab)
    altered = signed.model_copy(update={"payload": signed.payload.replace("4100", "4101")})
    (answer,) = lab.send(altered)
    assert answer.evidence["refusal"] == "bad_signature"
    lab.run(2)
    assert lab.agents.active() == []


def test_an_expired_inject_is_refused_to_its_sender_and_an_expired_halt_is_obeyed() -> None:
    lab = Lab()
    late = _inject(lab, expires=lab.now - 1.0, time=lab.now - 30.0)
    (answer,) = lab.send(late)
    assert (answer.phase, answer.command_id, answer.fault_id) == ("refused", "inject-f1-n002-0", "f1")
    lab.send(_inject(lab, n=2, fault_id="f2"))
    lab.run(2)
    lab.send(command(lab.now, CommandKind.HALT, "node/n002", expires=lab.now - 1.0, time=lab.now - 30.0))
    lab.run(2)
    assert lab.agents.active() == []


def test_what_is_for_others_is_passed_over() -> None:
    lab = Lab()
    assert lab.send(_inject(lab, entity="process/elsewhere/4100")) == []
    assert lab.send(_inject(lab, cluster="other")) == []
    assert lab.send(_inject(lab).model_copy(update={"payload": "no json"})) == []
    assert lab.send(_inject(lab).model_copy(update={"payload": "[1]"})) == []


def test_a_second_fault_on_the_same_target_is_refused() -> None:
    lab = Lab()
    lab.send(_inject(lab))
    lab.run(1)
    (answer,) = lab.send(_inject(lab, fault_id="f2"))
    assert answer.phase == "refused"
    assert "carries fault f1" in answer.reason


def test_a_fault_that_cannot_be_had_is_refused_with_its_reason() -> None:
    lab = Lab()
    (answer,) = lab.send(_inject(lab, fault="database-outage", entity="node/n002"))
    assert (answer.phase, answer.fault_id) == ("refused", "f1")
    assert "no database" in answer.reason


STEP = st.tuples(
    st.sampled_from(["inject", "renew", "undo", "halt", "wait", "wait"]), st.integers(0, 3), st.integers(1, 4)
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=14))
def test_no_fault_outlives_its_lease_and_an_undo_always_ends_it(steps: list[tuple[str, int, int]]) -> None:
    lab = Lab(nodes=4, job_nodes=4)
    lease = 4.0
    granted: dict[str, float] = {}
    for number, (what, which, seconds) in enumerate(steps):
        fault_id, entity = f"f{which}", f"process/n00{which}/4100"
        fields = {"fault_id": fault_id, "fault": "process-stop", "lease_s": lease, "n": number}
        if what == "wait":
            lab.run(seconds)
        elif what == "halt":
            lab.send(command(lab.now, CommandKind.HALT, f"node/n00{which}", n=number))
        else:
            answers = lab.send(command(lab.now, CommandKind(what), entity, **fields))
            if what in {"inject", "renew"} and not any(a.phase == "refused" for a in answers):
                granted[fault_id] = lab.now + lease
        if what in {"undo", "halt"}:
            lab.run(UNDO_S[1] + 1)
            assert fault_id not in lab.agents.active()
        for active in lab.agents.active():
            assert lab.now <= granted[active] + UNDO_S[1] + 0.25
    lab.run(lease + UNDO_S[1] + 1)
    assert lab.agents.active() == []
    assert not any(effect.owner for effect in lab.cluster.world.effects)
