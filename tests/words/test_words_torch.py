# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import events, one, said


def timeout(rank: int, seq: int = 77, op: str = "ALLREDUCE", ran: int = 600_050) -> str:
    return (
        f"[rank{rank}]:[E512 10:11:12.123456789 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective "
        f"operation timeout: WorkNCCL(SeqNum={seq}, OpType={op}, NumelIn=8, NumelOut=8, Timeout(ms)=600000) "
        f"ran for {ran} milliseconds before timing out."
    )


def status(rank: int, seq: int, last: int) -> str:
    return (
        f"[rank{rank}]:[E512 10:11:12.2 ProcessGroupNCCL.cpp:1785] [PG ID 2 PG GUID 5(tp) Rank {rank}] Exception (either "
        f"an error or timeout) detected by watchdog at work: {seq}, last enqueued NCCL work: {seq + 3}, "
        f"last completed NCCL work: {last}."
    )


def test_a_timeout_of_several_ranks_is_one_event() -> None:
    found = one(*(timeout(rank) for rank in (3, 0, 10, 2)))
    assert found.fault == "collective_timeout"
    assert {name: found.evidence[name] for name in ("op", "seq", "ranks", "ran_s", "count")} == {
        "op": "ALLREDUCE",
        "seq": 77,
        "ranks": "0,2,3,10",
        "ran_s": 600.05,
        "count": 4,
    }
    assert "suspect" not in found.evidence


@pytest.mark.parametrize(
    "text",
    [
        (
            "[E ProcessGroupNCCL.cpp:566] [Rank 4] Watchdog caught collective operation timeout: "
            "WorkNCCL(OpType=BROADCAST, TensorShape=[1], Timeout(ms)=1800000) ran for 1807000 milliseconds before timing out."
        ),
        (
            "[E ProcessGroupNCCL.cpp:737] [Rank 4] Watchdog caught collective operation timeout: "
            "WorkNCCL(SeqNum=9, OpType=BROADCAST, Timeout(ms)=1800000) ran for 1807000 milliseconds before timing out."
        ),
        (
            "  what():  [PG 3 Rank 4] Process group watchdog thread terminated with exception: [Rank 4] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=9, OpType=BROADCAST, NumelIn=1, NumelOut=1, "
            "Timeout(ms)=1800000) ran for 1807000 milliseconds before timing out."
        ),
    ],
)
def test_wordings_of_all_years_are_read(text: str) -> None:
    found = one(text)
    assert (found.fault, found.evidence["op"], found.evidence["ranks"]) == ("collective_timeout", "BROADCAST", "4")
    assert found.evidence["ran_s"] == 1807.0


def test_the_rank_that_completed_least_is_the_suspect() -> None:
    found = one(
        timeout(0), status(0, 77, 76), timeout(1), status(1, 77, 76), timeout(2, seq=75), status(2, 75, 74), timeout(3)
    )
    assert (found.evidence["seq"], found.evidence["last_completed"]) == (75, 74)
    assert found.evidence["suspect"] == "2"


def test_the_newest_status_line_is_read_as_well() -> None:
    found = one(
        timeout(1),
        "[rank1]:[E512 10:11:12.4 ProcessGroupNCCL.cpp:2271] [PG ID 1 PG GUID 1 Rank 1]  failure detected by watchdog at "
        "work sequence id: 77 PG status: last enqueued work: 77, last completed work: 70",
    )
    assert found.evidence["last_completed"] == 70


def test_another_groups_numbers_are_not_compared() -> None:
    found = one(
        timeout(1),
        "[rank1]:[E512 10:11:13 ProcessGroupNCCL.cpp:1746] [PG ID 0 PG GUID 0(default_pg) Rank 1] Received a dump signal "
        "due to a collective timeout from this local rank and we will try our best to dump the debug info. "
        "Last enqueued NCCL work: 3, last completed NCCL work: 3.This is most likely caused by",
    )
    assert "last_completed" not in found.evidence


def test_a_rank_that_only_hears_of_the_timeout_says_so() -> None:
    found = one(
        "[rank4]:[E703 15:37:17.1 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank 4] Received a dump signal "
        "due to a collective timeout from  rank 7 and we will try our best to dump the debug info."
    )
    assert (found.fault, found.evidence["reporter"]) == ("collective_timeout", "rank 7")


@pytest.mark.parametrize(
    ("line", "suspect"),
    [
        (
            (
                "\t - To our best knowledge, ranks [5, 6] are the lagging ranks that caused this timeout. They never joined any "
                "collectives"
            ),
            "5,6",
        ),
        ("\t   - [3] joined but didn't finish collective #78 (count from 1)", "3"),
        ("\t     [3] finished collective #77, but didn't join collective #78 (count from 1)", "3"),
    ],
)
def test_the_desync_report_names_the_suspects(line: str, suspect: str) -> None:
    found = one(timeout(0), line, timeout(1))
    assert (found.fault, found.evidence["suspect"], found.evidence["ranks"]) == ("collective_desync", suspect, "0,1")


def test_mismatched_collectives_are_a_desync() -> None:
    found = one(
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=14, OpType=ALLGATHER, TensorShape=[8], TensorDtypes=Float, "
        "TensorDeviceTypes=TensorOptions(dtype=float)), but Rank 0 is running collective: CollectiveFingerPrint("
    )
    assert (found.fault, found.evidence["seq"], found.evidence["suspect"]) == ("collective_desync", 14, "2")


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (
            "[rank2]:[F ProcessGroupNCCL.cpp:1169] ProcessGroupNCCL's watchdog got stuck for 600 seconds without making progress",
            "collective_timeout",
        ),
        (
            "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.8.0.3]:29500",
            "peer_process_died",
        ),
        (
            "RuntimeError: [/b/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
            "collective_timeout",
        ),
        (
            "torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 7/8 clients joined.",
            "rendezvous_failed",
        ),
        (
            "torch.distributed.DistNetworkError: The client socket has timed out after 60000ms while trying to connect to (head-0, 29500).",
            "rendezvous_failed",
        ),
        (
            "[rank0]:[W ProcessGroupNCCL.cpp:4115] using GPU 0 to perform barrier as devices used by this process are currently unknown",
            "none",
        ),
        ("[rank0]:[E ProcessGroupNCCL.cpp:621] [Rank 0] Some NCCL operations have failed or timed out.", "none"),
    ],
)
def test_what_else_pytorch_says(text: str, fault: str) -> None:
    assert said(text) == fault


def test_a_timeout_much_later_is_another_event() -> None:
    assert len(events(timeout(0), timeout(1), apart_s=500.0)) == 2
