"""One API server for all that install."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
import yaml
from helm_kube import Installed, Kube, kube
from lab.waiting import until

_CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Kube]:
    """A server with the kinds of the Prometheus operator, NVIDIA's runtime class, and a node."""
    with kube(tmp_path_factory.mktemp("kube")) as running:
        for crd in yaml.safe_load((Path(__file__).parent / "crds.yaml").read_text())["items"]:
            running.create(_CRDS, crd)
        running.create("/apis/node.k8s.io/v1/runtimeclasses", {"metadata": {"name": "nvidia"}, "handler": "nvidia"})
        labels = {"example.com/cell": "su-3", "topology.kubernetes.io/rack": "rack-7"}
        running.create("/api/v1/nodes", {"metadata": {"name": "gpu-1", "labels": labels}})
        served = "/apis/monitoring.coreos.com/v1"
        until(lambda: len(running.admin.get(served).json().get("resources", ())) == 3)
        yield running


@pytest.fixture(scope="session")
def installed(server: Kube) -> Installed:
    """A release for each set of values, made when it is asked for."""
    return Installed(server)
