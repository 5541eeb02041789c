"""Expected against told: each alert once, resolved after, nothing else; and the table of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from half_hour_expected import ALERTMANAGER, HOOK, Episode, Key, prometheus_key
from half_hour_receiver import Arrival

#: Longest that a word may take while the receiver is there, and after it is there again (the fifth wait of the
#: documented schedule, a fifth longer); seconds.
SOON_S: Final = 30.0
AFTER_OUTAGE_S: Final = 360.0


@dataclass(frozen=True)
class Word:
    """One thing that the receiver was told, for the first time under this id."""

    at: float
    status: str
    id: str


@dataclass
class Line:
    """An episode and what was told of it."""

    episode: Episode
    firing: list[Word] = field(default_factory=list)
    resolved: Word | None = None


@dataclass
class Judgement:
    """`complaints` is empty where all is as it must be. `repeats`: requests that came twice under one id."""

    lines: list[Line]
    complaints: list[str]
    repeats: int


def judge(
    expected: Iterable[Episode], arrivals: Sequence[Arrival], outages: Sequence[tuple[float, float]]
) -> Judgement:
    """Compares. `outages`: from when until when the receiver was away, epoch seconds."""
    told, repeats = _told(arrivals)
    lines: list[Line] = []
    complaints: list[str] = []
    by_key: dict[Key, list[Episode]] = {}
    for episode in sorted(expected, key=lambda each: each.opened):
        by_key.setdefault(episode.key, []).append(episode)
    for key, words in sorted(told.items()):
        if key not in by_key:
            complaints.append(f"{_name(key)}: told {[word.status for word in words]}, expected nothing")
    for key, episodes in by_key.items():
        found, wrong = _match(episodes, told.get(key, []))
        lines += found
        complaints += wrong + [f"{_name(key)}: {each}" for line in found for each in _wrong(line, outages)]
    lines.sort(key=lambda line: line.episode.opened)
    return Judgement(lines, complaints, repeats)


def table(judgement: Judgement, start: float, outages: Sequence[tuple[float, float]]) -> str:
    """The lines, times in seconds since `start`."""
    head = ("way", "alert", "which", "fired at", "reached after", "again", "over at", "resolved after")
    rows = [head]
    for line in judgement.lines:
        episode = line.episode
        away = any(begin <= episode.opened <= end for begin, end in outages)
        words = line.firing or ([line.resolved] if episode.notice and line.resolved else [])
        first = words[0].at if words else None
        over = episode.closed
        rows.append(
            (
                episode.key.way,
                episode.key.alert.removeprefix("GPUChaos") + (f" {episode.key.severity}".rstrip()),
                episode.key.which[:34],
                f"{episode.opened - start:.1f}" + (" away" if away else ""),
                "-" if first is None else f"{first - episode.opened:.1f}",
                str(max(0, len(line.firing) - 1) or ""),
                "" if over is None or episode.notice else f"{over - start:.1f}",
                "" if line.resolved is None or over is None or episode.notice else f"{line.resolved.at - over:.1f}",
            )
        )
    widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)


def _told(arrivals: Sequence[Arrival]) -> tuple[dict[Key, list[Word]], int]:
    told: dict[Key, list[Word]] = {}
    seen: dict[str, Any] = {}
    repeats = 0
    for arrival in arrivals:
        request = arrival.headers.get("webhook-id", "")
        if request and request in seen:
            repeats += 1
            assert seen[request] == arrival.body, "another body under the same webhook-id"
            continue
        seen[request] = arrival.body
        for alert in arrival.body["alerts"]:
            key = _key(arrival.path, alert["labels"])
            told.setdefault(key, []).append(Word(arrival.at, alert["status"], request))
    return told, repeats


def _key(path: str, labels: dict[str, str]) -> Key:
    if labels["severity"] in {"page", "ticket"}:
        return prometheus_key(labels)
    which = next(labels[name] for name in ("halt_id", "incident_id", "experiment_id", "cluster") if name in labels)
    if path == "/hook":
        return Key(HOOK, labels["alertname"], which)
    return Key(ALERTMANAGER, labels["alertname"], which, labels["severity"])


def _match(episodes: list[Episode], words: list[Word]) -> tuple[list[Line], list[str]]:
    """What was told, each word beside the latest episode that it can be of; in a webhook all are told, one by one."""
    lines = [Line(episode) for episode in episodes]
    wrong: list[str] = []
    at = -1
    for first, group in _groups(words):
        fits = [i for i in range(at + 1, len(lines)) if lines[i].episode.opened <= first.at + 1]
        if not fits:
            wrong.append(f"{_name(episodes[0].key)}: told once more at {first.at:.1f}, as {first.status}")
            continue
        at = fits[0] if episodes[0].key.way == HOOK else fits[-1]
        lines[at].firing = [word for word in group if word.status == "firing"]
        lines[at].resolved = next((word for word in group if word.status == "resolved"), None)
    return lines, wrong


def _groups(words: Iterable[Word]) -> Iterator[tuple[Word, list[Word]]]:
    """Words up to each resolve."""
    group: list[Word] = []
    for word in words:
        group.append(word)
        if word.status == "resolved":
            yield group[0], group
            group = []
    if group:
        yield group[0], group


def _wrong(line: Line, outages: Sequence[tuple[float, float]]) -> Iterator[str]:
    episode = line.episode
    if episode.notice:
        if line.resolved is None or line.firing:
            yield "a notice that was not told once"
        return
    if not line.firing:
        if line.resolved is not None:
            yield "resolved, but never told to be on"
        elif episode.key.way == HOOK or _told_for_sure(episode, outages):
            yield "not told"
        return
    if episode.least is None:
        yield "told although an experiment's silence covers it"
    again = len(episode.changes) if episode.key.way == HOOK else 0
    if len(line.firing) > 1 + again:
        yield f"told {len(line.firing)} times, {1 + again} at most expected"
    if episode.closed is None:
        yield "was never over"
    elif line.resolved is None:
        yield "not resolved"
    else:
        yield from _late("resolved", line.resolved.at, episode.closed, outages)
    yield from _late("told", line.firing[0].at, episode.opened, outages)


def _told_for_sure(episode: Episode, outages: Sequence[tuple[float, float]]) -> bool:
    """Whether Alertmanager, which does not tell of what is over, had the time to tell of it."""
    if episode.least is None or episode.closed is None:
        return False
    away = sum(max(0.0, min(episode.closed, end) - max(episode.opened, begin)) for begin, end in outages)
    return episode.closed - episode.opened - away >= episode.least


def _late(what: str, at: float, due: float, outages: Sequence[tuple[float, float]]) -> Iterator[str]:
    limit, since = SOON_S, due
    for begin, end in outages:
        if begin - SOON_S <= due <= end and at >= begin:
            limit, since = AFTER_OUTAGE_S, max(due, end)
            if at < end:
                yield f"{what} while the receiver was away"
    if at - since > limit:
        yield f"{what} {at - since:.0f} s late"


def _name(key: Key) -> str:
    return f"{key.way} {key.alert} {key.severity} {key.which}"
