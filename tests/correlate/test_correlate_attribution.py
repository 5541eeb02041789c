"""Which fault is charged with what, and what no fault is charged with."""

from __future__ import annotations

import pytest
from correlate_builders import T0, correlator, fact, fault, injected, node_info, number, undone

from gpuchaos_stream.correlate.correlator import Correlator
from gpuchaos_stream.correlate.score import Config
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.topology.topology import Topology


def charged(subject: Correlator, experiment: str = "e1") -> set[tuple[str, str]]:
    return {(each.entity, each.metric) for each in subject.attributed(experiment)}


def fed(*events: FaultEvent | Anomaly) -> Correlator:
    subject = correlator()
    for event in events:
        subject.feed(event)
    return subject


def test_what_a_stopped_process_does_to_its_job_is_charged_to_it() -> None:
    subject = fed(
        injected(),
        number("process/n0/100", "running", 1.0),
        number("process/n1/200", "steps_rate", 3.0),
        number("job/alpha", "steps_rate", 3.0),
        number("gpu/n2/1", "power_watts", 4.0),
        fact("process/n2/300", "collective_timeout", 600.0, severity=Severity.ERROR, origin=Origin.APPLICATION),
    )
    assert len(charged(subject)) == 5
    assert subject.unattributed(0.0) == ()


def test_another_job_in_the_same_nvlink_domain_is_not_charged_to_a_stopped_process() -> None:
    # n2 (alpha) and n3 (beta) share a domain and a cell, but no collective.
    subject = fed(injected(entity="process/n2/1"), number("process/n3/9", "steps_rate", 3.0))
    assert charged(subject) == set()


def test_what_began_before_the_injection_is_never_charged() -> None:
    slack = Config().slack_s
    subject = fed(
        injected(),
        number("process/n1/200", "steps_rate", -slack - 0.1),
        number("process/n2/300", "steps_rate", -slack + 0.1),
    )
    assert charged(subject) == {("process/n2/300", "steps_rate")}


def test_what_began_long_after_the_undo_is_not_charged_but_the_tail_is() -> None:
    subject = fed(
        injected(),
        undone(20.0),
        number("process/n1/200", "step_time_seconds", 28.0),
        number("process/n2/300", "step_time_seconds", 65.0),
    )
    assert charged(subject) == {("process/n1/200", "step_time_seconds")}


@pytest.mark.parametrize(
    "entity",
    [
        "gpu/n0/0",  # on the very node of the stopped process
        "gpu/n1/0",  # in its job
        "gpu/n5/0",  # in another job
    ],
)
@pytest.mark.parametrize("name", ["gpu_lost", "gpu_ecc_uncontained", "gpu_gsp_timeout"])
def test_a_real_hardware_failure_is_not_charged_to_a_stopped_process_nor_hidden_by_it(entity: str, name: str) -> None:
    subject = fed(injected(), number("process/n0/100", "running", 1.0), fact(entity, name, 2.0))
    assert charged(subject) == {("process/n0/100", "running")}
    [real] = subject.critical_unattributed(T0 + 5.0)
    assert (real.entity, real.metric) == (entity, name)
    assert real.node == entity.split("/")[1]
    assert real.jobs


def test_a_real_failure_takes_what_follows_from_it_with_it() -> None:
    subject = fed(
        injected(),  # on alpha
        fact("gpu/n5/2", "gpu_lost", 5.0),
        fact("gpu/n5/2", "gpu_recovery_action", 5.2, severity=Severity.WARNING),
        number("job/gamma", "steps_rate", 8.0),
        number("process/n5/7", "running", 6.0),
    )
    assert charged(subject) == set()
    [incident] = [each for each in subject.incidents() if len(each.anomalies) > 1]
    assert incident.cause.startswith("observed:")
    assert incident.experiment_id is None
    assert not incident.attributed
    assert len(incident.anomalies) == 4
    assert incident.summary.startswith("gpu_lost on gpu/n5/2")
    assert incident.jobs == ("gamma",)


def test_lines_that_follow_a_lost_gpu_within_seconds_are_one_incident_whose_cause_is_the_first() -> None:
    subject = fed(
        fact("gpu/n5/2", "gpu_recovery_action", 1.05, severity=Severity.ERROR),
        fact("gpu/n5/2", "gpu_lost", 1.0),
        fact("gpu/n5/2", "gpu_channel_reset", 1.1, severity=Severity.ERROR),
        fact("gpu/n4/0", "gpu_nvlink_error", 1.2, severity=Severity.ERROR),  # its NVLink peer
    )
    [incident] = subject.incidents()
    assert incident.anomalies[0].metric == "gpu_lost"
    assert incident.nodes == ("n4", "n5")


def test_a_record_that_names_its_fault_is_charged_to_it_with_certainty() -> None:
    mark = fact("gpu/n0/1", "gpu_ecc_contained", 0.5, origin=Origin.PROCESS, marked_by="f1")
    subject = fed(injected(name="memory-corruption", entity="gpu/n0/1"), mark)
    [found] = subject.attributed("e1")
    assert found.evidence.score == 1.0


def test_a_marked_record_that_comes_before_its_fault_event_waits_for_it() -> None:
    subject = fed(fact("gpu/n0/1", "gpu_ecc_contained", 0.5, origin=Origin.PROCESS, marked_by="f1"))
    assert len(subject.unattributed(0.0)) == 1
    subject.feed(injected(name="memory-corruption", entity="gpu/n0/1"))
    assert len(subject.attributed("e1")) == 1


def test_a_mark_copied_to_another_node_is_not_believed() -> None:
    subject = fed(
        injected(name="memory-corruption", entity="gpu/n0/1"),
        fact("gpu/n5/1", "gpu_ecc_contained", 0.5, origin=Origin.PROCESS, marked_by="f1"),
    )
    assert charged(subject) == set()
    [found] = subject.unattributed(0.0)
    assert "on node n0" in found.sentence


def test_the_same_record_from_the_kernel_is_a_real_failure_even_on_the_target() -> None:
    subject = fed(injected(name="memory-corruption", entity="gpu/n0/1"), fact("gpu/n0/1", "gpu_ecc_uncontained", 0.5))
    assert charged(subject) == set()
    assert len(subject.critical_unattributed(T0 + 1.0)) == 1


def test_a_record_that_a_process_wrote_unmarked_is_unattributed_and_no_more_than_a_warning() -> None:
    subject = fed(
        injected(name="memory-corruption", entity="gpu/n0/1"),
        fact("gpu/n0/1", "gpu_lost", 0.5, origin=Origin.PROCESS),
    )
    [found] = subject.unattributed(0.0)
    assert found.severity is Severity.WARNING
    assert subject.critical_unattributed(T0 + 1.0) == ()
    assert "written by a process" in found.sentence


def test_a_port_that_an_experiment_took_down_is_charged_and_another_port_that_fails_is_not() -> None:
    subject = fed(
        injected(name="rdma-link", entity="port/n0/mlx5_0"),
        fact("port/n0/mlx5_0", "port_down", 0.3, severity=Severity.ERROR),
        fact("port/n0/mlx5_1", "port_down", 0.4, severity=Severity.ERROR),
        number("job/alpha", "steps_rate", 5.0),
    )
    assert charged(subject) == {("port/n0/mlx5_0", "port_down"), ("job/alpha", "steps_rate")}


def test_a_fault_without_effect_explains_nothing() -> None:
    subject = fed(fault(FaultPhase.NOT_EFFECTIVE, 0.0), injected(), number("job/alpha", "steps_rate", 3.0))
    assert charged(subject) == set()


def test_a_refused_fault_explains_nothing() -> None:
    subject = fed(fault(FaultPhase.REFUSED, 0.0), number("job/alpha", "steps_rate", 3.0))
    assert charged(subject) == set()


def test_an_unknown_fault_is_charged_with_the_stall_of_its_job_but_not_with_hardware_facts() -> None:
    subject = fed(
        injected(name="made-up", entity="node/n0"),
        number("job/alpha", "steps_rate", 3.0),
        fact("gpu/n0/0", "gpu_lost", 5.0),
    )
    assert charged(subject) == {("job/alpha", "steps_rate")}
    assert len(subject.critical_unattributed(T0 + 6.0)) == 1


def test_two_experiments_at_once_are_each_charged_with_their_own() -> None:
    subject = fed(
        injected(),
        injected(fault_id="f2", experiment="e2", entity="process/n3/400"),
        number("job/alpha", "steps_rate", 3.0),
        number("job/beta", "steps_rate", 3.0),
        number("job/gamma", "steps_rate", 3.0),
    )
    assert charged(subject) == {("job/alpha", "steps_rate")}
    assert charged(subject, "e2") == {("job/beta", "steps_rate")}
    assert [each.entity for each in subject.unattributed(0.0)] == ["job/gamma"]


def test_a_fault_that_is_told_late_takes_over_the_anomalies_it_explains() -> None:
    subject = fed(number("job/alpha", "steps_rate", 3.0))
    [before] = subject.changed()
    assert before.cause.startswith("unattributed:")
    subject.feed(injected())
    after = {incident.cause: incident for incident in subject.changed()}
    assert after[before.cause].superseded
    assert after["f1"].experiment_id == "e1"
    assert not after["f1"].superseded
    assert [each.cause for each in subject.incidents()] == ["f1"]


def test_a_job_that_moved_off_its_node_is_still_charged_to_the_fault_on_that_node() -> None:
    subject = correlator()
    topology: Topology = subject._topology
    subject.feed(injected(name="power-cycle", entity="node/n5"))
    topology.apply(node_info(5, time=T0 + 10.0, job=""))
    topology.apply(node_info(6, time=T0 + 10.0, job="gamma"))
    subject.feed(number("job/gamma", "steps_rate", 12.0))
    assert charged(subject) == {("job/gamma", "steps_rate")}


def test_a_node_that_is_known_only_later_changes_the_answer() -> None:
    topology = Topology()
    subject = Correlator(topology)
    subject.feed(injected())
    subject.feed(number("job/alpha", "steps_rate", 3.0))
    assert charged(subject) == set()
    topology.apply(node_info(0))
    assert charged(subject) == {("job/alpha", "steps_rate")}


def test_evidence_names_the_fault_the_delay_the_relation_and_the_parts_of_the_score() -> None:
    subject = fed(injected(), number("gpu/n1/3", "utilization_ratio", 4.0))
    [found] = subject.attributed("e1")
    assert found.evidence.fault_id == "f1"
    assert found.evidence.score == pytest.approx(
        found.evidence.time * found.evidence.distance * found.evidence.signature, abs=1e-3
    )
    for part in ("utilization_ratio", "gpu/n1/3", "4.0 s after", "process-stop", "process/n0/100", "in the same job"):
        assert part in found.evidence.sentence


def test_what_nothing_explains_says_which_fault_came_nearest_and_why_it_is_not_the_cause() -> None:
    subject = fed(injected(), number("gpu/n0/0", "temperature_celsius", 2.0))
    [found] = subject.unattributed(0.0)
    assert "process-stop does not cause temperature_celsius" in found.sentence


def test_first_detection_is_when_the_first_charged_anomaly_was_told() -> None:
    subject = fed(
        injected(),
        number("job/gamma", "steps_rate", 0.5, told=1.0),  # not charged
        number("job/alpha", "steps_rate", 2.0, told=5.0),
        number("process/n0/100", "running", 1.0, told=4.0),
    )
    assert subject.first_detection("e1") == T0 + 4.0
    assert subject.first_detection("e2") is None


def test_open_for_leaves_out_what_has_ended() -> None:
    subject = fed(injected(), number("job/alpha", "steps_rate", 2.0), number("process/n0/100", "running", 1.0, end=8.0))
    assert [each.entity for each in subject.open_for("e1", T0 + 9.0)] == ["job/alpha"]
    assert len(subject.open_for("e1", T0 + 7.0)) == 2


def test_critical_unattributed_can_be_asked_for_one_experiments_time_alone() -> None:
    subject = fed(fact("gpu/n5/0", "gpu_lost", -50.0), fact("gpu/n4/0", "gpu_lost", 10.0))
    assert [each.node for each in subject.critical_unattributed(T0 + 11.0, since=T0)] == ["n4"]
    assert len(subject.critical_unattributed(T0 + 11.0)) == 2
