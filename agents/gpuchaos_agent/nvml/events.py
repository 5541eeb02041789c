"""Events that the driver reports by itself: Xids above all, each as soon as it happens.

A wait that times out is normal. Any other error means that nothing is heard any more: the set is built anew after a
while, and until then it is said that the cards' health is not being heard.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from gpuchaos_agent import catalogue
from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.nvml import codes
from gpuchaos_agent.nvml.session import Session
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin
from gpuchaos_stream.events.node import GpuPlace

#: How long one wait lasts at most, milliseconds: as long as a shutdown has to wait for it.
WAIT_MS: Final = 500
#: Between two attempts to build the set, seconds: the first, and the longest.
RETRY_S: Final = 2.0
LONGEST_RETRY_S: Final = 60.0
#: How many different events are held for one tick; more of them are counted only.
MOST: Final = 256
#: Between two tellings of the same event of the same card, seconds. A storm is one fact and a count.
AGAIN_S: Final = 5.0

#: nvml.h `nvmlEventTypeXidCriticalError`.
XID: Final = 0x8
#: MIG instance ids of an event that belongs to none.
_NO_INSTANCE: Final = 0xFFFFFFFF


@dataclass(frozen=True, slots=True)
class EventType:
    """One of `nvmlEventType…` (nvml.h; those from 0x200 on since driver 570)."""

    fault: str
    severity: Severity
    action: str


#: Severity and action as of the Xids that the same events cause: 48, 63, 64, 94, 95.
TYPES: Final[dict[int, EventType]] = {
    0x2: EventType("gpu_ecc_dbe", Severity.ERROR, "drain_then_reset"),
    0x200: EventType("gpu_ecc_sbe_rate", Severity.WARNING, "monitor"),
    0x400: EventType("gpu_row_remap_pending", Severity.WARNING, "reset_gpu"),
    0x800: EventType("gpu_row_remap_failure", Severity.CRITICAL, "replace_gpu"),
    0x1000: EventType("gpu_ecc_contained", Severity.ERROR, "restart_app"),
    0x2000: EventType("gpu_ecc_uncontained", Severity.CRITICAL, "reset_gpu"),
    0x4000: EventType("gpu_reset_required", Severity.CRITICAL, "reset_gpu"),
}
#: What is asked for. Recovery actions (0x8000) are read as a field each second, MIG changes are no fault.
WANTED: Final = XID | sum(TYPES)


@dataclass(frozen=True, slots=True)
class Watched:
    """A card to listen to."""

    place: GpuPlace
    handle: Any


@dataclass(frozen=True, slots=True)
class _Key:
    uuid: str
    type: int
    data: int
    gi: int
    ci: int


class EventWatch:
    """Listens in a thread of its own. `clock` is the node's clock, seconds; `cards` the cards of a generation."""

    def __init__(
        self,
        session: Session,
        cards: Callable[[int], Mapping[str, Watched]],
        clock: Callable[[], float],
    ) -> None:
        self._session = session
        self._cards = cards
        self._clock = clock
        self._lock = threading.Lock()
        self._heard: dict[_Key, tuple[float, float, int, GpuPlace]] = {}
        self._told: dict[_Key, float] = {}
        self._overflow: Counter[str] = Counter()
        self._number = 0
        self._closed = threading.Event()
        self._renewed = threading.Event()
        self._thread: threading.Thread | None = None
        self.deaf: str | None = "nobody listens yet"
        self.retry_s = RETRY_S
        self.wait_ms = WAIT_MS
        self.heartbeat: float | None = None
        #: UUIDs of the cards that are listened to now.
        self.listening: frozenset[str] = frozenset()

    def start(self) -> None:
        """Begins to listen."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
            self._thread.start()

    def renew(self) -> None:
        """The library or its cards are other ones now: the set is built anew without waiting."""
        self._renewed.set()

    def close(self) -> None:
        """Ends the thread after its wait; it is not waited for."""
        self._closed.set()
        self._renewed.set()

    def facts(self) -> tuple[Fact, ...]:
        """What was heard since the last call, one fact for each different event, with how often it came."""
        now = self._clock()
        with self._lock:
            ready = {k: v for k, v in self._heard.items() if not 0 <= now - self._told.get(k, -AGAIN_S) < AGAIN_S}
            for key in ready:
                del self._heard[key]
                self._told[key] = now
            self._told = {k: at for k, at in self._told.items() if abs(now - at) < AGAIN_S or k in self._heard}
            overflow, self._overflow = self._overflow, Counter()
        facts = [self._fact(key, *heard) for key, heard in ready.items()]
        if overflow and facts:
            facts[-1].evidence["more"] = sum(overflow.values())
        return tuple(facts)

    # -- the thread

    def _run(self) -> None:
        retry = self.retry_s
        while not self._closed.is_set():
            self._renewed.clear()
            generation = self._session.generation
            began = time.monotonic()
            try:
                with self._session.use(generation) as nvml:
                    self._listen(nvml, generation)
            except codes.NotRunningError:
                self.deaf = self._session.reason or "NVML is being started"
            except Exception as error:  # noqa: BLE001  (a thread that dies would be silence taken for health)
                self.deaf = f"NVML's events are not heard: {type(error).__name__} ({codes.code_of(error)})"
            if self.deaf is None:
                continue  # renewed, or closed
            if time.monotonic() - began > LONGEST_RETRY_S:
                retry = self.retry_s
            self._renewed.wait(retry)
            retry = min(retry * 2, LONGEST_RETRY_S)

    def _listen(self, nvml: Any, generation: int) -> None:
        known = self._cards(generation)
        made = nvml.nvmlEventSetCreate()
        try:
            listened = frozenset(uuid for uuid, card in known.items() if self._register(nvml, card, made))
            if not listened:
                self.deaf = "no card reports events" if known else "no card is known yet"
                return
            self.listening = listened
            self.deaf = None
            by_address = {_address(card.handle): card.place for card in known.values()}
            while not (self._closed.is_set() or self._renewed.is_set() or self._session.closing):
                try:
                    event = nvml.nvmlEventSetWait(made, self.wait_ms)
                except nvml.NVMLError as error:
                    if codes.code_of(error) != codes.TIMEOUT:
                        raise
                    self.heartbeat = time.monotonic()
                    continue
                self.heartbeat = time.monotonic()
                place = by_address.get(_address(event.device))
                if place is not None:
                    self._hear(place, event)
        finally:
            self.listening = frozenset()
            _free(nvml, made)

    @staticmethod
    def _register(nvml: Any, card: Watched, made: Any) -> bool:
        """Whether the card reports at least one type that is wanted."""
        try:
            mask = int(nvml.nvmlDeviceGetSupportedEventTypes(card.handle)) & WANTED
            if not mask:
                return False
            nvml.nvmlDeviceRegisterEvents(card.handle, mask, made)
        except nvml.NVMLError as error:
            if codes.code_of(error) in codes.RESTART:
                raise
            return False
        return True

    def _hear(self, place: GpuPlace, event: Any) -> None:
        now = self._clock()
        key = _Key(
            place.uuid,
            int(event.eventType),
            int(event.eventData),
            int(event.gpuInstanceId),
            int(event.computeInstanceId),
        )
        with self._lock:
            first, _, count, _ = self._heard.get(key, (now, now, 0, place))
            if count == 0 and len(self._heard) >= MOST:
                self._overflow[place.uuid] += 1
                return
            self._heard[key] = (first, now, count + 1, place)

    def _fact(self, key: _Key, first: float, last: float, count: int, place: GpuPlace) -> Fact:
        self._number += 1
        evidence: Evidence = {"source": "nvml", "pci": place.pci, "uuid": place.uuid}
        if key.type == XID:
            fault, severity = self._xid(key.data, evidence)
        else:
            kind = TYPES.get(key.type, EventType("gpu_unknown_xid", Severity.WARNING, "investigate"))
            fault, severity = kind.fault, kind.severity
            evidence |= {"event": f"0x{key.type:x}", "action": kind.action}
        if key.gi != _NO_INSTANCE:
            evidence["gpu_instance"] = key.gi
        if key.ci != _NO_INSTANCE:
            evidence["compute_instance"] = key.ci
        if count > 1:
            evidence |= {"count": count, "last": last}
        return Fact(
            key=f"nvml/{key.uuid}/event/{key.type:x}/{key.data}/{first:.3f}/{self._number}",
            fault=fault,
            severity=severity,
            time=first,
            kind="gpu",
            local=place.index,
            origin=Origin.DRIVER,
            evidence=evidence,
        )

    @staticmethod
    def _xid(code: int, evidence: Evidence) -> tuple[str, Severity]:
        """By the same table as the kernel log's lines; where only a line's text tells the severity, it is an error."""
        evidence["xid"] = code
        entry = catalogue.xids().get(code)
        if entry is None:
            evidence["action"] = "investigate"
            return "gpu_unknown_xid", Severity.WARNING
        evidence |= {"xid_name": entry.name, "scope": entry.scope, "action": entry.action}
        return entry.fault, entry.severity or Severity.ERROR


def _address(handle: Any) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value


def _free(nvml: Any, made: Any) -> None:
    try:
        nvml.nvmlEventSetFree(made)
    except nvml.NVMLError:  # the library is gone, and the set with it
        return
