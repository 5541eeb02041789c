from gpuchaos_stream.act.halts import DEADLINE_S, RESEND_S, Halts, halt_command_id
from gpuchaos_stream.events.command import Command, CommandKind, Role
from gpuchaos_stream.events.experiment import Halt, HaltState
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase
from gpuchaos_stream.events.signing import KeyRing, Signer, Verifier
from gpuchaos_stream.guard.decision import Decision
from gpuchaos_stream.guard.rules import Action

START = 1000.0


def decision(cause: str = "limit", experiment_id: str | None = "e1") -> Decision:
    return Decision(Action.HALT, cause, f"{cause} is breached", since=START, fired=START, experiment_id=experiment_id)


def fault(
    phase: FaultPhase, node: str = "n1", *, at: float = START, command_id: str | None = None, n: int = 0
) -> FaultEvent:
    return FaultEvent(
        id=f"{phase}-{node}-{n}-{at}",
        time=at,
        cluster="c",
        phase=phase,
        fault="process-stop",
        node=node,
        entity=f"process/{node}/{n}",
        fault_id=f"f-{node}-{n}",
        experiment_id="e1",
        command_id=command_id,
    )


def answer(node: str, phase: FaultPhase, at: float, n: int = 0) -> FaultEvent:
    return fault(phase, node, at=at, command_id=halt_command_id("e1", "limit", node), n=n)


def never(_: str) -> bool:
    return False


def requested(*nodes: str, halts: Halts | None = None, **options: float) -> Halts:
    halts = halts or Halts("c")
    for node in nodes:
        halts.feed(fault(FaultPhase.INJECTED, node, at=START - 10))
    halts.request(decision(), nodes, START, **options)  # type: ignore[arg-type]
    return halts


def the(halts: Halts) -> Halt:
    halt = halts.halt("e1")
    assert halt is not None
    return halt


def told(commands: list[Command]) -> list[str | None]:
    return [command.node for command in commands]


def test_every_node_of_the_targets_is_told_at_once_with_a_command_that_an_agent_believes() -> None:
    halts = requested("n1", "n2")
    commands = halts.settle(START, never)
    assert told(commands) == ["n1", "n2"]
    signer = Signer.generate(Role.CONTROL)
    believed = Verifier(KeyRing(keys=(signer.trusted(),))).verify(signer.sign(commands[0]), now=START)
    assert (believed.kind, believed.experiment_id, believed.fault_id) == (CommandKind.HALT, "e1", None)
    assert (believed.cause, believed.reason) == ("limit", "limit is breached")


def test_a_halt_goes_from_requested_to_confirmed() -> None:
    halts = requested("n1", "n2")
    assert (the(halts).state, the(halts).waiting_for) == (HaltState.REQUESTED, ("n1", "n2"))
    for node in ("n1", "n2"):
        halts.feed(answer(node, FaultPhase.ACKNOWLEDGED, START + 0.1))
    halts.settle(START + 0.2, never)
    assert (the(halts).state, the(halts).acknowledged) == (HaltState.ACKNOWLEDGED, START + 0.1)
    halts.feed(answer("n1", FaultPhase.UNDONE, START + 0.5))
    halts.settle(START + 0.6, never)
    assert (the(halts).state, the(halts).waiting_for) == (HaltState.ACKNOWLEDGED, ("n2",))
    halts.feed(answer("n2", FaultPhase.UNDONE, START + 0.9))
    halts.settle(START + 1.0, lambda experiment_id: experiment_id == "e2")
    assert (the(halts).state, the(halts).undone, the(halts).waiting_for) == (HaltState.UNDONE, START + 0.9, ())
    halts.settle(START + 5.0, lambda experiment_id: experiment_id == "e1")
    assert (the(halts).state, the(halts).confirmed) == (HaltState.CONFIRMED, START + 5.0)
    assert the(halts).escalated is None


def test_telemetry_alone_confirms_nothing_while_a_fault_is_there() -> None:
    halts = requested("n1")
    halts.settle(START + 1, lambda _: True)
    assert (the(halts).state, the(halts).confirmed) == (HaltState.REQUESTED, None)


def test_an_unanswered_halt_is_sent_again_with_the_same_id_and_a_new_expiry() -> None:
    halts = requested("n1", "n2")
    first = halts.settle(START, never)
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1))
    assert halts.settle(START + 1.9, never) == []
    (again,) = halts.settle(START + RESEND_S, never)
    assert again.id == first[1].id
    assert again.expires > first[1].expires
    assert len([halts.settle(START + 4 + second, never) for second in range(0, 500, 2)]) == 250
    assert told(halts.settle(START + 506, never))


def test_a_refusal_is_no_answer() -> None:
    halts = requested("n1")
    halts.settle(START, never)
    halts.feed(answer("n1", FaultPhase.REFUSED, START + 0.1))
    assert told(halts.settle(START + 2, never)) == ["n1"]


def test_the_same_cause_again_changes_nothing_and_another_is_noted() -> None:
    halts = requested("n1")
    halts.settle(START, never)
    halts.dirty()
    assert halts.request(decision(), ["n1"], START + 1) == the(halts)
    assert halts.dirty() == {}
    second = halts.request(decision("other"), ["n1"], START + 2)
    assert (second.cause, second.also, second.requested) == ("limit", ("other",), START)
    assert halts.request(decision("other"), ["n1"], START + 3).also == ("other",)
    assert halts.settle(START + 1, never) == []
    assert halts.requested_since(START - 1) == 1
    assert halts.requested_since(START) == 0


def test_repeated_answers_change_nothing() -> None:
    halts = requested("n1")
    events = [answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1), answer("n1", FaultPhase.UNDONE, START + 0.5)]
    for event in events:
        halts.feed(event)
    halts.settle(START + 1, lambda _: True)
    before = the(halts)
    halts.dirty()
    for event in [fault(FaultPhase.INJECTED, "n1", at=START - 10), *events, *reversed(events)]:
        halts.feed(event)
    halts.settle(START + 2, lambda _: True)
    assert the(halts) == before
    assert halts.dirty() == {}


def test_a_node_without_a_fault_is_undone_when_it_answers() -> None:
    halts = Halts("c")
    halts.request(decision(), ["n1"], START)
    halts.settle(START + 1, never)
    assert the(halts).state is HaltState.REQUESTED
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1))
    halts.settle(START + 1, never)
    assert the(halts).state is HaltState.UNDONE


def test_a_fault_that_ended_by_its_lease_counts_as_undone_though_the_node_never_answers() -> None:
    halts = requested("n1")
    halts.feed(fault(FaultPhase.UNDONE, at=START + 8))
    halts.settle(START + 9, never)
    assert (the(halts).state, the(halts).acknowledged, the(halts).undone) == (HaltState.UNDONE, None, START + 8)
    assert told(halts.settle(START + 60, never)) == ["n1"]
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 61))
    halts.settle(START + 62, never)
    assert (the(halts).state, the(halts).acknowledged) == (HaltState.UNDONE, START + 61)


def test_an_undo_that_does_not_come_in_time_is_escalated_and_asked_for_until_it_comes() -> None:
    halts = requested("n1", "n2", deadline_s=10.0)
    for node in ("n1", "n2"):
        halts.feed(answer(node, FaultPhase.ACKNOWLEDGED, START + 0.1))
    halts.feed(answer("n1", FaultPhase.UNDONE, START + 0.5))
    assert halts.settle(START + 10, never) == []
    assert told(halts.settle(START + 10.1, never)) == ["n2"]
    assert (the(halts).state, the(halts).escalated, the(halts).waiting_for) == (
        HaltState.ESCALATED,
        START + 10.1,
        ("n2",),
    )
    assert told(halts.settle(START + 12.1, never)) == ["n2"]
    halts.feed(answer("n2", FaultPhase.UNDONE, START + 13))
    assert halts.settle(START + 15, never) == []
    assert (the(halts).state, the(halts).undone, the(halts).escalated) == (HaltState.UNDONE, START + 13, START + 10.1)


def test_the_default_deadline_is_thirty_seconds() -> None:
    halts = requested("n1")
    halts.settle(START + DEADLINE_S, never)
    assert the(halts).state is HaltState.REQUESTED
    halts.settle(START + DEADLINE_S + 0.1, never)
    assert the(halts).state is HaltState.ESCALATED


def test_a_failed_undo_is_escalated_at_once_and_ends_with_a_later_success() -> None:
    halts = requested("n1")
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1))
    halts.feed(answer("n1", FaultPhase.UNDO_FAILED, START + 0.2))
    assert told(halts.settle(START + 0.3, never)) == ["n1"]
    assert the(halts).state is HaltState.ESCALATED
    halts.feed(answer("n1", FaultPhase.UNDONE, START + 5))
    halts.feed(answer("n1", FaultPhase.UNDO_FAILED, START + 0.2))
    halts.settle(START + 6, never)
    assert the(halts).state is HaltState.UNDONE


def test_a_halt_that_telemetry_does_not_confirm_is_escalated() -> None:
    halts = requested("n1", confirm_s=60.0)
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1))
    halts.feed(answer("n1", FaultPhase.UNDONE, START + 1))
    halts.settle(START + 61, never)
    assert the(halts).state is HaltState.UNDONE
    halts.settle(START + 61.1, never)
    assert the(halts).state is HaltState.ESCALATED
    halts.settle(START + 70, lambda _: True)
    assert (the(halts).state, the(halts).confirmed) == (HaltState.CONFIRMED, START + 70)


def test_an_injection_that_was_under_way_is_undone_by_its_name() -> None:
    halts = requested("n1")
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1))
    halts.feed(answer("n1", FaultPhase.UNDONE, START + 0.5))
    halts.settle(START + 1, lambda _: True)
    halts.feed(fault(FaultPhase.INJECTED, "n1", at=START + 1.5, n=7))
    (command,) = halts.settle(START + 2, lambda _: True)
    assert (command.node, command.fault_id) == ("n1", "f-n1-7")
    assert (the(halts).state, the(halts).waiting_for, the(halts).confirmed) == (HaltState.ACKNOWLEDGED, ("n1",), None)
    halts.feed(fault(FaultPhase.UNDONE, "n1", at=START + 2.5, command_id=command.id, n=7))
    assert halts.settle(START + 9, lambda _: True) == []
    assert the(halts).undone == START + 2.5


def test_a_fault_on_a_node_that_nobody_named_is_halted_as_well() -> None:
    halts = requested("n1")
    halts.feed(fault(FaultPhase.INJECTED, "n9", at=START + 0.1))
    assert told(halts.settle(START + 0.2, never)) == ["n1", "n9"]


def test_answers_that_are_read_again_before_the_breach_are_not_lost() -> None:
    halts = Halts("c")
    for event in [
        fault(FaultPhase.INJECTED, "n1", at=START - 10),
        answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1),
        answer("n1", FaultPhase.UNDONE, START + 0.5),
    ]:
        halts.feed(event)
    halts.request(decision(), ["n1"], START)
    assert halts.settle(START + 1, never) == []
    assert the(halts).state is HaltState.UNDONE


def test_a_dry_run_is_recorded_once_for_each_cause_and_sends_nothing() -> None:
    halts = Halts("c")
    for cause in ("limit", "other", "limit"):
        assert halts.request(decision(cause), ["n1"], START, dry_run=True).dry_run
    assert halts.settle(START + 100, never) == []
    assert [halt.cause for halt in halts.halts("e1")] == ["limit", "other"]
    assert not halts.halting("e1")
    assert halts.requested_since(0) == 0


def test_a_person_can_halt_what_a_dry_run_only_recorded() -> None:
    halts = Halts("c")
    halts.request(decision(), ["n1"], START, dry_run=True)
    halts.request(decision("operator:1"), ["n1"], START + 1)
    assert told(halts.settle(START + 1, never)) == ["n1"]
    assert [halt.dry_run for halt in halts.halts("e1")] == [False, True]


def test_after_a_restart_what_is_unanswered_goes_out_at_once() -> None:
    halts = requested("n1", "n2")
    first = halts.settle(START, never)
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 0.1))
    halts.settle(START + 0.2, never)
    fresh = Halts("c")
    fresh.load({key: value for key, value in halts.dirty().items() if value is not None})
    (again,) = fresh.settle(START + 0.3, never)
    assert again.id == first[1].id
    assert the(fresh) == the(halts)


def test_a_finished_experiment_is_forgotten_and_an_open_halt_is_not() -> None:
    halts = requested("n1")
    halts.forget(START + 1e6)
    assert halts.halting("e1")
    halts.feed(answer("n1", FaultPhase.ACKNOWLEDGED, START + 1))
    halts.feed(answer("n1", FaultPhase.UNDONE, START + 1))
    halts.settle(START + 2, never)
    halts.close("e1")
    halts.forget(START)
    assert halts.halting("e1")
    halts.dirty()
    halts.forget(START + 1e6)
    assert halts.dirty() == {"act/e1": None}


def test_a_closed_halt_is_sent_no_more_once_its_faults_are_gone() -> None:
    halts = requested("n1")
    halts.close("e1")
    assert told(halts.settle(START, never)) == ["n1"]
    halts.feed(fault(FaultPhase.UNDONE, at=START + 8))
    assert halts.settle(START + 9, never) == []


def test_observed_faults_are_nobodys() -> None:
    halts = Halts("c")
    halts.feed(
        FaultEvent(id="o", time=1, cluster="c", phase="observed", fault="gpu_lost", node="n1", entity="gpu/n1/0")
    )
    assert halts.dirty() == {}
