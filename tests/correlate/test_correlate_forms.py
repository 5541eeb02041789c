"""An injected fault is charged with what its form can cause, and with nothing that only another form could."""

from __future__ import annotations

import itertools

import pytest
from correlate_builders import correlator, fact, fault, injected
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.correlate.injections import CHOOSES, FORMS
from gpuchaos_stream.correlate.signatures import BY_FORM, INJECTED, form_of
from gpuchaos_stream.correlate.signatures import injected as signature_of
from gpuchaos_stream.events.anomaly import Anomaly
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import FaultEvent, FaultPhase, Origin
from gpuchaos_stream.experiments import parameters


def said(name: str, at: float = 5.0, entity: str = "process/n0/100") -> Anomaly:
    """What a program of `n0` says in its log."""
    return fact(entity, name, at, severity=Severity.ERROR, origin=Origin.APPLICATION)


def is_charged(*events: FaultEvent | Anomaly) -> bool:
    subject = correlator()
    for event in events:
        subject.feed(event)
    return bool(subject.attributed("e1"))


FILE = {"plane": "file", "path": "/ckpt/last.pt"}


@pytest.mark.parametrize(
    ("name", "params", "fact_name", "expected"),
    [
        ("memory-corruption", FILE, "checkpoint_corrupt", True),
        ("memory-corruption", FILE, "worker_failed", True),
        ("memory-corruption", FILE, "mem_ce", False),
        ("memory-corruption", {"plane": "telemetry"}, "checkpoint_corrupt", False),
        ("memory-corruption", {"xid": 94}, "checkpoint_corrupt", False),
        ("memory-corruption", {"plane": None}, "checkpoint_corrupt", False),
        ("memory-corruption", {"plane": "machine-check"}, "checkpoint_corrupt", False),
        ("memory-corruption", {"plane": "machine-check"}, "mem_ce", True),
        ("storage-disconnect", {"mode": "full"}, "fs_full", True),
        ("storage-disconnect", {"mode": "full"}, "checkpoint_write_failed", True),
        ("storage-disconnect", {"mode": "full"}, "checkpoint_corrupt", True),
        ("storage-disconnect", {"mode": "full"}, "nfs_unresponsive", False),
        ("storage-disconnect", {"mode": "full"}, "disk_io_error", False),
        ("storage-disconnect", {"mode": "unreachable"}, "nfs_unresponsive", True),
        ("storage-disconnect", {"mode": "unreachable"}, "remote_fs_unresponsive", True),
        ("storage-disconnect", {"mode": "unreachable"}, "fs_full", False),
        ("storage-disconnect", {"mode": "hanging"}, "hung_task", True),
        ("storage-disconnect", {"mode": "hanging"}, "disk_io_error", False),
        ("storage-disconnect", {"mode": "readonly"}, "fs_readonly", True),
        ("storage-disconnect", {"mode": "readonly"}, "nvme_lost", False),
        ("storage-disconnect", {"mode": "erring"}, "disk_io_error", True),
        ("storage-disconnect", {"mode": "erring"}, "fs_full", False),
        ("database-outage", {"mode": "exhausted"}, "db_connection_limit", True),
        ("database-outage", {"mode": "exhausted"}, "db_write_refused", False),
        ("database-outage", {}, "db_unreachable", True),
        ("certificate-expiry", {"kind": "expired"}, "cert_expired", True),
        ("certificate-expiry", {"kind": "expired"}, "clock_skew", False),
        ("certificate-expiry", {"kind": "not-yet-valid"}, "clock_skew", True),
        ("certificate-expiry", {"kind": "wrong-name"}, "tls_ca_config", True),
        ("certificate-expiry", {"kind": "wrong-name"}, "cert_expired", False),
        ("certificate-expiry", {"kind": "wrong-name"}, "rendezvous_failed", True),
        ("network-partition", {}, "peer_process_died", True),
        ("network-partition", {}, "peer_unreachable", True),
        ("network-partition", {}, "collective_timeout", True),
        ("network-partition", {}, "broker_unreachable", True),
        ("network-partition", {}, "fs_full", False),
        ("network-partition", {}, "cert_expired", False),
        ("power-cycle", {}, "peer_unreachable", True),
        ("power-cycle", {}, "checkpoint_corrupt", True),
        ("service-latency", {}, "db_unreachable", True),
        ("service-latency", {}, "checkpoint_corrupt", False),
    ],
)
def test_a_fact_is_charged_to_the_form_that_can_cause_it_and_to_no_other(
    name: str, params: dict[str, str | float | int | bool | None], fact_name: str, expected: bool
) -> None:
    entity = "node/n0" if fact_name == "mem_ce" else "process/n0/100"
    begun = injected(name=name, entity="node/n0", params=params)
    assert is_charged(begun, said(fact_name, entity=entity)) is expected


def test_a_file_that_was_damaged_is_not_charged_with_a_gpus_own_ecc_error_nor_with_a_marked_one() -> None:
    begun = injected(name="memory-corruption", entity="node/n0", params=FILE)
    assert not is_charged(begun, fact("gpu/n0/1", "gpu_ecc_uncontained", 2.0))
    others = fact("gpu/n0/1", "gpu_ecc_contained", 2.0, origin=Origin.PROCESS, marked_by="another")
    assert not is_charged(begun, others)


def test_an_agent_that_does_not_say_its_parameters_is_charged_with_what_any_form_can_cause() -> None:
    begun = injected(name="memory-corruption", entity="node/n0")
    assert is_charged(begun, said("checkpoint_corrupt"))
    assert is_charged(begun, said("mem_ce", entity="node/n0"))


def test_a_checkpoint_that_is_refused_long_after_the_file_was_put_back_is_not_charged() -> None:
    gone = fault(FaultPhase.UNDONE, 30.0, name="memory-corruption", entity="node/n0")
    begun = injected(name="memory-corruption", entity="node/n0", params=FILE)
    assert is_charged(begun, gone, said("checkpoint_corrupt", 35.0))
    assert not is_charged(begun, gone, said("checkpoint_corrupt", 75.0))


def test_the_form_is_known_whatever_the_order_in_which_an_agents_words_arrive() -> None:
    of = {"name": "memory-corruption", "entity": "node/n0"}
    told = [injected(params=FILE, **of), fault(FaultPhase.ACKNOWLEDGED, 8.0, **of), fault(FaultPhase.UNDONE, 9.0, **of)]
    for order in itertools.permutations(told):
        assert is_charged(*order, said("checkpoint_corrupt"))
        assert not is_charged(*order, said("mem_ce", entity="node/n0"))


def test_the_forms_are_those_that_agents_offer_and_so_is_the_one_without_the_parameter() -> None:
    assert set(CHOOSES) == set(FORMS)
    for name, (parameter, otherwise) in CHOOSES.items():
        assert set(parameters.choices(name, parameter)) == set(FORMS[name])
        assert parameters.SCHEMAS[name]["params"]["properties"][parameter].get("default", "") == otherwise


def test_what_a_form_causes_is_part_of_what_its_fault_causes() -> None:
    for (name, form), signature in BY_FORM.items():
        assert signature.index.keys() <= INJECTED[name].index.keys(), form
        assert signature.through <= INJECTED[name].through, form
        assert signature.latest_s <= INJECTED[name].latest_s, form


@given(st.sampled_from(sorted(INJECTED)), st.one_of(st.text(), st.integers(), st.booleans(), st.none()))
def test_a_form_that_nobody_knows_is_taken_for_any(name: str, value: str | int | bool | None) -> None:
    form = form_of(name, {CHOOSES.get(name, ("mode", ""))[0]: value})
    known = BY_FORM.get((name, form))
    assert signature_of(name, form) is (known or INJECTED[name])
    assert form_of(name, None) == ""
