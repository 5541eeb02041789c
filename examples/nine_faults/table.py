"""What became of each fault, as text and as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from gpuchaos_stream.events.experiment import Verdict
from gpuchaos_stream.events.fault import FaultEvent
from nine_faults.course import Outcome


def facts(outcome: Outcome) -> dict[str, Any]:
    """One fault's row. Times in seconds since the injection, None where it never came to it."""
    state = outcome.state
    recovery = state.recovery if state is not None else None
    first = outcome.charged[0] if outcome.charged else None
    return {
        "fault": outcome.fault,
        "experiment": outcome.name,
        "on": outcome.site,
        "verdict": str(state.verdict) if state is not None and state.verdict else "not finished",
        "reason": state.reason if state is not None else "",
        "evidence": _evidence(outcome.injected),
        "detected_by": f"{first.metric} on {first.entity}" if first is not None else None,
        "also": sorted({anomaly.metric for anomaly in outcome.charged[1:]} - {first.metric if first else ""}),
        "ttd": recovery.ttd if recovery is not None else None,
        "ttm": recovery.ttm if recovery is not None else None,
        "ttr": recovery.ttr if recovery is not None else None,
        "mitigated_by": recovery.mitigated_by if recovery is not None else None,
        "steps_lost": outcome.grown("steps_lost"),
        "samples_lost": outcome.after.get("data_lost"),
        "bad_weights_loaded": outcome.grown("bad_weights_loaded"),
        "checkpoints_refused": _more(outcome, "refused"),
        "resumed_from": outcome.after.get("resumed_from"),
        "recovery_checks": dict(state.steady) if state is not None else {},
    }


def complaints(outcome: Outcome) -> list[str]:
    """What is not as it must be; empty for a fault that had an effect, was seen, and cost no data."""
    row = facts(outcome)
    wrong = []
    if row["verdict"] != Verdict.PASSED:
        wrong.append(f"verdict {row['verdict']}: {row['reason']}")
    if not row["evidence"]:
        wrong.append("no evidence of an effect")
    if row["detected_by"] is None:
        wrong.append("nothing was charged to it")
    if row["bad_weights_loaded"]:
        wrong.append(f"bad weights loaded: {row['bad_weights_loaded']} times")
    if row["samples_lost"] != 0:
        wrong.append(f"samples lost: {row['samples_lost']}")
    return wrong


def show(outcomes: Sequence[Outcome]) -> str:
    """A block for each fault: wide tables wrap, and evidence is long."""
    blocks = []
    for number, outcome in enumerate(outcomes, 1):
        row = facts(outcome)
        lines = [f"{number}. {row['fault']}  ({row['experiment']}, {row['on']}): {row['verdict']}"]
        lines += [
            f"   {name:<17} {value}"
            for name, value in (
                ("evidence", _words(row["evidence"])),
                ("detected by", row["detected_by"] or "nothing"),
                ("then", ", ".join(row["also"]) or "-"),
                ("TTD / TTM / TTR", _times(row)),
                ("steps lost", row["steps_lost"]),
                ("samples lost", row["samples_lost"]),
                ("checkpoints", _checkpoints(row)),
                ("recovery checks", _words(row["recovery_checks"])),
            )
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join(blocks)


def as_json(outcomes: Sequence[Outcome]) -> str:
    """One object a line."""
    return "\n".join(json.dumps(facts(outcome)) for outcome in outcomes)


def _times(row: dict[str, Any]) -> str:
    said = ["the work moved off the target"] if row["mitigated_by"] == "moved" else []
    said += ["absorbed: no check went out of tolerance"] if row["ttr"] == 0 else []
    times = " / ".join(_seconds(row[name]) for name in ("ttd", "ttm", "ttr"))
    return f"{times}   ({', '.join(said)})" if said else times


def _evidence(event: FaultEvent | None) -> dict[str, Any]:
    return dict(event.evidence) if event is not None else {}


def _more(outcome: Outcome, name: str) -> list[Any]:
    before, after = outcome.before.get(name) or [], outcome.after.get(name) or []
    return list(after[len(before) :])


def _checkpoints(row: dict[str, Any]) -> str:
    refused = len(row["checkpoints_refused"])
    said = f"{refused} refused, resumed from step {row['resumed_from']}" if refused else "none refused"
    return said + (f", {row['bad_weights_loaded']} times bad weights loaded" if row["bad_weights_loaded"] else "")


def _words(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items()) or "none"


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f} s"
