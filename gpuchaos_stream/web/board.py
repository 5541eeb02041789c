"""All clusters that are shown. Pure: events in, views out, time passed in."""

from __future__ import annotations

from typing import Any

from gpuchaos_stream.events.base import Event
from gpuchaos_stream.web.cluster import ClusterBoard
from gpuchaos_stream.web.links import of_cluster
from gpuchaos_stream.web.views import Links
from gpuchaos_stream.web.wire import Heard, of_model


class Board:
    """The boards of all clusters.

    `epoch` names this run of the server: numbers of events of another one mean nothing. `read_only` and `links` are
    what a snapshot says of the server. `watched` False: nobody is expected to speak, as in a picture. `whole` False:
    nothing is believed until `read_whole`.
    """

    def __init__(
        self,
        *,
        epoch: str,
        read_only: bool = True,
        links: Links | None = None,
        watched: bool = True,
        whole: bool = True,
    ) -> None:
        self.epoch = epoch
        self.read_only = read_only
        self.links = links or Links()
        self.clusters: dict[str, ClusterBoard] = {}
        self._watched = watched
        self._whole = whole

    def hear(self, heard: Heard, now: float, at: float | None = None) -> None:
        """Takes what was heard `now`, epoch seconds; `at` is when it reached Kafka, where that is another time."""
        cluster = self.clusters.get(heard.cluster)
        if cluster is None:
            cluster = self.clusters[heard.cluster] = ClusterBoard(
                heard.cluster, now, watched=self._watched, whole=self._whole
            )
        said = of_model(heard) if isinstance(heard, Event) else heard
        cluster.hear(said, now, now if at is None else at)

    def read_whole(self) -> None:
        """What Kafka keeps has been read to its end: it is believed when it is published."""
        self._whole = True

    def flush(self, now: float) -> list[ClusterBoard]:
        """Publishes what changed; the clusters that have new events."""
        published = [cluster for cluster in self.clusters.values() if cluster.flush(now)]
        for cluster in self.clusters.values():
            cluster.whole = self._whole
        return published

    def snapshot(self, cluster: ClusterBoard, now: float) -> bytes:
        """The JSON of a cluster's `views.Snapshot`."""
        more: dict[str, Any] = {
            "epoch": self.epoch,
            "read_only": self.read_only,
            "links": of_cluster(self.links, cluster.cluster),
        }
        return cluster.snapshot(now, **more)
