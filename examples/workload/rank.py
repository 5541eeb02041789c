"""One rank: `python -m workload.rank FOLDER RANK ATTEMPT PORT`, started by the launcher."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType
from typing import Any, Final

import numpy as np

from workload.identity import Identity
from workload.ledger import Ledger
from workload.lines import error_text, say
from workload.links import Links, PeerLostError, Place
from workload.metadata import Metadata
from workload.model import Data, Floats, Model, place
from workload.ring import Ring, Watchdog
from workload.settings import Folder, Settings, read_json, write_json
from workload.tensors import pack, unpack
from workload.volume import Saver, Volume

_PR_SET_PDEATHSIG: Final = 1
#: Summed beside the gradient: samples, their indices in two parts, loss, whether to stop, factor of the rate.
_COUNT, _HIGH, _LOW, _LOSS, _STOP, _RATE, _EXTRA = range(7)
_PART: Final = 256


class Rank:
    """The training loop of one rank."""

    def __init__(self, folder: Folder, rank: int, attempt: int, port: int) -> None:
        self._folder = folder
        self._settings = folder.settings()
        self._rank = rank
        self._attempt = attempt
        self._asked = self._stop = False
        self._identity = Identity(folder.tls, rank) if self._settings.tls else None
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        signal.signal(signal.SIGHUP, self._on_hup)
        folder.pid(rank).write_text(f"{os.getpid()}\n")
        self._model = Model(self._settings.width, self._settings.seed)
        places = [Place(each, self._settings.host(each), port + each) for each in range(self._settings.ranks)]
        links = Links(places[rank], places[rank - 1], places[(rank + 1) % len(places)], attempt, self._identity)
        watchdog = Watchdog(rank, self._settings.watchdog, self._lagging)
        self._ring = Ring(links, places, rank, watchdog)
        self._beat: dict[str, Any] = {"step": 0}
        self._main = _Main(folder, self._settings, attempt) if rank == 0 else None

    def run(self) -> None:
        """Trains to the end, or until it is told to stop.

        Raises:
            PeerLostError: another rank is gone.
            OSError: there may be checkpoints, and the volume does not say.
        """
        settings = self._settings
        start = self._main.load(self._model) if self._main else 0
        self._ring.open(0, settings.watchdog)
        step = self._same_start(start)
        data = Data(settings.seed)
        if self._main:
            self._main.begin(step, self._model)
        saved = step
        vector = np.zeros(self._model.gradient.size + _EXTRA, np.float32)
        while not self._stop and not 0 < settings.steps <= step:
            step += 1
            if step % settings.relink_every == 0:
                self._ring.open(1 + step // settings.relink_every, settings.watchdog)
            self._step(step, data, vector)
            if self._main and step % settings.checkpoint_every == 0:
                self._main.save(step, self._model)
                saved = step
        if self._main:
            if saved != step:
                self._main.save(step, self._model)
            self._main.end(step)
        self._ring.close()

    def _step(self, step: int, data: Data, vector: Floats) -> None:
        begun = time.monotonic()
        time.sleep(self._settings.pause)
        indices = data.batch(step, self._settings.batch, self._rank, self._settings.ranks)
        computing = time.monotonic()
        loss = self._model.step(data.x[indices], data.y[indices])
        compute_time = time.monotonic() - computing
        vector[:-_EXTRA] = self._model.gradient
        extra = vector[-_EXTRA:]
        extra[:] = (
            *(len(indices), int((indices // _PART).sum()), int((indices % _PART).sum()), loss, self._asked),
            self._main.metadata.lr_scale if self._main and self._main.metadata else float(self._rank == 0),
        )
        self._beat |= {"step": step - 1, "seq": self._ring.seq + 1, "compute_time": round(compute_time, 6)}
        self._alive()
        self._ring.all_reduce(vector)
        count = float(extra[_COUNT])
        self._model.update(vector[:-_EXTRA], count, float(extra[_RATE]))
        self._stop = extra[_STOP] > 0  # all ranks end after the same step
        loss = float(extra[_LOSS]) / count
        step_time = time.monotonic() - begun
        self._beat |= {"step_time": round(step_time, 4), "loss": round(loss, 5)}
        if self._main:
            indices_sum = int(extra[_HIGH]) * _PART + int(extra[_LOW])
            self._main.trained(step, int(count), indices_sum, loss, step_time, self._model)
        elif step % (10 * self._settings.log_every) == 0:
            say(f"[rank{self._rank}]: step={step} step_time={step_time:.4f} compute_time={compute_time:.5f}")

    def _same_start(self, step: int) -> int:
        """All ranks take what rank 0 has."""
        model = self._model
        state = np.concatenate(
            (np.array([step // _PART**2, step % _PART**2], np.float32), model.weights, model.momentum)
        )
        self._ring.broadcast(state)
        size = model.weights.size
        model.weights[:] = state[2 : 2 + size]
        model.momentum[:] = state[2 + size :]
        return int(state[0]) * _PART**2 + int(state[1])

    def _alive(self) -> None:
        self._beat["time"] = round(time.time(), 3)
        with contextlib.suppress(OSError):
            write_json(self._folder.heartbeat(self._rank), self._beat)

    def _lagging(self, seq: int) -> list[int]:
        others = (rank for rank in range(self._settings.ranks) if rank != self._rank)
        return [rank for rank in others if read_json(self._folder.heartbeat(rank)).get("seq", seq) < seq]

    def _on_term(self, _signal: int, _frame: FrameType | None) -> None:
        self._asked = True

    def _on_hup(self, _signal: int, _frame: FrameType | None) -> None:
        if self._identity is not None:
            self._identity.reload()


class _Main:
    """What only rank 0 does: checkpoints, ledger, metadata, the log of steps."""

    def __init__(self, folder: Folder, settings: Settings, attempt: int) -> None:
        self._settings = settings
        self._attempt = attempt
        self._loaded: dict[str, Any] = {}
        self._volume = Volume(
            folder.checkpoints(settings), settings.keep, checksums=settings.checksums, timeout=settings.storage_timeout
        )
        self._saver = Saver(self._volume, folder.saves_file, 0)
        self._ledger = Ledger(folder.ledger)
        run = str(read_json(folder.state_file).get("run", ""))
        self.metadata = (
            Metadata(run, settings.database, folder.cache, folder.metadata_file) if settings.database else None
        )

    def load(self, model: Model) -> int:
        """Fills the model from the newest good checkpoint; returns its step, 0 where there is none."""
        reply, content = self._volume.ask({"do": "load"})
        self._loaded = reply
        for each in reply["refused"]:
            say(f"[rank0]: checkpoint {each['name']} refused: {each['why']}; taking the one before")
        if not reply["found"]:
            say("[rank0]: no checkpoint to resume from, starting at step 0")
            return 0
        views = model.tensors()
        for name, (_, data) in unpack(content).items():
            views[name].ravel()[:] = np.frombuffer(data, np.float32)
        step = int(reply["manifest"]["step"])
        say(f"[rank0]: resumed from checkpoint {reply['found']} (global_step {step})")
        return step

    def begin(self, step: int, model: Model) -> None:
        """Writes down where this attempt begins."""
        refused = [each["name"] for each in self._loaded["refused"]]
        found = self._loaded["found"]
        self._ledger.add(
            {"resume": step, "attempt": self._attempt, "from": found, "digest": model.digest(), "refused": refused}
        )
        self._record("resume" if found else "start", step, attempt=self._attempt, checkpoint=found, refused=refused)

    def trained(self, step: int, count: int, indices: int, loss: float, step_time: float, model: Model) -> None:
        """Writes a finished step down."""
        epoch, position = place(step, self._settings.batch)
        line: dict[str, Any] = {"step": step, "attempt": self._attempt, "epoch": epoch, "position": position}
        line |= {"count": count, "indices": indices, "loss": round(loss, 5), "digest": model.digest()}
        self._ledger.add({**line, "time": round(time.time(), 3)})
        if step % self._settings.log_every == 0:
            say(f"[rank0]: step={step} loss={loss:.4f} step_time={step_time:.4f} epoch={epoch}")
        self._record("step", step, loss=round(loss, 5))

    def save(self, step: int, model: Model) -> None:
        """Hands a copy over to be saved."""
        epoch, position = place(step + 1, self._settings.batch)
        sampler = {"epoch": epoch, "position": position, "seed": self._settings.seed, "batch": self._settings.batch}
        content = pack({name: (view.shape, view.tobytes()) for name, view in model.tensors().items()})
        self._saver.save({"format": 1, "step": step, "sampler": sampler}, content)
        self._record("checkpoint", step)

    def end(self, step: int) -> None:
        """Waits for the last checkpoint, so long as a volume may take."""
        self._record("end", step)
        self._saver.finish(2 * self._settings.storage_timeout)
        if self.metadata:
            self.metadata.close()

    def _record(self, kind: str, step: int, **more: object) -> None:
        if self.metadata:
            self.metadata.record(kind, step, **more)


def main() -> None:
    """Ends with 1 where a peer or the volume is gone; the launcher starts all ranks again then."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    number = int(sys.argv[2])
    try:
        Rank(Folder(Path(sys.argv[1])), number, int(sys.argv[3]), int(sys.argv[4])).run()
    except PeerLostError as error:
        say(str(error))
    except OSError as error:
        say(f"[rank{number}]: {error_text(error)}")
    else:
        os._exit(0)
    os._exit(1)  # threads that wait for a peer or a volume end with it


if __name__ == "__main__":
    main()
