"""One guest for the whole session: it boots once, and the agent's eyes are open in it from then on."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from guest_facts import Facts
from lab.guest import MODULES, Guest

ROOT: Final = Path(__file__).resolve().parents[2]
#: Files whose tests take minutes under emulation: run by `make soak`.
SLOW: Final = ("test_guest_fault_", "test_guest_capture")
#: What the watcher in the guest knows of: two processes that the GPU's NUMA node is told for.
SOURCES: Final[dict[str, Any]] = {
    "state_dir": "/run/watch",
    "jobs": [
        {"job": "near", "pidfile": "/run/near.pid", "numa_node": 0},
        {"job": "far", "pidfile": "/run/far.pid", "numa_node": 0},
    ],
}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test that asks for the guest also pays for its boot; faults in an emulated machine take minutes."""
    for item in items:
        if item.path.name.startswith(SLOW):
            item.add_marker(pytest.mark.soak)
        if "guest" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(240))


@pytest.fixture(scope="session")
def guest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guest]:
    """The session's guest: two NUMA nodes, the modules loaded with which hardware's words can be made."""
    names = ("rdma", "mce", "aer", "nfs", "hwpoison")
    modules = tuple(module for name in names for module in MODULES[name])
    folder = tmp_path_factory.mktemp("guest")
    with Guest(memory_mb=1024, cpus=2, numa_nodes=2, modules=modules, folder=folder) as started:
        yield started


@pytest.fixture(scope="session")
def seen(guest: Guest) -> Facts:
    """What the agent's collectors say in the guest. They run until the session ends."""
    (guest.folder / "sources.json").write_text(json.dumps(SOURCES))
    command = shlex.join([str(ROOT / ".venv/bin/python"), str(Path(__file__).with_name("guest_watch.py"))])
    guest.check(f"setsid {command} /out/sources.json /out/facts.jsonl </dev/null >/out/watch.log 2>&1 &")
    log = guest.folder / "watch.log"
    facts = Facts(
        guest.folder / "facts.jsonl", lambda: f"{log.read_text()[-2000:]} {guest.check('dmesg | tail -n 30')}"
    )
    facts.wait_ready(90)
    return facts
