"""`gpuchaos-agent inject`: one fault on this node by hand, for a while, with the journal and no control plane.

The same steps as a command's: parameters validated, the layer asked for, the journal on disk before the effect,
evidence measured, and an undo that survives this process.
"""

from __future__ import annotations

import json
import math
import signal
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Final

from pydantic import ValidationError

from gpuchaos_agent import admit, offline
from gpuchaos_agent.clock import Now
from gpuchaos_agent.inject import netns
from gpuchaos_agent.inject.base import FaultStrategy, InjectError
from gpuchaos_agent.journal import EntryState, Journal, JournalEntry, Scalar
from gpuchaos_stream.errors import UserError, nearest

#: Added to the time asked for, seconds: what is still there then is taken back by whoever looks at the journal.
GRACE_S: Final = 10.0


def parameters(pairs: list[str]) -> dict[str, Scalar]:
    """`name=value` pairs. What a value is, its parameter says (`entry_for`).

    Raises:
        UserError: one is no pair.
    """
    found: dict[str, Scalar] = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not name or not equals:
            raise UserError("--param", f"{pair!r} is no name=value", "write --param name=value")
        found[name] = value
    return found


def duration(seconds: float, longest_s: float) -> float:
    """How long a fault is to stand.

    Raises:
        UserError: it is no such time, or longer than this node allows.
    """
    fix = f"write a number of seconds above 0, at most {longest_s:g} (longest_lease)"
    if not math.isfinite(seconds):
        raise UserError("--seconds", f"{seconds} is no time", fix)
    if seconds <= 0:
        raise UserError("--seconds", f"{seconds:g} is no time for a fault to stand", fix)
    if seconds > longest_s:
        raise UserError("--seconds", f"{seconds:g} is longer than a fault may stand here", fix)
    return seconds


def entry_for(
    strategies: Mapping[str, FaultStrategy],
    journal: Journal | None,
    *,
    fault: str,
    target: str,
    params: Mapping[str, Scalar],
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
    params = typed(strategy, params)
    standing = [] if journal is None else _standing(journal)
    held = admit.held_by(strategy, target, params, standing, strategies)
    if held is not None:
        raise UserError(target, held, "undo that first: gpuchaos-agent undo --all")
    reason = strategy.check(target, params)
    if reason is not None:
        raise UserError(f"{fault} on {target}", reason, "nothing was changed")
    fault_id = f"by-hand-{uuid.uuid4().hex[:12]}"
    try:
        payload = netns.stamped(fault, strategy.plan(target, params, fault_id))
    except InjectError as error:
        raise UserError(f"{fault} on {target}", str(error), "nothing was changed") from error
    return JournalEntry(
        fault_id=fault_id,
        experiment_id="by-hand",
        command_id=fault_id,
        fault=fault,
        entity=target,
        params=dict(params),
        payload=payload,
        boot_id=boot_id,
        order=max((other.order for other in standing), default=-1) + 1,
        created=now.wall,
        lease_s=seconds + GRACE_S,
        lease_expires=now.wall + seconds + GRACE_S,
        lease_deadline=now.boot + seconds + GRACE_S,
    )


def _standing(journal: Journal) -> list[JournalEntry]:
    aside = journal.aside()
    entries, damaged = journal.read()
    unsettled = admit.unsettled([*aside, *damaged])
    if unsettled is not None:
        raise UserError(str(journal.folder), unsettled, "nothing was changed")
    return [entry for entry in entries if entry.state is not EntryState.UNDONE]


def run(
    entry: JournalEntry,
    strategies: Mapping[str, FaultStrategy],
    journal: Journal,
    *,
    seconds: float,
    now: Callable[[], Now],
    say: Callable[[str], None],
    wait: Callable[[float], None] = time.sleep,
    until: AbstractContextManager[None] | None = None,
) -> int:
    """Injects, waits, undoes; 0 where something moved and everything is gone again, else 1.

    `until` is entered while the fault comes and stands (`ending`): an `Ended` that it lets through ends the fault, and
    gives 128 and the signal's number where everything is gone again.

    Raises:
        UserError: the journal cannot be written; nothing was changed then.
    """
    strategy = strategies[entry.fault]
    try:
        journal.write(entry)
    except OSError as error:
        raise UserError(
            str(journal.folder), f"cannot be written: {error.strerror}", "nothing was changed; make room there"
        ) from error
    moved, ended = False, None
    try:
        with until or nullcontext():
            strategy.inject(entry)
            evidence = strategy.evidence(entry)
            moved = evidence.moved
            detail = " ".join(f"{name}={value}" for name, value in evidence.detail.items())
            say(f"{'injected' if moved else 'NOT EFFECTIVE: nothing moved'}  {detail}")
            if moved:
                injected = {"state": EntryState.INJECTED, "injected_at": now().wall, "evidence": evidence.detail}
                journal.write(entry.model_copy(update=injected))
                wait(seconds)
    except Ended as signalled:
        ended = signalled.number
        say(f"ended by {signalled}: it is taken back")
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
    if ended is not None and problem is None:
        return 128 + ended
    return 0 if moved and problem is None else 1


class Ended(BaseException):
    """A signal that asks this process to end: it ends after the undo."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


@contextmanager
def ending() -> Iterator[None]:
    """Within, SIGTERM, SIGHUP and SIGINT raise `Ended`; from its end on they are ignored: nothing disturbs the undo.

    One that is ignored already (`nohup`) stays so.
    """
    heard = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
        if signal.getsignal(number) != signal.SIG_IGN
    ]

    def deaf() -> None:
        for each in heard:
            signal.signal(each, signal.SIG_IGN)

    def end(number: int, _frame: object) -> None:
        deaf()
        raise Ended(number)

    for number in heard:
        signal.signal(number, end)
    try:
        yield
    finally:
        deaf()


def typed(strategy: FaultStrategy, params: Mapping[str, Scalar]) -> dict[str, Scalar]:
    """The parameters as the fault's model takes them from text: `5432` is a number only where one is asked for.

    Raises:
        UserError: one is wrong.
    """
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in params.items()}
    try:
        asked = strategy.params.model_validate_strings(texts)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "params"
        fields = strategy.params.model_fields
        known = f"{strategy.name} takes {', '.join(fields) or 'none'}"
        unknown = where != "params" and where not in fields
        problem = "there is no such parameter" if unknown else str(first["msg"])
        raise UserError(f"--param {where}", problem, nearest(where, fields) if unknown and fields else known) from error
    return asked.model_dump(mode="json", exclude_unset=True)
