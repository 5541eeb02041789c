"""Claims that a fault makes good with some parameters and not with others, and proofs looked for in the wrong place."""

from __future__ import annotations

from typing import Any, Final

import pytest
from experiments_help import plan

from gpuchaos_stream.experiments import fidelity, parameters, shortfalls
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.experiments.faults import FAULTS

TARGETS: Final = {"port": "port/n1/mlx5_0", "node": "node/n1"}
PARTITION: Final = "network-partition"
CUT_OFF: Final = ("node-isolation", "task-failover", "heartbeat-loss")
ERRING: Final = {"mode": "erring", "path": "/data", "remount": True}
PAGE: Final = {"name": "page", "http": {"url": "http://n1:8090/status"}}

#: Fault, parameters, the claims that they do not make good, words of the reason, words of what to write.
SHORT: Final[tuple[tuple[str, dict[str, Any], tuple[str, ...], str, str], ...]] = (
    (
        "power-cycle",
        {"driver": "n2", "method": "force-restart"},
        ("node-loss",),
        "the power stays on",
        "force-off-on",
    ),
    (
        "service-latency",
        {"service": "db:1", "loss_percent": 100},
        ("latency-tolerance",),
        "connections fail",
        "a delay",
    ),
    (
        "service-latency",
        {"service": "db:1", "loss_percent": "99.5"},
        ("latency-tolerance",),
        "fail",
        "network-partition",
    ),
    (PARTITION, {"peers": "all", "loss_percent": 1, "include_brokers": True}, CUT_OFF, "still arrive", "100"),
    (PARTITION, {"ports": "5432", "include_brokers": True}, CUT_OFF, "only single ports are cut", "database-outage"),
    (PARTITION, {"peers": "db:5432", "include_brokers": True}, CUT_OFF, "only single ports", "peers without ports"),
    (PARTITION, {"peers": "db:1, tcp/2, [fd00::1]:3"}, CUT_OFF[:1], "only single ports", "peers without ports"),
    (PARTITION, {"peers": "10.0.0.7", "ports": "22"}, CUT_OFF[:1], "only single ports", "peers without ports"),
    (PARTITION, {"peers": "all", "protocol": "udp"}, CUT_OFF[:2], "only one protocol", "leave protocol out"),
    (PARTITION, {"ports": "4791", "protocol": "udp"}, CUT_OFF, "RoCE", "rdma-link"),
    (PARTITION, {"peers": "10.0.0.7:4791"}, CUT_OFF[:1], "RoCE", "rdma-link"),
    (PARTITION, {"peers": "udp/4791"}, CUT_OFF[:1], "RoCE", "rdma-link"),
    (PARTITION, {"peers": "all"}, ("heartbeat-loss",), "its heartbeats arrive", "include_brokers: true"),
    (PARTITION, {"peers": "all", "include_brokers": "no"}, ("heartbeat-loss",), "heartbeats arrive", "true"),
    (
        "rdma-link",
        {"mode": "flap", "count": 1, "period_s": 0.1},
        ("rdma-failure", "collective-failure"),
        "well for the rest",
        "fills the duration",
    ),
    ("storage-disconnect", ERRING | {"errors": "writes"}, ("storage-failover",), "reads are answered", "errors out"),
)

#: What the same faults do make good.
ENOUGH: Final[tuple[tuple[str, dict[str, Any], tuple[str, ...]], ...]] = (
    ("power-cycle", {"driver": "n2", "method": "force-restart"}, ("task-failover",)),
    ("power-cycle", {"driver": "n2", "method": "auto"}, ("node-loss", "task-failover")),
    ("service-latency", {"service": "db:1", "loss_percent": 50}, ("latency-tolerance",)),
    (PARTITION, {"peers": "all", "include_brokers": True}, CUT_OFF),
    (PARTITION, {"peers": "all"}, ("node-isolation", "task-failover")),
    (PARTITION, {"peers": "10.0.0.7, fd00::1, db:5432"}, ("node-isolation",)),
    (PARTITION, {"peers": "10.0.0.0/16", "direction": "in"}, ("node-isolation",)),
    ("rdma-link", {"mode": "flap", "count": 10, "period_s": 2}, ("rdma-failure", "collective-failure")),
    ("rdma-link", {"mode": "down"}, ("rdma-failure",)),
    ("rdma-link", {"mode": "degraded", "speed_mbps": 1000}, ("rdma-degradation",)),
    ("storage-disconnect", ERRING, ("storage-failover", "checkpoint-resume")),
    ("storage-disconnect", ERRING | {"errors": "writes"}, ("checkpoint-resume",)),
)


def mistakes(
    fault: str, params: dict[str, Any], *claims: str, recovery: tuple[dict[str, Any], ...] = (PAGE,)
) -> list[str]:
    made = plan(
        fault={"name": fault, "params": params, "certifies": claims},
        targets={"entities": [TARGETS[FAULTS[fault].targets[0]]]},
        recovery=recovery,
    )
    return [str(error) for error in check(made)]


@pytest.mark.parametrize(("fault", "params", "claims", "why", "instead"), SHORT)
def test_a_claim_that_these_parameters_do_not_make_good_is_refused_with_the_reason_and_what_to_write(
    fault: str, params: dict[str, Any], claims: tuple[str, ...], why: str, instead: str
) -> None:
    for claim in claims:
        (only,) = mistakes(fault, params, claim)
        assert f"{fault!r} cannot certify {claim!r} like this" in only
        reason, _, fix = only.rpartition(f"that takes {fidelity.TAKES[claim]}")
        assert why in reason
        assert instead in fix


@pytest.mark.parametrize(("fault", "params", "claims"), ENOUGH)
def test_a_claim_that_they_do_make_good_is_accepted(
    fault: str, params: dict[str, Any], claims: tuple[str, ...]
) -> None:
    assert mistakes(fault, params, *claims) == []


def test_every_row_is_of_a_claim_that_the_fault_makes_good_otherwise_and_is_true_of_some_plan_above() -> None:
    hit = set()
    for fault, params, claims, _, _ in SHORT:
        for claim in claims:
            made = plan(fault={"name": fault, "params": params, "certifies": [claim]})
            hit.add(shortfalls.of(made, claim))
    assert hit == set(shortfalls.SHORTFALLS)
    for row in shortfalls.SHORTFALLS:
        assert set(row.claims) <= set(FAULTS[row.fault].certifies)


def test_rows_ask_only_for_parameters_that_the_fault_has() -> None:
    class Strict(dict[str, object]):
        def get(self, name: str, _default: object = None) -> object:
            return self[name]

    for row in shortfalls.SHORTFALLS:
        row.when(shortfalls.Asked(Strict(parameters.defaults(row.fault)), 20.0))


def test_parameters_of_another_type_or_a_newer_agent_upset_nothing() -> None:
    for row in shortfalls.SHORTFALLS:
        names = parameters.names(row.fault)
        for value in ("much", True, -1, 1.5, ""):
            made = plan(fault={"name": row.fault, "params": dict.fromkeys((*names, "new"), value), "certifies": ["x"]})
            for claim in row.claims:
                shortfalls.of(made, claim)


CERT: Final = {"cert_file": "/a", "ca_file": "/b", "ca_key_file": "/c", "address": "n001:8443"}
POSTGRES: Final = {"engine": "postgres", "address": "db:5432"}
RENEWED: Final = ("certificate-expiry", CERT, "certificate-renewal")
FELL_BACK: Final = ("database-outage", POSTGRES, "database-fallback")
V6: Final = ("database-outage", {"engine": "redis", "address": "[fd00::1]:6379"}, "database-fallback")


def asks(kind: str, address: str, **fields: Any) -> dict[str, Any]:
    return {"name": kind, kind: {"address": address} | fields}


@pytest.mark.parametrize(
    ("claimed", "checks"),
    [
        (RENEWED, (asks("tls", "n001:8443"),)),
        (RENEWED, (asks("tls", "elsewhere:1"), asks("tls", "N001.:8443") | {"name": "own"})),
        (RENEWED, (asks("tls", "10.0.0.7:8443", same_as="n001:8443"),)),
        (("certificate-expiry", {"method": "clock", "pidfile": "/p"}, "certificate-renewal"), (asks("tls", "n9:1"),)),
        (FELL_BACK, (asks("postgres", "db:5432"),)),
        (FELL_BACK, (asks("redis", "other:6379"), PAGE)),
        (V6, (asks("redis", "[FD00:0::1]:6379"),)),
    ],
)
def test_a_proof_at_the_fault_s_own_address_or_on_the_workload_s_page_is_one(
    claimed: tuple[str, dict[str, Any], str], checks: tuple[dict[str, Any], ...]
) -> None:
    assert mistakes(*claimed, recovery=checks) == []


@pytest.mark.parametrize(
    ("claimed", "checks", "where", "said", "fix"),
    [
        (RENEWED, (asks("tls", "elsewhere:1"),), "n001:8443", "'tls' asks tls at elsewhere:1", "same_as: 'n001:8443'"),
        (RENEWED, (asks("tls", "n001:443"),), "n001:8443", "tls at n001:443", "same_as: 'n001:8443'"),
        (RENEWED, (asks("tls", "a:1", same_as="n002:8443"),), "n001:8443", "tls at a:1", "compared as written"),
        (FELL_BACK, (asks("redis", "other:6379"),), "postgres at db:5432", "redis at other:6379", "same_as: 'db:5432'"),
        (FELL_BACK, (asks("redis", "db:5432"),), "postgres at db:5432", "redis at db:5432", "ask there"),
        (FELL_BACK, (asks("postgres", "db.:5433"),), "postgres at db:5432", "postgres at db.:5433", "ask there"),
    ],
)
def test_a_proof_that_is_looked_for_in_another_place_than_the_fault_s_is_none(
    claimed: tuple[str, dict[str, Any], str], checks: tuple[dict[str, Any], ...], where: str, said: str, fix: str
) -> None:
    (only,) = mistakes(*claimed, recovery=checks)
    assert f"no check looks at {claimed[2]!r} where the fault is, {where}: " in only
    assert said in only
    assert fix in only


def test_what_is_no_address_is_named_in_same_as_too() -> None:
    (only,) = mistakes(*RENEWED, recovery=(asks("tls", "n001:8443", same_as="n001"),))
    assert "field 'recovery.0.tls.same_as': 'n001' is no address" in only
