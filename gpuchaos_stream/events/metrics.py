"""The metrics a frame may carry: one name for each, its unit, and what a change of it means.

A metric that is not in this table is carried and shown but not judged. Units are base units. `rate` metrics
are increments per second that the agent made from counters, so that a reader never meets a wrapped one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from gpuchaos_stream.events.frame import Kind

#: Which side of its peers is bad. `both`: any distance; `none`: context only, never an anomaly.
Bad = Literal["high", "low", "both", "none"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric. `floor` is the smallest difference that matters at all, in `unit`.

    `floor` guards against a spread of nearly zero: peers that agree to the last digit make any difference a
    thousand deviations wide (seen in the ByteDance traces: a healthy worker at z = 9.3).
    `event` marks a rate that is zero on a healthy device, so that any value above `floor` is a fact by itself.
    """

    kind: Kind
    name: str
    unit: str
    bad: Bad
    floor: float
    event: bool = False
    meaning: str = ""


_ALL: Final = (
    Metric("node", "cpu_busy_ratio", "1", "none", 0.2, meaning="share of CPU time not idle"),
    Metric("node", "memory_available_ratio", "1", "none", 0.1, meaning="MemAvailable / MemTotal"),
    Metric("node", "load1", "1", "none", 1.0, meaning="load average over a minute"),
    Metric("node", "pressure_cpu_ratio", "1", "none", 0.2, meaning="PSI some avg10 of CPU"),
    Metric("node", "pressure_memory_ratio", "1", "high", 0.2, meaning="PSI some avg10 of memory"),
    Metric("node", "pressure_io_ratio", "1", "none", 0.3, meaning="PSI some avg10 of IO"),
    Metric("gpu", "utilization_ratio", "1", "low", 0.25, meaning="share of time a kernel ran"),
    Metric("gpu", "memory_used_bytes", "bytes", "none", 2e9),
    Metric("gpu", "memory_total_bytes", "bytes", "none", 1e9),
    Metric("gpu", "temperature_celsius", "celsius", "high", 8.0),
    Metric("gpu", "power_watts", "watts", "low", 100.0),
    Metric("gpu", "sm_clock_hertz", "hertz", "low", 2e8),
    Metric("gpu", "ecc_corrected_rate", "1/s", "high", 1.0, event=True),
    Metric("gpu", "ecc_uncorrected_rate", "1/s", "high", 0.0, event=True),
    Metric("gpu", "pcie_replay_rate", "1/s", "high", 5.0, event=True),
    Metric("gpu", "throttle_hw_ratio", "1", "high", 0.3, meaning="1 while hardware holds the clocks down"),
    Metric("gpu", "nvlink_tx_bytes_rate", "bytes/s", "low", 5e9),
    Metric("gpu", "remapped_rows_pending", "1", "high", 0.0, event=True),
    Metric("gpu", "remapped_rows_failed", "1", "high", 0.0, event=True, meaning="1 after a row could not be remapped"),
    Metric("gpu", "memory_busy_ratio", "1", "none", 0.25, meaning="share of time the memory was read or written"),
    Metric("gpu", "memory_temperature_celsius", "celsius", "high", 8.0),
    Metric("gpu", "memory_clock_hertz", "hertz", "low", 2e8),
    Metric("gpu", "power_limit_watts", "watts", "low", 50.0, meaning="enforced limit"),
    Metric("gpu", "throttle_sw_ratio", "1", "none", 0.3, meaning="1 while a power cap or software heat limit holds"),
    Metric("gpu", "pcie_generation", "1", "none", 1.0, meaning="current; falls while idle"),
    Metric("gpu", "pcie_width_ratio", "1", "low", 0.25, meaning="current lanes / most lanes"),
    Metric("gpu", "recovery_action", "1", "high", 0.0, event=True, meaning="number of nvmlDeviceGpuRecoveryAction_t"),
    Metric("gpu", "fabric_ready", "1", "low", 0.5, meaning="1 when registered with the NVLink fabric and healthy"),
    Metric("gpu", "retired_pages", "1", "none", 1.0, meaning="pages retired so far, before Ampere"),
    Metric("gpu", "nvlink_rx_bytes_rate", "bytes/s", "low", 5e9),
    Metric("gpu", "processes", "1", "none", 1.0, meaning="compute processes on it"),
    Metric("rdma", "port_active", "1", "low", 0.5, meaning="1 while the port's state is 4: ACTIVE"),
    Metric("rdma", "rate_bits", "bits/s", "low", 1e10, meaning="only while the port is active"),
    Metric("rdma", "rx_bytes_rate", "bytes/s", "low", 2e9),
    Metric("rdma", "tx_bytes_rate", "bytes/s", "low", 2e9),
    Metric("rdma", "link_downed_rate", "1/s", "high", 0.0, event=True),
    Metric("rdma", "symbol_error_rate", "1/s", "high", 10.0, event=True, meaning="NVSentinel: degraded over 10/s"),
    Metric("rdma", "rcv_errors_rate", "1/s", "high", 10.0, event=True),
    Metric("rdma", "out_of_sequence_rate", "1/s", "high", 50.0),
    Metric("rdma", "ack_timeout_rate", "1/s", "high", 1.0, event=True),
    Metric("rdma", "cnp_handled_rate", "1/s", "none", 1e3),
    Metric("rdma", "cnp_sent_rate", "1/s", "none", 1e3),
    Metric("rdma", "ecn_marked_rate", "1/s", "none", 1e3, meaning="RoCE packets that came marked as congested"),
    Metric("rdma", "pfc_pause_rate", "1/s", "none", 1e3, meaning="pause frames got, all priorities"),
    Metric("rdma", "link_recovery_rate", "1/s", "high", 0.08, event=True, meaning="NVSentinel: degraded over 5/min"),
    Metric("rdma", "link_integrity_rate", "1/s", "high", 0.0, event=True, meaning="local_link_integrity_errors"),
    Metric("rdma", "buffer_overrun_rate", "1/s", "high", 0.0, event=True, meaning="excessive_buffer_overrun_errors"),
    Metric("rdma", "rnr_retry_rate", "1/s", "high", 0.0, event=True, meaning="receiver not ready, retries used up"),
    Metric("rdma", "slow_restart_rate", "1/s", "high", 10.0, event=True, meaning="NVSentinel: degraded over 10/s"),
    Metric("rdma", "xmit_wait_rate", "1/s", "none", 1e6, meaning="ticks that data waited for credits"),
    Metric("rdma", "carrier", "1", "low", 0.5, meaning="1 while the port's network device has its carrier"),
    Metric("numa", "memory_free_bytes", "bytes", "none", 4e9),
    Metric("numa", "local_rate", "1/s", "none", 1e4, meaning="pages/s allocated on the node by a CPU of it"),
    Metric("numa", "remote_rate", "1/s", "high", 1e4, meaning="pages/s allocated on another node than the CPU's"),
    Metric("nvlink", "link_active", "1", "low", 0.5),
    Metric("nvlink", "replay_rate", "1/s", "high", 1.0, event=True),
    Metric("nvlink", "recovery_rate", "1/s", "high", 0.0, event=True, meaning="the link was trained anew"),
    Metric("nvlink", "crc_error_rate", "1/s", "high", 1.0, event=True),
    Metric("process", "steps_rate", "1/s", "low", 0.05, meaning="training steps finished per second"),
    Metric("process", "step_time_seconds", "s", "high", 0.05, meaning="duration of the last finished step"),
    Metric("process", "progress_age_seconds", "s", "high", 2.0, meaning="since the last sign of progress"),
    Metric("process", "running", "1", "low", 0.5, meaning="1 while it runs, 0 stopped (T) or gone"),
    Metric("process", "numa_misaligned_ratio", "1", "high", 0.25, meaning="docs/telemetry.md; 0 beside its GPU, 1 far"),
    Metric("process", "numa_cpu_far_ratio", "1", "none", 0.25, meaning="share of its CPUs off its GPU's node"),
    Metric("process", "numa_memory_far_ratio", "1", "none", 0.25, meaning="share of its pages off its GPU's node"),
    Metric("process", "cpu_throttled_ratio", "1", "high", 0.1, meaning="share of its cgroup's periods cut short"),
    Metric("process", "pressure_cpu_ratio", "1", "none", 0.2, meaning="PSI some avg10 of its cgroup"),
    Metric("process", "pressure_memory_ratio", "1", "high", 0.2, meaning="PSI some avg10 of its cgroup"),
    Metric("process", "pressure_io_ratio", "1", "none", 0.3, meaning="PSI some avg10 of its cgroup"),
    Metric("process", "tokens_rate", "1/s", "low", 1.0, meaning="tokens trained per second"),
    Metric("process", "loss", "1", "none", 1.0, meaning="as the job last printed it"),
)

METRICS: Final[dict[tuple[Kind, str], Metric]] = {(m.kind, m.name): m for m in _ALL}
