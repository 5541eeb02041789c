"""Where this node sits: rack, leaf switch, NVLink domain, rails; from a file, the environment, or labels.

The first that names a thing wins: the file of the settings, then variables made for us, then the labels of a pod,
then Slurm. Nothing is guessed from host names. The settings themselves win over all of it (`records.py`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import Field

from gpuchaos_agent.collect.base import Places, Reading, Sources
from gpuchaos_agent.kernelfs import files
from gpuchaos_stream import yamlfile
from gpuchaos_stream.events.base import Authored
from gpuchaos_stream.events.frame import Kind

#: Where a pod's labels are by convention, as the downward API writes them. Labels of the node are among them where
#: the cluster copies them to its pods (topology labels do since Kubernetes 1.33), or its owner does.
LABELS_FILE: Final = Path("/etc/podinfo/labels")
#: Labels are read again after this time, seconds: they can change while a pod runs.
LOOK_ANEW_S: Final = 30.0

#: A name as the settings allow it.
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}\Z")

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$", description="letters, digits, . _ -")]


class PlaceFile(Authored):
    """What a person, or whatever deploys the agent, writes about one node. `rails` is RDMA port → rail."""

    rack: Name | None = None
    leaf: Name | None = None
    domain: Name | None = None
    rails: dict[str, Name] = {}


@dataclass(frozen=True, slots=True)
class Hint:
    """One place where `field` can stand: the variable or label `key`; `part` takes the name out of its value."""

    field: str
    key: str
    part: Callable[[str, Mapping[str, str]], str | None] = lambda value, _: value


def _leaf_of_slurm(value: str, environ: Mapping[str, str]) -> str | None:
    """`leaf1` of `core.leaf1.n003`, and its pattern `switch.switch.node` says which part is the node's own switch.

    The top level is empty in a tree with several roots (`.core.leaf1.n003`). A value of `node` alone comes from a
    cluster without a topology. Node names may hold dots, and then parts and pattern do not fit.
    """
    pattern = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    parts = value.split(".")
    if len(parts) != len(pattern) or pattern[-1:] != ["node"] or pattern[-2:-1] != ["switch"]:
        return None
    return parts[-2]


def _block_of_slurm(value: str, environ: Mapping[str, str]) -> str | None:
    """With topology/block (Slurm 23.11) the node's block is its NVLink domain, as Slurm has it."""
    pattern = environ.get("SLURM_TOPOLOGY_ADDR_PATTERN", "").split(".")
    parts = value.split(".")
    return parts[pattern.index("block")] if len(parts) == len(pattern) and "block" in pattern else None


#: Labels: Kubernetes' well-known ones have no rack, and `topology.kubernetes.io/rack` is what clusters write. The
#: GPU operator's clique is `<cluster UUID>.<clique>`; topograph's docs/engines/k8s.md and node-labels reference.
LABELS: Final = (
    Hint("rack", "topology.kubernetes.io/rack"),
    Hint("leaf", "network.topology.nvidia.com/leaf"),
    Hint("leaf", "fabric.topograph.run/tier-0"),
    Hint("domain", "nvidia.com/gpu.clique"),
    Hint("domain", "network.topology.nvidia.com/accelerator"),
    Hint("domain", "accelerator.topograph.run/domain"),
)
#: Variables made for us come first, a scheduler's after the labels. Slurm's are in a job's environment.
VARIABLES: Final = (
    Hint("rack", "GPUCHAOS_RACK"),
    Hint("leaf", "GPUCHAOS_LEAF"),
    Hint("domain", "GPUCHAOS_DOMAIN"),
)
SCHEDULER: Final = (
    Hint("leaf", "SLURM_TOPOLOGY_ADDR", _leaf_of_slurm),
    Hint("domain", "SLURM_TOPOLOGY_ADDR", _block_of_slurm),
)


def load(path: Path | None) -> PlaceFile:
    """The place file; an empty one where none is given.

    Raises:
        UserError: it cannot be read or is none; with file and line.
    """
    return PlaceFile() if path is None else yamlfile.read(path).validate(PlaceFile)


def labels(content: str | None) -> dict[str, str]:
    """`key="value"` lines of the downward API, quoted as Go does; lines that are none are left out."""
    found: dict[str, str] = {}
    for line in (content or "").splitlines():
        key, equals, value = line.partition("=")
        if equals and len(value) >= 2 and value[0] == value[-1] == '"':
            found[key.strip()] = value[1:-1]
    return found


def find(place: PlaceFile, environ: Mapping[str, str], labelled: Mapping[str, str]) -> Places:
    """Rack, leaf and NVLink domain from the first source that names each; what is no name is not taken."""
    found = {"rack": place.rack, "leaf": place.leaf, "domain": place.domain}
    for hints, values in ((VARIABLES, environ), (LABELS, labelled), (SCHEDULER, environ)):
        for hint in hints:
            value = values.get(hint.key, "")
            name = hint.part(value, values) if value else None
            if found[hint.field] is None and name and _NAME.match(name):
                found[hint.field] = name
    return Places(rack=found["rack"], leaf=found["leaf"], nvlink_domain=found["domain"])


class PlaceCollector:
    """Says where the node sits. `labels_file` is the downward API's; `environ` the agent's environment."""

    name = "place"
    kinds: tuple[Kind, ...] = ()
    ORDER = 70

    def __init__(
        self, place: PlaceFile, *, labels_file: Path = LABELS_FILE, environ: Mapping[str, str] | None = None
    ) -> None:
        self._place = place
        self._labels_file = labels_file
        self._environ = dict(os.environ if environ is None else environ)
        self._found = Places()
        self._looked: float | None = None

    @classmethod
    def from_sources(cls, sources: Sources) -> PlaceCollector:
        """The collector of these sources.

        Raises:
            UserError: the place file is none; with file and line.
        """
        return cls(load(sources.place))

    def read(self, now: float) -> Reading:
        """The place; asked anew every half minute."""
        if self._looked is None or not 0 <= now - self._looked < LOOK_ANEW_S:
            self._looked = now
            self._found = find(self._place, self._environ, labels(files.text(self._labels_file)))
        found = self._found
        known = {"rack": found.rack, "leaf": found.leaf, "domain": found.nvlink_domain}
        missing = [name for name, value in known.items() if value is None]
        absent = {"place": f"{', '.join(missing)} found nowhere but, perhaps, in the settings"} if missing else {}
        return Reading(absent=absent, places=found)

    def close(self) -> None:
        """Nothing is held open."""


COLLECTOR = PlaceCollector
