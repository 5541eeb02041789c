"""What the agent counts of itself, for Prometheus, on one page. Names begin with `gpuchaos_agent_`."""

from __future__ import annotations

from typing import Final

from prometheus_client import Counter, Gauge, Histogram

INFO: Final = Gauge("gpuchaos_agent_info", "Always 1.", ["cluster", "node", "version"])
FRAMES: Final = Counter("gpuchaos_agent_frames_total", "Telemetry frames made.")
DROPPED: Final = Gauge("gpuchaos_agent_frames_dropped", "Frames dropped since the start: the broker was away.")
WAITING: Final = Gauge("gpuchaos_agent_frames_waiting", "Frames that wait for the broker, in memory.")
SPOOL: Final = Gauge("gpuchaos_agent_fault_events_pending_bytes", "Fault events that wait for the broker, on disk.")
DEGRADED: Final = Gauge("gpuchaos_agent_outbox_degraded", "1 while the disk refuses fault events.")
EVENTS: Final = Counter("gpuchaos_agent_fault_events_total", "Fault events told.", ["phase", "fault"])
ACTIVE: Final = Gauge("gpuchaos_agent_faults_active", "Injected faults that are on this node now.")
FAILING: Final = Gauge(
    "gpuchaos_agent_undo_failing",
    "Faults that could not be taken back yet, or whose journal file is damaged: a person is needed.",
)
HANGING: Final = Gauge("gpuchaos_agent_fault_steps_hanging", "Faults of which a step has not returned in time.")
COMMANDS: Final = Counter("gpuchaos_agent_commands_total", "Commands for this node that arrived.")
ERRORS: Final = Counter("gpuchaos_agent_errors_total", "Failures survived.", ["part"])
COLLECTOR_ERRORS: Final = Gauge("gpuchaos_agent_collector_errors", "Failures of a collector, survived.", ["collector"])
OFFSET: Final = Gauge("gpuchaos_agent_clock_offset_seconds", "Broker's clock minus this node's; NaN while unknown.")
COLLECT: Final = Histogram(
    "gpuchaos_agent_collect_seconds",
    "Time to ask all collectors once.",
    buckets=(0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0),
)
