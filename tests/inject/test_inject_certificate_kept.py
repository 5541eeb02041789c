"""`certificate-expiry` while its file is changed, moved, or out of reach: the right certificate is never lost."""

from __future__ import annotations

import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from certificate_kit import Authority, Server, at, authority, entry, fault, server, signalled
from storage_kit import mounted

from gpuchaos_agent.inject import certificates, reload, tls_look
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.journal import JournalEntry, Scalar


@pytest.fixture
def ca(tmp_path: Path) -> Authority:
    return authority(tmp_path)


@pytest.fixture
def running(ca: Authority) -> Iterator[Server]:
    with server(ca) as made:
        yield made


def injected(ca: Authority, running: Server, folder: Path, **fields: Scalar) -> JournalEntry:
    standing = entry(fault(folder), signalled(ca, running, **fields))
    fault(folder).inject(standing)
    assert fault(folder).evidence(standing).moved
    return standing


def undone(standing: JournalEntry, folder: Path) -> None:
    """Twice, each time from the journal's entry alone, and seen to be gone."""
    for _ in range(2):
        fault(folder).undo(standing)
        assert fault(folder).verify(standing)


def copies(folder: Path) -> list[Path]:
    return [path for path in (folder / "state").iterdir() if path.is_file()]


@pytest.mark.parametrize("runs", [True, False])
def test_our_own_certificate_in_a_file_that_somebody_touched_is_no_renewal(
    ca: Authority, running: Server, tmp_path: Path, *, runs: bool
) -> None:
    right = ca.cert_file.read_bytes()
    standing = injected(ca, running, tmp_path)
    with ca.cert_file.open("ab") as file:
        file.write(b"# touched\n")
    assert not fault(tmp_path).verify(standing)
    if not runs:
        running.process.kill()
        running.process.wait()
    undone(standing, tmp_path)
    assert ca.cert_file.read_bytes() == right + b"# touched\n"
    assert fault(tmp_path).verify(standing)
    assert not copies(tmp_path)
    if runs:
        assert tls_look.distrust(at(ca, running.port)) is None


def test_copy_whose_writing_a_kill_has_cut_off_is_removed(ca: Authority, running: Server, tmp_path: Path) -> None:
    standing = entry(fault(tmp_path), signalled(ca, running))
    copy = Path(str(standing.payload["copy"]))
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.with_name(f".{copy.name}.tmp").write_bytes(b"half of it")
    undone(standing, tmp_path)
    assert not copies(tmp_path)


def test_our_own_certificate_is_known_however_it_is_wrapped_and_wherever_it_is(
    ca: Authority, running: Server, tmp_path: Path
) -> None:
    right = certificates.leaf_of(ca.cert_file.read_bytes())
    standing = injected(ca, running, tmp_path)
    lines = str(standing.payload["leaf"]).split("\n")
    wrapped = "\r\n".join([lines[0], "".join(lines[1:-2])[:100], "".join(lines[1:-2])[100:], lines[-2], ""])
    renewed = ca.issue()
    ca.cert_file.write_bytes(renewed + wrapped.encode() + b"# end\n")
    assert not fault(tmp_path).verify(standing)
    undone(standing, tmp_path)
    content = ca.cert_file.read_bytes()
    assert content.startswith(renewed), "what was renewed stays"
    assert content.endswith(b"# end\n")
    assert certificates.holds(content, certificates.digest(right))
    assert not certificates.holds(content, str(standing.payload["leaf_digest"]))


def test_copy_is_kept_while_somebody_puts_the_wrong_certificate_back(
    ca: Authority, running: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = ca.cert_file.read_bytes()
    standing = injected(ca, running, tmp_path)
    wrong = ca.cert_file.read_bytes()
    running.process.kill()
    running.process.wait()
    with monkeypatch.context() as patch:  # when the server is told, as whoever keeps configurations does
        patch.setattr(reload, "tell", lambda *_: ca.cert_file.write_bytes(wrong))
        with pytest.raises(InjectError, match="put the wrong certificate back"):
            fault(tmp_path).undo(standing)
    assert not fault(tmp_path).verify(standing)
    assert copies(tmp_path)
    undone(standing, tmp_path)
    assert ca.cert_file.read_bytes() == right
    assert not copies(tmp_path)


def test_file_without_a_certificate_is_not_undone_and_the_copy_is_kept(
    ca: Authority, running: Server, tmp_path: Path
) -> None:
    right = ca.cert_file.read_bytes()
    standing = injected(ca, running, tmp_path)
    ca.cert_file.write_bytes(b"# being written\n")
    with pytest.raises(InjectError, match=f"{copies(tmp_path)[0]} is the right file"):
        fault(tmp_path).undo(standing)
    assert copies(tmp_path)
    ca.cert_file.write_bytes(b"")  # as after a full disk: there is nothing in it that is anybody's
    undone(standing, tmp_path)
    assert ca.cert_file.read_bytes() == right


@pytest.mark.root
def test_volume_of_the_file_that_is_away_leaves_it_not_undone_and_the_copy_kept(ca: Authority, tmp_path: Path) -> None:
    with mounted(tmp_path) as where:
        real = where / "tls/server.pem"
        real.parent.mkdir()
        right = ca.cert_file.read_bytes()
        ca.cert_file.rename(tmp_path / "x")
        real.write_bytes(right)
        (tmp_path / "x").unlink()
        ca.cert_file.symlink_to(real)
        with server(ca) as running:
            standing = injected(ca, running, tmp_path)
        subprocess.run(["umount", str(where)], check=True)
        try:
            real.parent.mkdir()  # below the mount: it looks as if it were the folder
            for step in (fault(tmp_path).undo, fault(tmp_path).verify):
                with pytest.raises(InjectError, match="mount it again"):
                    step(standing)
            assert not list(real.parent.iterdir())
            assert copies(tmp_path)
        finally:
            subprocess.run(["mount", "-o", "loop", str(tmp_path / "image"), str(where)], check=True)
        undone(standing, tmp_path)
        assert real.read_bytes() == right
        assert not copies(tmp_path)


@pytest.mark.root
def test_folder_that_was_renamed_is_told_and_the_copy_kept(ca: Authority, tmp_path: Path) -> None:
    (tmp_path / "tls").mkdir()
    ca.cert_file.rename(tmp_path / "tls/server.pem")
    ca.cert_file.symlink_to(tmp_path / "tls/server.pem")
    right = ca.cert_file.read_bytes()
    with server(ca) as running:
        standing = injected(ca, running, tmp_path)
    if standing.payload["handle"] is None:
        pytest.skip("this filesystem has no file handles (a matter of the filesystem, not of a GPU)")
    (tmp_path / "tls").rename(tmp_path / "old")
    with pytest.raises(InjectError, match=f"it is {tmp_path}/old now"):
        fault(tmp_path).undo(standing)
    assert copies(tmp_path)
    (tmp_path / "old").rename(tmp_path / "tls")
    undone(standing, tmp_path)
    assert (tmp_path / "tls/server.pem").read_bytes() == right


def test_dry_run_of_paths_with_blanks_can_be_typed(tmp_path: Path) -> None:
    folder = tmp_path / "my tls"
    folder.mkdir()
    ca = authority(folder)
    with server(ca) as running:
        lines = fault(folder).commands(entry(fault(folder), signalled(ca, running)))
    words = [shlex.split(line, comments=True) for line in lines]
    assert words[0][2] == str(ca.cert_file)
    assert words[1][-1] == words[3][-1] == str(ca.cert_file)
