# ruff: noqa: E501  (what programs print is as long as it is)
from __future__ import annotations

import pytest
from app_words_kit import events, finding, one, said

from gpuchaos_agent.words.base import Part
from gpuchaos_stream.events.base import Severity

HEAD = "gpu-b7:41210:41877 [2] transport/net_ib.cc:1811 NCCL WARN "


@pytest.mark.parametrize(
    "words",
    [
        "NET/IB : Got completion from peer 10.8.0.4<51200> with error 12, opcode 1, len 32681, vendor err 129",
        "NET/IB : Got completion from peer 10.8.0.4<51200> with status=12 opcode=0 len=0 vendor err 129 (Send)",
        (
            "NET/IB: Got completion from peer 10.8.0.4<51200> with status=IBV_WC_RETRY_EXC_ERR(12) "
            "opcode=IBV_WC_RECV_RDMA_WITH_IMM(129) vendor_err=129 localGid fe80::1 remoteGidsfe80::2 hca mlx5_4"
        ),
    ],
)
def test_a_completion_with_an_error_is_read_in_all_three_wordings(words: str) -> None:
    found = one(HEAD + words)
    assert (found.fault, found.severity) == ("rdma_retry_exceeded", Severity.ERROR)
    evidence = {name: found.evidence[name] for name in ("ib_status", "vendor_err", "peer", "host", "pid", "local")}
    assert evidence == {
        "ib_status": 12,
        "vendor_err": 129,
        "peer": "10.8.0.4",
        "host": "gpu-b7",
        "pid": 41210,
        "local": "[2]",
    }
    assert found.device == ("mlx5_4" if "hca" in words else "")


@pytest.mark.parametrize(
    ("status", "fault"),
    [
        (4, "rdma_local_protection"),
        (8, "rdma_local_access_violation"),
        (9, "rdma_request_failed"),
        (10, "rdma_request_failed"),
        (12, "rdma_retry_exceeded"),
        (13, "rdma_retry_exceeded"),
    ],
)
def test_the_status_decides_what_it_is(status: int, fault: str) -> None:
    assert (
        said(f"{HEAD}NET/IB : Got completion from peer ib-4<9> with status={status} opcode=0 len=0 vendor err 1")
        == fault
    )


def test_a_flushed_request_only_follows_another_error() -> None:
    found = finding(HEAD + "NET/IB : Got completion from peer ib-4<9> with status=5 opcode=0 len=0 vendor err 249")
    assert found is not None
    assert found.part is Part.DETAIL
    assert events(HEAD + "NET/IB : Got completion from peer ib-4<9> with status=5 opcode=0 len=0 vendor err 249") == []


@pytest.mark.parametrize(
    ("words", "fault", "device"),
    [
        ("NET/IB : Got async event : port error", "nic_link_flap", ""),
        ("NET/IB : mlx5_3:1 Got async event : port error", "nic_link_flap", "mlx5_3:1"),
        ("NET/IB : mlx5_3:1 Got async error event: port error", "nic_link_flap", "mlx5_3:1"),
        ("NET/IB : mlx5_5:1 async fatal event: local catastrophic error", "nic_fatal", "mlx5_5:1"),
        (
            "NET/IB : mlx5_5:1 async fatal event on QP (0x7f00aa): local access violation work queue error",
            "rdma_local_access_violation",
            "mlx5_5:1",
        ),
        (
            "NET/IB : mlx5_5:1 async fatal event on QP (0x7f00aa): invalid request local work queue error",
            "rdma_request_failed",
            "mlx5_5:1",
        ),
        ("NET/IB : mlx5_5:1 async fatal event on CQ (0x7f00aa): CQ error", "rdma_request_failed", "mlx5_5:1"),
    ],
)
def test_events_of_the_adapter_are_read(words: str, fault: str, device: str) -> None:
    found = one(HEAD + words)
    assert (found.fault, found.device) == (fault, device)


@pytest.mark.parametrize(
    "event", ["client reregistration", "SM change", "LID change", "last WQE reached", "GID table change"]
)
def test_events_of_an_ordinary_day_say_nothing(event: str) -> None:
    assert said(f"{HEAD}NET/IB : mlx5_3:1 Got async event : {event}") == "none"


def test_the_port_is_the_cause_whatever_came_first() -> None:
    found = one(
        "far-1:100:200 [0] transport/net_ib.cc:9 NCCL WARN NET/IB : Got completion from peer gpu-b7<1> with error 12, opcode 2",
        *(
            f"gpu-b7:{pid}:9 [{pid}] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
            for pid in (1, 2, 3)
        ),
    )
    assert (found.fault, found.device) == ("nic_link_flap", "gpu-b7(all ranks)")
    assert found.evidence["count"] == 4


def test_a_port_error_of_one_process_is_not_all_ranks() -> None:
    line = "gpu-b7:11:9 [0] transport/net_ib.cc:93 NCCL WARN NET/IB : Got async event : port error"
    assert one(line, line).device == ""


@pytest.mark.parametrize(
    ("why", "cause"),
    [
        ("No such device", "nic_gone"),
        ("Network is unreachable", "no_route"),
        ("Invalid argument", "gid_index"),
        ("Connection timed out", "address_not_resolved"),
    ],
)
def test_setting_up_a_queue_pair_fails_for_different_causes(why: str, cause: str) -> None:
    found = one(f"n1:7:8 [1] misc/ibvwrap.cc:190 NCCL WARN Call to ibv_modify_qp failed with error {why}")
    assert (found.fault, found.evidence["cause"], found.evidence["op"]) == ("rdma_setup_failed", cause, "ibv_modify_qp")


def test_newer_set_up_errors_name_the_port() -> None:
    found = one(
        "n1:7:8 [1] misc/ibvwrap.cc:340 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, "
        "on dev mlx5_2:1, curr state INIT, next state RTR"
    )
    assert (found.device, found.evidence["cause"]) == ("mlx5_2:1", "address_not_resolved")


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("Net : Call to recv from 10.8.0.9<40404> failed : Connection reset by peer", "peer_process_died"),
        ("socketProgressOpt: Call to send to 10.8.0.9<40404> failed : Broken pipe", "peer_process_died"),
        ("socketProgress: Connection closed by remote peer node9<40404>", "peer_process_died"),
        ("Net : Connect to 10.8.0.9<40404> failed : Connection refused", "peer_process_died"),
        ("Net : Connect to 10.8.0.9<40404> failed : No route to host", "peer_unreachable"),
        ("Error while creating shared memory segment /dev/shm/nccl-QwErTy (size 9637888)", "fs_full"),
    ],
)
def test_sockets_and_shared_memory_are_read(words: str, fault: str) -> None:
    assert said("n1:7:8 [1] misc/socket.cc:500 NCCL WARN " + words) == fault


def test_the_first_warning_wins_over_what_comes_of_it() -> None:
    found = one(
        "n1:7:8 [1] misc/socket.cc:518 NCCL WARN Net : Call to recv from 10.8.0.9<40404> failed : Broken pipe",
        "n1:7:8 [1] proxy.cc:1119 NCCL WARN [Proxy Service 3] Failed to execute operation Connect from rank 3, retcode 6",
        "torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1970, internal error, NCCL version 2.21.5",
    )
    assert (found.fault, found.evidence["peer"]) == ("peer_process_died", "10.8.0.9")


def test_without_nccls_own_lines_pytorchs_last_error_is_read() -> None:
    found = one(
        "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.",
        "Last error:",
        "NET/IB : Got completion from peer 10.8.0.4<51200> with status=12 opcode=0 len=0 vendor err 129 (Recv) hca mlx5_1",
    )
    assert found.fault in {"peer_process_died", "rdma_retry_exceeded"}
    assert found.evidence["ib_status"] == 12


@pytest.mark.parametrize(
    "text",
    [
        "n1:7:8 [1] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.8.0.1<0>",
        "n1:7:8 [1] NCCL INFO transport/net.cc:1134 -> 6",
        "set NCCL_DEBUG=WARN to see NCCL WARN lines",
    ],
)
def test_ordinary_lines_say_nothing(text: str) -> None:
    assert said(text) == "none"
