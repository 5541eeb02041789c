from __future__ import annotations

import pytest

from gpuchaos_stream.detect.signals import signal_of
from gpuchaos_stream.events.anomaly import AnomalyKind, AnomalyPhase
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin


def observed(**changes: object) -> FaultEvent:
    return FaultEvent.model_validate(
        {
            "id": "f1",
            "time": 100.0,
            "cluster": "test",
            "phase": "observed",
            "fault": "gpu_lost",
            "node": "n1",
            "entity": "gpu/n1/3",
            "severity": "critical",
            "origin": "kernel",
            "evidence": {"xid": 79},
            "clock_offset_s": 0.5,
            **changes,
        }
    )


def test_an_observed_fault_is_a_signal_on_event_time() -> None:
    signal = signal_of(observed(), cell="c1", job="llama")
    assert signal is not None
    assert (signal.kind, signal.phase) == (AnomalyKind.SIGNAL, AnomalyPhase.OPENED)
    assert (signal.entity, signal.metric, signal.node) == ("gpu/n1/3", "gpu_lost", "n1")
    assert (signal.cell, signal.job) == ("c1", "llama")
    assert signal.start == signal.time == 100.5
    assert signal.end is None
    assert signal.severity is Severity.CRITICAL
    assert signal.score == 1 + Severity.CRITICAL.rank
    assert signal.origin is Origin.KERNEL
    assert signal.fault_event_id == "f1"
    assert signal.detail["xid"] == 79


@pytest.mark.parametrize("phase", [phase for phase in FaultPhase if phase is not FaultPhase.OBSERVED])
def test_what_was_injected_undone_or_refused_is_no_signal(phase: FaultPhase) -> None:
    assert signal_of(observed(phase=phase.value, fault_id="x", experiment_id="e")) is None


def test_the_same_fact_twice_makes_the_same_signal_and_another_fact_another() -> None:
    assert signal_of(observed()) == signal_of(observed())
    first, second = signal_of(observed()), signal_of(observed(id="f2"))
    assert first is not None
    assert second is not None
    assert first.anomaly_id != second.anomaly_id


def test_a_record_written_by_a_process_is_no_more_than_a_warning_and_says_so() -> None:
    signal = signal_of(observed(origin="process"))
    assert signal is not None
    assert signal.severity is Severity.WARNING
    assert signal.detail["spoof"] is True
    assert signal.detail["claimed_severity"] == "critical"


def test_information_is_no_anomaly_such_as_a_port_that_is_back_or_a_worker_that_was_asked_to_end() -> None:
    assert signal_of(observed(severity="info")) is None
    assert signal_of(observed(origin="process", severity="info")) is None
    assert signal_of(observed(severity="warning")) is not None


def test_a_record_that_names_itself_an_injection_keeps_its_severity_its_mark_and_its_fault() -> None:
    signal = signal_of(observed(origin="process", injected_mark=True, fault_id="fault-7"))
    assert signal is not None
    assert signal.injected_mark
    assert signal.severity is Severity.CRITICAL
    assert "spoof" not in signal.detail
    assert signal.detail["fault_id"] == "fault-7"
