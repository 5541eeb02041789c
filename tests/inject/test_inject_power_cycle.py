"""`power-cycle` on sushy's Redfish emulator, on `ipmi_sim` with a process for a node, and on an unruly Redfish."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from bmc_kit import DRIVER, TARGET, Unruly, access, entry, fault, unruly
from lab.bmc import NODE, PASSWORD, USER, IpmiNode, free_port, ipmi, sushy
from lab.waiting import until
from pydantic import ValidationError

from gpuchaos_agent import clock, config, trial
from gpuchaos_agent.admit import Limits, Situation, why_not
from gpuchaos_agent.inject import redfish
from gpuchaos_agent.inject.base import Bmc, Env, InjectError
from gpuchaos_agent.inject.bmc import OFF, ON, BmcError, Order
from gpuchaos_agent.inject.ipmi import Ipmi
from gpuchaos_agent.inject.power_cycle import PowerCycle, PowerCycleParams
from gpuchaos_agent.inject.redfish import Redfish
from gpuchaos_agent.journal import EntryState, Journal
from gpuchaos_agent.nonces import Seen
from gpuchaos_stream.events.command import Command, CommandKind


@pytest.fixture(scope="module")
def emulator(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bmc]:
    folder = tmp_path_factory.mktemp("sushy")
    with sushy(folder) as url:
        yield access(url, folder)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[tuple[IpmiNode, Bmc]]:
    with ipmi(tmp_path) as made:
        yield made, access(made.url, tmp_path)


# Redfish, sushy's emulator


def test_sushys_node_which_lists_a_power_cycle_and_refuses_it_is_switched_off_and_on(emulator: Bmc) -> None:
    cycle = fault(emulator)
    assert cycle.check(TARGET, {}) is None
    standing = entry(cycle)
    assert str(standing.payload["orders"]).endswith("off")
    cycle.inject(standing)
    standing = standing.model_copy(update={"state": EntryState.INJECTED})
    evidence = cycle.evidence(standing)
    assert evidence.moved, evidence
    assert evidence.detail["power"] == Redfish(emulator).look().power == OFF
    assert (evidence.detail["order"], evidence.detail["bmc"]) == ("off", "redfish")
    assert not cycle.verify(standing)
    assert "power of n2 is Off" in (cycle.check(TARGET, {}) or "")
    other = PowerCycle(Env(node=DRIVER, boot_id=clock.boot_id()))  # from the journal: it has no BMC in its settings
    other.undo(standing)
    other.undo(standing)
    assert other.verify(standing)
    assert cycle.verify(standing)
    assert Redfish(emulator).look().power == ON


def test_a_restart_of_sushys_node_comes_back_by_itself(emulator: Bmc) -> None:
    cycle = fault(emulator)
    standing = entry(cycle, method="force-restart")
    cycle.inject(standing)
    evidence = cycle.evidence(standing)
    assert evidence.moved, evidence
    assert evidence.detail["comes_back"] == "by itself"
    until(lambda: cycle.verify(standing))
    cycle.undo(standing)


def test_the_wrong_password_is_a_reason_that_holds_no_password(emulator: Bmc, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("not-" + PASSWORD)
    reason = fault(replace(emulator, password_file=tmp_path / "wrong")).check(TARGET, {})
    assert reason is not None
    assert USER in reason
    assert PASSWORD not in reason


def test_a_bmc_whose_certificate_is_not_trusted_is_not_spoken_to(tmp_path: Path) -> None:
    certificate, key = tmp_path / "bmc.pem", tmp_path / "bmc.key"
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"),
            *("-days", "2", "-keyout", key, "-out", certificate, "-subj", "/CN=localhost"),
            *("-addext", "subjectAltName=DNS:localhost"),
        ],
        check=True,
        capture_output=True,
    )
    with sushy(tmp_path, (certificate, key)) as url:
        strange = access(url, tmp_path)
        assert "not trusted" in (fault(strange).check(TARGET, {}) or "")
        assert fault(replace(strange, ca_file=certificate)).check(TARGET, {}) is None
        assert fault(replace(strange, insecure=True)).check(TARGET, {}) is None
        elsewhere = replace(strange, url=url.replace("localhost", "127.0.0.1"), ca_file=certificate)
        assert "not trusted" in (fault(elsewhere).check(TARGET, {}) or "")


# IPMI, ipmi_sim


def test_by_ipmi_the_node_really_dies_and_another_process_brings_it_back(node: tuple[IpmiNode, Bmc]) -> None:
    machine, way = node
    before = machine.pid
    cycle = fault(way)
    assert cycle.check(TARGET, {"method": "force-off-on"}) is None
    standing = entry(cycle, method="force-off-on")
    cycle.inject(standing)
    evidence = cycle.evidence(standing)
    assert evidence.moved, evidence
    assert (evidence.detail["bmc"], evidence.detail["order"], machine.pid) == ("ipmi", "off", None)
    assert not cycle.verify(standing)
    file = machine.folder / "entry.json"
    file.write_text(standing.model_copy(update={"state": EntryState.INJECTED}).model_dump_json())
    code = (
        "import sys; from gpuchaos_agent.inject.power_cycle import PowerCycle as P; "
        "from gpuchaos_agent.inject.base import Env; from gpuchaos_agent.journal import JournalEntry as J; "
        "e = J.model_validate_json(open(sys.argv[1]).read()); p = P(Env(node='n1', boot_id='another')); "
        "p.undo(e); p.undo(e); sys.exit(not p.verify(e))"
    )
    subprocess.run([sys.executable, "-c", code, file], check=True)
    assert machine.pid not in {None, before}
    assert machine.power_log.count("on") == 2


def test_by_ipmi_a_power_cycle_takes_the_node_away_and_back(node: tuple[IpmiNode, Bmc]) -> None:
    machine, way = node
    before = machine.pid
    cycle = fault(way)
    standing = entry(cycle)
    cycle.inject(standing)
    evidence = cycle.evidence(standing)
    assert evidence.moved, evidence
    assert machine.pid != before
    cycle.undo(standing)
    assert cycle.verify(standing)
    assert machine.pid not in {None, before}


def test_no_password_is_in_an_argument_the_journal_or_an_error(node: tuple[IpmiNode, Bmc]) -> None:
    _, way = node
    cycle = fault(way)
    standing = entry(cycle)
    told = [*cycle.commands(standing), standing.model_dump_json(), repr(way), Redfish(way).typed(Order.OFF)]
    way.password_file.write_text("wrong-" + PASSWORD)  # type: ignore[union-attr]
    told.append(cycle.check(TARGET, {}) or "")
    assert "password" in told[-1].lower() or "Unable" in told[-1]
    assert [text for text in told if PASSWORD in text] == []
    assert f"-f {way.password_file}" in told[0]


# Strange controllers


def test_the_reset_types_are_read_from_the_action_info_too(tmp_path: Path) -> None:
    with unruly(Unruly(action_info=True, allowed=["ForceOff", "ForceOn"])) as url:
        look = Redfish(access(url, tmp_path)).look()
    assert set(look.able) == {Order.OFF, Order.ON}


def test_where_a_power_cycle_is_allowed_the_node_comes_back_without_us(tmp_path: Path) -> None:
    service = Unruly()
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle)
        cycle.inject(standing)
        assert cycle.evidence(standing).detail["order"] == "power-cycle"
        until(lambda: cycle.verify(standing))
        cycle.undo(standing)
    assert service.orders == ["PowerCycle"]


@pytest.mark.parametrize("status", [400, 501])
def test_a_power_cycle_that_is_listed_and_refused_falls_back_to_off_and_on(tmp_path: Path, status: int) -> None:
    service = Unruly(refused={"PowerCycle": status})
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle)
        cycle.inject(standing)
        assert cycle.evidence(standing).moved
        cycle.undo(standing)
        assert cycle.verify(standing)
    assert service.orders == ["PowerCycle", "ForceOff", "On"]


def test_a_method_that_was_asked_for_has_no_fallback_and_nothing_is_left_to_undo(tmp_path: Path) -> None:
    service = Unruly(refused={"PowerCycle": 501})
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle, method="power-cycle")
        with pytest.raises(InjectError, match="501"):
            cycle.inject(standing)
        assert not cycle.evidence(standing).moved
        began = time.monotonic()
        cycle.undo(standing)
        assert cycle.verify(standing)
        assert time.monotonic() - began < 2
    assert service.orders == ["PowerCycle"]


def test_a_busy_controller_is_asked_again_and_gets_the_order_once(tmp_path: Path) -> None:
    service = Unruly(answers={"POST Reset": [503, 503], "GET Systems": [503]}, allowed=["On", "ForceOff"])
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle)
        cycle.inject(standing)
        assert cycle.evidence(standing).moved
        cycle.undo(standing)
    assert service.orders == ["ForceOff", "On"]


def test_an_order_without_an_answer_is_not_sent_twice_and_what_is_seen_decides(tmp_path: Path) -> None:
    service = Unruly(silent={"PowerCycle"}, delay_s=0.5)
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle)
        cycle.inject(standing)
        assert cycle.evidence(standing).moved
        cycle.undo(standing)
    assert service.orders.count("PowerCycle") == 1


def test_a_gateways_504_is_no_reason_to_send_the_order_again(tmp_path: Path) -> None:
    service = Unruly(answers={"POST Reset": [504], "GET Systems": [502]}, allowed=["On", "ForceOff"])
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle, within=1)
        cycle.inject(standing)
        assert not cycle.evidence(standing).moved
    assert service.orders == []


def test_an_order_that_is_taken_and_not_carried_out_is_no_evidence(tmp_path: Path) -> None:
    service = Unruly(hollow={"PowerCycle"})
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle, within=1)
        cycle.inject(standing)
        assert not cycle.evidence(standing).moved


def test_killed_between_order_and_effect_the_node_is_still_brought_back(tmp_path: Path) -> None:
    service = Unruly(allowed=["On", "ForceOff"], delay_s=1.5)
    with unruly(service) as url:
        way = access(url, tmp_path)
        standing = entry(fault(way), age_s=50)
        Redfish(way).send(Order.OFF)  # as inject does, and then the agent is gone
        assert Redfish(way).look().power == ON
        next_run = PowerCycle(Env(node=DRIVER, boot_id=clock.boot_id()))
        next_run.undo(standing)
        assert next_run.verify(standing)
    assert service.orders == ["ForceOff", "On"]
    assert service.pending == []
    assert service.power == ON


def test_a_restart_is_shown_by_the_time_of_the_last_reset(tmp_path: Path) -> None:
    with unruly(Unruly(reset_times=True)) as url:
        cycle = fault(access(url, tmp_path))
        assert cycle.check(TARGET, {"method": "force-restart"}) is None
        standing = entry(cycle, method="force-restart")
        cycle.inject(standing)
        evidence = cycle.evidence(standing)
        assert evidence.moved
        assert evidence.detail["reset_told"] is True
    with unruly(Unruly()) as url:
        assert "witness" in (fault(access(url, tmp_path)).check(TARGET, {"method": "force-restart"}) or "")


def test_sessions_are_used_where_basic_authentication_is_off_and_all_given_back(tmp_path: Path) -> None:
    service = Unruly(sessions_only=True, allowed=["On", "ForceOff"])
    with unruly(service) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle)
        cycle.inject(standing)
        assert cycle.evidence(standing).moved
        cycle.undo(standing)
        assert cycle.verify(standing)
    assert service.logins > 0
    assert service.sessions == set()


def test_one_of_several_systems_must_be_named(tmp_path: Path) -> None:
    with unruly(Unruly(systems=("left", "right"))) as url:
        way = access(url, tmp_path)
        assert "left, right" in (fault(way).check(TARGET, {}) or "")
        assert fault(replace(way, system="right")).check(TARGET, {}) is None
        assert fault(replace(way, system="/redfish/v1/Systems/left")).check(TARGET, {}) is None
        assert "404" in (fault(replace(way, system="middle")).check(TARGET, {}) or "")


def test_what_cannot_be_done_or_undone_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redfish, "_ASK_S", 0.5)
    with unruly(Unruly(allowed=["ForceOff", "GracefulShutdown"])) as url:
        way = access(url, tmp_path)
        assert "on again" in (fault(way).check(TARGET, {}) or "")
        assert "allows no power-cycle" in (fault(way).check(TARGET, {"method": "power-cycle"}) or "")
    with unruly(Unruly()) as url:
        way = access(url, tmp_path)
        own = Env(node=NODE, boot_id="b", bmc=way)
        reasons = {
            "own node": PowerCycle(own).check(TARGET, {}),
            "own node that stays off": PowerCycle(own).check(TARGET, {"method": "force-off-on", "force": True}),
            "unknown node": fault(way).check("node/n3", {}),
            "no node": fault(way).check(f"process/{NODE}/1", {}),
            "another driver": fault(way).check(TARGET, {"driver": "n7"}),
            "protected": fault(way, protected=frozenset({NODE})).check(TARGET, {}),
            "silent witness": fault(way).check(TARGET, {"witness": f"127.0.0.1:{free_port()}"}),
            "password in the address": fault(Bmc("https://a:b@h")).check(TARGET, {}),
            "in the clear": fault(replace(way, url="http://192.0.2.7")).check(TARGET, {}),
            "no password file": fault(replace(way, password_file=tmp_path / "none")).check(TARGET, {}),
            "nobody there": fault(replace(way, url=f"http://127.0.0.1:{free_port()}")).check(TARGET, {}),
        }
        assert [name for name, reason in reasons.items() if reason is None] == []
        assert "a:b" not in str(reasons["password in the address"])
        assert PowerCycle(own).check(TARGET, {"force": True}) is None
        assert fault(way).check(TARGET, {"driver": DRIVER, "witness": url.removeprefix("http://")}) is None


def test_a_node_without_any_bmc_in_its_settings_says_so() -> None:
    assert "bmcs" in (PowerCycle(Env(node="n1", boot_id="b")).unavailable() or "")
    assert fault(Bmc("https://bmc")).unavailable() is None


def test_a_controller_that_nobody_reaches_leaves_nothing_to_undo_if_nothing_was_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redfish, "_ASK_S", 0.5)
    with unruly(Unruly()) as url:
        cycle = fault(access(url, tmp_path))
        standing = entry(cycle)
    with pytest.raises(BmcError, match="cannot be reached"):
        cycle.inject(standing)
    cycle.undo(standing)
    assert cycle.verify(standing)
    with pytest.raises(InjectError):  # another process does not know, and goes on trying
        PowerCycle(Env(node=DRIVER, boot_id=clock.boot_id())).undo(standing)


def test_an_agents_own_node_that_booted_anew_is_back(tmp_path: Path) -> None:
    with unruly(Unruly()) as url:
        own = PowerCycle(Env(node=NODE, boot_id=clock.boot_id(), bmc=access(url, tmp_path)))
        standing = entry(own, force=True)
    after = PowerCycle(Env(node=NODE, boot_id="the next boot"))
    after.undo(standing)
    assert after.verify(standing)


@pytest.mark.parametrize(
    "params", [{"method": "nmi"}, {"within": 60}, {"witness": "nowhere"}, {"off_seconds": 5}, {"driver": ""}]
)
def test_parameters_are_validated(params: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        PowerCycleParams.model_validate(params)


def test_a_command_for_another_nodes_power_is_admitted_and_one_for_its_processes_is_not(tmp_path: Path) -> None:
    with unruly(Unruly()) as url:
        cycle = fault(access(url, tmp_path))
        at = Situation(DRIVER, Limits(), {cycle.name: cycle}, {}, Seen(tmp_path / "seen", now=0))

        def reason(entity: str) -> str | None:
            now = time.time()
            fields = {"fault_id": "f1", "experiment_id": "e1", "fault": "power-cycle", "entity": entity, "lease_s": 9}
            base = {
                "id": "i",
                "time": now,
                "cluster": "c",
                "kind": CommandKind.INJECT,
                "node": DRIVER,
                "nonce": "n" * 16,
            }
            return why_not(Command.model_validate({**base, **fields, "expires": now + 9}), at)

        assert reason(TARGET) is None
        assert "node/X" in (reason("node/n9") or "")


def test_the_settings_name_the_bmcs_of_other_nodes_and_refuse_an_address_with_a_password(tmp_path: Path) -> None:
    file = tmp_path / "agent.yaml"
    file.write_text("bmcs:\n  n2: {url: 'https://bmc-n2', user: chaos, password_file: /etc/bmc, ca_file: /etc/ca}\n")
    assert config.load(file).reach()["bmcs"] == {
        "n2": Bmc("https://bmc-n2", "chaos", Path("/etc/bmc"), ca_file=Path("/etc/ca"))
    }
    file.write_text("bmcs:\n  n2: {url: 'https://chaos:word@bmc-n2'}\n")
    with pytest.raises(Exception, match="url") as error:
        config.load(file)
    assert "word" not in str(error.value)


def test_by_hand_the_whole_course_leaves_power_on_and_an_empty_journal(node: tuple[IpmiNode, Bmc]) -> None:
    machine, way = node
    strategies = {"power-cycle": fault(way)}
    journal = Journal(machine.folder / "journal")
    params = trial.parameters(["method=force-off-on"])
    standing = trial.entry_for(
        strategies, journal, fault="power-cycle", target=TARGET, params=params, seconds=0.2,
        boot_id=clock.boot_id(), now=clock.now(),
    )  # fmt: skip
    said: list[str] = []
    off: list[int | None] = []
    code = trial.run(
        standing, strategies, journal, seconds=0.2, now=clock.now, say=said.append,
        wait=lambda _s: off.append(machine.pid),
    )  # fmt: skip
    assert (code, off) == (0, [None]), said
    assert Ipmi(way).look().power == ON
    assert journal.read() == ([], [])
