from __future__ import annotations

import os
import re
import shutil
import subprocess
import uuid
from collections.abc import Iterator

import pytest
from workload_kit import Start, faults

pytestmark = [pytest.mark.root, pytest.mark.soak]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


@pytest.fixture
def hosts() -> Iterator[tuple[str, str]]:
    """Two network namespaces, 10.77.0.1 and 10.77.0.2, joined by a wire."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("nft") is None:
        pytest.skip("network namespaces need root, iproute2 and nftables: run `make tools`")
    name = f"wl{uuid.uuid4().hex[:6]}"
    one, two = f"{name}a", f"{name}b"
    ip("netns", "add", one)
    ip("netns", "add", two)
    try:
        ip("-n", one, "link", "add", "wire", "type", "veth", "peer", "name", "wire", "netns", two)
        for host, address in ((one, "10.77.0.1/24"), (two, "10.77.0.2/24")):
            ip("-n", host, "address", "add", address, "dev", "wire")
            ip("-n", host, "link", "set", "wire", "up")
            ip("-n", host, "link", "set", "lo", "up")
        yield one, two
    finally:
        ip("netns", "delete", one)
        ip("netns", "delete", two)


def rules(host: str, text: str) -> None:
    subprocess.run(["ip", "netns", "exec", host, "nft", "-f", "-"], input=text, text=True, check=True)


CUT = "table inet cut {{\n chain out {{\n type filter hook output priority 0;\n {what}\n }}\n}}\n"


@pytest.mark.parametrize(
    ("what", "says"),
    [
        ("tcp dport 29501 drop", {"collective_timeout", "rendezvous_failed"}),
        ("tcp dport 29501 reject with tcp reset", {"peer_process_died"}),
    ],
)
def test_a_cut_between_two_hosts_stops_training_and_it_comes_back(
    start: Start, hosts: tuple[str, str], what: str, says: set[str]
) -> None:
    places = ("--hosts", "10.77.0.1,10.77.0.2", "--netns", ",".join(hosts))
    run = start(*places, "--ranks", "2", "--watchdog", "2")
    run.until_step(15)
    rules(hosts[0], CUT.format(what=what))
    run.until(lambda: run.state()["restarts"] >= 1, "a restart")
    run.until(lambda: says <= faults(run.log()), f"{says} in the log")
    step = int(re.findall(r" step=(\d+) loss", run.log())[-1])
    rules(hosts[0], "delete table inet cut\n")
    run.until(lambda: run.step() > step, "training beyond the cut")
    assert run.stop() == 0
    status = run.status()
    assert (status["data_lost"], status["bad_weights_loaded"], status["replayed_otherwise"]) == (0, 0, 0)
    assert status["restarts"] >= 1
