"""What must hold for all words of programs, whatever the text."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuchaos_agent import catalogue
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import (
    checkpoint,
    cuda,
    elastic,
    etcd,
    kafka_client,
    nccl,
    postgres,
    redis,
    refused,
    registry,
    tls,
    torch,
)
from gpuchaos_agent.words.base import Words

MODULES: tuple[Words, ...] = (checkpoint, cuda, elastic, etcd, kafka_client, nccl, postgres, redis, refused, tls, torch)
HINTS = sorted({hint for module in MODULES for hint in module.HINTS})
PIECES = st.one_of(
    st.sampled_from(HINTS),
    st.sampled_from(
        [
            "Work NCCL(",
            "WorkNCCL(SeqNum=",
            "[PG ",
            "Rank 1]",
            "n1:7:8 [1] ",
            "ssl://",
            "Connect to ",
            "failed : ",
            "[Errno 28] ",
            "://a:1/",
        ]
    ),
    st.text(alphabet="0123456789abcXYZ :,.[]()<>/='\"-_\n\t", max_size=30),
    st.text(max_size=20),
)


@given(st.lists(PIECES, max_size=12), st.integers(1, 600))
@settings(max_examples=300, deadline=None)
def test_no_text_is_slow_or_an_error(pieces: list[str], times: int) -> None:
    text = ("".join(pieces) * times)[: 16 * 1024]
    for writer in (Writer.PROGRAM, Writer.KERNEL):
        record = LogRecord(text, writer=writer)
        took = []
        for _ in range(3):
            began = time.process_time()
            registry.read(record)
            took.append(time.process_time() - began)
            if took[-1] < 0.01:
                break
        assert min(took) < 0.01


@given(st.text(max_size=200))
def test_random_text_says_nothing(text: str) -> None:
    assert registry.read(LogRecord(text, writer=Writer.PROGRAM)) is None


def test_a_program_cannot_speak_with_the_kernels_words_nor_the_kernel_with_a_programs() -> None:
    xid = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
    assert registry.read(LogRecord(xid, writer=Writer.PROGRAM)) is None
    said = "redis.exceptions.ConnectionError: max number of clients reached"
    assert registry.read(LogRecord(said, writer=Writer.KERNEL)) is None


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_fault_and_action_is_in_the_tables(module: Words) -> None:
    tree = ast.parse(Path(str(module.__file__)).read_text())  # type: ignore[attr-defined]
    strings = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    actions = {
        keyword.value.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        for keyword in node.keywords
        if keyword.arg == "action" and isinstance(keyword.value, ast.Constant)
    }
    rows = [
        node.args[node.func.id == "wording"].value
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and getattr(node.func, "id", "") in {"wording", "meaning"}
        and isinstance(node.args[node.func.id == "wording"], ast.Constant)
    ]
    assert rows
    assert set(rows) <= set(catalogue.fault_names())
    assert actions <= set(catalogue.actions())
    assert strings


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__.rpartition(".")[2])
def test_every_family_is_known_by_its_name(module: Words) -> None:
    assert all(registry.families()[family.name] == family for family in module.FAMILIES)
