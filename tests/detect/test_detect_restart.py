from __future__ import annotations

from detect_samples import T0, Run, SampleCell

from gpuchaos_stream.detect.detector import Detector
from gpuchaos_stream.events.anomaly import AnomalyPhase

SLOW = {("n2", "gpu", "1", "power_watts"): 200.0}


def test_a_worker_that_reads_the_same_frames_again_makes_the_same_anomalies() -> None:
    first = Run(SampleCell()).go(60).go(10, SLOW).go(10)
    again = Run(SampleCell()).go(60).go(10, SLOW).go(10)
    assert first.anomalies == again.anomalies
    assert [s.id for s in first.summaries] == [s.id for s in again.summaries]


def test_an_open_anomaly_goes_on_under_its_id_in_the_worker_that_takes_over() -> None:
    before = Run(SampleCell()).go(60).go(10, SLOW)
    detector = Detector()
    detector.adopt(before.anomalies)
    after = Run(SampleCell(), detector)
    after.now = 70
    after.go(20, SLOW).go(10)
    found = after.of("gpu/n2/1", "power_watts")
    assert {a.phase for a in found[:-1]} == {AnomalyPhase.UPDATED}
    assert found[-1].phase is AnomalyPhase.CLOSED
    assert {a.anomaly_id for a in found} == {before.anomalies[0].anomaly_id}
    assert {a.start for a in found} == {before.anomalies[0].start}


def test_an_adopted_anomaly_that_is_not_found_again_is_closed_and_says_why() -> None:
    before = Run(SampleCell()).go(60).go(10, SLOW)
    detector = Detector()
    detector.adopt(before.anomalies)
    after = Run(SampleCell(), detector)
    after.now = 70
    after.go(70)
    (closed,) = after.anomalies
    assert closed.phase is AnomalyPhase.CLOSED
    assert closed.anomaly_id == before.anomalies[0].anomaly_id
    assert closed.detail["closed_because"] == "not_found_after_restart"
    assert closed.time >= T0 + 70 + detector.rewind


def test_an_anomaly_that_was_closed_before_the_takeover_is_not_adopted() -> None:
    before = Run(SampleCell()).go(60).go(10, SLOW).go(10)
    detector = Detector()
    detector.adopt(before.anomalies)
    after = Run(SampleCell(), detector)
    after.now = 80
    assert after.go(70).anomalies == []
