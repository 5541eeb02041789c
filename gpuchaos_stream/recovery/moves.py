"""When the work of one experiment's targets had moved off them: what a scheduler does long before a fault is gone.

The jobs that ran on a target when the fault came have moved at the first sample in which all of them have made
progress since none of their processes runs on a target and as many of them run as before. A node that has fallen
silent carries its processes as last known, and what is not heard of runs nowhere: so silence takes ranks away and
never adds one, and missing telemetry never counts as a move. What cannot be told (a target that is on no node, a
job that nobody knew of, no sample just before the fault) is no move either.

Samples are a set keyed by cell and time, as those of `series.py`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from gpuchaos_stream.events.base import entity_kind, entity_node
from gpuchaos_stream.events.observation import CellSummary
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.recovery.series import BASELINE_S, MAX_GAP_S, chunk_of

#: Samples that are older than the newest by this much are gone through once, seconds; one that comes later still
#: counts, but has all of them gone through again.
_SETTLED_S: Final = 10.0


class Ranks(NamedTuple):
    """One job in one cell: processes that run, processes that silent nodes had, and the last progress.

    `progress` is the oldest of the last progresses of those that run, epoch seconds; None where none is known.
    """

    running: int
    silent: int
    progress: float | None


class Sample(NamedTuple):
    """What a cell says at one tick. `seen` are the targets' nodes that it knows.

    `on` are the jobs with processes on targets: True where one is seen to run, False where all are seen not to, None
    where their node is silent.
    """

    seen: AbstractSet[str]
    on: dict[str, bool | None]
    jobs: dict[str, Ranks]


class Moves:
    """The samples of one experiment, and what they say. `jobs` are those that may be on its targets: others are not
    followed, and if one of them is on a target when the fault comes, a move cannot be told.
    """

    def __init__(self, plan: Plan, jobs: Iterable[str]) -> None:
        self._jobs: Final = frozenset(jobs)
        self._targets: Final = _by_node(plan.targets.entities)
        self._chunks: dict[int, dict[tuple[str, float], Sample]] = {}
        self._newest = -math.inf
        self._asked: tuple[float, float] | None = None
        self._settled: _Fold | None = None
        self._changed = True
        self._answer: float | None = None

    @property
    def chunks(self) -> frozenset[int]:
        """Numbers of the chunks that hold samples; chunk n begins at n · `CHUNK_S`."""
        return frozenset(self._chunks)

    def of_summary(self, summary: CellSummary) -> Sample | None:
        """What the summary says of the targets and their jobs; None where it says nothing of them."""
        silent = {name for name, seen in summary.nodes.items() if seen.stale or summary.time - seen.last > MAX_GAP_S}
        on: dict[str, bool | None] = {}
        for job, nodes in summary.processes.items():
            for node in self._targets.keys() & nodes.keys():
                hit = {pid for pid, gpu in nodes[node].items() if _hit(self._targets[node], pid, gpu)}
                if hit:
                    runs = None if node in silent else not hit.issubset(summary.not_running.get(node, ()))
                    on[job] = _worse_on(on.get(job, False), runs)
        sample = Sample(
            seen=self._targets.keys() & set(summary.order),
            on=on,
            jobs={job: _ranks(summary, job, silent) for job in self._jobs & summary.jobs.keys()},
        )
        return sample if any(sample) else None

    def add(self, cell: str, time: float, sample: Sample) -> bool:
        """Adds a sample; True when it changed the set. Of two with one time the worse counts, job by job."""
        samples = self._chunks.setdefault(chunk_of(time), {})
        known = samples.get((cell, time))
        if known is not None:
            sample = _worse(known, sample)
            if sample == known:
                return False
        samples[cell, time] = sample
        self._newest = max(time, self._newest)
        self._changed = True
        if self._settled is not None and time <= self._settled.upto:
            self._settled = None
        return True

    def drop(self, chunk: int) -> None:
        """Forgets the samples of a chunk."""
        self._chunks.pop(chunk, None)

    def chunk(self, number: int) -> list[Any]:
        """The samples of a chunk, for saving; `restore` takes them."""
        return [
            (cell, time, sorted(sample.seen), sample.on, sample.jobs)
            for (cell, time), sample in self._chunks[number].items()
        ]

    def restore(self, saved: Iterable[Any]) -> None:
        """Adds what `chunk` gave."""
        for cell, time, seen, on, jobs in saved:
            self.add(cell, time, Sample(frozenset(seen), on, {job: Ranks(*ranks) for job, ranks in jobs.items()}))

    def moved(self, first: float, last: float) -> float | None:
        """When the work had moved off, epoch seconds; None if it had not, or that cannot be told.

        `first` and `last` are the times of the first and the last injection.
        """
        if self._settled is None or self._asked != (first, last):
            self._asked = (first, last)
            self._settled = _Fold(self._needed(first), upto=last)
            for time, samples in self._moments(last - MAX_GAP_S, last):
                self._settled.latest.update({cell: (time, sample) for cell, sample in samples.items()})
        elif not self._changed:
            return self._answer
        self._settled.take(self._moments(self._settled.upto, self._newest - _SETTLED_S))
        rest = copy(self._settled)
        rest.latest = dict(rest.latest)
        rest.take(self._moments(rest.upto, math.inf))
        self._changed, self._answer = False, rest.moved
        return self._answer

    def _needed(self, first: float) -> dict[str, int]:
        """How many processes each job had that was on a target at `first`; empty where that cannot be told.

        The most that it had at once in the minute before, those that silent nodes had included. In that minute it was
        seen to run there: at `first` itself the effect may already show, for an injection is told once it is proved.
        """
        latest: dict[str, tuple[float, Sample]] = {}
        most: dict[str, int] = {}
        ran: set[str] = set()
        for time, samples in self._moments(first - BASELINE_S, first):
            latest.update({cell: (time, sample) for cell, sample in samples.items()})
            ran.update(job for sample in samples.values() for job, runs in sample.on.items() if runs)
            fresh = [sample for at, sample in latest.values() if time - at <= MAX_GAP_S]
            for job in self._jobs:
                ranks = [sample.jobs[job] for sample in fresh if job in sample.jobs]
                most[job] = max(most.get(job, 0), sum(each.running + each.silent for each in ranks))
        seen = {node for _, sample in latest.values() for node in sample.seen}
        there = [each for _, sample in latest.values() for each in sample.on.items()]
        known = all(most.get(job) if job in ran else runs is False for job, runs in there)
        return {job: most[job] for job, _ in there if job in ran} if known and seen >= self._targets.keys() else {}

    def _moments(self, after: float, until: float) -> Iterator[tuple[float, dict[str, Sample]]]:
        """The samples after `after`, up to `until`, by time and cell."""
        if until <= after:
            return
        found: dict[float, dict[str, Sample]] = {}
        first, last = chunk_of(after), math.inf if until == math.inf else chunk_of(until)
        for number in [number for number in self._chunks if first <= number <= last]:
            for (cell, time), sample in self._chunks[number].items():
                if after < time <= until:
                    found.setdefault(time, {})[cell] = sample
        yield from sorted(found.items())


#: Samples of cells, each with its time.
Fresh = Sequence[tuple[float, Sample]]


@dataclass
class _Fold:
    """What the samples up to `upto` say: the latest of each cell, and since when the jobs have been whole elsewhere."""

    needed: dict[str, int]
    upto: float
    latest: dict[str, tuple[float, Sample]] = field(default_factory=dict)
    since: float | None = None
    moved: float | None = None

    def take(self, moments: Iterable[tuple[float, dict[str, Sample]]]) -> None:
        """Goes on through what comes next."""
        for time, samples in moments:
            gap, self.upto = time - self.upto > MAX_GAP_S, time
            self.latest.update({cell: (time, sample) for cell, sample in samples.items()})
            if self.moved is not None or not self.needed:
                continue
            fresh = [(at, sample) for at, sample in self.latest.values() if time - at <= MAX_GAP_S]
            if not self._whole(fresh):
                self.since = None
            elif self.since is None or gap:
                self.since = time
            else:
                # Whoever has not spoken since may be about to be missed: it does not confirm.
                spoken = [(at, sample) for at, sample in fresh if at >= self.since]
                if self._whole(spoken) and self._went_on(spoken, self.since):
                    self.moved = time

    def _whole(self, fresh: Fresh) -> bool:
        """Whether of each job as many processes run as are needed, and none is seen to run on a target."""
        samples = [sample for _, sample in fresh]
        return all(_running(samples, job) >= count for job, count in self.needed.items()) and not any(
            sample.on.get(job) for sample in samples for job in self.needed
        )

    def _went_on(self, fresh: Fresh, since: float) -> bool:
        """Whether all of each job of which progress is known has made some after `since`."""
        for job in self.needed:
            here = [sample.jobs[job].progress for _, sample in fresh if job in sample.jobs]
            known = [progress for progress in here if progress is not None]
            if not known or min(known) <= since:
                return False
        return True


def _running(samples: Iterable[Sample], job: str) -> int:
    return sum(sample.jobs[job].running for sample in samples if job in sample.jobs)


def _by_node(entities: Iterable[str]) -> dict[str, list[str]]:
    """The targets of each node; none at all where one of them is on no node: nothing moves off that."""
    found: dict[str, list[str]] = {}
    for entity in entities:
        node = entity_node(entity)
        if node is None:
            return {}
        found.setdefault(node, []).append(entity)
    return found


def _hit(targets: Iterable[str], pid: str, gpu: str) -> bool:
    """Whether a process is on one of its node's `targets`.

    It is what a process target names, it uses a GPU target (it may, where its GPU is not known), and anything else
    of the node carries all of its processes, for no node ties them to a port or to its storage.
    """
    own = {"process": (pid,), "gpu": (gpu,) if gpu else ()}
    for entity in targets:
        named = own.get(entity_kind(entity), ())
        if not named or entity.rsplit("/", 1)[-1] in named:
            return True
    return False


def _ranks(summary: CellSummary, job: str, silent: AbstractSet[str]) -> Ranks:
    values = summary.jobs[job]
    age = values.get("progress_age_seconds")
    nodes = summary.processes.get(job, {})
    return Ranks(
        running=int(values.get("ranks_running") or 0),
        silent=sum(len(nodes[node]) for node in nodes.keys() & silent),
        progress=summary.time - age if age is not None and math.isfinite(age) else None,
    )


def _worse(one: Sample, other: Sample) -> Sample:
    """Of what two workers say of one moment: what is on targets by either, and what runs elsewhere by both."""
    jobs = {}
    for job in one.jobs.keys() & other.jobs.keys():
        left, right = one.jobs[job], other.jobs[job]
        both = [each for each in (left.progress, right.progress) if each is not None]
        jobs[job] = Ranks(
            min(left.running, right.running), max(left.silent, right.silent), min(both) if len(both) == 2 else None
        )
    on = {
        job: _worse_on(one.on.get(job, False), other.on.get(job, False))
        for job in sorted(one.on.keys() | other.on.keys())
    }
    return Sample(one.seen | other.seen, on, jobs)


def _worse_on(one: bool | None, other: bool | None) -> bool | None:
    """Seen to run there before silent, silent before seen not to run."""
    return True if one or other else None if one is None or other is None else False
