"""A recording gives back what was written, says where it is damaged, and is judged alike each time."""

from __future__ import annotations

from pathlib import Path

import pytest
import zstandard
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from test_loop_control import CONTROL, OPERATOR, PLAN, T0, Machine, play

from gpuchaos_stream.cli import main
from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events import topics
from gpuchaos_stream.events.signing import KeyRing
from gpuchaos_stream.guard.rules import rule_files
from gpuchaos_stream.guard.shipped import shipped_rules
from gpuchaos_stream.loop.recording import Header, Recorded, Writer, read
from gpuchaos_stream.loop.replay import HINT, judge, replay

HEADER = Header(
    KeyRing(keys=(CONTROL.trusted(), OPERATOR.trusted())),
    {path.name: path.read_text() for path in rule_files([shipped_rules()])},
)
RECORDS = st.builds(
    Recorded,
    topic=st.sampled_from([topic.name for topic in topics.TOPICS]),
    partition=st.integers(0, 7),
    offset=st.integers(0, 2**40),
    timestamp=st.integers(0, 2**42),
    key=st.none() | st.binary(max_size=20),
    value=st.none() | st.binary(max_size=80),
    headers=st.dictionaries(st.text(max_size=8), st.binary(max_size=20), max_size=3).map(lambda d: tuple(d.items())),
)


@given(st.lists(RECORDS, max_size=20))
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, records: list[Recorded]) -> None:
    path = tmp_path_factory.mktemp("r") / "r.jsonl.zst"
    with Writer(path, HEADER) as writer:
        for record in records:
            writer.write(record)
    header, found = read(path)
    assert (header, list(found)) == (HEADER, records)


def some(count: int) -> list[Recorded]:
    return [Recorded(topics.FAULTS.name, 0, number, 1000 + number, b"c", b"{}") for number in range(count)]


def test_recording_cut_by_a_kill_is_read_up_to_the_cut(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.zst"
    records = some(Writer.FLUSH_EVERY * 3)
    with Writer(path, HEADER) as writer:
        for record in records:
            writer.write(record)
    path.write_bytes(path.read_bytes()[:-10])
    _, found = read(path)
    kept = list(found)
    assert kept == records[: len(kept)]
    assert len(kept) >= Writer.FLUSH_EVERY * 2


@pytest.mark.parametrize(
    "content", [b"", b"nonsense", zstandard.compress(b"{}\n"), zstandard.compress(b'{"format": 1}\n')]
)
def test_what_is_no_recording_is_named(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "r.jsonl.zst"
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"r\.jsonl\.zst"):
        read(path)


def test_damaged_line_is_named_with_its_number(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl.zst"
    with Writer(path, HEADER) as writer:
        writer.write(some(1)[0])
    lines = zstandard.ZstdDecompressor().stream_reader(path.read_bytes()).read()
    path.write_bytes(zstandard.compress(lines + b"{broken\n" + lines.splitlines(keepends=True)[1]))
    _, found = read(path)
    with pytest.raises(UserError, match=r"r\.jsonl\.zst:3"):
        list(found)


def recorded_run(tmp_path: Path) -> tuple[Path, str]:
    """The records of an experiment that spreads and is halted, as `gpuchaos record` would have written them."""
    machine, path = Machine(), tmp_path / "run.jsonl.zst"
    given: list[Recorded] = []
    give = machine.give
    machine.give = lambda batch, crash=None: (given.extend(batch), give(batch, crash))[1]  # type: ignore[method-assign]
    experiment = play(machine, [])
    out = [
        Recorded(record.topic.name, 1, number, int((T0 + 100) * 1000), None, record.value)
        for number, record in enumerate(machine.sent)
        if record.topic is topics.EXPERIMENTS
    ]
    with Writer(path, HEADER) as writer:
        for record in [*given, *out]:
            writer.write(record)
    return path, experiment


def test_replay_gives_the_live_verdict_twice_the_same(tmp_path: Path) -> None:
    path, experiment = recorded_run(tmp_path)
    first, second = (judge(*read(path)) for _ in range(2))
    assert first.experiments == second.experiments
    assert first.incidents == second.incidents
    live, again = first.live[experiment], first.experiments[experiment]
    assert (again.verdict, again.recovery, again.blast_radius) == (live.verdict, live.recovery, live.blast_radius)
    assert [halt.id for halt in again.halts] == [halt.id for halt in live.halts]


def test_replay_says_as_live_and_differs_under_other_rules(tmp_path: Path) -> None:
    path, _ = recorded_run(tmp_path)
    assert PLAN.limits.gpus == 0
    same = CliRunner().invoke(replay, [str(path), "-o", "json"])
    assert (same.exit_code, '"as_live": true' in same.output) == (0, True)
    quiet = tmp_path / "quiet.yaml"
    quiet.write_text(
        "groups:\n  - name: q\n    rules:\n      - {name: q, expr: blast.gpus > 1000, action: notify,"
        " annotations: {summary: q}}\n"
    )
    other = CliRunner().invoke(replay, [str(path), "--rules", str(quiet)])
    assert other.exit_code == 1
    assert "live:" in other.output
    assert HINT not in same.output + other.output


@pytest.mark.parametrize(("lost", "shown"), [(topics.COMMANDS, " records of "), (topics.ANOMALIES, "ttd -  ")])
def test_replay_of_a_recording_that_lacks_records_says_so(tmp_path: Path, lost: topics.Topic, shown: str) -> None:
    path, _ = recorded_run(tmp_path)
    header, records = read(path)
    late = tmp_path / "late.jsonl.zst"
    with Writer(late, header) as writer:
        for record in records:
            if record.topic != lost.name:
                writer.write(record)
    result = CliRunner().invoke(replay, [str(late)])
    assert HINT in result.stderr
    assert shown in result.stdout


def test_missing_recording_ends_with_status_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["replay", str(tmp_path / "none.zst")])
    assert end.value.code == 2
    assert "none.zst" in capsys.readouterr().err
