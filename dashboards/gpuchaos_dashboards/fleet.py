"""Fleet: thousands of nodes as heat maps by cell and rail, the worst first, and down to a cell, a node, a device."""

from __future__ import annotations

from typing import Final

from gpuchaos_dashboards import node, shared
from gpuchaos_dashboards.pages import Page, Variable
from gpuchaos_dashboards.parts import (
    PLAIN,
    About,
    Query,
    Steps,
    bad_from,
    cells,
    grid,
    matrix,
    number,
)
from gpuchaos_dashboards.shared import OF_CLUSTER as C
from gpuchaos_dashboards.shared import runbook, to_runbook

_NO_CELL: Final = "no detect worker tells of a cell"
_NO_AGENT: Final = "no agent that is scraped tells of it"
_SILENT: Final = (
    f'max by (cell) (gpuchaos_cell_nodes{{{C}, state="silent"}}) / (sum by (cell) (gpuchaos_cell_nodes{{{C}}}) > 0)'
)
_ACTIVE: Final[Steps] = ((None, "red"), (0.5, "orange"), (1, "green"))

_HOW: Final = f"""
**A row of a heat map is a cell, time goes to the right; what stands out from its neighbours is what to look at.** Red
is bad: where 1 is good, low is red, and otherwise high is. The table *Cell × rail* shows a rail that is down in many
cells as a red column (a leaf switch), a cell as a red row. Choose a **cell** above to see its nodes, then a **node**
to see its devices; names in tables lead there too. Cells come from the workers, rails, NVLinks and devices from
agents that Prometheus scrapes: a node that is not scraped is absent there, never zero. Nodes fall silent:
{runbook("GPUChaosAgentsSilent")}, {runbook("GPUChaosManyAgentsSilent")}. What each number is:
{shared.page_of_docs("telemetry.md", "telemetry")}.
"""

_CHOICES: Final = (
    Variable("cell", "Cell", 'label_values(gpuchaos_cell_nodes{cluster="$cluster"}, cell)'),
    Variable("node", "Node", 'label_values(gpuchaos_node_load1{cluster="$cluster", cell="$cell"}, node)'),
)


def page() -> Page:
    """The dashboard."""
    made = Page(
        shared.FLEET,
        "GPUChaos / Fleet",
        "GPUs, RDMA, NUMA and NVLink of the whole cluster by cell and rail, and of a cell, a node, a device.",
        _HOW,
        [shared.CLUSTER, *_CHOICES],
        shared.MARKS,
        refresh="1m",
    )
    _now(made)
    _by_cell(made)
    _by_rail(made)
    _worst(made)
    node.rows(made)
    return made


def _now(made: Page) -> None:
    made.row(
        "Now",
        (
            number(
                About("Nodes fresh", "Nodes heard of within 5 s.", "short", "no node was heard of"),
                Query(f'sum(gpuchaos_nodes{{{C}, state="fresh"}})'),
            ),
            6,
            4,
        ),
        (
            number(
                About(
                    "Nodes silent",
                    "Heard of within the hour, and not for 5 s.",
                    "short",
                    "no node was heard of",
                    bad_from(1, 10),
                    to_runbook("GPUChaosAgentsSilent"),
                ),
                Query(f'sum(gpuchaos_nodes{{{C}, state="silent"}})'),
            ),
            6,
            4,
        ),
        (
            number(
                About("GPUs", "That the topology knows.", "short", "no worker holds this cluster"),
                Query(f"sum(gpuchaos_gpus{{{C}}})"),
            ),
            6,
            4,
        ),
        (
            number(
                About("Cells", "Racks, NVLink domains or scalable units that were heard of.", "short", _NO_CELL),
                Query(f'count(gpuchaos_cell_nodes{{{C}, state="fresh"}})'),
            ),
            6,
            4,
        ),
    )


def _by_cell(made: Page) -> None:
    made.row(
        "By cell: a row a cell",
        *(
            (
                cells(
                    About(title, text, unit, none, links=_to_cell(), low=low, high=high),
                    Query(expr, "{{cell}}"),
                    low_is_bad=bad,
                ),
                12,
                10,
            )
            for title, text, unit, none, low, high, bad, expr in (
                (
                    "GPU: utilisation",
                    "Share of time a kernel ran, mean of the cell.",
                    "percentunit",
                    _NO_CELL,
                    0,
                    1,
                    True,
                    _of_cell("gpuchaos_cell_gpu_utilization_ratio", "mean"),
                ),
                (
                    "GPU: temperature",
                    "Of the hottest GPU of the cell.",
                    "celsius",
                    _NO_CELL,
                    30,
                    95,
                    False,
                    _of_cell("gpuchaos_cell_gpu_temperature_celsius", "max"),
                ),
                (
                    "RDMA: all ports active",
                    "1 where every port of every node of the cell is active.",
                    "percentunit",
                    _NO_CELL,
                    0,
                    1,
                    True,
                    _of_cell("gpuchaos_cell_rdma_port_active", "min"),
                ),
                (
                    "RDMA: received",
                    "Bytes a second of a port, mean of the cell: a job that stands still is a dark gap.",
                    "Bps",
                    _NO_CELL,
                    0,
                    None,
                    False,
                    _of_cell("gpuchaos_cell_rdma_receive_bytes_per_second", "mean"),
                ),
                (
                    "NUMA: pages from afar",
                    "Pages a second allocated on another NUMA node than the CPU's, worst node of the cell.",
                    "ops",
                    _NO_CELL,
                    0,
                    None,
                    False,
                    _of_cell("gpuchaos_cell_numa_remote_pages_per_second", "max"),
                ),
                (
                    "NUMA: misaligned processes",
                    "How far the worst process of the cell is from its GPU: 0 beside it, 1 far.",
                    "percentunit",
                    _NO_CELL,
                    0,
                    1,
                    False,
                    _of_cell("gpuchaos_cell_numa_misaligned_ratio", "max"),
                ),
                (
                    "NVLink: GPUs with all links",
                    "Share of the cell's GPUs of which every NVLink is active.",
                    "percentunit",
                    _NO_AGENT,
                    0,
                    1,
                    True,
                    f"max by (cell) (cluster_cell:gpuchaos_nvlink_link_active:avg{{{C}}})",
                ),
                (
                    "Nodes silent",
                    "Share of the cell's nodes that send nothing.",
                    "percentunit",
                    _NO_CELL,
                    0,
                    1,
                    False,
                    _SILENT,
                ),
            )
        ),
    )


def _by_rail(made: Page) -> None:
    made.row(
        "By rail",
        (
            matrix(
                About(
                    "Cell × rail: ports active",
                    "Share of the ports on this rail in this cell that are active, now.",
                    "percentunit",
                    _NO_AGENT,
                    _ACTIVE,
                ),
                Query(f"max by (cell, rail) (cluster_cell_rail:gpuchaos_rdma_port_active:avg{{{C}}})"),
                row="cell",
                column="rail",
                link=("Show the cell", shared.to_cell("${__value.raw}")),
            ),
            12,
            12,
        ),
        (
            matrix(
                About(
                    "Cell × rail: received",
                    "Bytes a second of a port on this rail in this cell, mean, now.",
                    "Bps",
                    _NO_AGENT,
                    ((None, "text"), (1e6, "light-blue"), (1e9, "blue"), (1e10, "dark-blue")),
                ),
                Query(f"max by (cell, rail) (cluster_cell_rail:gpuchaos_rdma_rx_bytes_per_second:avg{{{C}}})"),
                row="cell",
                column="rail",
                link=("Show the cell", shared.to_cell("${__value.raw}")),
            ),
            12,
            12,
        ),
        (
            cells(
                About(
                    "Rail: ports active over time",
                    "Share of the ports on a rail that are active, all cells.",
                    "percentunit",
                    _NO_AGENT,
                    low=0,
                    high=1,
                ),
                Query(f"avg by (rail) (cluster_cell_rail:gpuchaos_rdma_port_active:avg{{{C}}})", "rail {{rail}}"),
                low_is_bad=True,
            ),
            12,
            7,
        ),
        (
            cells(
                About(
                    "Rail: received over time",
                    "Bytes a second of a port on a rail, mean of all cells.",
                    "Bps",
                    _NO_AGENT,
                    low=0,
                ),
                Query(
                    f"avg by (rail) (cluster_cell_rail:gpuchaos_rdma_rx_bytes_per_second:avg{{{C}}})",
                    "rail {{rail}}",
                ),
            ),
            12,
            7,
        ),
    )


def _worst(made: Page) -> None:
    made.row(
        "The worst of the fleet",
        *(
            (
                grid(
                    About(title, text, unit, _NO_AGENT, PLAIN),
                    Query(f"topk(15, max by ({', '.join(labels)}) ({expr}))"),
                    names={"Value": title},
                    colored={title: (unit, steps)},
                    links={"node": ("Show the node", shared.to_node("${__data.fields.cell}", "${__value.raw}"))},
                ),
                8,
                9,
            )
            for title, text, unit, steps, labels, expr in (
                (
                    "Hottest GPUs",
                    "Temperature now, the 15 highest.",
                    "celsius",
                    bad_from(80, 90),
                    ("cell", "node", "gpu"),
                    f"gpuchaos_gpu_temperature_celsius{{{C}}}",
                ),
                (
                    "Uncorrected memory errors",
                    "ECC errors a second that could not be corrected, the 15 highest.",
                    "ops",
                    bad_from(0.001),
                    ("cell", "node", "gpu"),
                    f"gpuchaos_gpu_ecc_uncorrected_per_second{{{C}}}",
                ),
                (
                    "RDMA symbol errors",
                    "Errors a second of a port, the 15 highest.",
                    "ops",
                    bad_from(1, 10),
                    ("cell", "node", "port", "rail"),
                    f"gpuchaos_rdma_symbol_error_per_second{{{C}}}",
                ),
                (
                    "NVLink CRC errors",
                    "Errors a second of all links of a GPU together, the 15 highest.",
                    "ops",
                    bad_from(1, 10),
                    ("cell", "node", "gpu"),
                    f"gpuchaos_nvlink_crc_error_per_second{{{C}}}",
                ),
                (
                    "Remote pages",
                    "Pages a second allocated on another NUMA node than the CPU's, the 15 highest.",
                    "ops",
                    bad_from(1e5, 1e6),
                    ("cell", "node", "numa_node"),
                    f"gpuchaos_numa_remote_per_second{{{C}}}",
                ),
                (
                    "GPUs held back by hardware",
                    "1 while hardware holds the clocks down (heat, power), the 15 highest.",
                    "short",
                    bad_from(0.5),
                    ("cell", "node", "gpu"),
                    f"gpuchaos_gpu_throttle_hw_ratio{{{C}}}",
                ),
            )
        ),
    )


def _of_cell(name: str, over: str) -> str:
    return f'max by (cell) ({name}{{{C}, over="{over}"}})'


def _to_cell() -> dict[str, str]:
    return {"Show the cell": shared.to_cell("${__field.labels.cell}")}
