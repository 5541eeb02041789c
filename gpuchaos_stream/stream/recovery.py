"""Faust's table recovery with its last steps in the right order.

faust-streaming #596 (open in 0.15.3): after the tables are rebuilt, the source partitions are resumed *before*
they are set back to their committed offsets, while the fetcher runs. Records from further on slip through; the
offsets between are taken for a gap, marked as done, and either lost or acknowledged twice, after which commits
stand still for good (measured: in 2 of 3 restarts on real Kafka). Here the partitions are set back first.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, Final

from aiokafka.errors import IllegalStateError
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import TP
from mode import Service

#: Seconds between two looks at whether a changelog's end was passed without a last record, and how many looks
#: must see nothing move, twice: what was fetched a moment ago is still on its way to the table.
_TAIL_LOOK_S: Final = 0.5
_TAIL_LOOKS: Final = 4

#: Changelog records that may wait to be applied. Apart from `stream_buffer_maxsize`, which counts batches.
_CHANGELOG_QUEUE: Final = 4096


class SafeRecovery(Recovery):  # type: ignore[misc]  # Faust has no types here
    """Seeks, then resumes; and sees the end of a changelog whose last records were compacted away."""

    async def on_recovery_completed(self, generation_id: int = 0) -> None:
        """Ends a recovery: as Faust's, but nothing is fetched from a position that will be given up."""
        self.log.info("Restore complete!")
        await self.app.on_rebalance_complete.send()
        self._set_recovery_ended()
        await asyncio.gather(
            *(
                table.on_recovery_completed(self.actives_for_table[table], self.standbys_for_table[table])
                for table in self.tables.values()
            )
        )
        await self._seek_then_resume(generation_id, standbys_ready=not self.app.assignor.assigned_standbys())

    async def _resume_streams(self, generation_id: int = 0) -> None:
        """The same for an app without tables."""
        await self.app.on_rebalance_complete.send()
        await self._seek_then_resume(generation_id, standbys_ready=True)

    async def _seek_then_resume(self, generation_id: int, *, standbys_ready: bool) -> None:
        consumer = self.app.consumer
        assignment = consumer.assignment()
        if self._is_stale(generation_id):
            return
        if assignment:
            self.log.info("Seek stream partitions to committed offsets.")
            await self._wait(consumer.perform_seek(), timeout=self.app.conf.broker_request_timeout)
            if self._is_stale(generation_id):
                return
        # No await from here to resume_flow: what is fetched between would be cleared with the queues.
        consumer.resume_partitions({tp for tp in assignment if not self._is_changelog_tp(tp)})
        self.completed.set()
        self.app.flow_control.resume()
        consumer.resume_flow()
        await self.app._fetcher.maybe_start()  # noqa: SLF001  (as Faust)
        self.tables.on_actives_ready()
        if standbys_ready:
            self.tables.on_standbys_ready()
        self.app.on_rebalance_end()
        self.log.info("Worker ready")

    def _is_stale(self, generation_id: int) -> bool:
        current = self.app.consumer_generation_id
        if current != generation_id:
            self.log.warning("rebalanced again during recovery: generation %s, not %s", current, generation_id)
        return bool(current != generation_id)

    @Service.task  # type: ignore[untyped-decorator]
    async def _pass_compacted_tails(self) -> None:
        """Faust waits for the record before the high watermark; compaction may have removed it (#597).

        A changelog that was fetched to its end without that record is read again from the last record seen, in
        case some were set aside by a rebalance; when that brings nothing either, there is nothing.
        """
        looks: dict[TP, tuple[int, int]] = {}  # last offset seen, and how often it was the last
        again: dict[TP, int] = {}  # read again from this offset
        while not self.should_stop:
            await self.sleep(_TAIL_LOOK_S)
            if not self.in_recovery:
                looks, again = {}, {}
                continue
            ended = await self._read_to_the_end()
            looks = {tp: (offset, _more_looks(looks.get(tp), offset)) for tp, offset in ended.items()}
            for tp, (offset, count) in looks.items():
                if count < _TAIL_LOOKS:
                    continue
                if again.get(tp) == offset:
                    self.log.info("changelog %s ends at %s without a record", tp, self.active_highwaters[tp])
                    self.active_offsets[tp] = self.active_highwaters[tp]
                else:
                    again[tp], looks[tp] = offset, (offset, 0)
                    # The record itself again, which is recognised: an answer without any does not move the position.
                    with contextlib.suppress(IllegalStateError):  # given up in a rebalance meanwhile
                        await self.app.consumer.seek_wait({tp: max(offset, 0)})

    async def _read_to_the_end(self) -> dict[TP, int]:
        """Changelogs fetched to their end although their last record did not come, with the last offset seen."""
        ended = {}
        for tp, highwater in list(self.active_highwaters.items()):
            offset = self.active_offsets[tp] if tp in self.active_tps else None
            # `highwater` is the last offset here, as everywhere in Faust's recovery, and not the one after it.
            if offset is not None and offset < highwater and self.tables.changelog_queue.empty():
                position = await self._position(tp)
                if position is not None and position > highwater:
                    ended[tp] = offset
        return ended

    async def _position(self, tp: TP) -> int | None:
        try:
            position: int | None = await self.app.consumer.position(tp)
        except IllegalStateError:  # given up in a rebalance meanwhile
            return None
        return position


def _more_looks(before: tuple[int, int] | None, offset: int) -> int:
    return before[1] + 1 if before is not None and before[0] == offset else 1


class SafeTableManager(TableManager):  # type: ignore[misc]
    """Faust's table manager with the recovery above; for `App(TableManager=…)`."""

    _changelog_queue: Any
    _recovery: SafeRecovery | None

    @property
    def changelog_queue(self) -> Any:
        """Changelog records on their way into the tables."""
        if self._changelog_queue is None:
            self._changelog_queue = self.app.FlowControlQueue(maxsize=_CHANGELOG_QUEUE, clear_on_resume=True)
        return self._changelog_queue

    @property
    def recovery(self) -> SafeRecovery:
        """The recovery service, made on first use."""
        if self._recovery is None:
            self._recovery = SafeRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
