"""What a report says of anomalies: few lines, the worst ones, and the same whatever order they came in."""

from __future__ import annotations

import random

from correlate_builders import T0, correlator, fact, injected, number
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.correlate.incidents import Unattributed
from gpuchaos_stream.correlate.report import lines
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import MOST_LINES
from gpuchaos_stream.events.fault import Origin


def unattributed(metric: str, entity: str, at: float, severity: Severity = Severity.WARNING) -> Unattributed:
    return Unattributed(
        anomaly_id=f"{metric} {entity} {at}",
        entity=entity,
        metric=metric,
        node=None,
        jobs=(),
        start=T0 + at,
        end=None,
        severity=severity,
        cause=None,
        score=0.1,
        sentence=f"no fault explains {metric} on {entity}",
    )


def test_anomalies_of_one_metric_on_one_kind_of_entity_are_one_line_of_the_first_one() -> None:
    [line] = lines(
        [
            unattributed("gpu.power_watts", "gpu/n1/0", 9.0, Severity.ERROR),
            unattributed("gpu.power_watts", "gpu/n0/0", 4.25),
            unattributed("gpu.power_watts", "gpu/n0/0", 11.0),
        ],
        T0,
    )
    assert (line.entity, line.after_s, line.count, line.entities) == ("gpu/n0/0", 4.25, 3, 2)
    assert line.severity is Severity.ERROR
    assert line.sentence == "no fault explains gpu.power_watts on gpu/n0/0"


def test_what_was_there_before_the_injection_is_told_with_a_negative_time() -> None:
    [line] = lines([unattributed("steps_rate", "job/beta", -3.0)], T0)
    assert line.after_s == -3.0


def test_of_many_lines_the_worst_are_kept_however_late_they_came() -> None:
    mild = [unattributed(f"metric_{index}", "node/n0", float(index)) for index in range(40)]
    late = unattributed("gpu_lost", "gpu/n3/1", 500.0, Severity.CRITICAL)
    kept = lines([*mild, late], T0)
    assert len(kept) == MOST_LINES
    assert kept[-1].metric == "gpu_lost"
    assert [line.metric for line in kept[:-1]] == [f"metric_{index}" for index in range(MOST_LINES - 1)]


@given(
    st.lists(
        st.builds(
            unattributed,
            st.sampled_from([f"m{index}" for index in range(20)]),
            st.sampled_from(["node/n0", "gpu/n0/1", "job/alpha"]),
            st.integers(-5, 20).map(float),
            st.sampled_from(list(Severity)),
        ),
        unique_by=lambda each: each.anomaly_id,
    ),
    st.randoms(use_true_random=False),
)
def test_the_lines_are_a_function_of_the_set_alone_and_count_every_anomaly_once(
    anomalies: list[Unattributed], chance: random.Random
) -> None:
    told = lines(anomalies, T0)
    assert told == lines(chance.sample(anomalies, len(anomalies)), T0)
    assert [line.after_s for line in told] == sorted(line.after_s for line in told)
    groups = {(each.metric, each.entity.split("/")[0]) for each in anomalies}
    assert len(told) == min(len(groups), MOST_LINES)
    if len(groups) <= MOST_LINES:
        assert sum(line.count for line in told) == len(anomalies)


def test_a_refused_checkpoint_and_a_failure_beside_it_are_told_apart_with_their_evidence() -> None:
    subject = correlator()
    for event in (
        injected(name="memory-corruption", entity="node/n0", params={"plane": "file"}),
        fact("process/n0/100", "checkpoint_corrupt", 12.0, severity=Severity.ERROR, origin=Origin.APPLICATION),
        number("process/n1/200", "steps_rate", 14.0),
        fact("gpu/n5/0", "gpu_lost", 3.0),
    ):
        subject.feed(event)
    charged, unexplained = lines(subject.attributed("e1"), T0), lines(subject.unattributed(T0), T0)
    assert [(line.metric, line.after_s) for line in charged] == [("checkpoint_corrupt", 12.0), ("steps_rate", 14.0)]
    assert charged[0].score > 0.8
    assert "12.0 s after memory-corruption on node/n0" in charged[0].sentence
    assert [(line.metric, line.severity) for line in unexplained] == [("gpu_lost", Severity.CRITICAL)]
    assert "a failure of its own" in unexplained[0].sentence
