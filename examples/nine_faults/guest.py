"""A machine under QEMU with an RDMA port and two NUMA nodes, and the two faults that need them. Needs root."""

from __future__ import annotations

import contextlib
import json
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from lab.guest import MODULES, Guest
from lab.waiting import until

from gpuchaos_stream.stream.house import READY, House
from nine_faults.trial import EXAMPLES, Trial

#: A cluster of its own: that the nodes of the other sites are switched off meanwhile is no harm to this one.
CLUSTER: Final = "nine-faults-guest"
NODE: Final = "guest"
FAULTS: Final = ("numa-misalignment", "rdma-link")
#: The RDMA port, on a pair of interfaces of which the other end is rank 1's, in a namespace of its own.
PORT: Final = "rxe0"
RANKS: Final = ("10.78.0.1", "10.78.0.2")
#: The workload's folder in the guest, and the port of its page.
RUN, PAGE = "/run/workload", 8090
#: Longest that a part may take to come up, seconds: the processors are emulated.
PATIENCE: Final = 600.0
#: QEMU's own network, by which the guest reaches what this process does: the broker.
_QEMU: Final = ("-netdev", "user,id=way", "-device", "virtio-net-pci,netdev=way")
_NETWORK: Final = f"""
set -e
way=$(ls /sys/bus/virtio/drivers/virtio_net/virtio*/net)
ip addr add 10.0.2.15/24 dev $way
ip link set $way up
ip route add default via 10.0.2.2
ip netns add peer
ip link add rail0 type veth peer name rail0 netns peer
ip addr add {RANKS[0]}/24 dev rail0
ip -n peer addr add {RANKS[1]}/24 dev rail0
ip -n peer link set lo up
ip -n peer link set rail0 up
ip link set rail0 up
rdma link add {PORT} type rxe netdev rail0
"""


class GuestSite:
    """The site. Its parts are made by `guest`, and end with it."""

    name = "guest"
    cluster = CLUSTER

    def __init__(self, machine: Guest) -> None:
        self._machine = machine

    def status(self) -> dict[str, Any]:
        """See `Site`."""
        said = self._machine.run(f"wget -qO- -T 20 http://127.0.0.1:{PAGE}/status")
        try:
            found: dict[str, Any] = json.loads(said.out)
        except ValueError:
            return {}
        return found

    def ready(self) -> None:
        """See `Site`."""
        until(lambda: self.status().get("step", 0) > 50, PATIENCE)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """See `Site`. The port comes last: after it the ranks are other processes."""
        pid = self._machine.check(f"cat {RUN}/pids/rank1.pid").strip()
        slow = {"lease": "20s", "undo.deadline": "60s", "objectives": {"ttd": "20s", "ttm": "90s", "ttr": "180s"}}
        beside = {"fault.params.gpu_node": 0}
        return (
            Trial("misaligned-rank.yaml", {"n001/41873": f"{NODE}/{pid}", "n001": NODE}, {**slow, **beside}),
            Trial("downed-port.yaml", {"n001/mlx5_0": f"{NODE}/{PORT}", "n001": NODE}, slow),
        )


@contextlib.contextmanager
def guest(house: House, folder: Path, *, checksums: bool = True) -> Iterator[GuestSite]:
    """The machine with its agent and its workload, training; from the main thread, with which the machine ends.

    Raises:
        MissingError: QEMU or its kernel is not here.
    """
    folder.mkdir(parents=True)
    modules = (*MODULES["rdma"], "virtio_net")
    with Guest(cpus=2, numa_nodes=2, modules=modules, folder=folder, qemu_args=_QEMU) as machine:
        machine.check(_NETWORK)
        # As a launcher does it: the ranks run on the NUMA node of their GPUs. A fault that moves one is then seen.
        _start(machine, "workload", "taskset", "-c", "0", *_workload(checksums=checksums))
        shutil.copy(house.keyring, folder / "keyring.json")
        (folder / "agent.yaml").write_text(json.dumps(_settings()))
        agent = ("gpuchaos_agent.agent", "--config", "/out/agent.yaml", "--keyring", "/out/keyring.json")
        _start(machine, "agent", "env", *(f"{k}={v}" for k, v in house.env.items()), sys.executable, "-m", *agent)
        until(lambda: READY in (folder / "agent.log").read_text(), PATIENCE)
        site = GuestSite(machine)
        site.ready()
        yield site


def _start(machine: Guest, name: str, *argv: str) -> None:
    """A process that is left running; what it says is in the folder."""
    command = shlex.join(("env", f"PYTHONPATH={EXAMPLES}", *argv))
    machine.check(f"cd /run; touch /out/{name}.log; setsid {command} </dev/null >>/out/{name}.log 2>&1 &")


def _workload(*, checksums: bool) -> tuple[str, ...]:
    return (
        *(sys.executable, "-m", "workload", "run", "--folder", RUN, "--ranks", str(len(RANKS))),
        *("--hosts", ",".join(RANKS), "--netns", "/proc/1/ns/net,/run/netns/peer", "--status-port", str(PAGE)),
        *("--checkpoint-every", "50", "--watchdog", "15", "--pause", "0.4"),
        "--checksums" if checksums else "--no-checksums",
    )


def _settings() -> dict[str, Any]:
    jobs = [
        {
            "job": "workload",
            "pidfile": f"{RUN}/pids/rank{rank}.pid",
            "heartbeat": f"{RUN}/heartbeat/rank{rank}.json",
            "numa_node": 0,
            **({"log": f"{RUN}/train.log"} if rank == 0 else {}),
        }
        for rank in range(len(RANKS))
    ]
    return {
        "cluster": CLUSTER,
        "cell": NODE,
        "node": NODE,
        "rack": "rack-guest",
        "state_dir": "/run/agent",
        "jobs": jobs,
    }
