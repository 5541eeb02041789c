from __future__ import annotations

import ctypes
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from nvml_fake import Fake, build


@pytest.fixture(scope="session")
def nvml_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the fake `libnvidia-ml.so.1` is."""
    if shutil.which("gcc") is None and not os.environ.get("CI"):
        pytest.skip("gcc is not installed: the fake NVML library cannot be built")
    folder = tmp_path_factory.mktemp("nvml")
    build(folder)
    return folder


@pytest.fixture(scope="session")
def nvml_library(nvml_folder: Path) -> ctypes.CDLL:
    return ctypes.CDLL(str(nvml_folder / "libnvidia-ml.so.1"))


@pytest.fixture
def fake(nvml_library: ctypes.CDLL, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """The real binding on the fake library, with a world of its own; afterwards the binding knows no library."""
    import pynvml

    monkeypatch.setenv("FAKE_NVML_SCRIPT", str(tmp_path / "nvml.txt"))
    monkeypatch.setattr(pynvml, "nvmlLib", nvml_library)
    pynvml._nvmlGetFunctionPointer_cache.clear()
    yield Fake(nvml_library, tmp_path / "nvml.txt")
    (tmp_path / "nvml.txt").unlink()  # whatever hangs comes back
    pynvml._nvmlGetFunctionPointer_cache.clear()
