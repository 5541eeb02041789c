"""What a person reads of one experiment: what was charged to it, and what no fault explains."""

from __future__ import annotations

import io
import json

from gpuchaos_stream import output
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.experiment import AnomalyLine, ExperimentState, Status
from gpuchaos_stream.experiments import show

REFUSED = AnomalyLine(
    metric="checkpoint_corrupt",
    entity="process/n0/100",
    after_s=12.04,
    count=3,
    entities=2,
    severity=Severity.ERROR,
    score=0.95,
    sentence="checkpoint_corrupt on process/n0/100, 12.0 s after memory-corruption on node/n0",
)
LOST = AnomalyLine(
    metric="gpu_lost",
    entity="gpu/n5/0",
    after_s=-3.0,
    count=1,
    entities=1,
    severity=Severity.CRITICAL,
    score=1.0,
    sentence="gpu_lost on gpu/n5/0 is a failure of its own: no experiment causes it",
)


def state(**fields: object) -> ExperimentState:
    given = {"id": "e1", "time": 9.0, "cluster": "c", "name": "e", "owner": "sre", "status": Status.ACTIVE}
    return ExperimentState.model_validate({**given, "plan": {}, "started": 1.0, **fields})


def rows(of: ExperimentState) -> dict[str, str]:
    out = io.StringIO()
    show.page(of, out)
    return {name: said for name, _, said in (line.partition("  ") for line in out.getvalue().splitlines())}


def test_the_page_says_what_was_charged_when_on_how_many_and_why() -> None:
    said = rows(state(attributed=3, charged=(REFUSED,), unattributed=1, unexplained=(LOST,)))
    assert said["charged checkpoint_corrupt"].strip() == (
        "12.0s, error, score 0.95, 3 anomalies on 2 entities: "
        "checkpoint_corrupt on process/n0/100, 12.0 s after memory-corruption on node/n0"
    )
    assert said["unexplained gpu_lost"].strip() == (
        "-3.0s, critical, score 1.00, 1 anomaly: gpu_lost on gpu/n5/0 is a failure of its own: no experiment causes it"
    )
    assert not any(name.endswith(" besides") for name in said)


def test_the_page_says_how_many_anomalies_it_left_out() -> None:
    said = rows(state(attributed=10, charged=(REFUSED,)))
    assert said["charged besides"].strip() == "7 more, none worse than these"


def test_a_state_of_an_older_control_plane_has_counts_and_no_lines() -> None:
    said = rows(state(attributed=10, unattributed=2))
    assert said["anomalies"].strip() == "10 charged to it, 2 that no fault explains"
    assert not any(name.startswith(("charged", "unexplained")) for name in said)


def test_the_lines_are_in_the_json_as_well() -> None:
    told = json.loads(output.text(state(attributed=3, charged=(REFUSED,), unexplained=(LOST,)), "json"))
    assert told["charged"] == [json.loads(REFUSED.model_dump_json())]
    assert told["unexplained"][0]["sentence"] == LOST.sentence


def test_what_was_not_measured_is_not_called_open_once_it_is_over() -> None:
    recovery = {"objectives": {"ttd": 5.0}, "met": {"ttd": None}}
    assert rows(state(recovery=recovery))["ttd"].strip() == "- of 5 s, open"
    over = state(recovery=recovery, status=Status.FINISHED, finished=8.0)
    assert rows(over)["ttd"].strip() == "- of 5 s, not measured"


def test_a_line_with_nothing_new_has_no_news() -> None:
    assert show.news(state(time=9.0)) == show.news(state(time=10.0))
    assert show.line(state(time=9.0)) != show.line(state(time=10.0))
