"""PyTorch's collectives: watchdog (2021 to 2026), desync report, mismatched collectives, Gloo, rendezvous by store.

Formats: `ProcessGroupNCCL.cpp` and `TraceUtils.h` of torch 1.10 to 2.9, `TCPStore.cpp`, `gloo/transport/tcp/pair.cc`.
Sequence numbers are those of one process group, so that only lines of the watchdog that timed out are compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from gpuchaos_agent.collect.base import Evidence
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words.base import TEXT_KEPT, Family, Finding, Part
from gpuchaos_agent.words.wordings import LOOKED_AT, made, meaning, wording

HINTS: Final = (
    "ProcessGroupNCCL",
    "collective operation timeout",
    "last completed",
    "collective #",
    "lagging ranks",
    "mismatch between collectives",
    "gloo/transport",
    "waiting for clients",
    "client socket has timed out",
    "client socket has failed",
)
WRITERS: Final = frozenset({Writer.PROGRAM})

_TIMEOUT: Final = re.compile(
    r"[Ww]atchdog caught collective operation timeout: Work\w{2,8}"
    r"\((?P<args>[^()]{0,300}(?:\(ms\)=\d{1,12})?[^()]{0,100})\)"
    r"(?: ran for (?P<ran>\d{1,12}) milliseconds)?"
)
_RANK: Final = re.compile(r"\[(?:PG [^\]\n]{0,120} )?[Rr]ank ?(\d{1,7})\]")
_PREFIX: Final = re.compile(r"\[rank(\d{1,7})\]")
_STATUS: Final = re.compile(
    r"at (?:NCCL )?work(?: sequence id)?: (?P<seq>\d{1,15})[, ][^\n]{0,60}?"
    r"last completed (?:NCCL )?work: (?P<last>-?\d{1,15})"
)
_LAGGING: Final = re.compile(r"ranks \[(?P<ranks>[\d, ]{1,2000})\] are the lagging ranks")
_BEHIND: Final = re.compile(
    r"\[(?P<ranks>[\d, ]{1,2000})\] (?:joined but didn't finish|finished) collective #(?P<seq>\d{1,15})"
)
_MISMATCH: Final = re.compile(
    r"Detected mismatch between collectives on ranks\. Rank (?P<ranks>\d{1,7}) is running collective: "
    r"CollectiveFingerPrint\((?:SequenceNumber=(?P<seq>\d{1,15}), ?)?OpType=(?P<op>\w{1,40})"
)

_TIMED_OUT: Final = meaning("collective_timeout", action="find_slow_rank")
_DESYNC: Final = meaning("collective_desync", action="find_slow_rank")
WORDINGS: Final = (
    wording(
        r"watchdog got stuck for \d{1,7} seconds|Heartbeat monitor timed out! Process will be",
        "collective_timeout",
        action="find_slow_rank",
        cause="watchdog_stuck",
    ),
    wording(
        r"Received a dump signal due to a collective timeout from {1,2}(?P<reporter>rank \d{1,7}|this local rank)",
        "collective_timeout",
        action="find_slow_rank",
    ),
    wording(
        r"gloo/transport/\w{1,12}/[^\n]{1,80}\] (?:Connection closed by peer|Read error|writev?[^\n]{0,20}) ?"
        r"\[(?P<peer>[0-9a-fA-F.:]{2,45})\]",
        "peer_process_died",
        action="look_at_peer",
    ),
    wording(
        r"gloo/transport/\w{1,12}/[^\n]{1,80}\] Timed out waiting (?P<timeout_ms>\d{1,12})ms for (?P<op>\w{1,20})",
        "collective_timeout",
        action="find_slow_rank",
    ),
    wording(
        r"Timed out after \d{1,8} seconds waiting for clients\. (?P<joined>\d{1,7}/\d{1,7}) clients joined",
        "rendezvous_failed",
        action="look_at_peer",
        cause="peers_missing",
    ),
    wording(
        r"client socket has (?:timed out after \d{1,12} ?m?s|failed to connect)[^\n]{0,120}?"
        r"\((?P<host>[^\s,()]{1,80}), (?P<port>\d{1,5})\)",
        "rendezvous_failed",
        action="look_at_peer",
        cause="store_unreachable",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """What a line of the watchdog, of the desync report or of a store says."""
    text = record.text[:LOOKED_AT]
    finding = _timeout(text, record) or _status(text, record) or _desync(text, record)
    if finding is not None:
        return replace(finding, family="torch")
    for row in WORDINGS:
        match = row.text.search(text)
        if match is not None:
            found = made(
                row, match.groupdict(), record, family="torch" if row.fault == "collective_timeout" else row.fault
            )
            if "host" in found.evidence:
                return replace(found, device=f"{found.evidence['host']}:{found.evidence.pop('port')}")
            return found
    return None


def _timeout(text: str, record: LogRecord) -> Finding | None:
    match = _TIMEOUT.search(text)
    if match is None:
        return None
    args = dict(re.findall(r"(\w{1,20}(?:\(ms\))?)=(\w{1,40})", match["args"]))
    groups = {"op": args.get("OpType"), "seq": args.get("SeqNum"), "ranks": _rank(text, match.start())}
    finding = made(_TIMED_OUT, groups, record)
    if match["ran"]:
        finding.evidence["ran_s"] = round(int(match["ran"]) / 1000, 3)
    return finding


def _status(text: str, record: LogRecord) -> Finding | None:
    match = _STATUS.search(text)
    if match is None:
        return None
    finding = made(_TIMED_OUT, {"seq": match["seq"]}, record)
    more: Evidence = {"last_completed": int(match["last"]), "rank": _rank(text, match.start())}
    return replace(finding, part=Part.DETAIL, evidence={**finding.evidence, **more})


def _desync(text: str, record: LogRecord) -> Finding | None:
    match = _LAGGING.search(text) or _BEHIND.search(text) or _MISMATCH.search(text)
    if match is None:
        return None
    groups = match.groupdict()
    suspect = ",".join(part.strip() for part in (groups.pop("ranks") or "").split(",") if part.strip())
    finding = made(_DESYNC, groups, record)
    finding.evidence["suspect"] = suspect
    return finding


def _rank(text: str, before: int) -> str | None:
    """The rank that speaks, named last before the words."""
    ranks = _RANK.findall(text[max(0, before - 256) : before]) or _PREFIX.findall(text[:64])
    return ranks[-1] if ranks else None


def conclude(parts: Sequence[Finding]) -> Finding:
    """One event of all ranks: `ranks` that timed out, the lowest `seq` and `last_completed`.

    `suspect` are the ranks that are behind: those that the desync report names, else those with the lowest last
    completed (or timed out) number where the numbers differ. A rank that lags keeps all others waiting.
    """
    faults = [part for part in parts if part.part is Part.FAULT] or list(parts[:1])
    chosen = next((part for part in faults if part.fault == "collective_desync"), faults[0])
    evidence: Evidence = {}
    for part in (chosen, *faults):
        evidence = {**part.evidence, **{name: value for name, value in evidence.items() if value is not None}}
    ranks = _sorted(part.evidence.get("ranks") for part in faults)
    sequences = _by_rank("seq", "ranks", faults)
    completed = _by_rank("last_completed", "rank", parts)
    if ranks:
        evidence["ranks"] = ",".join(ranks)
    if sequences:
        evidence["seq"] = min(sequences.values())
    if completed:
        evidence["last_completed"] = min(completed.values())
    suspects = (
        _sorted(rank for part in faults for rank in str(part.evidence.get("suspect") or "").split(","))
        or _lowest(completed)
        or _lowest(sequences)
    )
    if suspects:
        evidence["suspect"] = ",".join(suspects)
    evidence["text"] = str(evidence.get("text", ""))[:TEXT_KEPT]
    return replace(chosen, evidence=evidence)


def _by_rank(name: str, rank: str, of: Iterable[Finding]) -> dict[str, int]:
    """Rank → its lowest number of that name."""
    found: dict[str, int] = {}
    for part in of:
        value = part.evidence.get(name)
        who = str(part.evidence.get(rank) or "")
        if isinstance(value, int):
            found[who] = min(value, found.get(who, value))
    return found


def _lowest(numbers: dict[str, int]) -> list[str]:
    if len(set(numbers.values())) < 2:
        return []
    lowest = min(numbers.values())
    return _sorted(rank for rank, value in numbers.items() if value == lowest)


def _sorted(ranks: Iterable[object]) -> list[str]:
    return sorted({str(rank) for rank in ranks if rank}, key=lambda rank: (len(rank), rank))


FAMILIES: Final = (
    Family("torch", gap_s=120.0, any_device=True, conclude=conclude),
    Family("peer_process_died", gap_s=60.0),
    Family("rendezvous_failed", gap_s=60.0),
)
