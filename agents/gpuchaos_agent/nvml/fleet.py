"""All cards of a node: one thread starts the library, one reads the cards in turn, one listens to events.

A call that hangs cannot be cancelled. It keeps its thread and another one goes on with the other cards; it is said
while it lasts, and nobody waits for it, neither at a tick nor at the end.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from gpuchaos_agent.collect.base import Evidence, Fact
from gpuchaos_agent.crew import Crew
from gpuchaos_agent.kernelfs.processes import boot_id
from gpuchaos_agent.nvml import codes
from gpuchaos_agent.nvml.events import EventWatch, Watched
from gpuchaos_agent.nvml.place import describe
from gpuchaos_agent.nvml.reader import CardReader
from gpuchaos_agent.nvml.session import Session
from gpuchaos_agent.nvml.worker import Worker
from gpuchaos_stream.events.base import Severity
from gpuchaos_stream.events.fault import Origin

#: After a failed start, seconds: the first wait and the longest.
RETRY_S: Final = 5.0
LONGEST_RETRY_S: Final = 30.0
#: After a card was lost, seconds. Starting the library anew is the only way back for stale handles, but costs all
#: cards a moment, so that a card that stays lost is looked for more and more seldom.
LOST_RETRY_S: Final = 30.0
LONGEST_LOST_RETRY_S: Final = 600.0
#: A call that has not returned for this long is a fact, seconds. A driver may take some for a reset or a first use.
HANG_S: Final = 10.0
#: A card that takes longer than this is left to its thread, and another goes on with the next card, seconds.
PATIENCE_S: Final = 0.005
#: After this the cards that are left are read while nobody waits for them, seconds.
CARDS_S: Final = 0.1


class Fleet:
    """Starts when it is first asked. `load` returns the `pynvml` module, `monotonic` never jumps, seconds.

    `owners` maps a GPU's index or PCI address to its job.
    """

    def __init__(
        self,
        sysfs: Path,
        procfs: Path,
        owners: dict[str, str],
        load: Callable[[], Any],
        monotonic: Callable[[], float],
    ) -> None:
        self.session = Session(load)
        self.workers: list[Worker] = []
        self._crew = Crew("nvml-cards", patience_s=PATIENCE_S)
        self.events = EventWatch(self.session, self._watched, self.clock)
        self._readers: dict[str, CardReader] = {}
        self._sysfs = sysfs
        self._procfs = procfs
        self._owners = owners
        self._monotonic = monotonic
        self._boot = boot_id(procfs)
        self._facts: deque[Fact] = deque()
        self._lock = threading.RLock()
        self._asked = (0.0, 0.0)
        self._wake = threading.Event()
        self._settled = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._due: float | None = float("-inf")
        self._retry = RETRY_S
        self._lost_retry = LOST_RETRY_S
        self._away = 0
        self._tried = False
        self._assigned = 0
        self._since: float | None = None
        self._hanging: set[int] = set()
        self._nameless: set[int] = set()

    # -- for the collector's thread

    def clock(self) -> float:
        """The node's clock: the last `now` that was given, and the time since."""
        now, at = self._asked
        return now + max(0.0, self._monotonic() - at)

    def ask(self, now: float) -> None:
        """Asks all threads for a reading, except those that still are at their last."""
        self._asked = (now, self._monotonic())
        if self._thread is None:
            self._thread = threading.Thread(target=self._manage, name="nvml", daemon=True)
            self._thread.start()
        self._wake.set()
        self._crew.run([work for worker in list(self.workers) for work in worker.ask(now)], CARDS_S)

    def wait(self, timeout_s: float) -> None:
        """Waits until every thread that answered its last call has answered this one; never longer."""
        with self._settled:
            self._settled.wait_for(self._quiet, timeout_s)

    def cards(self) -> tuple[tuple[CardReader, Worker | None], ...]:
        """Every card that was ever seen with the thread that reads it, in the order of their indexes."""
        with self._lock:
            readers = list(self._readers.values())
        generation = self.session.generation
        by_reader = {id(w.reader): w for w in self.workers if w.generation == generation}
        return tuple(
            (reader, by_reader.get(id(reader))) for reader in sorted(readers, key=lambda r: int(r.place.index))
        )

    @property
    def complete(self) -> bool:
        """Whether each of NVML's numbers has said which card it is: what is missing then is gone."""
        session = self.session
        return session.running and self._assigned == session.generation and all(w.settled for w in self.workers)

    def starting_for(self) -> float | None:
        """Seconds since the library's start was begun, None while no start is under way."""
        since = self._since
        return None if since is None else self._monotonic() - since

    def take_facts(self) -> tuple[Fact, ...]:
        """What was found since the last call, each once."""
        self._look_for_hangs()
        found = []
        while self._facts:
            found.append(self._facts.popleft())
        return (*found, *self.events.facts())

    def close(self) -> None:
        """Ends the threads and shuts the library down unless a call hangs in it. May be called twice."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self.events.close()
        for worker in self.workers:
            worker.close()
        self._crew.close()
        self._wake.set()
        self.session.stop(patience_s=0.8)

    # -- the managing thread

    def _manage(self) -> None:
        while True:
            self._wake.wait()
            self._wake.clear()
            if self._closed:
                return
            due = self._due
            if due is not None and self._monotonic() >= due:
                try:
                    self._start()
                except Exception as error:  # noqa: BLE001  (a thread that dies would read as a hang)
                    self.session.abandon(f"NVML did not start: {type(error).__name__}: {error}"[:200])
                    self._again(codes.UNKNOWN)
            with self._settled:
                self._tried = True
                self._settled.notify_all()

    def _start(self) -> None:
        if self.session.running and not self.session.stop():
            # What hangs keeps its thread, and the others get a new start beside it.
            self.session.abandon("a call to NVML hangs, so that it cannot be shut down")
        self._since = self._monotonic()
        try:
            code = self.session.start()
        finally:
            self._since = None
        if code is not None:
            self._again(code)
            return
        nvml, generation = self.session.nvml, self.session.generation
        try:
            with self.session.use(generation):
                count = int(nvml.nvmlDeviceGetCount())
        except nvml.NVMLError as error:
            self.session.stop()
            self.session.reason = f"NVML does not count its GPUs ({codes.code_of(error)})"
            self._again(codes.code_of(error))
            return
        if self._closed:
            self.session.stop(patience_s=1.0)
            return
        with self._lock:
            self._retry = RETRY_S
            self._due = None if count else self._monotonic() + LONGEST_RETRY_S
            self._returned()
        self.session.reason = "" if count else "NVML finds no GPU"
        while len(self.workers) < count:
            made = Worker(len(self.workers), self.session, self._find, self._finished, self._monotonic)
            self.workers.append(made)
        for worker in self.workers:
            worker.assign(generation if worker.number < count else None)
        self._assigned = generation
        self._crew.run([work for worker in self.workers for work in worker.ask(self._asked[0])], CARDS_S)
        self.events.start()
        self.events.renew()

    def _again(self, code: int) -> None:
        """The start failed: said once if cards were there before, and tried again after a while."""
        with self._lock:
            self._due = self._monotonic() + self._retry
            self._retry = min(self._retry * 2, LONGEST_RETRY_S)
            if self._readers and not self._away:
                self._away = code
                action = "update_software" if code == codes.VERSION_MISMATCH else "investigate"
                self._tell_driver(Severity.ERROR, {"nvml": str(code), "action": action, "text": self.session.reason})

    def _returned(self) -> None:
        if self._away:
            self._tell_driver(Severity.INFO, {"nvml": str(self._away), "cleared": True, "action": "none"})
            self._away = 0

    def _quiet(self) -> bool:
        due = self._due
        if not self._tried or (due is not None and self._monotonic() >= due):
            return False  # the library is being started
        return all(worker.busy_for is None or worker.late for worker in self.workers)

    # -- in the threads of cards

    def _finished(self, worker: Worker) -> None:
        """A worker ended a reading: its facts are kept, and what it needs is begun."""
        reading = worker.result[1] if worker.result is not None else None
        if reading is not None:
            self._facts.extend(worker.new_facts())
        lost = worker.nameless or (reading.code if reading is not None else 0)
        with self._lock:
            if worker.broken:
                worker.broken = 0
                self._due = min(self._due, self._monotonic()) if self._due is not None else self._monotonic()
                self._wake.set()
            elif lost and self._due is None:
                self._due = self._monotonic() + self._lost_retry
                self._lost_retry = min(self._lost_retry * 2, LONGEST_LOST_RETRY_S)
            elif not lost and all(w.healthy for w in self.workers):
                self._lost_retry = LOST_RETRY_S
        if worker.nameless:
            self._tell_nameless(worker)
        if worker.identified:
            worker.identified = False
            self.events.renew()
        with self._settled:
            self._settled.notify_all()

    def _find(self, nvml: Any, handle: Any, number: int) -> CardReader:
        """The reader of a card: the one that it had before a restart, unless that one hangs in a call."""
        described = describe(nvml, handle, number, self._sysfs, self._owners)
        place = described.place
        with self._lock:
            known = self._readers.get(place.uuid)
            index = known.place.index if known is not None else self._index(place.index, place.pci)
            place = place.model_copy(update={"index": index, "mig": known.place.mig if known else ()})
            if known is None or known.asking.doing:
                known = CardReader(place, described.memory_node, self._boot, self._procfs)
                self._readers[place.uuid] = known
            else:
                known.place = place
                known.renew()
        return known

    def _index(self, wanted: str, address: str) -> str:
        """NVML's number for a new card, unless another card has it: numbers move up when a card is lost."""
        holder = next((reader for reader in self._readers.values() if reader.place.index == wanted), None)
        if holder is None:
            return wanted
        if holder.place.pci == address:  # another card in the same slot
            del self._readers[holder.place.uuid]
            return wanted
        return str(max(int(reader.place.index) for reader in self._readers.values()) + 1)

    def _watched(self, generation: int) -> Mapping[str, Watched]:
        found = {}
        for worker in self.workers:
            reader, handle = worker.reader, worker.handle
            if worker.generation == generation and reader is not None and handle is not None:
                found[reader.place.uuid] = Watched(reader.place, handle)
        return found

    # -- facts that no single reading states

    def _look_for_hangs(self) -> None:
        for worker in self.workers:
            busy, reader = worker.busy_for, worker.reader
            if busy is None or busy < HANG_S:
                self._hanging.discard(worker.number)
            elif worker.number not in self._hanging:
                self._hanging.add(worker.number)
                evidence: Evidence = {"source": "nvml", "op": worker.doing, "seconds": round(busy, 1)}
                if reader is not None:
                    evidence |= {"pci": reader.place.pci, "uuid": reader.place.uuid}
                evidence["action"] = "investigate"
                index = reader.place.index if reader is not None else str(worker.number)
                self._tell("gpu_call_hang", Severity.ERROR, index, evidence)

    def _tell_nameless(self, worker: Worker) -> None:
        """A number of NVML's behind which no card answers. If it was known, it is missed by its UUID instead."""
        if worker.number in self._nameless or str(worker.number) in {r.place.index for r in self._readers.values()}:
            return
        self._nameless.add(worker.number)
        fault, action = codes.LOSSES.get(worker.nameless, ("gpu_lost", "reboot_node"))
        evidence: Evidence = {"source": "nvml", "nvml": str(worker.nameless), "action": action}
        self._tell(fault, Severity.CRITICAL, str(worker.number), evidence)

    def _tell_driver(self, severity: Severity, evidence: Evidence) -> None:
        self._tell("gpu_driver_gone", severity, "", {"source": "nvml", **evidence})

    def _tell(self, fault: str, severity: Severity, local: str, evidence: Evidence) -> None:
        now = self.clock()
        self._facts.append(
            Fact(
                key=f"nvml/{fault}/{local}/{severity}/{now:.3f}",
                fault=fault,
                severity=severity,
                time=now,
                kind="gpu" if local else "node",
                local=local,
                origin=Origin.DRIVER,
                evidence=evidence,
            )
        )
