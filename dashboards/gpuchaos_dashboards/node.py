"""The lower half of the fleet's dashboard: nodes of the chosen cell, agent and devices of the chosen node."""

from __future__ import annotations

from typing import Final

from gpuchaos_dashboards import shared
from gpuchaos_dashboards.pages import Page
from gpuchaos_dashboards.parts import PLAIN, About, Panel, Query, Steps, bad_from, cells, good_from, lines, number
from gpuchaos_dashboards.shared import to_runbook

#: Series of the chosen cell, and of the chosen node.
CELL: Final = 'cluster="$cluster", cell="$cell"'
NODE: Final = 'cluster="$cluster", cell="$cell", node="$node"'
_NO_AGENT: Final = "no agent that is scraped tells of it"

#: Kind of device → the labels that tell one from another, and what it is called.
_DEVICES: Final = {
    "gpu": ("gpu", "GPU {{gpu}}"),
    "nvlink": ("gpu", "GPU {{gpu}}"),
    "rdma": ("port, rail", "{{port}} rail {{rail}}"),
    "numa": ("numa_node", "NUMA node {{numa_node}}"),
    "process": ("pid, training_job", "{{training_job}} {{pid}}"),
}


def rows(made: Page) -> None:
    """Adds them."""
    _cell(made)
    _node(made)
    _devices(made)


def _cell(made: Page) -> None:
    made.row(
        "Cell $cell: a row a node",
        *(
            (
                cells(
                    About(title, text, unit, _NO_AGENT, links=_to_node(), low=0, high=high),
                    Query(f"{expr}", "{{node}}"),
                    low_is_bad=bad,
                ),
                12,
                9,
            )
            for title, text, unit, high, bad, expr in (
                (
                    "GPU utilisation, by node",
                    "Share of time a kernel ran, mean of the node.",
                    "percentunit",
                    1,
                    True,
                    f"avg by (node) (gpuchaos_gpu_utilization_ratio{{{CELL}}})",
                ),
                (
                    "RDMA ports active, by node",
                    "Share of the node's ports that are active.",
                    "percentunit",
                    1,
                    True,
                    f"avg by (node) (gpuchaos_rdma_port_active{{{CELL}}})",
                ),
                (
                    "Misaligned processes, by node",
                    "How far the worst process is from its GPU.",
                    "percentunit",
                    1,
                    False,
                    f"max by (node) (gpuchaos_process_numa_misaligned_ratio{{{CELL}}})",
                ),
                (
                    "CPU busy, by node",
                    "Share of CPU time that is not idle.",
                    "percentunit",
                    1,
                    False,
                    f"max by (node) (gpuchaos_node_cpu_busy_ratio{{{CELL}}})",
                ),
            )
        ),
    )


def _node(made: Page) -> None:
    joined = (
        "* on (job, instance) group_left () group by (job, instance) "
        '(gpuchaos_agent_info{cluster="$cluster", node="$node"})'
    )
    made.row(
        "Node $node: its agent",
        (
            number(
                About(
                    "Faults on it",
                    "Injected faults that are on this node now.",
                    "short",
                    _NO_AGENT,
                    bad_from(1),
                ),
                Query(f"max(gpuchaos_agent_faults_active {joined})"),
            ),
            6,
            4,
        ),
        (
            number(
                About(
                    "Faults that cannot be taken back",
                    "A person is needed.",
                    "short",
                    _NO_AGENT,
                    bad_from(1),
                    to_runbook("GPUChaosUndoFailing"),
                ),
                Query(f"max(gpuchaos_agent_undo_failing {joined})"),
            ),
            6,
            4,
        ),
        (
            number(
                About(
                    "Clock offset",
                    "Broker's clock minus this node's.",
                    "s",
                    "not measured yet",
                    ((None, "red"), (-1, "green"), (1, "red")),
                    to_runbook("GPUChaosAgentClockOff"),
                ),
                Query(f"max(gpuchaos_agent_clock_offset_seconds {joined})"),
            ),
            6,
            4,
        ),
        (
            number(
                About(
                    "Frames waiting",
                    "Frames that wait for the broker, in the agent's memory.",
                    "short",
                    _NO_AGENT,
                    bad_from(10, 100),
                ),
                Query(f"max(gpuchaos_agent_frames_waiting {joined})"),
            ),
            6,
            4,
        ),
        (
            lines(
                About(
                    "Pressure",
                    "Share of the last 10 s in which something waited for it.",
                    "percentunit",
                    _NO_AGENT,
                    low=0,
                    high=1,
                ),
                Query(f"max(gpuchaos_node_pressure_cpu_ratio{{{NODE}}})", "CPU"),
                Query(f"max(gpuchaos_node_pressure_memory_ratio{{{NODE}}})", "memory"),
                Query(f"max(gpuchaos_node_pressure_io_ratio{{{NODE}}})", "IO"),
            ),
            12,
            7,
        ),
        (
            lines(
                About("Memory free, by NUMA node", "Bytes that are free.", "bytes", _NO_AGENT),
                Query(f"max by (numa_node) (gpuchaos_numa_memory_free_bytes{{{NODE}}})", "NUMA node {{numa_node}}"),
            ),
            12,
            7,
        ),
    )


def _devices(made: Page) -> None:
    made.row(
        "Node $node: its devices",
        _device("GPU utilisation", "Share of time a kernel ran.", "percentunit", "gpu_utilization_ratio"),
        _device("GPU temperature", "Of the GPU itself.", "celsius", "gpu_temperature_celsius", bad_from(80, 90)),
        _device("GPU power", "Drawn now.", "watt", "gpu_power_watts"),
        _device("GPU memory", "Used by anything on it.", "bytes", "gpu_memory_used_bytes"),
        _device("GPU clock", "Of the streaming multiprocessors.", "hertz", "gpu_sm_clock_hertz"),
        _device("GPU memory errors", "Corrected by ECC, a second.", "ops", "gpu_ecc_corrected_per_second"),
        _device("NVLink: all active", "1 while every link of the GPU is.", "short", "nvlink_link_active", _ON),
        _device("NVLink: CRC errors", "A second, all its links.", "ops", "nvlink_crc_error_per_second", _ERRORS),
        _device("NVLink: sent", "By all links of the GPU.", "Bps", "gpu_nvlink_tx_bytes_per_second"),
        _device("RDMA: active", "1 while the port is.", "short", "rdma_port_active", _ON),
        _device("RDMA: received", "By a port.", "Bps", "rdma_rx_bytes_per_second"),
        _device("RDMA: symbol errors", "By a port, a second.", "ops", "rdma_symbol_error_per_second", _ERRORS),
        _device("NUMA: remote pages", "On another node than the CPU's, a second.", "ops", "numa_remote_per_second"),
        _device("Step time", "Of the processes of jobs here.", "s", "process_step_time_seconds"),
        _device("Misaligned", "How far from its GPU.", "percentunit", "process_numa_misaligned_ratio", _FAR),
    )


_ON: Final[Steps] = good_from(0.5, 1)
_ERRORS: Final[Steps] = bad_from(1, 10)
_FAR: Final[Steps] = bad_from(0.25, 0.5)


def _device(title: str, words: str, unit: str, name: str, steps: Steps = PLAIN) -> tuple[Panel, int, int]:
    by, legend = _DEVICES[name.split("_", maxsplit=1)[0]]
    high = 1.0 if unit == "percentunit" or steps is _ON else None
    about = About(title, words, unit, _NO_AGENT, steps, low=None if unit == "celsius" else 0, high=high)
    return lines(about, Query(f"max by ({by}) (gpuchaos_{name}{{{NODE}}})", legend)), 8, 7


def _to_node() -> dict[str, str]:
    return {"Show the node": shared.to_node("${cell}", "${__field.labels.node}")}
