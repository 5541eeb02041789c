"""Layouts as the detector uses them: where each device's numbers lie, and whom it is compared with."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpuchaos_stream.detect.config import ENTITY_KIND, ROLE_LABEL
from gpuchaos_stream.events.codec import FrameError, PackedFrame, read_layout
from gpuchaos_stream.events.frame import GroupLayout, Kind

#: The most numbers that one frame may hold: some eighty times those of a node with 8 GPUs.
WIDEST: Final = 20_000
#: The longest cluster name that events carry.
LONGEST_NAME: Final = 100

_UNFIT: Final = re.compile(r"[/\s]")
#: Layouts kept before the oldest half is forgotten; each is read again from the next frame that carries it.
_KEPT: Final = 20_000


@dataclass(frozen=True, slots=True)
class Block:
    """One group of a layout: its values are `offset + metric * len(ids) + device`."""

    kind: Kind
    ids: tuple[str, ...]
    metrics: tuple[str, ...]
    jobs: tuple[str, ...]
    roles: tuple[str, ...]
    gpus: tuple[str, ...]
    offset: int

    def entity(self, node: str, device: int) -> str:
        """The entity of a device: `port/n003/mlx5_0`."""
        if self.kind == "node":
            return f"node/{clean(node)}"
        return f"{ENTITY_KIND.get(self.kind, self.kind)}/{clean(node)}/{clean(self.ids[device])}"


@dataclass(frozen=True, slots=True)
class Layout:
    """A layout that has been read and checked."""

    layout_id: str
    shape: str
    width: int
    blocks: tuple[Block, ...]


def clean(name: str) -> str:
    """`name` as it may stand in an entity: no slash, no space, not empty."""
    return _UNFIT.sub("_", name) or "_"


class LayoutCache:
    """Reads each layout once."""

    def __init__(self) -> None:
        self._known: dict[str, Layout] = {}

    def of(self, frame: PackedFrame) -> Layout:
        """The layout of `frame`, whose values fit it.

        Raises:
            FrameError: it is no layout, or the frame's values do not fill it.
        """
        if len(frame.cluster) > LONGEST_NAME:
            raise FrameError(f"cluster name of {len(frame.cluster)} characters; at most {LONGEST_NAME} are taken")
        layout = self._known.get(frame.layout_id)
        if layout is not None and layout.width * 8 == len(frame.values) and layout.shape == frame.shape:
            return layout
        if len(frame.values) > 8 * WIDEST:
            raise FrameError(f"{len(frame.values) // 8} numbers in one frame; at most {WIDEST} are taken")
        checked = read_layout(frame)
        blocks, offset = [], 0
        for group in checked.groups:
            blocks.append(_block(group, offset))
            offset += len(group.ids) * len(group.metrics)
        layout = Layout(frame.layout_id, frame.shape, checked.width, tuple(blocks))
        if len(self._known) >= _KEPT:
            for old in list(self._known)[: _KEPT // 2]:
                del self._known[old]
        self._known[frame.layout_id] = layout
        return layout


def _block(group: GroupLayout, offset: int) -> Block:
    nothing = ("",) * len(group.ids)
    return Block(
        kind=group.kind,
        ids=group.ids,
        metrics=group.metrics,
        jobs=group.labels.get("job", nothing),
        roles=group.labels.get(ROLE_LABEL, nothing),
        gpus=group.labels.get("gpu", nothing),
        offset=offset,
    )
