"""The chart as the tests see it: rendered by the real Helm, and what is in it by kind and name."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final

import helm_build
import yaml
from lab.missing import MissingError

ROOT: Final = Path(__file__).resolve().parents[2]
CHART: Final = ROOT / "helm/gpuchaos-stream"
SETS: Final = ("minimal", "full", "airgapped")
#: The least that renders with nothing but agents, to which a test adds what it is about.
AGENT_ALONE: Final[dict[str, Any]] = {
    "kafka": {"bootstrapServers": "kafka:9092"},
    "keys": {"keyring": {"configMapName": "ring"}},
    "worker": {"enabled": False},
    "web": {"enabled": False},
    "topics": {"enabled": False},
}

Object = dict[str, Any]


@cache
def programs() -> Path:
    """The folder with `kube` and `helm`, built if need be.

    Raises:
        MissingError: Go is not here, and they were not built before.
    """
    try:
        return helm_build.build()
    except helm_build.NoGoError as error:
        raise MissingError(str(error)) from error


def values_of(name: str) -> Path:
    """The file of a set of values that is shipped with the chart."""
    return CHART / "ci" / f"{name}-values.yaml"


def helm(*words: str, given: Mapping[str, Any] | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    """Runs Helm; `given` are values, over standard input."""
    return subprocess.run(
        [str(programs() / "helm"), *words, *(["-f", "-"] if given is not None else [])],
        input=None if given is None else yaml.safe_dump(dict(given)),
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "HOME": "/nonexistent", **env},
    )


def render(name: str | None = None, given: Mapping[str, Any] | None = None) -> list[Object]:
    """Every object of a release `r` in namespace `chaos`. Fails with what Helm says."""
    files = [] if name is None else ["-f", str(values_of(name))]
    done = helm("template", "r", str(CHART), "-n", "chaos", *files, given=given)
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


@cache
def rendered(name: str) -> tuple[Object, ...]:
    """`render` of a shipped set, once."""
    return tuple(render(name))


def refused(given: Mapping[str, Any]) -> str:
    """What Helm says of values that it must not take."""
    done = helm("template", "r", str(CHART), "-n", "chaos", given=given)
    assert done.returncode != 0, "it was taken"
    return done.stderr


def of_kind(objects: Sequence[Object], kind: str, end: str = "") -> list[Object]:
    """Those of a kind whose name ends so."""
    return [each for each in objects if each["kind"] == kind and each["metadata"]["name"].endswith(end)]


def one(objects: Sequence[Object], kind: str, end: str = "") -> Object:
    """The only one."""
    (found,) = of_kind(objects, kind, end)
    return found


def pods(objects: Sequence[Object]) -> Iterator[tuple[str, Object]]:
    """Name and pod spec of everything that becomes a pod."""
    for each in objects:
        if each["kind"] == "Pod":
            yield each["metadata"]["name"], each["spec"]
        elif each["kind"] in ("Deployment", "DaemonSet", "Job"):
            yield each["metadata"]["name"], each["spec"]["template"]["spec"]


def containers(spec: Object) -> list[Object]:
    """All of a pod, those that run before included."""
    return [*spec.get("initContainers", ()), *spec["containers"]]


def agent(given: Mapping[str, Any]) -> Object:
    """The agent's pod spec under `agent:` values."""
    return dict(one(render(given={**AGENT_ALONE, "agent": dict(given)}), "DaemonSet")["spec"]["template"]["spec"])
