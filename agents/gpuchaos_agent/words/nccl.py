"""NCCL (2.10 to 2.29): completions with an error, asynchronous events of the adapter, set-up, sockets.

The same messages stand behind `NCCL WARN` and, without it, below PyTorch's `Last error:`. Formats:
`transport/net_ib.cc`, `transport/net_ib/*`, `misc/ibvwrap.cc`, `misc/socket.cc`; statuses are `ibv_wc_status` of
`infiniband/verbs.h`, names of events those of `ibv_event_type_str` of rdma-core.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.wordings import LOOKED_AT, made, meaning, wording
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    "NCCL WARN",
    "Got completion from peer",
    "Got async e",
    "async fatal event",
    "closed by remote peer",
    "ncclRemoteError: A call failed",
    "failed : Connection re",
    "failed : Broken pipe",
    "Call to ibv_",
)
WRITERS: Final = frozenset({Writer.PROGRAM})

#: `host:pid:tid [device] file:line NCCL WARN `
_HEAD: Final = re.compile(
    r"(?P<host>[A-Za-z0-9_.-]{1,64}):(?P<pid>\d{1,10}):\d{1,10} \[(?P<local>\d{1,3})\] [^\n]{0,120}\Z"
)
_COMPLETION: Final = re.compile(
    r"Got completion from peer (?P<peer>[^\s<]{1,64})(?:<\d{1,5}>)? with (?:error |status=)(?:IBV_WC_\w{1,40}\()?"
    r"(?P<ib_status>\d{1,3})"
)
_VENDOR: Final = re.compile(r"vendor[ _]err[ =](?P<vendor_err>\d{1,5})")
_HCA: Final = re.compile(r" hca (?P<device>[A-Za-z0-9_.-]{1,32})")
_EVENT: Final = re.compile(
    r"NET/IB(?:/\w{1,16})? ?: (?:(?P<device>[A-Za-z0-9_.-]{1,32}:\d{1,3}) )?"
    r"(?:Got async (?:error )?event ?|async fatal event(?: on \w{1,8}[^:\n]{0,40})?): ?(?P<event>[A-Za-z ]{1,60})"
)

#: Completion status → what it says. 12 and 13: the way or the peer; 5 comes after another's error.
_FLUSHED: Final = 5
_STATUS: Final = {
    4: meaning("rdma_local_protection", action="check_software"),
    8: meaning("rdma_local_access_violation", action="check_software"),
    12: meaning("rdma_retry_exceeded", action="check_both_ends"),
    13: meaning("rdma_retry_exceeded", action="look_at_peer", cause="receiver_not_ready"),
}
_OTHER_STATUS: Final = meaning("rdma_request_failed", action="check_software")

_EVENTS: Final = {
    "port error": meaning("nic_link_flap", action="check_link"),
    "local catastrophic error": meaning("nic_fatal", Severity.CRITICAL, "reset_nic"),
    "local access violation work queue error": _STATUS[8],
    "invalid request local work queue error": _OTHER_STATUS,
    "local work queue catastrophic error": _OTHER_STATUS,
    "cq error": _OTHER_STATUS,
    "port active": meaning("nic_link_flap", action="check_link", part=Part.DETAIL),
}

#: Words of strerror(3) → what stands behind it when a queue pair or a memory region is set up.
_CAUSES: Final = {
    "No such device": "nic_gone",
    "Network is unreachable": "no_route",
    "No route to host": "no_route",
    "Invalid argument": "gid_index",
    "Connection timed out": "address_not_resolved",
    "Cannot allocate memory": "memlock_limit",
    "Operation not permitted": "permission",
    "Remote I/O error": "firmware",
}
_SETUP: Final = re.compile(
    r"Call to (?P<op>ibv_\w{1,40}) failed(?: with)?(?: error)?(?: \d{1,4})? ?(?P<cause>[A-Z][A-Za-z /]{2,40})?"
    r"(?:, on dev (?P<device>[A-Za-z0-9_.-]{1,32}:\d{1,3}))?"
)

_ADDRESS: Final = r"(?P<peer>[^\s<]{1,64})(?:<\d{1,5}>)?"
WORDINGS: Final = (
    wording(
        rf"Call to (?:recv from|send to|recv|send|accept|connect)(?: {_ADDRESS})? (?:returned|failed) ?:? ?"
        r"[^\n]{0,40}(?:Broken pipe|Connection reset by peer)",
        "peer_process_died",
        action="look_at_peer",
        cause="connection_lost",
    ),
    wording(
        rf"[Cc]onnection closed by remote peer {_ADDRESS}", "peer_process_died", action="look_at_peer", cause="closed"
    ),
    wording(
        rf"Connect to {_ADDRESS} (?:returned|failed) ?:? ?[^\n]{{0,40}}Connection refused",
        "peer_process_died",
        action="look_at_peer",
        cause="refused",
    ),
    wording(
        rf"(?:Connect|Call to \w{{1,12}}(?: from| to)?) ?(?:to )?{_ADDRESS} (?:returned|failed) ?:? ?[^\n]{{0,40}}"
        r"(?P<cause>No route to host|Network is unreachable|Connection timed out)",
        "peer_unreachable",
        action="check_both_ends",
    ),
    wording(
        r"Error while creating shared memory segment (?P<path>/dev/shm/\S{1,80})",
        "fs_full",
        action="free_space",
        cause="shared_memory",
    ),
    wording(
        r"ncclRemoteError: A call failed possibly due to a network error or a remote process exiting",
        "peer_process_died",
        action="look_at_peer",
        cause="remote_error",
    ),
    wording(r"NCCL WARN (?:\[Proxy Service \d|Proxy Call to rank)", "none", Severity.INFO, part=Part.DETAIL),
)

#: What is nearer to the cause, whatever came first: the port and the adapter, then this side's queue, then the rest.
_NEARNESS: Final = {
    "nic_fatal": 4,
    "nic_link_flap": 3,
    "rdma_local_access_violation": 2,
    "rdma_local_protection": 2,
    "none": -1,
}


def read(record: LogRecord) -> Finding | None:
    """What a line of NCCL says: an error of its network, or nothing."""
    text = record.text[:LOOKED_AT]
    finding = _completion(text, record) or _event(text, record) or _setup(text, record)
    if finding is None:
        for row in WORDINGS:
            match = row.text.search(text)
            if match is not None:
                finding = made(row, match.groupdict(), record)
                break
    if finding is None:
        return None
    return replace(finding, family="nccl", evidence={**_speaker(text), **finding.evidence})


def _completion(text: str, record: LogRecord) -> Finding | None:
    match = _COMPLETION.search(text)
    if match is None:
        return None
    groups = match.groupdict()
    for more in (_VENDOR.search(text), _HCA.search(text)):
        groups |= more.groupdict() if more is not None else {}
    status = int(match["ib_status"])
    row = _STATUS.get(status, _OTHER_STATUS)
    finding = made(row, groups, record)
    return replace(finding, part=Part.DETAIL) if status == _FLUSHED else finding


def _event(text: str, record: LogRecord) -> Finding | None:
    match = _EVENT.search(text)
    row = _EVENTS.get(match["event"].strip().lower()) if match is not None else None
    if match is None or row is None:
        return None
    return made(row, {"device": match["device"], "event": match["event"].strip()}, record)


def _setup(text: str, record: LogRecord) -> Finding | None:
    match = _SETUP.search(text)
    if match is None:
        return None
    said = (match["cause"] or "").strip()
    row = meaning("rdma_setup_failed", action="check_rdma_setup")
    cause = next((cause for words, cause in _CAUSES.items() if said.startswith(words)), None)
    return made(row, {"op": match["op"], "cause": cause, "device": match["device"]}, record)


def _speaker(text: str) -> Evidence:
    """Host, process and local device of whoever printed the line."""
    head = _HEAD.search(text[: max(0, text.find("NCCL WARN"))][-256:])
    if head is None:
        return {}
    return {"host": head["host"], "pid": int(head["pid"]), "local": f"[{head['local']}]"}


def conclude(parts: Sequence[Finding]) -> Finding:
    """The part that is nearest to the cause, the first among equals: what follows is said by its victims.

    A port error that several processes of one host report, without naming the port (before 2.20), is that host's.
    """
    faults = [part for part in parts if part.part is Part.FAULT] or list(parts[:1])
    chosen = max(faults, key=lambda part: _NEARNESS.get(part.fault, 1))
    evidence: Evidence = {}
    for part in (chosen, *parts):
        for name, value in part.evidence.items():
            if evidence.get(name) is None and (part is chosen or name not in {"host", "pid", "local", "cause", "text"}):
                evidence[name] = value
    device = chosen.device
    if not device and chosen.fault == "nic_link_flap":
        same = [part for part in faults if part.fault == chosen.fault]
        host = chosen.evidence.get("host")
        pids = {part.evidence.get("pid") for part in same if part.evidence.get("host") == host}
        if host and len(pids) > 1:
            device = f"{host}(all ranks)"
    evidence["text"] = str(evidence.get("text", ""))[:TEXT_KEPT]
    return replace(chosen, device=device, evidence=evidence)


FAMILIES: Final = (Family("nccl", gap_s=60.0, any_device=True, conclude=conclude),)
