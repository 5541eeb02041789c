from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from sim_help import Lab

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.sim.organic import Organic
from gpuchaos_stream.sim.script import Failure, Script, load


def _file(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "failures.yaml"
    path.write_text(text)
    return path


def test_a_file_of_failures_is_read_with_durations_as_people_write_them(tmp_path: Path) -> None:
    text = "failures:\n- {cause: nic, entity: port/n001/mlx5_3, after: 2m}\n"
    assert load(_file(tmp_path, text)) == (Failure(cause="nic", entity="port/n001/mlx5_3", after=120.0),)


def test_a_misspelt_field_is_named_with_its_line_and_the_nearest_known_one(tmp_path: Path) -> None:
    text = "failures:\n- cause: nic\n  entity: port/n001/mlx5_3\n  aftr: 2m\n"
    with pytest.raises(UserError, match=r"failures.yaml:4: .*did you mean 'after'"):
        load(_file(tmp_path, text))


@pytest.mark.parametrize(
    ("cause", "entity", "fix"),
    [("faulty-gpus", "gpu/n001/0", "faulty-gpu"), ("faulty-gpu", "gpu/n999/0", "check the entity")],
)
def test_a_failure_that_cannot_be_is_refused_before_the_simulation_begins(cause: str, entity: str, fix: str) -> None:
    lab = Lab()
    organic = Organic(lab.cluster, np.random.default_rng(0), rate=0.0)
    for of in (None, "later"):
        with pytest.raises(UserError, match=fix):
            Script((Failure(cause=cause, entity=entity, after=1.0, of=of),), organic, lab.now)


def test_a_failure_after_the_start_happens_at_its_time_and_one_of_an_experiment_after_its_first_injection() -> None:
    lab = Lab()
    organic = Organic(lab.cluster, np.random.default_rng(0), rate=0.0)
    failures = (
        Failure(cause="gpu-thermal", entity="gpu/n001/0", after=2.0),
        Failure(cause="gpu-thermal", entity="gpu/n002/0", after=3.0, of="exp"),
        Failure(cause="gpu-thermal", entity="gpu/n003/0", after=3.0, of="another"),
    )
    began = lab.now
    script = Script(failures, organic, began)
    lab.run(5)
    assert [truth.entity for truth in organic.tick(lab.now)] == ["gpu/n001/0"]
    lab.inject("process-stop", "process/n004/4100")
    lab.run(1)
    injected = lab.said[-1]
    script.feed(injected)
    script.feed(injected)
    assert organic.tick(injected.event_time + 2.9) == []
    assert [truth.entity for truth in organic.tick(injected.event_time + 3.1)] == ["gpu/n002/0"]
    assert organic.tick(injected.event_time + 1000.0) == []
