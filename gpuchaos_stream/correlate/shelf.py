"""Incidents as they were last told, so that each change is told once and what no longer holds is taken back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.incident import Incident


class _Told(msgspec.Struct):
    """The last version told of one cause: its digest, and the incident without its anomalies, as JSON."""

    digest: str
    bare: str


class Shelf:
    """What was told of each cause. Keys of its state are `incident/<cause>`."""

    PREFIX: Final = "incident/"

    def __init__(self) -> None:
        self._told: dict[str, _Told] = {}
        self._dirty: set[str] = set()

    def put(self, found: Mapping[str, Incident | None]) -> list[Incident]:
        """What has to be told of these causes; None for a cause that explains nothing any more."""
        news: list[Incident] = []
        for cause, incident in found.items():
            version = incident if incident is not None else self._superseded(cause)
            if version is None:
                continue
            digest = stable_id(version.model_dump_json())
            told = self._told.get(cause)
            if told is None or told.digest != digest:
                bare = version.model_copy(update={"anomalies": ()})
                self._told[cause] = _Told(digest, bare.model_dump_json())
                self._dirty.add(cause)
                news.append(version)
        return news

    def _superseded(self, cause: str) -> Incident | None:
        told = self._told.get(cause)
        if told is None:
            return None
        incident = Incident.model_validate_json(told.bare)
        summary = incident.summary if incident.superseded else f"superseded; it was: {incident.summary}"
        return incident.model_copy(update={"superseded": True, "summary": summary})

    def forget(self, cause: str) -> None:
        """Drops a cause."""
        if self._told.pop(cause, None) is not None:
            self._dirty.add(cause)

    def superseded_before(self, before: float) -> list[str]:
        """Causes that were taken back and whose last change is older than `before`."""
        bare = ((cause, Incident.model_validate_json(told.bare)) for cause, told in self._told.items())
        return [cause for cause, incident in bare if incident.superseded and incident.time < before]

    @property
    def causes(self) -> frozenset[str]:
        """Causes of which something was told."""
        return frozenset(self._told)

    def dirty(self) -> dict[str, bytes | None]:
        """What changed since the last call."""
        changed = {
            self.PREFIX + cause: msgspec.json.encode(self._told[cause]) if cause in self._told else None
            for cause in self._dirty
        }
        self._dirty.clear()
        return changed

    def load(self, cause: str, value: bytes) -> None:
        """Takes one saved value. It is told again: state is saved before it is told, so that it may not have been."""
        self._told[cause] = _Told("", msgspec.json.decode(value, type=_Told).bare)
