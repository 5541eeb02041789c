"""Nonsense to every command: each ends with status 2 and one message that says what to change, never a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click
import pytest
from cli_kit import Ended, call, commands

from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.signing import KeyRing, Signer
from gpuchaos_stream.stream.bus import Bus

#: Options that name what is to be made: what is not there is right for them.
_MAKES: Final = frozenset({"--data-dir", "--dir", "--folder", "--out", "--truth", "--write"})
#: What is named instead of the right file (`place`).
_NONSENSE: Final = ("missing", "folder", "empty", "binary", "broken", "list")
#: Longest message, lines: a usage error has four, a file of rules or a plan a line for each mistake.
_MOST_LINES: Final = 12


def _files(command: click.Command) -> Iterator[click.Parameter]:
    """The parameters that name a file or folder to read."""
    for each in command.params:
        if isinstance(each.type, click.Path) and not _MAKES & set(each.opts):
            yield each


READING: Final = [
    pytest.param(words, command, each, id=f"{' '.join(words)} {each.opts[0]}")
    for words, command in commands()
    for each in _files(command)
    if (words, each.opts[0]) != (("record",), "file")  # which must not be there
]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Good keys, nonsense of every kind, and a broker that does not answer."""
    ring = KeyRing()
    for role in Role:
        signer = Signer.generate(role)
        signer.save(tmp_path / f"{role.value}.json")
        ring = ring.with_key(signer.trusted())
    ring.save(tmp_path / "ring.json")
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty").write_text("")
    (tmp_path / "binary").write_bytes(bytes(range(256)) * 8)
    (tmp_path / "broken").write_text("a: [1\n  b: {")
    (tmp_path / "list").write_text("- 1\n- 2\n")
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    monkeypatch.setattr(Bus.start, "__defaults__", (0.05,))
    return tmp_path


def _words(command: click.Command, wrong: click.Parameter, path: Path, place: Path) -> list[str]:
    """Arguments that are right but for `wrong`, which is `path`."""
    key = "control" if command.name == "worker" else "operator"
    right = {"key": place / f"{key}.json", "keyring": place / "ring.json", "experiment_id": "x", "file": place / "new"}
    right |= {"files": Path("examples/stopped-rank.yaml"), "plans": Path("examples/stopped-rank.yaml")}
    right |= {"role": "operator", "reason": "x", "every": "60s", "config": place / "none"}
    if wrong.name != "file" and command.name == "run":
        right["file"] = Path("examples/stopped-rank.yaml")
    found = []
    for each in command.params:
        if each is wrong:
            value = str(path)
        elif each.name in right and (each.required or each.name in ("key", "keyring", "experiment_id")):
            value = str(right[each.name])
        else:
            continue
        found += [value] if isinstance(each, click.Argument) else [each.opts[0], value]
    return found


def _is_told(ended: Ended, told: str = "") -> None:
    assert ended.status == 2, ended
    assert "Traceback" not in ended.err
    assert told in ended.err
    assert 0 < len(ended.err.strip().splitlines()) <= _MOST_LINES, ended.err


@pytest.mark.parametrize(("words", "command", "wrong"), READING)
def test_a_file_that_is_none_ends_with_2_and_a_sentence(
    words: tuple[str, ...],
    command: click.Command,
    wrong: click.Parameter,
    place: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for kind in _NONSENSE:
        path = place / kind
        _is_told(call(capsys, *words, *_words(command, wrong, path, place)))


@pytest.mark.parametrize(
    "words",
    [
        ("experiment", "list"),
        ("experiment", "show", "x"),
        ("experiment", "stop", "x", "--reason", "y", "--key", "operator.json"),
        ("experiment", "watch"),
        ("experiment", "run", "examples/stopped-rank.yaml", "--key", "operator.json"),
        ("breaker", "status"),
        ("breaker", "reset", "--reason", "y", "--key", "operator.json"),
        ("explain", "x"),
        ("report", "--since", "7d"),
        ("faults", "check"),
        ("record", "new.jsonl.zst", "--keyring", "ring.json"),
        ("sim", "--keyring", "ring.json"),
        ("watch",),
        ("watch", "x", "--once", "-o", "json"),
    ],
    ids=" ".join,
)
def test_a_broker_that_does_not_answer_ends_with_2_and_its_address(
    words: tuple[str, ...], place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    there = {"operator.json", "ring.json", "new.jsonl.zst"}
    _is_told(call(capsys, *(str(place / word) if word in there else word for word in words)), "127.0.0.1:1: no Kafka")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("report", "x", "--since", "7d"), "an experiment and a period are two reports"),
        (("report", "--since", "soon"), "write it like 30m, 12h or 7d"),
        (("report", "x", "--fail-on", "fialed"), "did you mean 'failed'?"),
        (("experiment", "list", "--bootstrap-servers", "nowhere"), "'nowhere' is not host:port"),
        (("experiment", "check"), "Missing argument"),
        (("keys", "make", "--role", "king"), "'king' is not one of"),
        (("breaker", "trip"), "Missing option '--reason'"),
        (("breaker", "trip", "--reason", " "), "say why"),
        (("dev", "--nodes", "2", "--cells", "4"), "use fewer cells"),
        (("completion", "tcsh"), "'tcsh' is not one of"),
    ],
    ids=lambda each: " ".join(each) if isinstance(each, tuple) else "",
)
def test_an_option_that_cannot_be_is_named(
    words: tuple[str, ...], said: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("GPUCHAOS_KEY", str(place / "operator.json"))
    _is_told(call(capsys, *words), said)
