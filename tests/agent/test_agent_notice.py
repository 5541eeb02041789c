from __future__ import annotations

import select
from pathlib import Path

import pytest

from gpuchaos_agent.notice import Notice


def told(notice: Notice) -> bool:
    descriptor = notice.fileno()
    assert descriptor is not None
    return bool(select.select([descriptor], [], [], 0)[0])


def test_a_file_moved_into_place_written_or_deleted_is_told_once_until_the_next_change(tmp_path: Path) -> None:
    notice = Notice(tmp_path)
    assert not told(notice)
    (tmp_path / ".a.tmp").write_text("x")
    (tmp_path / ".a.tmp").replace(tmp_path / "a.json")
    assert told(notice)
    notice.take()
    assert not told(notice)
    (tmp_path / "a.json").unlink()
    assert told(notice)
    notice.take()
    assert not told(notice)
    notice.close()
    notice.close()
    assert notice.fileno() is None


def test_a_folder_that_goes_away_tells_nothing_more_and_says_so(tmp_path: Path) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    notice = Notice(folder)
    folder.rename(tmp_path / "other")
    assert told(notice)
    notice.take()
    assert notice.fileno() is None


def test_a_folder_that_is_not_there_is_told_by_nobody(tmp_path: Path) -> None:
    assert Notice(tmp_path / "none").fileno() is None


def test_where_the_kernel_refuses_the_clock_has_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def inotify_init1(self, flags: int) -> int:
            return -1

    monkeypatch.setattr("gpuchaos_agent.notice.ctypes.CDLL", lambda _: Refusing())
    notice = Notice(tmp_path)
    assert notice.fileno() is None
    notice.take()
    notice.close()
