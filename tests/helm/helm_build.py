"""Builds the API server and Helm from Go modules, once for each state of `go/`; see `go/main.go`.

    python tests/helm/helm_build.py

builds what is missing and prints the folder. Any number of callers at once: the first builds, the others wait.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

MODULE: Final = Path(__file__).resolve().parent / "go"
PROGRAMS: Final = ("kube", "helm")
HELM: Final = "helm.sh/helm/v3/cmd/helm"
#: What both say of themselves, and Helm takes for a cluster's version where it has none.
_VERSIONS: Final = {
    "k8s.io/component-base/version.gitVersion": "v1.34.4",
    "k8s.io/component-base/version.gitMajor": "1",
    "k8s.io/component-base/version.gitMinor": "34",
    "helm.sh/helm/v3/internal/version.version": "v3.19.4",
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMajor": "1",
    "helm.sh/helm/v3/pkg/chartutil.k8sVersionMinor": "34",
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMajor": "1",
    "helm.sh/helm/v3/pkg/lint/rules.k8sVersionMinor": "34",
}


class NoGoError(Exception):
    """Go is not here, or too old for the module."""


def go() -> str | None:
    """The Go tool on PATH, or where its own archive puts it."""
    return shutil.which("go") or shutil.which("/usr/local/go/bin/go")


def folder() -> Path:
    """Where the programs of this state of the module are, or will be."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum", "main.go"):
        digest.update((MODULE / name).read_bytes())
    digest.update(repr(_VERSIONS).encode())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "gpuchaos" / f"kube-{digest.hexdigest()[:16]}"


def build() -> Path:
    """The folder with `kube` and `helm`, built if they are not there: minutes the first time.

    Raises:
        NoGoError: they are not there, and Go is not either.
        subprocess.CalledProcessError: Go could not build them; what it says is on standard error.
    """
    place = folder()
    if all((place / name).is_file() for name in PROGRAMS):
        return place
    tool = go()
    if tool is None:
        raise NoGoError("Go is not installed: the API server and Helm are built from its modules")
    place.mkdir(parents=True, exist_ok=True)
    with (place / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((place / name).is_file() for name in PROGRAMS):
            # Both in one call share what they compile. No C, no symbols: half the time to link, half the size.
            linked = " ".join(("-s", "-w", *(f"-X {name}={value}" for name, value in _VERSIONS.items())))
            flags = ["-trimpath", "-buildvcs=false", f"-ldflags={linked}", "-p", "2"]
            made = place / "new"
            shutil.rmtree(made, ignore_errors=True)
            made.mkdir()
            subprocess.run(
                ["nice", "-n", "10", tool, "build", *flags, "-o", f"{made}/", ".", HELM],
                cwd=MODULE,
                env={**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly"},
                check=True,
                stdout=sys.stderr,
            )
            for name in PROGRAMS:
                (made / name).replace(place / name)
    return place


if __name__ == "__main__":
    try:
        sys.stdout.write(f"{build()}\n")
    except NoGoError as error:
        sys.exit(str(error))
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
