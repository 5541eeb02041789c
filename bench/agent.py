"""What the agent costs beside a training job, and how it grows.

python bench/agent.py [--seconds N] [--gpus 0,8] [--nics 0,8] [--log-mb N]

1. The real agent at 1 Hz on a broker of its own, with GPUs of a fake NVML library, RDMA ports of a made tree, and
   a kernel log that grows by ten lines a second: CPU as a share of one core, memory, the second process
   (`deadman`) apart, and how often a thread of it is woken. One row for each number of devices, so that the growth
   can be seen. The process is as `pip install gpuchaos-stream[agent]` makes it: with bytecode, without `rich`, which
   structlog would load. What it costs here to be woken and do nothing is told, because virtual machines differ most
   in that: an idle one can make it a millisecond.
2. A burst of 100,000 kernel lines, a hundred of which are faults: lines a second, and how many faults came out.
3. `gpuchaos-agent read` of a large kernel log: its time as a multiple of `grep -c` on the same file, peak memory.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from gpuchaos_agent.collect import registry
from gpuchaos_agent.collect.base import Follower, Sources
from gpuchaos_stream.stream.house import READY, House

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/nvml"))

#: Kernel lines of a healthy node, and one that is a fault, as printf forms of sequence number and microseconds.
NOISE = (
    "6,{seq},{usec},-;nvme nvme0: 15/0/0 default/read/poll queues",
    "6,{seq},{usec},-;IPv6: ADDRCONF(NETDEV_CHANGE): eth0: link becomes ready",
    '5,{seq},{usec},-;audit: type=1400 audit(1700000000.123:42): apparmor="STATUS" operation="profile_load"',
    "6,{seq},{usec},-;docker0: port 3(veth1a2b3c4) entered forwarding state",
    "4,{seq},{usec},-;TCP: request_sock_TCP: Possible SYN flooding on port 8080. Sending cookies.",
)
FAULT = "4,{seq},{usec},-;NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid={pid}, name=python3, GPU has fallen off the bus."
COUNTERS = ("port_rcv_data", "port_xmit_data", "link_downed", "symbol_error", "port_rcv_errors", "port_xmit_wait",
            "local_link_integrity_errors", "excessive_buffer_overrun_errors", "link_error_recovery")  # fmt: skip
HW_COUNTERS = ("out_of_sequence", "local_ack_timeout_err", "rp_cnp_handled", "np_cnp_sent", "rnr_nak_retry_err",
               "np_ecn_marked_roce_packets", "roce_slow_restart")  # fmt: skip


def plant(sysfs: Path, nics: int) -> None:
    """A tree with two NUMA nodes and `nics` ports, of the files that the kernel has."""
    for node in range(2):
        folder = sysfs / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node * 32}-{node * 32 + 31}\n")
        (folder / "distance").write_text("10 21\n" if node == 0 else "21 10\n")
        (folder / "meminfo").write_text(f"Node {node} MemTotal:  1000000 kB\nNode {node} MemFree:  500000 kB\n")
        (folder / "numastat").write_text("numa_hit 5\nnuma_miss 0\nlocal_node 5\nother_node 0\n")
    (sysfs / "devices/system/node/online").write_text("0-1\n")
    for number in range(nics):
        port = sysfs / f"class/infiniband/mlx5_{number}/ports/1"
        for name, files in (("counters", COUNTERS), ("hw_counters", HW_COUNTERS)):
            (port / name).mkdir(parents=True)
            for file in files:
                (port / name / file).write_text("1000\n")
        (port / "state").write_text("4: ACTIVE\n")
        (port / "phys_state").write_text("5: LinkUp\n")
        (port / "rate").write_text("400 Gb/sec (4X NDR)\n")
        (port / "link_layer").write_text("InfiniBand\n")


def lines(count: int, fault_every: int = 0) -> Iterator[str]:
    """`count` records of /dev/kmsg, every `fault_every`th of them a fault on a card of its own."""
    for seq in range(count):
        is_fault = fault_every and seq % fault_every == fault_every // 2
        form = FAULT if is_fault else NOISE[seq % len(NOISE)]
        yield form.format(seq=seq, usec=seq * 10, bus=(seq // max(1, fault_every)) % 256, pid=1000 + seq) + "\n"


def ticks(pid: int) -> float:
    """CPU seconds of a process so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid: int) -> tuple[float, float]:
    """Resident and proportional MiB of a process."""
    found = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        name, _, value = line.partition(":")
        if name in {"Rss", "Pss"}:
            found[name] = int(value.split()[0]) / 1024
    return found["Rss"], found["Pss"]


def wakes(pid: int) -> int:
    """How often the threads that a process has now gave up their core so far."""
    found = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            found += int((task / "status").read_text().partition("\nvoluntary_ctxt_switches:")[2].split()[0])
    return found


def empty_wake(times: int = 60) -> float:
    """CPU seconds that it costs this process to sleep an eighth of a second and do nothing."""
    before = time.process_time()
    for _ in range(times):
        time.sleep(0.125)
    return (time.process_time() - before) / times


@contextlib.contextmanager
def as_installed(folder: Path) -> Iterator[None]:
    """Processes that are started within run from bytecode, and do not find what the `agent` extra does not bring."""
    (folder / "sitecustomize.py").write_text("import sys\nsys.modules['rich'] = None\n")
    kept = dict(os.environ)
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(folder / "bytecode")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(folder), kept.get("PYTHONPATH"))))
    try:
        everything = "import gpuchaos_agent.runtime, gpuchaos_agent.deadman, pynvml"
        everything += "; from gpuchaos_agent.collect import registry; registry.collectors()"
        subprocess.run([sys.executable, "-c", everything], check=True)
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def cost(house: House, folder: Path, *, gpus: int, nics: int, seconds: float) -> None:
    """One row: the agent's CPU and memory with so many devices."""
    sysfs, kmsg = folder / "sys", folder / "kmsg"
    plant(sysfs, nics)
    kmsg.write_text("".join(lines(1)))
    stop = threading.Event()

    def grow() -> None:
        made = iter(lines(1_000_000))
        next(made)
        with kmsg.open("a") as file:
            while not stop.wait(0.1):
                file.write(next(made))
                file.flush()

    threading.Thread(target=grow, daemon=True).start()
    name = f"bench-{gpus}-{nics}"
    with fake_nvml(folder, gpus):
        agent = house.agent(name, "--sysfs", str(sysfs), "--kmsg", str(kmsg), "--http-port", "0")
        agent.wait_for(READY, 60)
    time.sleep(8)  # the first seconds are the start's
    pids = {"agent": agent.pid, "deadman": children(agent.pid)[0]}
    began, before = time.monotonic(), {role: (ticks(pid), wakes(pid)) for role, pid in pids.items()}
    time.sleep(seconds)
    took = time.monotonic() - began
    for role, pid in pids.items():
        share = (ticks(pid) - before[role][0]) / took
        woken = (wakes(pid) - before[role][1]) / took
        rss, pss = memory(pid)
        print(f"{gpus:>5} {nics:>5}  {role:<8} {share:>9.2%} {woken:>8.1f}  {rss:>9.1f} {pss:>9.1f}")
    stop.set()
    agent.stop()


@contextlib.contextmanager
def fake_nvml(folder: Path, gpus: int) -> Iterator[None]:
    """NVML with `gpus` healthy cards for processes that are started within."""
    from nvml_fake import build, healthy, write  # noqa: PLC0415  (lies with the tests that use it)

    script = folder / "nvml.script"
    write(script, healthy(gpus))
    library = build(folder)
    kept = dict(os.environ)
    os.environ |= {
        "FAKE_NVML_SCRIPT": str(script),
        "LD_LIBRARY_PATH": str(library.parent),
        "FAKE_NVML_RECHECK_MS": "1000",
    }
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(kept)


def burst(folder: Path, count: int = 100_000, fault_every: int = 1000) -> None:
    """A burst through the collector itself."""
    kmsg = folder / "kmsg"
    kmsg.write_text("")
    (collector,) = registry.build(Sources(kmsg=kmsg, procfs=folder, kernel_log="kmsg"), ["kernel_log"])
    if not isinstance(collector, Follower):
        raise TypeError("the kernel log is followed")
    collector.read(time.time())
    with kmsg.open("a") as file:
        file.writelines(lines(count, fault_every))
    began, cards = time.perf_counter(), set()
    idle = 0
    while idle < 3:
        facts = collector.drain(time.time())
        idle = 0 if facts else idle + 1
        cards |= {(fact.local, fact.evidence.get("pid")) for fact in facts}
    took = time.perf_counter() - began
    told = len({card for card, _ in cards})
    planted = len({(seq // fault_every) % 256 for seq in range(fault_every // 2, count, fault_every)})
    print(f"burst of {count} lines: {count / took:,.0f} lines/s; faulty cards told {told} of {planted}")
    collector.close()


def recorded(folder: Path, megabytes: int) -> None:
    """`read` of a large log beside grep."""
    log = folder / "kern.log"
    block = "".join(lines(20_000, 2000))
    with log.open("w") as file:
        for _ in range(max(1, megabytes * 1_000_000 // len(block))):
            file.write(block)
    size = log.stat().st_size / 1e6
    began = time.perf_counter()
    subprocess.run(["grep", "-c", "NVRM", str(log)], check=True, stdout=subprocess.DEVNULL)
    grep = time.perf_counter() - began
    began = time.perf_counter()
    command = [sys.executable, "-m", "gpuchaos_agent.agent", "read", str(log), "--kind", "kmsg", "-o", "json"]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    took = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(f"read of {size:.0f} MB: {size / took:.0f} MB/s, {took / grep:.1f} x grep -c, peak {peak:.0f} MiB")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--gpus", default="0,8", help="one row for each number")
    parser.add_argument("--nics", default="0,8")
    parser.add_argument("--log-mb", type=int, default=200)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpuchaos-bench-") as name:
        root = Path(name)
        burst(_made(root / "burst"))
        recorded(_made(root / "read"), options.log_mb)
        print(f"an empty wake of a process here: {empty_wake() * 1e3:.2f} ms of a core")
        head = f"{'of a core':>9} {'wakes/s':>8}  {'RSS MiB':>9} {'PSS MiB':>9}"
        print(f"{'GPUs':>5} {'NICs':>5}  {'process':<8} {head}")
        with House(root / "house") as house, as_installed(_made(root / "installed")):
            for gpus, nics in zip(options.gpus.split(","), options.nics.split(","), strict=True):
                folder = _made(root / f"cost-{gpus}-{nics}")
                cost(house, folder, gpus=int(gpus), nics=int(nics), seconds=options.seconds)


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


if __name__ == "__main__":
    main()
