"""Every fault on something real, for the kills: where it stands, what the agent is told, and how it looks from outside.

The look is never by the fault's own code: the kernel, the server or the file is asked. A frozen or hanging thing is
asked by a process that may hang.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from certificate_kit import NAME, authority, server
from kill_ground import AWAY, ECHO, NODE, POSTGRES, REDIS, Ground, Thing, links, rules
from lab import bmc
from lab.databases import postgres, redis
from lab.missing import MissingError
from lab.waiting import until
from storage_kit import mounted

from gpuchaos_agent.inject import registry, storage_child
from gpuchaos_agent.inject.thread_masks import listed
from gpuchaos_agent.journal import Scalar

_PORT = "mlx5_0"


#: Made for one test on the ground, in a folder of its own.
Make = Callable[[Ground, Path], AbstractContextManager[Thing]]


# Processes


@contextmanager
def stopped_process(_: Ground, folder: Path) -> Iterator[Thing]:
    with subprocess.Popen(["sleep", "infinity"], cwd=folder) as process:
        try:
            yield Thing(f"process/{NODE}/{process.pid}", {}, partial(_is_stopped, process.pid), {"any_process": True})
        finally:
            process.kill()


def _is_stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@contextmanager
def misplaced_process(ground: Ground, folder: Path) -> Iterator[Thing]:
    """Threads with masks of their own, on a machine whose processors are told to be two nodes."""
    here = sorted(os.sched_getaffinity(0))
    if len(here) < 2:
        raise MissingError("needs two processors")
    sysfs = _tree(ground, folder)
    nodes = sysfs / "devices/system/node"
    for number, cpus in ((0, here[:-1]), (1, here[-1:])):
        (nodes / f"node{number}").mkdir(parents=True)
        (nodes / f"node{number}/cpulist").write_text(listed(cpus))
        (nodes / f"node{number}/distance").write_text("10 20" if number == 0 else "20 10")
    (nodes / "online").write_text("0-1")
    code = (
        "import os, threading, time\n"
        f"for mask in ({{{here[0]}}}, {{{here[-1]}}}):\n"
        "    def run(mask=mask): os.sched_setaffinity(0, mask), time.sleep(9e5)\n"
        "    threading.Thread(target=run, daemon=True).start()\n"
        "print('ready', flush=True)\ntime.sleep(9e5)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=folder) as process:
        try:
            until(lambda: len(set(_masks(process.pid))) == 3)
            job = {"job": "llama", "pid": process.pid}
            params: dict[str, Scalar] = {"gpu_node": 0, "memory": False}
            yield Thing(
                f"process/{NODE}/{process.pid}",
                params,
                partial(_masks, process.pid),
                {"jobs": [job]},
                ("--sysfs", str(sysfs)),
            )
        finally:
            process.kill()


def _masks(pid: int) -> list[tuple[int, ...]]:
    threads = sorted(int(path.name) for path in Path(f"/proc/{pid}/task").iterdir())
    return [tuple(sorted(os.sched_getaffinity(thread))) for thread in threads]


def _tree(ground: Ground, folder: Path) -> Path:
    """A sysfs for what this machine has not; its network is the node's own."""
    root = folder / "sys"
    (root / "class").mkdir(parents=True)
    (root / "class/net").symlink_to(ground.sysfs / "class/net")
    return root


# The network


@contextmanager
def partition(_: Ground, __: Path, **params: Scalar) -> Iterator[Thing]:
    yield Thing(f"node/{NODE}", {"peers": f"{AWAY}:{ECHO}", "force": True, **params}, rules)


@contextmanager
def slow_service(ground: Ground, _: Path, **params: Scalar) -> Iterator[Thing]:
    asked: dict[str, Scalar] = {"service": f"{AWAY}:{ECHO}", "method": "proxy", "probe": "PING\\r\\n", **params}

    def effect() -> tuple[str, str]:
        return rules(), ground.node.tcp(AWAY, ECHO)

    yield Thing(f"node/{NODE}", asked, effect)


@contextmanager
def port(ground: Ground, folder: Path, **params: Scalar) -> Iterator[Thing]:
    """An interface with much to lose; the RDMA port, which no machine here has, follows it in a tree of files."""
    setup = """set -e
        ip link add r0 type veth peer name r1
        ip link add link r0 name r0m type macvlan
        ip addr add 10.5.0.1/24 dev r0; ip addr add 10.5.7.1/24 dev r0m
        ip -6 addr add fd05::1/64 dev r0 nodad
        ip link set r0 up; ip link set r1 up; ip link set r0m up
        ip route add 10.6.0.0/16 via 10.5.0.2 dev r0 metric 7
        ip route add default via 10.5.0.2 dev r0 table 100 proto static
        ip -6 route add fd06::/64 via fd05::2 dev r0 metric 77
        ip neigh add 10.5.0.9 lladdr 02:00:00:00:00:09 dev r0 nud permanent"""
    ground.node.run("sh", "-c", setup)
    place = _tree(ground, folder) / f"class/infiniband/{_PORT}/ports/1"
    (place / "gid_attrs/ndevs").mkdir(parents=True)
    (place / "gid_attrs/ndevs/0").write_text("r0\n")
    (place / "link_layer").write_text("Ethernet\n")
    (place / "rate").write_text("400 Gb/sec (4X NDR)\n")
    ended = threading.Event()
    follower = threading.Thread(target=_follow, args=(ground.sysfs / "class/net/r0/flags", place, ended), daemon=True)
    follower.start()
    try:
        until((place / "state").exists)
        yield Thing(f"port/{NODE}/{_PORT}", params, links, options=("--sysfs", str(folder / "sys")))
    finally:
        ended.set()
        follower.join()
        ground.node.run("ip", "link", "del", "r0")


def _follow(flags: Path, place: Path, ended: threading.Event) -> None:
    said = None
    while not ended.is_set():
        up = int(flags.read_text(), 16) & 1
        if up != said:
            said = up
            for name, text in (("state", "4: ACTIVE" if up else "1: DOWN"), ("phys_state", "5: LinkUp")):
                fresh = place / f".{name}"
                fresh.write_text(text + "\n")
                fresh.replace(place / name)
        ended.wait(0.005)


# Databases


@contextmanager
def database(ground: Ground, _: Path, *, engine: str, mode: str) -> Iterator[Thing]:
    made = postgres(ground.away, POSTGRES) if engine == "postgres" else redis(ground.away, REDIS)
    with made as running:
        params: dict[str, Scalar] = {"engine": engine, "address": f"{AWAY}:{running.port}", "mode": mode}

        def effect() -> tuple[str, bool]:
            return rules(), running.answers(ground.node, AWAY) if mode == "exhausted" else not rules()

        yield Thing(f"node/{NODE}", params, effect)


# Files


@contextmanager
def checkpoint(_: Ground, folder: Path, *, name: str = "weights.npy") -> Iterator[Thing]:
    kept = folder / "kept"
    kept.mkdir()
    path = kept / name
    weights = np.arange(4096, dtype=np.float32)
    if path.suffix == ".npz":
        np.savez(path, w=weights, b=weights[:16])
    else:
        np.save(path, weights)
    path.chmod(0o640)
    os.utime(path, ns=(10**18, 10**18))
    params: dict[str, Scalar] = {"plane": "file", "path": str(path), "bits": 3}
    yield Thing(f"node/{NODE}", params, path.read_bytes, {"corruptible": [str(kept)]}, kept=kept)


@contextmanager
def memory_record(_: Ground, folder: Path) -> Iterator[Thing]:
    """The kernel log is a file: the machine's own is read by everybody on it."""
    kmsg = folder / "kmsg"
    kmsg.write_text("6,1,1,-;NVRM: loading driver\n")

    def effect() -> set[str]:
        standing = set()
        for line in kmsg.read_text().splitlines():
            (standing.add if "NVRM: Xid" in line else standing.discard)(line.rpartition("=")[2])
        return standing

    yield Thing(f"gpu/{NODE}/0", {"pci": "0000:3b:00"}, effect, options=("--kmsg", str(kmsg)))


@contextmanager
def certificate(_: Ground, folder: Path) -> Iterator[Thing]:
    kept = folder / "kept"
    kept.mkdir()
    ca = authority(kept)
    os.utime(ca.cert_file, ns=(10**18, 10**18))
    with server(ca) as running:

        def effect() -> tuple[str, str]:
            told = ssl.create_default_context(cafile=str(ca.ca_file))
            try:
                with socket.create_connection(("127.0.0.1", running.port), 3) as plain:
                    told.wrap_socket(plain, server_hostname=NAME).close()
            except ssl.SSLCertVerificationError as error:
                return error.verify_message, _digest(ca.cert_file)
            return "trusted", _digest(ca.cert_file)

        params = ca.params(running.port, reload="signal", pidfile=str(running.pidfile))
        yield Thing(f"node/{NODE}", params, effect, kept=kept)


@contextmanager
def shifted_clock(_: Ground, folder: Path) -> Iterator[Thing]:
    library = next(iter(Path("/usr/lib").glob("*/faketime/libfaketime.so.1")), None)
    if library is None:
        raise MissingError("needs libfaketime (package faketime): run `make tools`")
    kept = folder / "kept"
    kept.mkdir()
    offset, pidfile = kept / "offset", folder / "client.pid"
    offset.write_text("+0\n")
    os.utime(offset, ns=(10**18, 10**18))
    environ = {"LD_PRELOAD": str(library), "FAKETIME_TIMESTAMP_FILE": str(offset), "FAKETIME_NO_CACHE": "1"}
    with subprocess.Popen(["sleep", "infinity"], env={**os.environ, **environ}) as client:
        try:
            until(lambda: "libfaketime" in Path(f"/proc/{client.pid}/maps").read_text())
            pidfile.write_text(str(client.pid))
            yield Thing(f"node/{NODE}", {"method": "clock", "pidfile": str(pidfile)}, offset.read_text, kept=kept)
        finally:
            client.kill()


def _digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Volumes


@contextmanager
def volume(_: Ground, folder: Path, *, mode: str, kind: str) -> Iterator[Thing]:
    """A filesystem of its own with a file in it."""
    with mounted(folder, kind) as where:
        (where / "step-100.pt").write_bytes(bytes(range(256)) * 64)
        yield Thing(f"node/{NODE}", {"mode": mode, "path": str(where)}, partial(_writes, where), kept=where)


def _writes(where: Path) -> str:
    """What becomes of a write, and of nothing else: the file has no name."""
    argv = [sys.executable, "-I", "-S", storage_child.__file__, "write", str(where), ".probe"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as probe:
        try:
            return probe.communicate(timeout=0.7)[0].split()[-1]
        except subprocess.TimeoutExpired:
            # It ends when the filesystem lets it.
            probe.kill()
            probe.returncode = -signal.SIGKILL
            return "hangs"


@contextmanager
def storage_server(_: Ground, __: Path) -> Iterator[Thing]:
    yield Thing(f"node/{NODE}", {"mode": "unreachable", "endpoint": f"{AWAY}:{ECHO}"}, rules)


# Power


@contextmanager
def redfish(_: Ground, folder: Path) -> Iterator[Thing]:
    with bmc.sushy(folder) as url:
        yield _powered(url, folder, partial(_redfish_power, url))


def _redfish_power(url: str) -> str:
    keys = urllib.request.HTTPPasswordMgrWithDefaultRealm()
    keys.add_password(None, url, bmc.USER, bmc.PASSWORD)
    opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(keys))

    def get(path: str) -> Any:
        with opener.open(url + path, timeout=5) as answer:
            return json.load(answer)

    return str(get(get("/redfish/v1/Systems")["Members"][0]["@odata.id"])["PowerState"])


@contextmanager
def ipmi(_: Ground, folder: Path) -> Iterator[Thing]:
    with bmc.ipmi(folder) as node:
        yield _powered(node.url, folder, lambda: node.pid is not None)


def _powered(url: str, folder: Path, effect: Callable[[], object]) -> Thing:
    secret = folder / "password"
    secret.write_text(bmc.PASSWORD + "\n")
    access = {"url": url, "user": bmc.USER, "password_file": str(secret)}
    # An order that went out before the kill may take effect so long after it.
    return Thing(f"node/{bmc.NODE}", {}, effect, {"bmcs": {bmc.NODE: access}}, still_s=1.5)


#: Fault → its forms on this machine, the plainest first. A fault that is missing here fails the test.
CASES: dict[str, dict[str, Make]] = {
    "certificate-expiry": {"certificate": certificate, "clock": shifted_clock},
    "database-outage": {
        "postgres-hanging": partial(database, engine="postgres", mode="hanging"),
        "redis-exhausted": partial(database, engine="redis", mode="exhausted"),
        "redis-refused": partial(database, engine="redis", mode="refused"),
        "postgres-reset": partial(database, engine="postgres", mode="reset"),
        "postgres-exhausted": partial(database, engine="postgres", mode="exhausted"),
    },
    "memory-corruption": {
        "file-npy": checkpoint,
        "file-npz": partial(checkpoint, name="weights.npz"),
        "telemetry": memory_record,
    },
    "network-partition": {"drop": partition, "reject-out": partial(partition, action="reject", direction="out")},
    "numa-misalignment": {"cpus": misplaced_process},
    "power-cycle": {"ipmi": ipmi, "redfish": redfish},
    "process-stop": {"stop": stopped_process},
    "rdma-link": {"down": partial(port, mode="down"), "flap": partial(port, mode="flap", period_s=0.2, count=1000)},
    "service-latency": {
        "delay": partial(slow_service, delay="50ms"),
        "both-ways": partial(slow_service, delay="30ms", direction="both"),
    },
    "storage-disconnect": {
        "hanging-ext4": partial(volume, mode="hanging", kind="ext4"),
        "readonly-tmpfs": partial(volume, mode="readonly", kind="tmpfs"),
        "readonly-ext4": partial(volume, mode="readonly", kind="ext4"),
        "full-tmpfs": partial(volume, mode="full", kind="tmpfs"),
        "full-ext4": partial(volume, mode="full", kind="ext4"),
        "unreachable": storage_server,
    },
}


def unknown() -> set[str]:
    """Faults that the agent has and the table has not, and the other way round."""
    return set(registry.strategies()) ^ set(CASES)


@contextmanager
def standing_on(ground: Ground, folder: Path, fault: str, form: str) -> Iterator[Thing]:
    """The thing, made while this thread is on the node's host."""
    folder.mkdir()
    with ground.node.inside(), contextlib.ExitStack() as stack:
        yield stack.enter_context(CASES[fault][form](ground, folder))
