"""Everything that Prometheus scrapes, for tests: a worker, an agent with made-up devices, notify, and experiments run.

The agent is the real one: its cards come from the fake NVML library, its ports, NUMA nodes and PCI from a tree of
files, its job is a real process. The cluster around it is simulated.
"""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from nvml_fake import build, healthy, write
from observe_prometheus import Prometheus, free_port, prometheus, until

from gpuchaos_stream.stream.brokers import Kind
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import READY, House

CLUSTER: Final = "demo"
#: The agent's node, its cell, its job.
NODE: Final = "host-0"
CELL: Final = "host"
JOB: Final = "toy"
#: Ids of the experiments: one that recovers in time, one that a person stops.
SMALL: Final = "small-1"
CUT: Final = "cut-1"

_GPUCHAOS: Final = (sys.executable, "-m", "gpuchaos_stream.cli")


@dataclass
class Site:
    """What runs, with the ports of worker and agent; the experiments `SMALL` and `CUT` are over."""

    prometheus: Prometheus
    worker: int
    agent: int

    def page(self, port: int) -> str:
        """What a process exports."""
        return httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=5).text


@contextlib.contextmanager
def running_site(folder: Path, broker: Kind) -> Iterator[Site]:
    """Starts it all, runs the experiments, and waits until Prometheus knows how they ended."""
    own = free_port()
    with House(folder, broker=broker) as house, _receiver() as told:
        worker = house.worker("worker", "--status-port", "0")
        sim = house.sim("--cluster", CLUSTER, "--nodes", "16", "--cells", "2")
        notify = house.start("notify", *_GPUCHAOS, "notify", *_notify(folder, told))
        agent = _agent(house, own)
        for child in (worker, sim, agent):
            child.wait_for(READY, 90)
        ports = {
            "gpuchaos-worker": _port(worker, r"127\.0\.0\.1:(\d+)/metrics"),
            "gpuchaos-agent": own,
            "gpuchaos-notify": _port(notify, r"127\.0\.0\.1:(\d+)"),
        }
        with prometheus(folder / "prometheus", ports) as scraping:
            cut = _experiment(
                house, CUT, plan("cut", "process/n012/4100", job="train-c1-0", duration="60s", ttr="120s")
            )
            small = _experiment(
                house, SMALL, plan("small", "process/n001/4100", job="train-c0-0", duration="3s", ttr="30s")
            )
            here = f'gpuchaos_experiment_info{{experiment_id="{CUT}", status="active"}}'
            until(lambda: scraping.query(here) or not cut.running, 90, f"{CUT} does not become active")
            assert cut.running, cut.tail()
            words = ("experiment", "stop", CUT, "--reason", "enough is seen", "--cluster", CLUSTER)
            subprocess.run([*_GPUCHAOS, *words], env=house.env, check=True, capture_output=True, timeout=60)
            until(lambda: not (small.running or cut.running), 90, "the experiments do not end")
            assert (small.status, cut.status) == (0, 1), small.tail() + cut.tail()
            over = 'gpuchaos_experiment_info{status="finished"}'
            until(lambda: len(scraping.query(over)) == 2, 30, "the experiments' ends are not told")
            yield Site(scraping, ports["gpuchaos-worker"], own)


def plan(name: str, target: str, *, job: str, duration: str, ttr: str) -> dict[str, Any]:
    """A rank of a job of eight nodes is stopped, which those may feel."""
    return {
        "api_version": "gpuchaos/v1",
        "kind": "Experiment",
        "name": name,
        "description": "a rank is stopped",
        "owner": "tests",
        "fault": {"name": "process-stop", "certifies": ["hang-detection"]},
        "targets": {"entities": [target]},
        "duration": duration,
        "lease": "3s" if duration == "3s" else "20s",
        "undo": {"method": "automatic"},
        "limits": {"gpus": 512, "nodes": 8, "jobs": 0, "gpu_seconds": 900},
        "settle": "2s",
        "steady_state": {
            "hold": "2s",
            "checks": [{"name": "up", "telemetry": {"of": f"job/{job}", "metric": "running", "op": ">=", "value": 1}}],
        },
        "objectives": {"ttd": "10s", "ttm": ttr, "ttr": ttr},
    }


def _experiment(house: House, name: str, what: dict[str, Any]) -> Child:
    path = house.folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(what))
    return house.start(name, *_GPUCHAOS, "experiment", "run", str(path), "--cluster", CLUSTER, "--id", name)


def _port(child: Child, pattern: str) -> int:
    found = until(lambda: re.search(pattern, child.said()), 30, f"{child.name} names no port")
    return int(found[1])


def _agent(house: House, port: int) -> Child:
    folder = house.folder
    log, pidfile = folder / "toy.log", folder / "toy.pid"
    job = house.start(
        "job", sys.executable, "-m", "gpuchaos_stream.sim.toy_job", *("--log", str(log), "--pidfile", str(pidfile))
    )
    job.wait_for(READY)
    library, cards = folder / "nvml", folder / "cards.txt"
    library.mkdir()
    build(library)
    write(cards, [*healthy(2), f"process * {pidfile.read_text()} {40 << 30} 0xffffffff 0xffffffff"])
    config = folder / "agent.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "cell": CELL,
                "jobs": [{"job": JOB, "pidfile": str(pidfile), "log": str(log), "gpu": "0", "numa_node": 0}],
                "rails": {"mlx5_0": "0", "mlx5_1": "1"},
                "sysfs": str(devices(folder / "sys")),
                "http_port": port,
            }
        )
    )
    return house.start(
        NODE,
        "env",
        f"LD_LIBRARY_PATH={library}",
        f"FAKE_NVML_SCRIPT={cards}",
        *(sys.executable, "-m", "gpuchaos_agent.agent", "--config", str(config)),
        *("--cluster", CLUSTER, "--node", NODE, "--keyring", str(house.keyring)),
        *("--state-dir", str(folder / "state")),
    )


def devices(root: Path) -> Path:
    """A tree of sysfs with two RDMA ports and two NUMA nodes, as the kernel lays them out."""
    tree = {
        "devices/system/node/online": "0-1",
        # Every CPU of this machine is on the first.
        "devices/system/node/node0/cpulist": "0-1023",
        "devices/system/node/node1/cpulist": "1024-1027",
    }
    for node, distance in ((0, "10 21"), (1, "21 10")):
        tree |= {
            f"devices/system/node/node{node}/distance": distance,
            f"devices/system/node/node{node}/meminfo": "Node 0 MemTotal: 1000 kB\nNode 0 MemFree: 300 kB\n",
            f"devices/system/node/node{node}/numastat": "local_node 100\nother_node 10\n",
        }
    for card in (0, 1):
        port = f"class/infiniband/mlx5_{card}/ports/1"
        tree |= {
            f"{port}/link_layer": "InfiniBand",
            f"{port}/state": "4: ACTIVE",
            f"{port}/phys_state": "5: LinkUp",
            f"{port}/rate": "400 Gb/sec (4X NDR)",
            f"{port}/hw_counters/lifespan": "12",
        }
        for counter in ("port_rcv_data", "port_xmit_data", "symbol_error", "link_downed", "port_rcv_errors"):
            tree[f"{port}/counters/{counter}"] = "3"
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    return root


def _notify(folder: Path, port: int) -> tuple[str, ...]:
    config = folder / "notify.yaml"
    receiver = {"name": "ledger", "type": "webhook", "url": f"http://127.0.0.1:{port}/", "allow_private": True}
    told = {"api_version": "gpuchaos/v1", "kind": "Notify", "receivers": [receiver]}
    config.write_text(yaml.safe_dump(told | {"routes": [{"receivers": ["ledger"]}]}))
    return "--config", str(config), "--data-dir", str(folder / "notify"), "--status-port", "0"


@contextlib.contextmanager
def _receiver() -> Iterator[int]:
    """Somebody who takes every message; the port."""

    class Taker(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Taker)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
