"""Made trees of sysfs and procfs, and what a reading of one says."""

from __future__ import annotations

from pathlib import Path

from gpuchaos_agent.collect.base import Reading


def plant(root: Path, tree: dict[str, str]) -> Path:
    """Files by their path below `root`, made with their folders; `root` itself."""
    for name, content in tree.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def table(reading: Reading) -> dict[tuple[str, str], float | None]:
    """The numbers of the only group of a reading, by device and metric."""
    (chosen,) = reading.groups
    return {
        (device, metric): value
        for metric, column in zip(chosen.layout.metrics, chosen.columns, strict=True)
        for device, value in zip(chosen.layout.ids, column, strict=True)
    }
