"""Journal entries as the agent makes them, for tests of single faults."""

from __future__ import annotations

from collections.abc import Mapping

from gpuchaos_agent.clock import Now
from gpuchaos_agent.journal import JournalEntry, Scalar


def journalled(
    fault: str,
    target: str,
    params: Mapping[str, Scalar],
    payload: Mapping[str, Scalar],
    *,
    boot_id: str,
    fault_id: str = "f1",
    lease_s: float = 10.0,
    now: Now | None = None,
) -> JournalEntry:
    """The entry, read back as it would be from disk. Without `now` its times begin at 0."""
    wall, boot = (now.wall, now.boot) if now is not None else (0.0, 0.0)
    made = JournalEntry(
        fault_id=fault_id,
        experiment_id="e1",
        command_id="c1",
        fault=fault,
        entity=target,
        params=dict(params),
        payload=dict(payload),
        boot_id=boot_id,
        order=0,
        created=wall,
        lease_s=lease_s,
        lease_expires=wall + lease_s,
        lease_deadline=boot + lease_s,
    )
    return JournalEntry.model_validate_json(made.model_dump_json())
