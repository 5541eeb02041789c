"""Parameters of faults in a plan's file: what the agent would refuse is named with file, line, and what is right."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Final, Literal, get_args

import pytest
import yaml
from experiments_help import plan, plan_data
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BeforeValidator, Field, ValidationError, field_validator

from gpuchaos_agent.inject import registry
from gpuchaos_stream.errors import UserErrors
from gpuchaos_stream.events.base import Authored
from gpuchaos_stream.experiments import parameters
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.experiments.load import load

MODELS: Final = {name: strategy.params for name, strategy in registry.strategies().items()}
MEMORY: Final = "memory-corruption"
STORAGE: Final = "storage-disconnect"
CERT: Final = {"cert_file": "/a.pem", "ca_file": "/ca.pem", "ca_key_file": "/ca.key", "address": "n1:8443"}

#: A form of a fault and parameters that its agent takes.
RIGHT: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("process-stop", {}),
    ("process-stop", {"job": "llama"}),
    (MEMORY, {}),
    (MEMORY, {"plane": "telemetry", "xid": 94, "pci": "0000:3b:00.0", "dcgm": True}),
    (MEMORY, {"plane": "file", "path": "/c/model.pt", "bits": 3, "region": "any", "seed": 7}),
    (MEMORY, {"plane": "machine-check", "cpu": 1, "bank": 8}),
    ("network-partition", {"peers": "all", "include_brokers": True}),
    ("network-partition", {"peers": "10.0.0.7, db.local:5432, [fd00::1]:2049, tcp/5432, 10.1.0.0/16"}),
    ("network-partition", {"ports": "5432,8000-8100", "protocol": "tcp", "loss_percent": 10}),
    ("rdma-link", {}),
    ("rdma-link", {"mode": "flap", "count": 3, "period_s": 1}),
    ("rdma-link", {"mode": "degraded", "speed_mbps": 1000}),
    ("numa-misalignment", {"memory_mb": 10, "cpus": False}),
    ("numa-misalignment", {"memory": False}),
    ("power-cycle", {"driver": "n2", "witness": "[fd00::1]:22", "method": "force-restart"}),
    (STORAGE, {"mode": "unreachable", "endpoint": "10.0.0.9:2049"}),
    (STORAGE, {"mode": "erring", "path": "/data", "errors": "writes", "remount": True}),
    ("database-outage", {"engine": "redis", "address": "[fd00::1]:6379", "mode": "exhausted", "connections": 9}),
    ("service-latency", {"service": "db:1", "delay": "100ms", "jitter": "20ms", "loss_percent": "0.5"}),
    ("certificate-expiry", CERT | {"reload": "signal", "pidfile": "/run/a.pid", "signal": "USR1"}),
    ("certificate-expiry", {"method": "clock", "pidfile": "/run/a.pid", "shift_days": 3}),
)

#: Parameters that the agent refuses, where the mistake is, and words of the reason.
WRONG: Final[tuple[tuple[str, dict[str, Any], str, str], ...]] = (
    (MEMORY, {"xid": 13}, "fault.params.xid", "one of 48, 63"),
    (MEMORY, {"xit": 94}, "fault.params.xit", "did you mean 'xid'?"),
    (MEMORY, {"plane": "file"}, "fault.params", "plane file needs path"),
    (MEMORY, {"path": "/x"}, "fault.params", "path is for plane file, and plane is telemetry"),
    (MEMORY, {"bank": 1}, "fault.params", "bank is for plane machine-check, and plane is telemetry"),
    (MEMORY, {"plane": "file", "path": "/x", "xid": 94}, "fault.params", "xid is for plane telemetry"),
    (MEMORY, {"plane": "machine-check", "xid": 94, "path": "/x"}, "fault.params", "xid is for plane telemetry"),
    ("rdma-link", {"mode": "degraded"}, "fault.params", "mode degraded needs speed_mbps"),
    ("rdma-link", {"speed_mbps": 100}, "fault.params", "speed_mbps is for mode degraded, and mode is down"),
    ("rdma-link", {"mode": "down", "count": 3}, "fault.params", "count is for mode flap"),
    (STORAGE, {"mode": "full"}, "fault.params", "mode full needs a path"),
    (STORAGE, {"mode": "unreachable"}, "fault.params", "name a path, or an endpoint"),
    (STORAGE, {"mode": "hanging", "path": "/"}, "fault.params", "path / is never touched"),
    (STORAGE, {"mode": "hanging", "path": "//."}, "fault.params", "path //. is never touched"),
    (STORAGE, {"mode": "unreachable", "path": "/d", "errors": "writes"}, "fault.params", "errors is for mode erring"),
    (STORAGE, {"mode": "erring", "path": "/d"}, "fault.params", "remount: true"),
    (STORAGE, {"path": "/d"}, "fault", "'storage-disconnect' needs the parameter 'mode'"),
    ("database-outage", {"engine": "redis", "address": "db"}, "fault.params.address", "write db.local:5432"),
    ("database-outage", {"engine": "redis", "address": "db:0"}, "fault.params.address", "no port (1 to 65535)"),
    ("database-outage", {"engine": "redis", "address": "a:1", "connections": 1}, "fault.params", "for mode exhausted"),
    ("certificate-expiry", {}, "fault.params", "needs cert_file, ca_file, ca_key_file, address"),
    ("certificate-expiry", CERT | {"address": "n1:99999"}, "fault.params.address", "no port (1 to 65535)"),
    ("certificate-expiry", CERT | {"shift_days": 3}, "fault.params", "shift_days is for method clock"),
    ("certificate-expiry", CERT | {"signal": "HUP"}, "fault.params", "signal is for reload signal"),
    ("certificate-expiry", CERT | {"reload": "signal"}, "fault.params", "needs pidfile"),
    ("service-latency", {"service": "db:1"}, "fault.params", "name a delay, a loss_percent or a bandwidth"),
    ("service-latency", {"service": "db:1", "delay": "0ms"}, "fault.params.delay", "a time like 250us"),
    ("service-latency", {"service": "db:1", "delay": "1ms", "jitter": "2ms"}, "fault.params", "at most the delay"),
    ("service-latency", {"service": "a:1", "method": "proxy", "loss_percent": 1}, "fault.params", "needs netem"),
    ("service-latency", {"delay": "1ms"}, "fault", "needs the parameter 'service'"),
    ("network-partition", {}, "fault.params", "name peers or ports"),
    ("network-partition", {"peers": "10.0.0.999"}, "fault.params.peers", "no address, no network and no name"),
    ("network-partition", {"peers": "[fd00::1]:99999"}, "fault.params.peers", "no port (1 to 65535)"),
    ("network-partition", {"ports": 5432}, "fault.params.ports", "text, like '5432'"),
    ("numa-misalignment", {"cpus": False, "memory": False}, "fault.params", "cpus or memory must be moved"),
    ("numa-misalignment", {"memory": False, "memory_mb": 1}, "fault.params", "memory_mb is for memory true"),
    ("power-cycle", {"driver": "no such node!"}, "fault.params.driver", "a node's name"),
    ("power-cycle", {"driver": "n2", "witness": "n1:0"}, "fault.params.witness", "no port (1 to 65535)"),
)


def said(fault: str, params: dict[str, Any]) -> list[str]:
    made = plan(fault={"name": fault, "params": params, "certifies": ["hang-detection"]})
    return [f"{'.'.join(map(str, loc))}: {problem}; {fix}" for loc, problem, fix in parameters.mistakes(made)]


def taken(fault: str, params: dict[str, Any]) -> bool:
    """Whether the agent takes them, by the same call as its own (`admit`)."""
    try:
        MODELS[fault].model_validate(params)
    except ValidationError:
        return False
    return True


@pytest.mark.parametrize(("fault", "params"), RIGHT)
def test_what_the_agent_takes_is_taken(fault: str, params: dict[str, Any]) -> None:
    assert taken(fault, params)
    assert said(fault, params) == []


@pytest.mark.parametrize(("fault", "params", "where", "words"), WRONG)
def test_what_the_agent_would_refuse_is_refused_before_with_the_reason(
    fault: str, params: dict[str, Any], where: str, words: str
) -> None:
    assert not taken(fault, params)
    (only,) = said(fault, params)
    assert only.startswith(f"{where}: ")
    assert words in only


def test_every_form_of_every_fault_has_parameters_that_are_taken() -> None:
    shown = {(fault, FAULTS[fault].form(params).value) for fault, params in RIGHT}
    modes = {"readonly", "full", "hanging"}
    assert {(name, form.value) for name, kind in FAULTS.items() for form in kind.forms} - shown == {
        *((STORAGE, mode) for mode in modes),
        *(("database-outage", mode) for mode in ("refused", "reset", "hanging")),
    }
    assert [said(STORAGE, {"mode": mode, "path": "/data"}) for mode in modes] == [[], [], []]
    for mode in ("refused", "reset", "hanging"):
        assert said("database-outage", {"engine": "postgres", "address": "db:5432", "mode": mode}) == []


#: What people write: what some form takes, beside what none does.
WORDS: Final = (
    "/data",
    "/",
    "db:5432",
    "db",
    "10.0.0.7",
    "all",
    "100ms",
    "0ms",
    "10mbit",
    "x y",
    "",
    "5432",
    "yes",
    "n2",
)
SCALARS: Final = st.one_of(
    st.sampled_from(WORDS), st.booleans(), st.integers(-1, 100), st.floats(0, 100), st.text("a/:0. ")
)


@st.composite
def asked(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A fault with some of what its forms take, one or two of it changed."""
    fault, params = draw(st.sampled_from(RIGHT))
    fields = MODELS[fault].model_fields
    made = {name: value for name, value in params.items() if draw(st.integers(0, 4))}
    for name in draw(st.lists(st.sampled_from([*fields, "nonsense"]), max_size=3)):
        choices = [word for word in get_args(fields[name].annotation) if word] if name in fields else []
        words = [word for word in choices if isinstance(word, str)]
        made[name] = draw(st.one_of(st.sampled_from(words), SCALARS) if words else SCALARS)
    return fault, made


@settings(deadline=None)
@given(asked())
def test_check_accepts_exactly_what_the_agent_s_model_does_and_each_mistake_has_words_and_a_place(
    case: tuple[str, dict[str, Any]],
) -> None:
    fault, params = case
    made = plan(fault={"name": fault, "params": params, "certifies": ["hang-detection"]})
    found = list(parameters.mistakes(made))
    assert (found == []) == taken(fault, made.fault.params)
    for loc, problem, _ in found:
        assert loc in {("fault",), ("fault", "params"), *(("fault", "params", name) for name in params)}
        assert problem


class Shape(Authored):
    """A model with all that models of faults use."""

    ratio: float = Field(default=1.0, gt=0, le=1)
    count: int | None = Field(default=None, ge=1, lt=10)
    word: Literal["a", "b"] = "a"
    flag: bool = False
    text: str | None = Field(default=None, min_length=1, max_length=9, pattern="^x")
    needed: str = Field(description="what must be there")
    delay: Annotated[float, BeforeValidator(lambda value: float(str(value).removesuffix("ms")))] = 0.0
    pause: float = 0.0

    @field_validator("pause", mode="before")
    @classmethod
    def _pause(cls, value: Any) -> Any:
        return float(str(value).removesuffix("s"))


@pytest.fixture
def shape(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parameters, "model", lambda _fault: Shape)


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize(
    "params",
    [
        {"ratio": 1},
        {"ratio": "0.5"},
        {"count": 3.0},
        {"word": "b", "flag": True, "text": "xyz"},
        {"delay": "100ms", "pause": "5s"},
    ],
)
def test_values_of_every_type_are_read_as_the_agent_reads_them(params: dict[str, Any]) -> None:
    assert said("process-stop", {"needed": "x"} | params) == []


@pytest.mark.usefixtures("shape")
@pytest.mark.parametrize(
    ("params", "problem"),
    [
        ({"ratoi": 1}, "has no parameter 'ratoi'; did you mean 'ratio'?"),
        ({"ratio": 0}, "more than 0"),
        ({"ratio": 1.5}, "at most 1"),
        ({"ratio": "much"}, "a number"),
        ({"count": 0}, "at least 1"),
        ({"count": 10}, "less than 10"),
        ({"count": 1.5}, "a whole number"),
        ({"count": "many"}, "a whole number"),
        ({"word": "c"}, "takes: one of a, b"),
        ({"flag": "maybe"}, "true or false"),
        ({"text": 5}, "text, like '5'"),
        ({"text": "y"}, "text that matches ^x"),
        ({"text": ""}, "some text"),
        ({"text": "x" * 10}, "at most 9 characters"),
    ],
)
def test_a_wrong_value_of_every_type_is_answered_with_what_is_right(params: dict[str, Any], problem: str) -> None:
    (only,) = said("process-stop", {"needed": "x"} | params)
    assert only.startswith(f"fault.params.{next(iter(params))}: ")
    assert problem in only


@pytest.mark.usefixtures("shape")
def test_a_parameter_that_must_be_there_is_asked_for() -> None:
    assert said("process-stop", {}) == [
        "fault: 'process-stop' needs the parameter 'needed'; add it to fault.params: what must be there"
    ]


def test_a_wrong_parameter_in_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    fault = {"name": MEMORY, "params": {"xit": 94}, "certifies": ["error-detection"]}
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


def test_at_run_time_the_control_plane_loads_nothing_of_the_agent() -> None:
    code = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from experiments_help import plan\n"
        "from gpuchaos_stream.experiments import machine\n"
        "fault = {'name': 'process-stop', 'params': {'x': 1}, 'certifies': ['hang-detection']}\n"
        "assert machine.check(plan(fault=fault)) == []\n"
        "print(*(name for name in sys.modules if name.startswith('gpuchaos_agent')))"
    )
    here = str(Path(__file__).parent)
    loaded = subprocess.run([sys.executable, "-c", code, here], capture_output=True, text=True, check=True).stdout
    assert loaded.split() == []
