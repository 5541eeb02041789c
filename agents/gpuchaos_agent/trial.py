"""`gpuchaos-agent inject`: one fault on this node by hand, for a while, with the journal and no control plane.

The same steps as a command's: parameters validated, the layer asked for, the journal on disk before the effect,
evidence measured, and an undo that survives this process.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from typing import Final

from pydantic import ValidationError

from gpuchaos_agent import offline
from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject.base import FaultStrategy, InjectError
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry, Scalar
from gpuchaos_stream.errors import UserError, nearest

#: Added to the time asked for, seconds: what is still there then is taken back by whoever looks at the journal.
GRACE_S: Final = 10.0


def parameters(pairs: list[str]) -> dict[str, Scalar]:
    """`name=value` pairs; numbers, true and false are taken as such.

    Raises:
        UserError: one is no pair.
    """
    found: dict[str, Scalar] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UserError("--param", f"{pair!r} is no name=value", "write --param name=value")
        found[name] = _scalar(value)
    return found


def entry_for(
    strategies: Mapping[str, FaultStrategy],
    journal: Journal | None,
    *,
    fault: str,
    target: str,
    params: dict[str, Scalar],
    seconds: float,
    boot_id: str,
    now: Now,
) -> JournalEntry:
    """The journal entry of a fault that may be injected here and now. Changes nothing.

    Raises:
        UserError: an unknown fault, bad parameters, a target that cannot suffer it, or one that is held already.
    """
    strategy = strategies.get(fault)
    if strategy is None:
        raise UserError("fault", f"no fault is called {fault!r}", nearest(fault, strategies))
    try:
        strategy.params.model_validate(params)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "params"
        known = ", ".join(strategy.params.model_fields) or "none"
        raise UserError(f"--param {where}", str(first["msg"]), f"{fault} takes {known}") from error
    reason = strategy.check(target, params)
    if reason is not None:
        raise UserError(f"{fault} on {target}", reason, "nothing was changed")
    standing = [] if journal is None else [e for e in journal.read()[0] if e.state is not EntryState.UNDONE]
    for other in standing:
        held = strategy.resources(target, params) & strategies[other.fault].resources(other.entity, other.params)
        if held:
            raise UserError(target, f"{', '.join(sorted(held))} is held by fault {other.fault_id}", "undo that first")
    fault_id = f"by-hand-{uuid.uuid4().hex[:12]}"
    try:
        payload = strategy.plan(target, params, fault_id)
    except InjectError as error:
        raise UserError(f"{fault} on {target}", str(error), "nothing was changed") from error
    return JournalEntry(
        fault_id=fault_id,
        experiment_id="by-hand",
        command_id=fault_id,
        fault=fault,
        entity=target,
        params=params,
        payload=payload,
        boot_id=boot_id,
        order=max((other.order for other in standing), default=-1) + 1,
        created=now.wall,
        lease_s=seconds + GRACE_S,
        lease_expires=now.wall + seconds + GRACE_S,
        lease_deadline=now.boot + seconds + GRACE_S,
    )


def run(
    entry: JournalEntry,
    strategies: Mapping[str, FaultStrategy],
    journal: Journal,
    *,
    seconds: float,
    now: Callable[[], Now],
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Injects, waits, undoes; 0 where something moved and everything is gone again, else 1."""
    strategy = strategies[entry.fault]
    journal.write(entry)
    moved = False
    try:
        strategy.inject(entry)
        evidence = strategy.evidence(entry)
        moved = evidence.moved
        detail = " ".join(f"{name}={value}" for name, value in evidence.detail.items())
        say(f"{'injected' if moved else 'NOT EFFECTIVE: nothing moved'}  {detail}")
        if moved:
            injected = {"state": EntryState.INJECTED, "injected_at": now().wall, "evidence": evidence.detail}
            journal.write(entry.model_copy(update=injected))
            wait(seconds)
    except Exception as error:  # noqa: BLE001  (whatever it was: half an effect may be there, and is taken back)
        say(f"NOT EFFECTIVE: {type(error).__name__}: {error}")
    finally:
        outcomes, _ = offline.undo(
            journal, strategies, now(), "by hand", only=lambda other: other.fault_id == entry.fault_id
        )
    problem = next((outcome.problem for outcome in outcomes), "it is not in the journal any more")
    say("undone, and verified gone" if problem is None else f"NOT UNDONE: {problem}; try gpuchaos-agent undo --all")
    if problem is None:
        journal.remove(entry.fault_id)
    return 0 if moved and problem is None else 1


def _scalar(text: str) -> Scalar:
    if text in {"true", "false"}:
        return text == "true"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
