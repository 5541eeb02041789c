"""A real line in the real kernel log, through a real agent, broker and worker: how soon, and as whose word."""

from __future__ import annotations

import time
import uuid

import pytest
from integration_watch import Watch, needs_kernel_log, real_node

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.anomaly import Anomaly, AnomalyKind
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.envelope import from_value
from gpuchaos_stream.events.fault import FaultPhase, Origin
from gpuchaos_stream.stream.house import READY, House

pytestmark = [pytest.mark.broker, pytest.mark.root, pytest.mark.timeout(90)]

CLUSTER = "kernel"
#: From the write to the anomaly's append at the broker, seconds.
SOON_S = 1.0


def write_xid(text: str) -> float:
    """Writes one record as a process can; returns when, epoch seconds."""
    path = needs_kernel_log()
    at = time.time()
    with path.open("w") as log:
        log.write(f"<4>{text}\n")
    return at


def appended(watch: Watch, marker: str) -> tuple[Anomaly, float] | None:
    """The anomaly that carries `marker`, and when its record was appended, epoch seconds."""
    for raw in watch.seen[topics.ANOMALIES.name]:
        anomaly = from_value(raw.topic, raw.value)
        if isinstance(anomaly, Anomaly) and marker in anomaly.model_dump_json():
            return anomaly, raw.timestamp / 1000
    return None


async def test_line_in_the_kernel_log_is_an_anomaly_within_a_second_marked_as_a_process_word(house: House) -> None:
    needs_kernel_log()
    worker = house.worker()
    node = real_node(house, cluster=CLUSTER)
    worker.wait_for(READY)
    async with Watch(house.settings) as watch:
        await watch.until(lambda: watch.frames(CLUSTER), "the agent's frames arrive")
        # Twice: the first may pay for what is set up once, and both must be soon.
        for _ in range(2):
            marker = f"0000:{uuid.uuid4().hex[:2]}:{uuid.uuid4().int % 32:02x}"
            wrote = write_xid(f"NVRM: Xid (PCI:{marker}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off.")
            anomaly, at = await watch.until(lambda m=marker: appended(watch, m), f"the anomaly of {marker}", 20.0)
            # The broker stamps whole milliseconds.
            assert -0.002 <= at - wrote < SOON_S

            assert anomaly.kind is AnomalyKind.SIGNAL
            assert anomaly.origin is Origin.PROCESS
            assert anomaly.detail["spoof"] is True
            assert anomaly.detail["claims"] == "gpu_lost"
            assert anomaly.severity.rank <= Severity.WARNING.rank, "not hardware speaking, and never critical"
            assert not anomaly.injected_mark
            assert anomaly.node == node.node
            facts = watch.faults(id=anomaly.fault_event_id)
            assert [fact.phase for fact in facts] == [FaultPhase.OBSERVED]
            assert facts[0].experiment_id is None
            assert facts[0].time == pytest.approx(wrote, abs=0.05)
