"""What the page's server does for a cluster of 12,500 nodes: share of a core, and ratios to reading alone.

A worker says 391 summaries a second, agents 417 times a second where they sit, four times a second what changed is
published. `--nodes`, `--cells`: another size.
"""

from __future__ import annotations

import argparse
import gzip
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "web"))

from web_kit import CLUSTER, T0, anomaly, incident, named, place, summary, synthetic_board

from gpuchaos_stream.detect.config import SUMMARY
from gpuchaos_stream.events.envelope import from_value
from gpuchaos_stream.events.observation import CellSummary
from gpuchaos_stream.events.topics import NODES, OBSERVATIONS
from gpuchaos_stream.web.wire import Reader

#: Seconds between two words of a node about its place.
PLACE_S = 30.0


def seconds(what: Callable[[], object], times: int = 9) -> float:
    """The median CPU time of one call."""
    taken = []
    for _ in range(times):
        begin = time.process_time()
        what()
        taken.append(time.process_time() - begin)
    return median(taken)


def full(cell: str, nodes: list[str], stale: int = 0) -> CellSummary:
    """A summary with every column that a detector sends."""
    said = summary(cell, nodes, stale=nodes[:stale])
    columns = {
        f"{kind}.{metric}.{how}": (0.1234567,) * len(nodes) for (kind, metric), all_ in SUMMARY.items() for how in all_
    }
    return said.model_copy(update={"columns": {**columns, **said.columns}})


def main() -> None:
    """Measures and prints."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--nodes", type=int, default=12_500)
    options.add_argument("--cells", type=int, default=391)
    wanted = options.parse_args()
    grid = named(wanted.nodes, wanted.cells)
    board = synthetic_board(wanted.nodes, wanted.cells)
    cluster = board.clusters[CLUSTER]
    reader = Reader()
    now = T0 + 60

    quiet = [full(cell, nodes).model_dump_json().encode() for cell, nodes in grid.items()]
    loud = [full(cell, nodes, stale=len(nodes)).model_dump_json().encode() for cell, nodes in grid.items()]
    places = [place(node, cell).model_dump_json().encode() for cell, nodes in list(grid.items())[:10] for node in nodes]
    for value in places:
        reader.read(NODES.name, value)

    def read(topic: str, values: list[bytes]) -> None:
        for value in values:
            heard = reader.read(topic, value)
            if heard is not None:
                board.hear(heard, now)

    def all_change() -> float:
        begin = time.process_time()
        read(OBSERVATIONS.name, loud)
        hear = time.process_time() - begin
        begin = time.process_time()
        board.flush(now)
        publish = time.process_time() - begin
        read(OBSERVATIONS.name, quiet)
        board.flush(now)
        print(f"every node changes at once: {hear * 1000:.0f} ms to hear, {publish * 1000:.0f} ms to publish")
        return publish

    read(OBSERVATIONS.name, quiet)
    board.flush(now)
    summaries = seconds(lambda: read(OBSERVATIONS.name, quiet))
    models = seconds(lambda: [from_value(OBSERVATIONS.name, value) for value in quiet], 3)
    again = seconds(lambda: read(NODES.name, places)) / len(places) * wanted.nodes / PLACE_S
    idle = seconds(lambda: board.flush(now))
    core = summaries + again + 4 * idle
    print(f"{wanted.nodes:,} nodes in {wanted.cells} cells")
    print(
        f"with nothing new: {core:.1%} of a core: {summaries:.1%} summaries, {again:.1%} places, {4 * idle:.2%} looking"
    )
    print(f"reading a summary no further than needed: {models / summaries:.1f} times as fast as by its model")
    all_change()
    harm = incident("bench", [anomaly(f"gpu/{node}/0", "gpu_lost") for node in next(iter(grid.values()))])
    board.hear(harm, now)
    print(f"an incident on a cell: {seconds(lambda: board.flush(now), 1) * 1000:.1f} ms to publish")
    data = board.snapshot(cluster, now)
    took = seconds(lambda: board.snapshot(cluster, now))
    packed = len(gzip.compress(data, 5))
    print(f"a snapshot: {took * 1000:.0f} ms, {len(data) / 1000:.0f} kB, {packed / 1000:.0f} kB compressed")


if __name__ == "__main__":
    main()
