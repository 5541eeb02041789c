"""Where the same is in Grafana: addresses of the dashboards (`dashboards/`), with places for what is looked at."""

from __future__ import annotations

from typing import Final
from urllib.parse import quote, urlsplit

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.web.views import Links

#: What is looked at → its address below Grafana's.
_PATHS: Final[dict[str, str]] = {
    "loop": "/d/gpuchaos-loop?var-cluster={cluster}",
    "fleet": "/d/gpuchaos-fleet?var-cluster={cluster}",
    "node": "/d/gpuchaos-fleet?var-cluster={cluster}&var-cell={cell}&var-node={node}",
    "experiment": "/d/gpuchaos-experiment?var-cluster={cluster}&var-experiment_id={experiment_id}",
    "jobs": "/d/gpuchaos-jobs?var-cluster={cluster}",
    "slo": "/d/gpuchaos-slo?var-cluster={cluster}",
}


def of_cluster(found: Links, cluster: str) -> dict[str, str | None]:
    """The links of one cluster; `{experiment_id}`, `{cell}` and `{node}` are put in by who follows them."""
    name = quote(cluster, safe="")
    return {key: url and url.replace("{cluster}", name) for key, url in found.model_dump().items()}


def links(grafana_url: str | None) -> Links:
    """The links of a Grafana at `grafana_url`; none without one.

    Raises:
        UserError: it is no http address.
    """
    if grafana_url is None:
        return Links()
    try:
        parts = urlsplit(grafana_url)
    except ValueError:
        parts = urlsplit("")
    if parts.scheme not in {"http", "https"} or not parts.netloc or parts.query or parts.fragment or "{" in grafana_url:
        raise UserError("--grafana-url", f"{grafana_url!r} is no address", "as https://grafana.example/ or with a path")
    base = grafana_url.rstrip("/")
    return Links(**{name: base + path for name, path in _PATHS.items()})
