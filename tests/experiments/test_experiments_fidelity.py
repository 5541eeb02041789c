"""What each fault can show, and the experiments that claim more."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from experiments_help import plan

from gpuchaos_agent import describe
from gpuchaos_agent.inject import registry
from gpuchaos_stream.experiments import check, faults, fidelity, parameters
from gpuchaos_stream.experiments.faults import CLAIMS, FAULTS

TARGETS = {"process": "process/n1/10", "gpu": "gpu/n1/0", "port": "port/n1/mlx5_0", "node": "node/n1"}

#: Fault and parameters, the claim that it cannot make good, why not, and what can.
WRONG_LAYER: tuple[tuple[str, dict[str, Any], str, str, str], ...] = (
    ("network-partition", {}, "rdma-failure", "RDMA passes the kernel's network", "rdma-link (mode: down or flap) can"),
    ("network-partition", {}, "node-loss", "a node without power", "power-cycle can"),
    (
        "service-latency",
        {"service": "db:1"},
        "collective-failure",
        "a port that is down",
        "rdma-link (mode: down or flap) can",
    ),
    (
        "process-stop",
        {},
        "xid-handling",
        "a record of an error",
        "memory-corruption (plane: telemetry or machine-check) can",
    ),
    ("process-stop", {}, "node-loss", "leaves it running", "power-cycle can"),
    ("process-stop", {}, "silicon-failure", "nothing that software injects breaks one", "no fault here can"),
    ("memory-corruption", {"xid": 94}, "row-remapping", "makes no driver remap a row", "no fault here can"),
    ("memory-corruption", {"xid": 94}, "silent-data-corruption", "results of the GPU itself", "no fault here can"),
    (
        "memory-corruption",
        {"xid": 94},
        "checkpoint-integrity",
        "wrong bytes in a checkpoint",
        "memory-corruption (plane: file) can",
    ),
    (
        "memory-corruption",
        {"plane": "file"},
        "error-detection",
        "a record of an error",
        "(plane: telemetry or machine-check) can",
    ),
    ("memory-corruption", {"plane": "file"}, "row-remapping", "makes no driver remap a row", "no fault here can"),
    ("memory-corruption", {"plane": "machine-check"}, "automatic-halt", "harm that goes on", "process-stop"),
    (
        "database-outage",
        {"mode": "refused"},
        "storage-failover",
        "storage that does not",
        "storage-disconnect (mode: unreachable or hanging or erring) can",
    ),
    ("database-outage", {"mode": "hanging"}, "database-failover", "goes on", "no fault here can"),
    (
        "storage-disconnect",
        {"mode": "full"},
        "storage-failover",
        "does not answer",
        "storage-disconnect (mode: unreachable or hanging or erring) can",
    ),
    ("storage-disconnect", {"mode": "unreachable"}, "disk-failure", "a disk that fails", "no fault here can"),
    (
        "storage-disconnect",
        {"mode": "hanging"},
        "checkpoint-integrity",
        "wrong bytes",
        "memory-corruption (plane: file) can",
    ),
    ("power-cycle", {"driver": "n2"}, "link-failure", "a port that is down", "rdma-link (mode: down or flap) can"),
    ("power-cycle", {"driver": "n2"}, "hang-detection", "makes no progress", "process-stop can"),
    ("numa-misalignment", {}, "gpu-failure", "breaks one", "no fault here can"),
    ("rdma-link", {}, "node-isolation", "cannot be reached over IP", "network-partition can"),
    ("rdma-link", {"mode": "degraded"}, "rdma-failure", "a port that is down", "rdma-link (mode: down or flap) can"),
    ("rdma-link", {"mode": "degraded"}, "collective-failure", "a port that is down", "(mode: down or flap) can"),
    ("rdma-link", {"mode": "down"}, "link-degradation", "up and slower", "rdma-link (mode: degraded) can"),
    ("certificate-expiry", {}, "node-loss", "a node without power", "power-cycle can"),
)


def mistakes(fault: str, params: dict[str, Any], *claims: str, **changes: Any) -> str:
    form = FAULTS[fault].form(params)
    made = plan(
        fault={"name": fault, "params": params, "certifies": claims},
        targets={"entities": [TARGETS[form.targets[0]]]},
        **changes,
    )
    return "\n".join(str(error) for error in check.check(made))


@pytest.mark.parametrize(("fault", "params", "claim", "why", "instead"), WRONG_LAYER)
def test_a_claim_that_the_fault_s_layer_cannot_show_is_refused_with_the_reason_and_the_right_fault(
    fault: str, params: dict[str, Any], claim: str, why: str, instead: str
) -> None:
    said = mistakes(fault, params, claim)
    assert f"cannot certify {claim!r}" in said
    assert why in said
    assert instead in said
    assert FAULTS[fault].form(params).layer in said


@pytest.mark.parametrize("fault", FAULTS)
def test_every_form_may_claim_all_that_it_certifies_if_a_check_looks_there(fault: str) -> None:
    kind = FAULTS[fault]
    looks = [{"name": "page", "http": {"url": "http://x", "field": {"path": "a", "value": 1}}}]
    looks.append({"name": "cert", "tls": {"address": "x:443"}})
    for form in kind.forms:
        params: dict[str, Any] = {kind.by: form.value} if kind.by else {}
        params |= {kind.driver: "n2"} if kind.driver else {}
        params |= {"include_brokers": True} if fault == "network-partition" else {}
        params |= {"count": 10} if form.value == "flap" else {}
        assert mistakes(fault, params, *form.certifies, recovery=looks) == ""


def test_the_nine_faults_and_the_stopped_process_are_there_and_all_can_be_injected() -> None:
    assert len(FAULTS) == 10
    assert [kind.name for kind in FAULTS.values() if not kind.available] == []


def test_no_form_claims_what_it_disclaims_and_every_claim_is_explained() -> None:
    for kind in FAULTS.values():
        for form in kind.forms:
            assert not set(form.certifies) & set(form.never)
            assert form.layer
            assert form.needs
            assert {*form.certifies, *form.never} <= set(fidelity.TAKES)
    assert set(CLAIMS) <= set(fidelity.TAKES)
    assert set(fidelity.SHOWN_BY) <= set(CLAIMS)
    assert set(fidelity.ALIASES.values()) <= set(fidelity.TAKES)
    assert not set(fidelity.ALIASES) & set(fidelity.TAKES)


@pytest.mark.parametrize("name", sorted(registry.strategies()))
def test_the_table_says_of_each_fault_what_the_agent_s_strategy_says(name: str) -> None:
    strategy, kind = registry.strategies()[name], FAULTS[name]
    assert (strategy.name, kind.available) == (name, True)
    assert set(kind.certifies) == set(strategy.certifies)
    assert set(kind.never) == set(strategy.not_certified)
    assert bool(kind.driver) == getattr(strategy, "remote", False)
    assert not kind.driver or kind.driver in strategy.params.model_fields
    assert not kind.by or {form.value for form in kind.forms} == set(parameters.choices(name, kind.by))


def test_the_planes_of_memory_corruption_are_those_of_the_agent() -> None:
    from gpuchaos_agent.inject.memory_corruption import PLANES

    kind = FAULTS["memory-corruption"]
    assert {form.value for form in kind.forms} == set(PLANES)
    for form in kind.forms:
        plane = PLANES[form.value]
        assert (form.certifies, form.targets) == (plane.certifies, (plane.target,))
        assert set(form.never) == set(plane.not_certified)


def test_what_the_control_plane_knows_of_the_agents_faults_is_up_to_date() -> None:
    file = Path(faults.__file__).with_name("faults.json")
    assert file.read_text() == describe.text(), "run: make schema"


def test_another_word_for_a_claim_is_answered_with_ours() -> None:
    assert "it is called 'task-failover' here" in mistakes("network-partition", {}, "failover")
    assert "unknown claim 'hang-detectoin'; did you mean 'hang-detection'?" in mistakes(
        "process-stop", {}, "hang-detectoin"
    )


def test_a_claim_that_is_made_twice_is_refused_under_either_name() -> None:
    assert "'hang-detection' is claimed twice" in mistakes("process-stop", {}, "hang-detection", "hang-detection")
    assert "'failover' is claimed twice" in mistakes("network-partition", {}, "task-failover", "failover")


def test_a_claim_that_no_check_looks_at_is_refused() -> None:
    said = mistakes("certificate-expiry", {}, "certificate-renewal")
    assert "no check looks at 'certificate-renewal'; add one of tls" in said
    look = [{"name": "cert", "tls": {"address": "web:443"}}]
    assert mistakes("certificate-expiry", {}, "certificate-renewal", recovery=look) == ""


def test_a_node_that_would_order_its_own_power_off_is_refused_unless_forced() -> None:
    assert "nobody would be left to undo" in mistakes("power-cycle", {}, "node-loss")
    assert "nobody would be left to undo" in mistakes("power-cycle", {"driver": "n1"}, "node-loss")
    assert mistakes("power-cycle", {"driver": "n2"}, "node-loss") == ""
    assert mistakes("power-cycle", {"force": True}, "node-loss") == ""
