"""`certificate-expiry` on real TLS servers: one that is told by SIGHUP, one that watches its file, PostgreSQL."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from certificate_kit import (
    TARGET,
    Authority,
    Server,
    at,
    authority,
    entry,
    fault,
    free_port,
    postgres,
    server,
    signalled,
    state,
    undo_elsewhere,
)
from cryptography import x509
from lab.waiting import until
from pydantic import ValidationError

from gpuchaos_agent import clock, trial
from gpuchaos_agent.inject import certificates, reload, tls_look
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.inject.certificate_expiry import CertificateExpiryParams
from gpuchaos_agent.journal import Journal


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path)


@pytest.fixture
def running(ca: Authority) -> Iterator[Server]:
    with server(ca) as made:
        yield made


@pytest.mark.parametrize(
    ("kind", "words"),
    [("expired", "expired"), ("not-yet-valid", "not yet valid"), ("wrong-name", "mismatch")],
)
def test_clients_refuse_what_is_served_until_the_right_bytes_are_back(
    ca: Authority, running: Server, tmp_path: Path, kind: str, words: str
) -> None:
    before = state(tmp_path)
    expiry = fault(tmp_path)
    params = signalled(ca, running, kind=kind)
    assert expiry.check(TARGET, params) is None
    standing = entry(expiry, params)
    assert state(tmp_path) == before, "planning changes nothing"
    expiry.inject(standing)
    evidence = expiry.evidence(standing)
    assert evidence.moved, evidence
    assert words in str(evidence.detail["client_says"]).lower()
    assert words in (tls_look.distrust(at(ca, running.port)) or "").lower()
    assert not expiry.verify(standing)
    changed = ca.cert_file.read_bytes()
    assert changed.startswith(b"# server\n-----BEGIN")
    assert changed.endswith(ca.ca_file.read_bytes() + b"# end\n")
    assert ca.cert_file.stat().st_mode & 0o7777 == 0o640
    undo_elsewhere(standing, tmp_path)
    assert expiry.verify(standing)
    assert tls_look.distrust(at(ca, running.port)) is None
    assert state(tmp_path) == before, "nothing is left"
    assert running.process.poll() is None


@pytest.mark.parametrize("kind", ["rsa", "ec", "ed25519"])
def test_the_wrong_certificate_is_the_right_one_in_everything_but_its_validity(tmp_path: Path, kind: str) -> None:
    ca = authority(tmp_path, kind)
    with server(ca) as running:
        expiry = fault(tmp_path)
        standing = entry(expiry, signalled(ca, running))
        expiry.inject(standing)
        assert expiry.evidence(standing).moved
        expiry.undo(standing)
    right = certificates.leaf_of(ca.cert_file.read_bytes())
    wrong = x509.load_pem_x509_certificate(str(standing.payload["leaf"]).encode())
    wrong.verify_directly_issued_by(ca.certificate)
    assert (wrong.subject, wrong.issuer, wrong.public_key()) == (right.subject, right.issuer, right.public_key())
    assert list(wrong.extensions) == list(right.extensions)
    assert wrong.not_valid_after_utc < right.not_valid_before_utc or wrong.not_valid_after_utc.timestamp() < time.time()


def test_a_certificate_that_was_renewed_meanwhile_stays(ca: Authority, running: Server, tmp_path: Path) -> None:
    expiry = fault(tmp_path)
    standing = entry(expiry, signalled(ca, running))
    expiry.inject(standing)
    renewed = ca.issue() + ca.ca_file.read_bytes()
    ca.cert_file.write_bytes(renewed)  # and its server is not told: the undo does that
    undo_elsewhere(standing, tmp_path)
    assert ca.cert_file.read_bytes() == renewed
    leaf = certificates.leaf_of(renewed)
    assert tls_look.presented(at(ca, running.port)) == certificates.digest(leaf)
    assert expiry.verify(standing)
    assert not list(tmp_path.glob("state/*"))


def test_a_link_to_a_newer_certificate_stays_and_the_old_file_is_put_right(ca: Authority, tmp_path: Path) -> None:
    (tmp_path / "archive").mkdir()
    right = ca.cert_file.read_bytes()
    old, new = tmp_path / "archive/1.pem", tmp_path / "archive/2.pem"
    ca.cert_file.rename(old)
    ca.cert_file.symlink_to(old)
    with server(ca) as running:
        expiry = fault(tmp_path)
        standing = entry(expiry, signalled(ca, running))
        expiry.inject(standing)
        assert ca.cert_file.is_symlink()
        assert expiry.evidence(standing).moved
        new.write_bytes(ca.issue())
        ca.cert_file.unlink()
        ca.cert_file.symlink_to(new)
        expiry.undo(standing)
        assert expiry.verify(standing)
        assert tls_look.presented(at(ca, running.port)) == certificates.digest(certificates.leaf_of(new.read_bytes()))
    assert old.read_bytes() == right


@pytest.mark.parametrize("step", ["keep", "replace", "tell", "after"])
def test_killed_between_any_two_steps_everything_is_put_back(
    ca: Authority, running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    before = state(tmp_path)
    expiry = fault(tmp_path)
    standing = entry(expiry, signalled(ca, running))
    file = tmp_path / "entry.json"
    file.write_text(standing.model_dump_json())
    code = f"""
import os, signal, sys
from gpuchaos_agent.inject import certificate_file, reload
from gpuchaos_agent.inject.base import Env
from gpuchaos_agent.inject.certificate_expiry import CertificateExpiry
from gpuchaos_agent.journal import JournalEntry
entry = JournalEntry.model_validate_json(open(sys.argv[1]).read())
die = lambda *_a, **_k: os.kill(os.getpid(), signal.SIGKILL)
step, real = {step!r}, certificate_file.replace
def at_cert(path, *a, **k):
    if step == 'replace' and path.name == 'server.pem':
        k['fresh'].write_bytes(b'half')
        die()
    real(path, *a, **k)
certificate_file.replace = at_cert
if step == 'keep': certificate_file.keep = die
if step == 'tell': reload.tell = die
CertificateExpiry(Env(node='n1', boot_id='b')).inject(entry)
die()
"""
    assert subprocess.run([sys.executable, "-c", code, file], check=False).returncode == -signal.SIGKILL
    file.unlink()
    undo_elsewhere(standing, tmp_path)
    assert state(tmp_path) == before
    assert tls_look.distrust(at(ca, running.port)) is None


def test_undo_that_was_killed_before_it_told_the_server_is_finished_by_the_next(
    ca: Authority, running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expiry = fault(tmp_path)
    standing = entry(expiry, signalled(ca, running))
    expiry.inject(standing)
    with monkeypatch.context() as patch:
        patch.setattr(reload, "tell", lambda *_: (_ for _ in ()).throw(InjectError("killed")))
        with pytest.raises(InjectError):
            expiry.undo(standing)
        assert not expiry.verify(standing)
    undo_elsewhere(standing, tmp_path)
    assert tls_look.distrust(at(ca, running.port)) is None
    assert not list(tmp_path.glob("state/*"))


def test_after_a_reboot_in_which_the_server_does_not_run_the_file_is_put_right(ca: Authority, tmp_path: Path) -> None:
    right = ca.cert_file.read_bytes()
    with server(ca) as running:
        expiry = fault(tmp_path)
        standing = entry(expiry, signalled(ca, running))
        expiry.inject(standing)
    undo_elsewhere(standing, tmp_path, boot="the next boot")
    assert ca.cert_file.read_bytes() == right


def test_a_folder_that_went_with_the_reboot_needs_no_undo(ca: Authority, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.move(ca.cert_file, tmp_path / "run/server.pem")
    ca.cert_file.symlink_to(tmp_path / "run/server.pem")
    with server(ca) as running:
        expiry = fault(tmp_path)
        standing = entry(expiry, signalled(ca, running))
        expiry.inject(standing)
    shutil.rmtree(tmp_path / "run")
    undo_elsewhere(standing, tmp_path, boot="the next boot")
    assert not list(tmp_path.glob("state/*"))


def test_a_server_that_watches_its_file_needs_no_telling(ca: Authority, tmp_path: Path) -> None:
    with server(ca, "watch") as running:
        expiry = fault(tmp_path)
        standing = entry(expiry, ca.params(running.port))
        expiry.inject(standing)
        assert expiry.evidence(standing).moved
        expiry.undo(standing)
        assert expiry.verify(standing)
        assert tls_look.distrust(at(ca, running.port)) is None


def test_a_server_that_does_not_read_its_file_again_is_no_evidence(ca: Authority, tmp_path: Path) -> None:
    right = ca.cert_file.read_bytes()
    with server(ca, "never") as running:
        expiry = fault(tmp_path)
        standing = entry(expiry, ca.params(running.port, within=0.5))
        expiry.inject(standing)
        assert not expiry.evidence(standing).moved
        expiry.undo(standing)
        assert expiry.verify(standing)
    assert ca.cert_file.read_bytes() == right


def test_a_command_of_the_agents_settings_tells_the_server_and_no_other_does(
    ca: Authority, running: Server, tmp_path: Path
) -> None:
    commands = {"service": ("sh", "-c", f"kill -HUP $(cat {running.pidfile})")}
    expiry = fault(tmp_path, reload_commands=commands)
    params = ca.params(running.port, reload="command", command="service")
    assert expiry.check(TARGET, params) is None
    assert "not other" in (expiry.check(TARGET, {**params, "command": "other"}) or "")
    standing = entry(expiry, params)
    expiry.inject(standing)
    assert expiry.evidence(standing).moved
    undo_elsewhere(standing, tmp_path)  # whose settings know no command: it is in the journal
    assert tls_look.distrust(at(ca, running.port)) is None


@pytest.mark.root
def test_postgresql_presents_it_after_a_reload_and_the_right_one_again(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    with postgres(ca) as running:
        where = at(ca, running.port, protocol="postgres")
        until(lambda: tls_look.distrust(where) is None)
        owner = ca.cert_file.stat().st_uid
        expiry = fault(tmp_path)
        params = signalled(ca, running, protocol="postgres")
        assert expiry.check(TARGET, params) is None
        standing = entry(expiry, params)
        expiry.inject(standing)
        evidence = expiry.evidence(standing)
        assert evidence.moved, evidence
        assert ca.cert_file.stat().st_uid == owner
        expiry.undo(standing)
        assert expiry.verify(standing)
        assert tls_look.distrust(where) is None


def test_what_cannot_be_done_or_proved_is_refused(ca: Authority, running: Server, tmp_path: Path) -> None:
    expiry = fault(tmp_path)
    good = signalled(ca, running)
    (tmp_path / "other").mkdir()
    other = authority(tmp_path / "other")
    (tmp_path / "linked.pem").hardlink_to(ca.ca_file)
    with server(other) as strange, subprocess.Popen(["sleep", "300"]) as deaf:
        (tmp_path / "deaf.pid").write_text(str(deaf.pid))
        cases: dict[str, dict[str, Any]] = {
            "signed the server's": {"ca_file": str(other.ca_file)},
            "not the key": {"ca_key_file": str(other.ca_key_file)},
            "cannot be used": {"ca_key_file": str(ca.ca_file)},
            "no certificate": {"cert_file": str(ca.ca_key_file)},
            "another certificate": {"address": f"127.0.0.1:{strange.port}"},
            "nobody listens": {"address": f"127.0.0.1:{free_port()}"},
            "refuses": {"server_name": "elsewhere.test"},
            "does not catch": {"pidfile": str(tmp_path / "deaf.pid")},
            "names no process": {"pidfile": str(tmp_path / "none.pid")},
            "hard links": {"cert_file": str(tmp_path / "linked.pem")},
            "cannot be read": {"cert_file": str(tmp_path / "none.pem")},
        }
        reasons = {words: expiry.check(TARGET, {**good, **fields}) or "" for words, fields in cases.items()}
        deaf.kill()
    assert {words: reason for words, reason in reasons.items() if words not in reason} == {}
    assert "node/n1" in (expiry.check("node/n2", good) or "")
    brokers = fault(tmp_path, brokers=(f"localhost:{running.port}",))
    assert "broker" in (brokers.check(TARGET, good) or "")
    assert brokers.check(TARGET, {**good, "include_brokers": True}) is None
    guarded = fault(tmp_path, protected=frozenset({Path(sys.executable).resolve().name[:15], "python"}))
    assert "protected" in (guarded.check(TARGET, good) or "")


def test_a_key_with_a_passphrase_is_refused_and_nothing_of_it_is_told(ca: Authority, running: Server) -> None:
    from cryptography.hazmat.primitives import serialization

    locked = ca.key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.BestAvailableEncryption(b"word")
    )
    ca.ca_key_file.write_bytes(locked)
    reason = fault(ca.folder).check(TARGET, signalled(ca, running))
    assert reason is not None
    assert "passphrase" in reason
    assert locked.decode().splitlines()[1] not in reason


def test_a_file_that_changes_between_plan_and_inject_is_left_alone(
    ca: Authority, running: Server, tmp_path: Path
) -> None:
    expiry = fault(tmp_path)
    standing = entry(expiry, signalled(ca, running))
    renewed = ca.issue()
    ca.cert_file.write_bytes(renewed)
    with pytest.raises(InjectError, match="somebody else"):
        expiry.inject(standing)
    expiry.undo(standing)
    assert ca.cert_file.read_bytes() == renewed
    assert expiry.verify(standing)


def test_a_private_key_in_the_same_file_is_copied_for_root_alone_and_is_not_in_the_journal(
    ca: Authority, tmp_path: Path
) -> None:
    secret = ca.key_file.read_bytes()
    ca.cert_file.write_bytes(secret + ca.cert_file.read_bytes())
    with server(ca) as running:
        expiry = fault(tmp_path)
        standing = entry(expiry, signalled(ca, running))
        expiry.inject(standing)
        (copy,) = tmp_path.glob("state/*")
        assert copy.stat().st_mode & 0o7777 == 0o600
        assert secret.decode().splitlines()[1] not in standing.model_dump_json()
        assert secret in ca.cert_file.read_bytes()
        expiry.undo(standing)
    assert not list(tmp_path.glob("state/*"))


def test_extended_attributes_of_the_file_survive(ca: Authority, running: Server, tmp_path: Path) -> None:
    try:
        os.setxattr(ca.cert_file, "user.label", b"kept")
    except OSError:
        pytest.skip("this file system has no extended attributes (a matter of the file system, not of a GPU)")
    expiry = fault(tmp_path)
    standing = entry(expiry, signalled(ca, running))
    expiry.inject(standing)
    assert os.getxattr(ca.cert_file, "user.label") == b"kept"
    expiry.undo(standing)
    assert os.getxattr(ca.cert_file, "user.label") == b"kept"


def test_dry_run_prints_replace_and_reload_and_the_way_back(ca: Authority, running: Server, tmp_path: Path) -> None:
    expiry = fault(tmp_path)
    lines = expiry.commands(entry(expiry, signalled(ca, running)))
    assert [line.split()[0] for line in lines] == ["cp", "mv", "kill", "mv", "kill"]


def test_by_hand_the_whole_course_leaves_nothing(ca: Authority, running: Server, tmp_path: Path) -> None:
    before = state(tmp_path)
    strategies = {"certificate-expiry": fault(tmp_path)}
    journal = Journal(tmp_path / "state" / "journal")
    standing = trial.entry_for(
        strategies, journal, fault="certificate-expiry", target=TARGET, params=signalled(ca, running), seconds=0.1,
        boot_id=clock.boot_id(), now=clock.now(),
    )  # fmt: skip
    said: list[str] = []
    seen: list[str | None] = []
    code = trial.run(
        standing, strategies, journal, seconds=0.1, now=clock.now, say=said.append,
        wait=lambda _s: seen.append(tls_look.distrust(at(ca, running.port))),
    )  # fmt: skip
    assert code == 0, said
    assert seen != [None]
    assert state(tmp_path) == before


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cert_file": None}, "needs cert_file"),
        ({"cert_file": "relative.pem"}, "cert_file"),
        ({"reload": "signal"}, "pidfile"),
        ({"reload": "command"}, "command"),
        ({"kind": "revoked"}, "kind"),
        ({"address": "nowhere"}, "address"),
        ({"method": "clock", "pidfile": "/p", "kind": "wrong-name"}, "no clock"),
        ({"method": "clock"}, "needs pidfile"),
    ],
)
def test_parameters_are_validated(ca: Authority, fields: dict[str, Any], words: str) -> None:
    base = {} if fields.get("method") == "clock" else ca.params(443)
    given = {name: value for name, value in {**base, **fields}.items() if value is not None}
    with pytest.raises(ValidationError, match=words):
        CertificateExpiryParams.model_validate(given)
