"""What the commands refuse before they reach for Kafka: keys that agents would not believe, files that are there."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from click.testing import CliRunner

from gpuchaos_stream.cli import cli
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.signing import KeyRing, Signer
from gpuchaos_stream.stream.options import control_key, key_ring
from gpuchaos_stream.stream.worker import _make_folder

RING = Path("ring.json")


def saved(signer: Signer, folder: Path) -> Path:
    path = folder / "key.json"
    signer.save(path)
    return path


def test_a_control_key_in_the_ring_is_taken(tmp_path: Path) -> None:
    signer = Signer.generate(Role.CONTROL)
    ring = KeyRing(keys=(signer.trusted(not_after=time.time() + 3600),))
    assert control_key(saved(signer, tmp_path), ring, RING).key_id == signer.key_id


def test_an_operators_key_is_refused_for_a_worker(tmp_path: Path) -> None:
    signer = Signer.generate(Role.OPERATOR)
    with pytest.raises(UserError, match=r"is a key of role operator; .*gpuchaos keys make --role control"):
        control_key(saved(signer, tmp_path), KeyRing(keys=(signer.trusted(),)), RING)


def test_a_key_that_the_ring_lacks_or_has_otherwise_is_refused(tmp_path: Path) -> None:
    signer = Signer.generate(Role.CONTROL)
    other = Signer.generate(Role.CONTROL).trusted().model_copy(update={"key_id": signer.key_id})
    for ring in (KeyRing(), KeyRing(keys=(other,))):
        with pytest.raises(UserError, match=r"is not in ring\.json; agents would refuse its commands"):
            control_key(saved(signer, tmp_path), ring, RING)


def test_a_key_that_has_ended_is_refused(tmp_path: Path) -> None:
    signer = Signer.generate(Role.CONTROL)
    with pytest.raises(UserError, match=r"has ended, says ring\.json"):
        control_key(saved(signer, tmp_path), KeyRing(keys=(signer.trusted(not_after=time.time() - 1),)), RING)


def test_a_missing_key_or_ring_is_said_in_words(tmp_path: Path) -> None:
    gone = tmp_path / "gone.json"
    for read in (key_ring, lambda path: control_key(path, KeyRing(), RING)):
        with pytest.raises(UserError, match=r"gone\.json: cannot be read \(No such file or directory\)"):
            read(gone)


def test_a_worker_refuses_before_it_joins(tmp_path: Path) -> None:
    signer = Signer.generate(Role.OPERATOR)
    KeyRing(keys=(signer.trusted(),)).save(tmp_path / "ring.json")
    key = saved(signer, tmp_path)
    answer = CliRunner().invoke(cli, ["worker", "--key", str(key), "--keyring", str(tmp_path / "ring.json")])
    assert isinstance(answer.exception, UserError)
    assert "role operator" in str(answer.exception)


def test_a_recording_that_exists_is_not_written_over(tmp_path: Path) -> None:
    KeyRing().save(tmp_path / "ring.json")
    file = tmp_path / "capture.jsonl.zst"
    file.write_text("precious")
    answer = CliRunner().invoke(cli, ["record", str(file), "--keyring", str(tmp_path / "ring.json")])
    assert isinstance(answer.exception, UserError)
    assert "exists already; choose another name" in str(answer.exception)
    assert file.read_text() == "precious"


def test_keys_are_listed_with_the_date_of_their_end_and_no_ring_is_an_error(tmp_path: Path) -> None:
    signer = Signer.generate(Role.CONTROL)
    KeyRing(keys=(signer.trusted(not_after=86_400.0),)).save(tmp_path / "keyring.json")
    assert "until 1970-01-02T00:00:00Z" in CliRunner().invoke(cli, ["keys", "list", "--dir", str(tmp_path)]).output
    answer = CliRunner().invoke(cli, ["keys", "list", "--dir", str(tmp_path / "none")])
    assert isinstance(answer.exception, UserError)
    assert "there is no key ring" in str(answer.exception)


def test_a_worker_makes_its_folder_with_those_above_it_or_says_why_not(tmp_path: Path) -> None:
    _make_folder(tmp_path / "data/worker")
    assert (tmp_path / "data/worker").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be used .*; name another --data-dir"):
        _make_folder(tmp_path / "file")
