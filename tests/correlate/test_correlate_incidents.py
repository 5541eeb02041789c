"""How incidents are told: grouped, once, taken back, and forgotten."""

from __future__ import annotations

import pytest
from correlate_builders import T0, cluster, correlator, fact, injected, number, undone

from gpuchaos_stream.correlate.correlator import Correlator
from gpuchaos_stream.correlate.freshness import Freshness
from gpuchaos_stream.correlate.incidents import SHOWN
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.observation import CellSummary, NodeSeen


def restarted(subject: Correlator, saved: dict[str, bytes]) -> Correlator:
    saved |= {key: value for key, value in subject.dirty().items() if value is not None}
    again = Correlator(cluster())
    again.load(saved)
    return again


def test_an_incident_opens_with_its_first_anomaly_and_closes_when_all_is_over_and_the_fault_gone() -> None:
    subject = correlator()
    subject.feed(injected())
    subject.feed(number("job/alpha", "steps_rate", 3.0, end=20.0))
    [incident] = subject.incidents()
    assert (incident.opened, incident.closed) == (T0 + 3.0, None)
    subject.feed(undone(18.0))
    [incident] = subject.incidents()
    assert incident.closed == T0 + 20.0
    assert (incident.fault_id, incident.experiment_id, incident.attributed) == ("f1", "e1", True)
    assert incident.jobs == ("alpha",)


def test_an_incident_is_told_once_until_it_changes() -> None:
    subject = correlator()
    subject.feed(injected())
    opened = number("job/alpha", "steps_rate", 3.0)
    subject.feed(opened)
    assert len(subject.changed()) == 1
    subject.feed(opened)
    subject.feed(opened.model_copy(update={"id": "later", "phase": "updated", "time": T0 + 8.0}))
    assert subject.changed() == []
    subject.feed(number("job/alpha", "steps_rate", 3.0, end=9.0))
    [incident] = subject.changed()
    assert incident.anomalies[0].end == T0 + 9.0


def test_its_severity_is_that_of_the_worst_anomaly() -> None:
    subject = correlator()
    subject.feed(injected())
    subject.feed(number("job/alpha", "steps_rate", 3.0))
    subject.feed(number("process/n0/100", "running", 1.0, severity=Severity.ERROR))
    assert subject.incidents()[0].severity is Severity.ERROR


def test_unexplained_anomalies_close_in_time_and_on_one_node_are_one_incident() -> None:
    subject = correlator()
    for at, entity in (
        (0.0, "gpu/n6/0"),
        (8.0, "gpu/n6/1"),
        (16.0, "numa/n6/0"),
        (40.0, "gpu/n6/0"),
        (41.0, "gpu/n1/0"),
    ):
        subject.feed(number(entity, "temperature_celsius", at))
    assert sorted(len(each.anomalies) for each in subject.incidents()) == [1, 1, 3]


@pytest.mark.parametrize(
    ("one", "other", "together"),
    [
        ("gpu/n0/0", "gpu/n2/0", True),  # one job
        ("gpu/n2/0", "gpu/n3/0", True),  # one NVLink domain
        ("gpu/n0/0", "gpu/n3/0", False),  # one cell is not enough
    ],
)
def test_a_job_or_an_nvlink_domain_holds_unexplained_anomalies_together(one: str, other: str, together: bool) -> None:
    subject = correlator()
    subject.feed(number(one, "temperature_celsius", 0.0))
    subject.feed(number(other, "temperature_celsius", 1.0))
    assert (len(subject.incidents()) == 1) is together


def test_an_anomaly_between_two_groups_joins_them_and_the_later_one_is_taken_back() -> None:
    subject = correlator()
    subject.feed(number("gpu/n6/0", "temperature_celsius", 0.0))
    subject.feed(number("gpu/n6/0", "temperature_celsius", 15.0))
    first, second = subject.changed()
    subject.feed(number("gpu/n6/1", "temperature_celsius", 8.0))
    news = {incident.id: incident for incident in subject.changed()}
    assert news[second.id].superseded
    assert len(news[first.id].anomalies) == 3


def test_what_flaps_for_ever_does_not_grow_one_incident_for_ever() -> None:
    subject = correlator()
    for beat in range(150):
        subject.feed(number("gpu/n6/0", "temperature_celsius", beat * 9.0, end=beat * 9.0 + 4.0))
    assert all(incident.anomalies[-1].start - incident.opened <= 600.0 for incident in subject.incidents())
    assert len(subject.incidents()) == 3


def test_a_record_carries_at_most_so_many_anomalies_and_counts_all() -> None:
    subject = correlator()
    subject.feed(injected())
    for index in range(SHOWN + 20):
        subject.feed(number(f"process/n1/{index}", "steps_rate", 3.0))
    [incident] = subject.incidents()
    assert len(incident.anomalies) == SHOWN
    assert f"{SHOWN + 20} anomalies" in incident.summary


def test_after_a_restart_the_same_is_told_again_and_what_no_longer_holds_is_taken_back() -> None:
    subject, saved = correlator(), dict[str, bytes]()
    subject.feed(number("job/alpha", "steps_rate", 3.0))
    subject.feed(fact("gpu/n5/0", "gpu_lost", 3.0))
    told = subject.changed()
    assert len(told) == 2
    again = restarted(subject, saved)
    assert again.changed() == told
    assert again.changed() == []
    again = restarted(subject, saved)
    again.feed(injected())
    news = [incident for incident in again.changed() if incident not in told]
    assert [incident.superseded for incident in sorted(news, key=lambda each: each.attributed)] == [True, False]


def test_dirty_names_only_what_changed() -> None:
    subject = correlator()
    subject.feed(injected())
    subject.feed(number("job/alpha", "steps_rate", 3.0))
    subject.changed()
    assert {key.split("/")[1] for key in subject.dirty()} == {"fault", "anomaly", "incident"}
    assert subject.dirty() == {}
    subject.feed(injected())
    subject.changed()
    assert subject.dirty() == {}
    subject.feed(number("job/alpha", "steps_rate", 3.0, end=5.0))
    subject.changed()
    assert {key.split("/")[1] for key in subject.dirty()} == {"anomaly", "incident"}


def test_what_is_over_is_forgotten_as_a_whole_and_what_lasts_is_kept() -> None:
    subject, saved = correlator(), dict[str, bytes]()
    subject.declare("e1", ("process/n0/100",))
    subject.feed(injected())
    subject.feed(undone(20.0))
    subject.feed(number("job/alpha", "steps_rate", 3.0, end=21.0))
    subject.feed(number("gpu/n6/0", "temperature_celsius", 3.0, end=21.0))
    subject.feed(number("gpu/n5/0", "temperature_celsius", 7000.0, told=7002.0))
    subject.changed()
    saved.update({key: value for key, value in subject.dirty().items() if value is not None})
    subject.forget(T0 + 3600.0)
    assert len(subject.attributed("e1")) == 1  # its experiment is not over
    assert [each.nodes for each in subject.incidents() if not each.attributed] == [("n5",)]
    subject.end("e1", T0 + 40.0)
    subject.forget(T0 + 3600.0)
    assert [each.nodes for each in subject.incidents()] == [("n5",)]
    assert subject.changed() == []
    for key, value in subject.dirty().items():
        saved.pop(key, None) if value is None else saved.update({key: value})
    assert {key.split("/")[1] for key in saved} == {"anomaly", "incident", "horizon"}
    assert len(saved) == 3


def test_what_comes_after_it_was_forgotten_is_counted_and_not_taken() -> None:
    subject = correlator()
    subject.forget(T0 + 3600.0)
    subject.feed(injected())
    subject.feed(number("job/alpha", "steps_rate", 3.0))
    assert subject.late == 2
    assert subject.incidents() == ()


def test_a_fault_whose_undo_failed_is_never_forgotten() -> None:
    from correlate_builders import fault

    from gpuchaos_stream.events.fault import FaultPhase

    subject = correlator()
    subject.feed(injected())
    subject.feed(fault(FaultPhase.UNDO_FAILED, 30.0))
    subject.forget(T0 + 10_000.0)
    subject.feed(number("job/alpha", "steps_rate", 3.0, told=10_001.0))
    assert len(subject.attributed("e1")) == 1


def test_a_fact_that_is_not_critical_lasts_a_minute_and_a_critical_one_until_somebody_closes_it() -> None:
    subject = correlator()
    subject.feed(fact("gpu/n5/0", "gpu_nvlink_error", 0.0, severity=Severity.ERROR))
    subject.feed(fact("gpu/n1/0", "gpu_lost", 0.0))
    subject.feed(fact("gpu/n6/0", "gpu_lost", 0.0, origin=Origin.PROCESS))
    ends = {each.nodes[0]: each.closed for each in subject.incidents()}
    assert ends == {"n5": T0 + 60.0, "n1": None, "n6": T0 + 60.0}


def heard(at: float, *nodes: str) -> Freshness:
    freshness = Freshness()
    seen = {node: NodeSeen(last=T0 + at) for node in nodes}
    freshness.feed(CellSummary(id=str(at), time=T0 + at, cluster="test", cell="c", nodes=seen, order=(), columns={}))
    return freshness


def test_an_anomaly_that_nobody_closes_ends_at_its_last_word_and_a_later_word_opens_it_again() -> None:
    subject = correlator()
    subject.feed(injected())
    opened = number("gpu/n1/0", "utilization_ratio", 2.0)
    subject.feed(opened)
    updated = {"phase": "updated", "id": "u1", "time": T0 + 18.0}
    subject.feed(opened.model_copy(update=updated))
    subject.lapse(T0 + 45.0, heard(45.0, "n1"))
    assert len(subject.open_for("e1", T0 + 45.0)) == 1
    subject.lapse(T0 + 60.0, heard(60.0, "n1"))
    assert subject.open_for("e1", T0 + 60.0) == ()
    lapsed = subject.attributed("e1")[0].end
    assert lapsed is not None
    assert T0 + 18.0 <= lapsed <= T0 + 28.0
    again = restarted(subject, {})
    assert again.open_for("e1", T0 + 60.0) == ()
    again.feed(opened.model_copy(update={"phase": "updated", "id": "u2", "time": T0 + 61.0}))
    assert len(again.open_for("e1", T0 + 62.0)) == 1


def test_nothing_lapses_while_its_node_is_silent() -> None:
    subject = correlator()
    subject.feed(injected())
    subject.feed(number("gpu/n1/0", "utilization_ratio", 2.0))
    subject.lapse(T0 + 90.0, heard(10.0, "n1", "n2"))
    assert len(subject.open_for("e1", T0 + 90.0)) == 1


def test_silence_that_nobody_closed_ends_when_the_node_is_heard() -> None:
    subject = correlator()
    subject.declare("e1", ("node/n1",))
    subject.feed(number("node/n1", "telemetry_stale", 2.0, severity=Severity.ERROR))
    assert subject.blast_radius("e1", T0 + 50.0).unknown_nodes == 1
    subject.lapse(T0 + 50.0, heard(50.0, "n1"))
    assert subject.blast_radius("e1", T0 + 50.0).unknown_nodes == 0


def test_an_anomaly_of_a_job_lapses_when_a_node_of_the_job_is_heard() -> None:
    subject = correlator()
    subject.feed(injected())
    subject.feed(number("job/alpha", "steps_rate", 2.0))
    subject.lapse(T0 + 50.0, heard(50.0, "n5"))
    assert len(subject.open_for("e1", T0 + 50.0)) == 1
    subject.lapse(T0 + 60.0, heard(60.0, "n2"))
    assert subject.open_for("e1", T0 + 60.0) == ()
