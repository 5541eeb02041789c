"""Two nodes and a database as network namespaces of this machine, and seven of the faults. Needs root."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import httpx
from lab.bmc import PASSWORD, USER, IpmiNode, ipmi
from lab.databases import PASSWORD as DATABASE_PASSWORD
from lab.databases import Database, postgres
from lab.hosts import Host, host, needs, switch

from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.house import House
from nine_faults.trial import EXAMPLES, Trial

CLUSTER: Final = "nine-faults"
CELL: Final = "here"
FAULTS: Final = (
    "network-partition",
    "service-latency",
    "database-outage",
    "storage-disconnect",
    "memory-corruption",
    "certificate-expiry",
    "power-cycle",
)
CONTROL, A, B, STORE = "control", "node-a", "node-b", "store"
ADDRESS: Final = {CONTROL: "10.77.0.1", A: "10.77.0.11", B: "10.77.0.12", STORE: "10.77.0.20"}
#: Ports: the workload's page, the database, rank 0, the agents' own page.
PAGE, DATABASE, RANKS, HEALTH = 8090, 5432, 29500, 9470
#: Longest that a part may take to come up, seconds.
PATIENCE: Final = 120.0
#: A process has no own past before that, seconds (`warmup` of the detector, and what it takes to tell).
WARM: Final = 40.0


class Here:
    """The site. Its parts are made by `here`, and end with it."""

    name = "namespaces"
    cluster = CLUSTER

    def __init__(self, folder: Path, run: Path, node: IpmiNode) -> None:
        self._folder = folder
        self._run = run
        self._node = node
        #: The attempt that trains, and since when it is known to.
        self._attempt: int | None = None
        self._since = 0.0

    def status(self) -> dict[str, Any]:
        """See `Site`."""
        try:
            found: dict[str, Any] = httpx.get(f"http://127.0.0.1:{PAGE}/status", timeout=5).json()
        except (httpx.HTTPError, ValueError):
            return {}
        return found

    def ready(self) -> None:
        """See `Site`."""
        deadline = time.monotonic() + PATIENCE
        while True:
            said = self.status()
            if said.get("state") != "running" or said.get("attempt") != self._attempt:
                self._attempt, self._since = said.get("attempt"), time.monotonic()
            if time.monotonic() - self._since > WARM:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"the workload does not train: {said.get('last_failure') or said}")
            time.sleep(0.5)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """See `Site`."""
        words = {
            "http://n001:8090": f"http://127.0.0.1:{PAGE}",
            "db:5432": f"{ADDRESS[STORE]}:{DATABASE}",
            "n001:29500": f"{ADDRESS[A]}:{RANKS}",
            "n002:29501": f"{ADDRESS[B]}:{RANKS + 1}",
            "n001:22": f"{ADDRESS[B]}:{HEALTH}",
            "10.0.0.12, 10.0.0.13": ADDRESS[A],
            "/data/workload/checkpoints": str(self._folder / "volume"),
            "/data/workload/tls": str(self._run / "tls"),
            "/etc/gpuchaos/workload-ca.pem": str(self._run / "tls" / "ca.pem"),
            "/etc/gpuchaos/db-password": str(self._folder / "db-password"),
            "user: training": "user: postgres",
        }
        on_a, on_b = {**words, "n001": A, "n002": B}, {**words, "n001": B, "n002": A}
        pidfile = str(self._run / "pids" / "rank0.pid")
        return (
            Trial("database-away.yaml", on_a),
            Trial("slow-service.yaml", on_a),
            Trial(
                "expired-certificate.yaml",
                on_a,
                {"fault.params.reload": "signal", "fault.params.pidfile": pidfile},
            ),
            Trial("full-volume.yaml", on_a, provoke=self._resume),
            Trial("corrupt-checkpoint.yaml", on_a, provoke=self._resume, met=_read_the_damaged_one),
            Trial("partitioned-node.yaml", on_b),
            Trial("powerless-node.yaml", on_b),
        )

    def _resume(self) -> None:
        """As when nodes join an elastic run: only who resumes reads a checkpoint."""
        resume = [sys.executable, "-m", "workload", "resume", str(self._run)]
        subprocess.run(resume, env={**os.environ, "PYTHONPATH": str(EXAMPLES)}, check=True)


def _read_the_damaged_one(before: dict[str, Any], after: dict[str, Any]) -> bool:
    """Not where a newer checkpoint was saved between the damage and the resume."""
    loaded = int(after.get("bad_weights_loaded", 0)) > int(before.get("bad_weights_loaded", 0))
    return loaded or len(after.get("refused") or []) > len(before.get("refused") or [])


@contextlib.contextmanager
def network(control: Host) -> Iterator[dict[str, Host]]:
    """The hosts on one switch; `control` is this process's own namespace."""
    with contextlib.ExitStack() as stack:
        hosts = {name: stack.enter_context(host(name)) for name in (A, B, STORE)}
        switch(control, f"{ADDRESS[CONTROL]}/24", {each: f"{ADDRESS[name]}/24" for name, each in hosts.items()})
        yield {CONTROL: control, **hosts}


@contextlib.contextmanager
def here(house: House, hosts: Mapping[str, Host], folder: Path, *, checksums: bool = True) -> Iterator[Here]:
    """Everything, up and running, on the hosts of `network`; `house` has its broker at the address of `CONTROL`.

    Raises:
        MissingError: a program is not here.
    """
    needs("ip", "nft", "nsenter", "mount")
    run = folder / "run"
    run.mkdir(parents=True)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(postgres(hosts[STORE], DATABASE))
        (folder / "db-password").write_text(DATABASE_PASSWORD)
        stack.enter_context(_volume(folder / "volume"))
        links = {name: folder / f"{name}.net" for name in (A, B)}
        links[A].symlink_to(f"/proc/{hosts[A].pid}/ns/net")
        bmc = folder / "bmc"
        bmc.mkdir()
        (bmc / "password").write_text(PASSWORD)
        settings_b = _settings(folder, run, B, (1, 3))
        node = stack.enter_context(_powered(bmc, hosts[B], hosts[CONTROL], links[B], house, settings_b))
        reach: dict[str, Any] = {"bmcs": {B: {"url": node.url, "user": USER, "password_file": str(bmc / "password")}}}
        reach |= {"corruptible": [str(folder / "volume")]}
        settings_a = _settings(folder, run, A, (0, 2), **reach)
        workload = _workload(house, run, folder, links, database, checksums=checksums)
        agent = house.start("agent-a", *_inside(hosts[A], *_agent(house, settings_a)))
        workload.wait_for("ranks on ports")
        agent.wait_for("ready")
        yield Here(folder, run, node)


def _inside(at: Host, *argv: str) -> tuple[str, ...]:
    return ("nsenter", f"--net=/proc/{at.pid}/ns/net", *argv)


def _agent(house: House, settings: Path) -> tuple[str, ...]:
    return (sys.executable, "-m", "gpuchaos_agent.agent", "--config", str(settings), "--keyring", str(house.keyring))


@contextlib.contextmanager
def _volume(at: Path) -> Iterator[None]:
    """A filesystem of its own for the checkpoints."""
    at.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "checkpoints", str(at)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=True)


def _settings(folder: Path, run: Path, node: str, ranks: tuple[int, ...], **more: Any) -> Path:
    jobs = [
        {
            "job": "workload",
            "pidfile": str(run / "pids" / f"rank{rank}.pid"),
            "heartbeat": str(run / "heartbeat" / f"rank{rank}.json"),
            **({"log": str(run / "train.log")} if rank == ranks[0] else {}),
        }
        for rank in ranks
    ]
    settings = {
        "cluster": CLUSTER,
        "cell": CELL,
        "node": node,
        "rack": f"rack-{node}",
        "state_dir": str(folder / f"{node}-state"),
        "http_host": "0.0.0.0",  # noqa: S104  (of a namespace)
        "http_port": HEALTH,
        "jobs": jobs,
        **more,
    }
    path = folder / f"{node}.yaml"
    path.write_text(json.dumps(settings))
    return path


@contextlib.contextmanager
def _powered(bmc: Path, at: Host, control: Host, link: Path, house: House, settings: Path) -> Iterator[IpmiNode]:
    """A node that `ipmi_sim` has in its power: with it the agent runs and the cable is plugged in."""
    port = shlex.quote(f"to-{at.name}")
    enter = f"nsenter --net=/proc/{control.pid}/ns/net"
    exports = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in house.env.items())
    log = shlex.quote(str(house.folder / "logs" / "agent-b.log"))
    on = f"""{exports}
{enter} ip link set {port} up
ln -sfn /proc/{at.pid}/ns/net {shlex.quote(str(link))}
exec {shlex.join(_inside(at, *_agent(house, settings)))} >>{log} 2>&1
"""
    off = f"""rm -f {shlex.quote(str(link))}
{enter} ip link set {port} down
net=$(readlink /proc/{at.pid}/ns/net)
for each in /proc/[0-9]*; do
  pid=${{each#/proc/}}
  [ "$(readlink "$each/ns/net" 2>/dev/null)" = "$net" ] && [ "$pid" != {at.pid} ] && kill -9 "$pid"
done
"""
    (house.folder / "logs").mkdir(exist_ok=True)
    with ipmi(bmc, address=ADDRESS[CONTROL], on=on, off=off) as node:
        yield node
    subprocess.run(["sh", "off.sh"], cwd=bmc, check=False)


def _workload(
    house: House, run: Path, folder: Path, links: Mapping[str, Path], database: Database, *, checksums: bool
) -> Child:
    url = f"postgresql://postgres:{DATABASE_PASSWORD}@{ADDRESS[STORE]}:{database.port}/postgres"
    argv = [
        *(sys.executable, "-m", "workload", "run", "--folder", str(run), "--ranks", "4", "--tls"),
        *("--hosts", f"{ADDRESS[A]},{ADDRESS[B]}", "--netns", f"{links[A]},{links[B]}", "--port", str(RANKS)),
        *("--checkpoints", str(folder / "volume"), "--checkpoint-every", "120", "--database", url),
        *("--status-port", str(PAGE), "--watchdog", "4", "--relink-every", "10", "--renew-every", "8"),
        "--checksums" if checksums else "--no-checksums",
    ]
    return house.start("workload", "env", f"PYTHONPATH={EXAMPLES}", *argv)
