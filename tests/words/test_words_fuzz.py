"""Two hundred thousand hostile lines: none raises, none takes long, and noise is never a fault."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import pytest

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.story.hear import hear
from gpuchaos_agent.words import registry

CASES: Final = Path(__file__).parents[2] / "../shared/cases"
#: The most CPU time that one line may take, seconds.
LONGEST_S: Final = 0.010
MUTATED: Final = 120_000
RANDOM: Final = 80_000

#: Lines of our own, so that the test bites where the shared cases are not.
# ruff: noqa: E501  (lines of logs are as long as they are)
SEEDS: Final = (
    "NVRM: Xid (PCI:0000:65:00): 79, pid=4711, name=train, GPU has fallen off the bus.",
    "NVRM: Xid (PCI:0000:65:00 GPU-I:03 GPU-CI:00): 31, pid='<unknown>', name=<unknown>, Ch 00000004, intr 0",
    "nvidia-nvswitch2: SXid (PCI:0000:85:00.0): 20034, Fatal, Link 12 LTSSM Fault Up",
    "mlx5_core 0000:a1:00.0: wait_func:1180:(pid 99): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource",
    "mlx5_core 0000:a1:00.0 mlx5_9: Port: 1 Link DOWN",
    "pcieport 0000:20:01.0: AER: Multiple Corrected error received: id=2008",
    "EDAC MC2: 7 CE memory read error on CPU_SrcID#0_MC#1_Chan#1_DIMM#0 (channel:1 slot:0 page:0x1 offset:0x0 grain:32)",
    "mce: [Hardware Error]: CPU 3: Machine Check: 0 Bank 8: 8c00004000010092",
    "nvme nvme4: I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0 timeout, reset controller",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg=/a,task_memcg=/a/b,task=x,pid=7,uid=0",
    "nfs: server 198.51.100.7 not responding, still trying",
    "EXT4-fs (dm-3): Remounting filesystem read-only",
    "INFO: task kworker/u66:2:812 blocked for more than 122 seconds.",
    "n1:11:22 [5] transport/net_ib.cc:99 NCCL WARN NET/IB : Got completion from peer 198.51.100.9<4000> with status=12 opcode=1",
    "[Rank 7] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=9, OpType=ALLGATHER, Timeout(ms)=60000)",
    "x509: certificate has expired or is not yet valid: current time 2024-05-06T00:00:00Z is after 2024-05-05T01:02:03Z",
    'connection to server at "db-3" (198.51.100.4), port 5432 failed: Connection refused',
)
#: What makes patterns with nested choices slow.
NASTY: Final = (
    " ",
    ",",
    ":",
    "0",
    "a",
    "(",
    "[",
    "=",
    "0000:",
    "pid=",
    "Link ",
    "\\x0a",
    "\n",
    "NVRM: Xid (",
    "/",
    "<",
    "😀",
    "\x00",
    "é",
)


def seeds() -> list[str]:
    """Our lines, and those of the shared cases where they are."""
    found = list(SEEDS)
    for path in sorted(CASES.glob("*/*")):
        found += [line for line in path.read_text("utf-8", "replace").splitlines() if line.strip()]
    return found


def mutate(chance: random.Random, lines: list[str]) -> str:
    """One line after a few of: a cut, a swap, a repeat, a piece of another line, a nasty literal."""
    text = chance.choice(lines)
    for _ in range(chance.randint(1, 5)):
        at, other = chance.randrange(len(text) + 1), chance.randrange(len(text) + 1)
        low, high = min(at, other), max(at, other)
        match chance.randrange(6):
            case 0:
                text = text[:low] + text[high:]
            case 1:
                text = text[:at] + chance.choice(NASTY) * chance.choice((1, 3, 40, 2000)) + text[at:]
            case 2:
                text = text[:high] + text[low:high] * chance.choice((1, 20)) + text[high:]
            case 3:
                piece = chance.choice(lines)
                text = text[:at] + piece[: chance.randrange(len(piece) + 1)] + text[at:]
            case 4:
                text = text[:at] + chr(chance.choice((0, 9, 27, 65, 128, 0xD7FF, 0x1F600))) + text[at + 1 :]
            case _:
                text = text[:at] + str(chance.randrange(10 ** chance.randint(1, 30))) + text[at:]
    return text[:20_000]


def noise(chance: random.Random) -> str:
    """Random bytes as a log would give them."""
    return chance.randbytes(chance.randint(1, 300)).decode("utf-8", "replace")


def texts(make: Callable[[random.Random], str], count: int, seed: int) -> Iterator[tuple[str, Writer]]:
    chance = random.Random(seed)
    for _ in range(count):
        yield make(chance), chance.choice(list(Writer))


def cpu_seconds(record: LogRecord) -> float:
    """CPU time of this thread alone, the least of three: what other work takes is not counted."""
    spent = []
    for _ in range(3):
        began = time.thread_time()
        hear(record)
        spent.append(time.thread_time() - began)
    return min(spent)


@pytest.mark.timeout(300)
def test_mutated_lines_neither_raise_nor_take_long() -> None:
    lines = seeds()
    said = 0
    for text, writer in texts(lambda chance: mutate(chance, lines), MUTATED, seed=4):
        record = LogRecord(text, writer=writer)
        began = time.thread_time()
        said += hear(record) is not None
        if time.thread_time() - began > LONGEST_S:
            assert cpu_seconds(record) < LONGEST_S, f"{len(text)} characters: {text[:200]!r}"
    assert MUTATED // 50 < said < MUTATED, "the mutations have to reach the patterns, and not only them"


@pytest.mark.timeout(300)
def test_random_bytes_are_never_a_fault() -> None:
    for text, writer in texts(noise, RANDOM, seed=5):
        assert hear(LogRecord(text, writer=writer)) is None, text


@pytest.mark.parametrize("length", [16_000, 1_000_000])
@pytest.mark.parametrize("piece", NASTY)
def test_one_piece_repeated_without_end_takes_no_longer(piece: str, length: int) -> None:
    for seed in SEEDS:
        for text in (piece * (length // len(piece)), seed + piece * (length // len(piece))):
            for writer in Writer:
                record = LogRecord(text, writer=writer)
                assert cpu_seconds(record) < LONGEST_S, (seed[:40], piece, writer)


@pytest.mark.parametrize("text", SEEDS)
def test_each_seed_says_something_as_it_stands(text: str) -> None:
    said = [registry.read(LogRecord(text, writer=writer)) for writer in (Writer.KERNEL, Writer.PROGRAM)]
    assert any(said), "a seed that nobody understands tests nothing"
