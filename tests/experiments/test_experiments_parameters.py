"""Parameters of faults, as the control plane knows them: named with file, line, and the nearest known one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from experiments_help import plan, plan_data
from pydantic import BaseModel, BeforeValidator, Field, field_validator

from gpuchaos_agent import describe
from gpuchaos_stream.errors import UserErrors
from gpuchaos_stream.experiments import parameters
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.experiments.load import load


class Shape(BaseModel):
    """A model with all that models of faults use."""

    ratio: float = Field(default=1.0, gt=0, le=1)
    count: int | None = Field(default=None, ge=1, lt=10)
    word: Literal["a", "b"] = "a"
    flag: bool = False
    text: str | None = Field(default=None, min_length=1, pattern="^x")
    needed: str = Field(description="what must be there")
    delay: Annotated[float, BeforeValidator(lambda value: float(str(value).removesuffix("ms")))] = 0.0
    pause: float = 0.0
    printable: str | None = Field(default=None, pattern=r"^\PC+$")

    @field_validator("pause", mode="before")
    @classmethod
    def _pause(cls, value: Any) -> Any:
        return float(str(value).removesuffix("s"))


@pytest.fixture(autouse=True)
def _shape(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {**parameters.SCHEMAS, "process-stop": {"params": describe._schema(Shape)}}
    monkeypatch.setattr(parameters, "SCHEMAS", known)


def said(**params: Any) -> list[str]:
    made = plan(fault={"name": "process-stop", "params": {"needed": "x"} | params, "certifies": ["hang-detection"]})
    return [f"{'.'.join(map(str, loc))}: {problem}; {fix}" for loc, problem, fix in parameters.mistakes(made)]


@pytest.mark.parametrize(
    "params",
    [
        {"ratio": 1},
        {"ratio": "0.5"},
        {"count": 9},
        {"count": 3.0},
        {"word": "b", "flag": True, "text": "xyz"},
        {"delay": "100ms", "pause": "5s"},
        {"printable": "ab"},
    ],
)
def test_what_the_agent_takes_is_taken(params: dict[str, Any]) -> None:
    Shape.model_validate({"needed": "x"} | params)
    assert said(**params) == []


@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"ratoi": 1}, "has no parameter 'ratoi'; did you mean 'ratio'?"),
        ({"ratio": 0}, "more than 0"),
        ({"ratio": 1.5}, "at most 1"),
        ({"ratio": "much"}, "a number"),
        ({"ratio": True}, "a number"),
        ({"count": 0}, "at least 1"),
        ({"count": 10}, "less than 10"),
        ({"count": 1.5}, "a whole number"),
        ({"word": "c"}, "one of a, b"),
        ({"flag": "maybe"}, "true or false"),
        ({"text": 5}, "text, like '5'"),
        ({"text": "y"}, "text that matches ^x"),
        ({"text": ""}, "some text"),
    ],
)
def test_what_the_agent_would_refuse_is_refused_before(params: dict[str, Any], problem: str) -> None:
    (only,) = said(**params)
    assert only.startswith(f"fault.params.{next(iter(params))}: ")
    assert problem in only


def test_a_parameter_that_must_be_there_is_asked_for() -> None:
    made = plan(fault={"name": "process-stop", "certifies": ["hang-detection"]})
    ((loc, problem, fix),) = parameters.mistakes(made)
    assert loc == ("fault",)
    assert problem == "'process-stop' needs the parameter 'needed'"
    assert fix == "add it to fault.params: what must be there"


def test_a_wrong_parameter_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    fault = {"name": "memory-corruption", "params": {"xit": 94}, "certifies": ["error-detection"]}
    file = tmp_path / "plan.yaml"
    file.write_text(yaml.safe_dump(plan_data(fault=fault, targets={"entities": ["gpu/n1/0"]}), sort_keys=False))
    line = next(i for i, text in enumerate(file.read_text().splitlines(), 1) if "xit" in text)
    with pytest.raises(UserErrors) as error:
        load(file)
    assert str(error.value) == (
        f"{file}:{line}: field 'fault.params.xit': 'memory-corruption' has no parameter 'xit'; did you mean 'xid'?"
    )


def test_at_run_time_parameters_are_the_agents_matter_which_may_be_newer_or_simulated() -> None:
    assert check(plan(fault={"name": "process-stop", "params": {"spread": 8}, "certifies": ["hang-detection"]})) == []
