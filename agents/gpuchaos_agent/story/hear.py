"""From a log's record to what it says, and to how far it may be believed."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import mark, registry
from gpuchaos_agent.words.base import Finding, Part


@dataclass(frozen=True, slots=True)
class Heard:
    """What a record says. `injected_mark`: it carries our own mark, and the id is in `evidence["fault_id"]`."""

    finding: Finding
    injected_mark: bool = False


def hear(record: LogRecord) -> Heard | None:
    """What the record says, None where it says nothing of a fault. Never raises.

    Only a record that a process wrote to the kernel log may carry a tag before the hardware's words, or our
    mark: the kernel does neither, and a mark believed in its records would let a process name hide real
    hardware. Without our mark such a record is a `spoof_or_injected`, whatever it claims.
    """
    if record.writer is not Writer.INJECTED:
        finding = registry.read(record)
        return None if finding is None else Heard(_counted(finding, record))
    text, fault_id = mark.without_mark(record.text)
    finding = _as_hardware(record, text)
    if finding is None:
        return None
    finding = _counted(finding, record)
    if fault_id is not None:
        return Heard(replace(finding, evidence={**finding.evidence, "fault_id": fault_id}), injected_mark=True)
    if finding.part is Part.DETAIL:
        return None  # it claims nothing by itself
    return Heard(mark.spoof(finding, facility=record.facility))


def _as_hardware(record: LogRecord, text: str) -> Finding | None:
    """What it would say in the kernel's mouth: as it stands, else behind a tag."""
    finding = registry.read(replace(record, text=text, writer=Writer.KERNEL))
    behind = None if finding is not None else mark.without_tag(text)
    return finding if behind is None else registry.read(replace(record, text=behind, writer=Writer.KERNEL))


def _counted(finding: Finding, record: LogRecord) -> Finding:
    if record.repeated <= 1:
        return finding
    return replace(finding, evidence={**finding.evidence, "count": record.repeated})
