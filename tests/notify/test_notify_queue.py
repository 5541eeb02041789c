"""The queue: durable over a kill at any moment, in order for each alert, one owner, bounded patience."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notify_cases import T0, Server, confirmed, experiment, halted, hear, incident, opened, serving

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.events.experiment import HaltState
from gpuchaos_stream.notify.backoff import JITTER, MOST_PATIENCE, SCHEDULE, retry_after, wait
from gpuchaos_stream.notify.delivery import Outcome, Sender
from gpuchaos_stream.notify.desk import Desk
from gpuchaos_stream.notify.message import Kind, Message
from gpuchaos_stream.notify.queue import Queue
from gpuchaos_stream.notify.receivers.base import Receiver, Request

HOOK = "  - {name: it, type: webhook, url: 'http://127.0.0.1:1/', allow_private: true}"

#: Queues a halt, then dies without a goodbye: within the transaction, or after it.
DIES = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from notify_cases import T0, halted, opened
with opened(Path({folder!r}), {hook!r}) as (config, queue, notifier):
    with queue.transaction():
        notifier.hear(halted(), T0)
        queue.read_up_to("topic", 0, 8)
        if {within}:
            os.kill(os.getpid(), signal.SIGKILL)
    taken = queue.take("it", 10, T0 + 1)
    print(taken.batch.id, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("within", [True, False])
def test_a_kill_loses_nothing_and_says_nothing_under_another_id(tmp_path: Path, within: bool) -> None:
    code = DIES.format(tests=str(Path(__file__).parent), folder=str(tmp_path), hook=HOOK, within=within)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        assert queue.positions() == ({} if within else {("topic", 0): 8})
        hear(notifier, queue, halted())
        taken = queue.take("it", 10, T0 + 1)
        assert taken is not None
        assert [message.name for message in taken.batch.messages] == ["ExperimentStarted", "ExperimentHalted"]
        if not within:
            assert taken.batch.id == done.stdout.strip()
        queue.delivered(taken)
        assert queue.take("it", 10, T0 + 99) is None


def test_a_resolve_waits_until_its_opening_is_settled(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, incident(), incident(closed=T0 + 5))
        first = queue.take("it", 10, T0 + 9)
        assert first is not None
        assert [message.kind for message in first.batch.messages] == [Kind.OPENED]
        queue.again("it", first, "away", T0 + 9, 50.0)
        assert queue.take("it", 10, T0 + 10) is None
        retried = queue.take("it", 10, T0 + 90)
        assert retried is not None
        assert retried.batch == first.batch
        queue.delivered(retried)
        last = queue.take("it", 10, T0 + 90)
        assert last is not None
        assert [message.kind for message in last.batch.messages] == [Kind.RESOLVED]


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.sampled_from(["open 1", "close 1", "open 2", "close 2", "open 3"]), max_size=20),
    st.lists(st.sampled_from(["delivered", "again", "apart", "restart"]), max_size=30),
)
def test_whatever_fails_each_message_is_delivered_once_and_in_the_order_of_its_alert(
    course: list[str], fate: list[str]
) -> None:
    now = T0
    arrived: list[Message] = []
    fates = iter(fate)
    with tempfile.TemporaryDirectory() as folder:
        steps = iter(course)
        left = True
        while left:
            with opened(Path(folder), HOOK) as (_, queue, notifier):
                while True:
                    step = next(steps, None)
                    if step is not None:
                        number = int(step[-1])
                        hear(notifier, queue, incident(number, closed=now if step.startswith("close") else None))
                    now += 400
                    taken = queue.take("it", 10, now)
                    if taken is None and step is None:
                        left = False
                        break
                    what = next(fates, "delivered")
                    if taken is not None and what == "again":
                        queue.again("it", taken, "away", now)
                    elif taken is not None and what == "apart":
                        queue.apart(taken, "one of them", now)
                    elif taken is not None and what == "delivered":
                        queue.delivered(taken)
                        arrived += taken.batch.messages
                    if what == "restart":
                        break
    assert len({message.id for message in arrived}) == len(arrived)
    for key in {message.key for message in arrived}:
        kinds = [message.kind for message in arrived if message.key == key]
        assert kinds == [Kind.OPENED, Kind.RESOLVED] * (len(kinds) // 2) + [Kind.OPENED] * (len(kinds) % 2)


def test_what_belongs_together_goes_together_and_the_rest_apart(tmp_path: Path) -> None:
    routes = "  - {receivers: [it], group_by: [signal], group_wait: 5s}"
    with opened(tmp_path, HOOK, routes) as (_, queue, notifier):
        hear(notifier, queue, incident(1), now=T0)
        assert queue.take("it", 10, T0 + 4) is None, "the first waits for others"
        hear(notifier, queue, incident(2), incident(3), halted(), now=T0 + 4)
        taken = queue.take("it", 10, T0 + 6)
        assert taken is not None
        assert [message.labels["incident_id"] for message in taken.batch.messages] == ["inc-1", "inc-2", "inc-3"]
        assert taken.batch.group == {"signal": "harm"}


def test_an_update_that_nobody_has_seen_gives_way_to_the_next(tmp_path: Path) -> None:
    undone = halted(HaltState.UNDONE, undone=T0 + 3)
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, halted(), undone, confirmed())
        kinds = []
        while (taken := queue.take("it", 1, T0 + 99)) is not None:
            kinds += [message.kind for message in taken.batch.messages if message.name == "ExperimentHalted"]
            queue.delivered(taken)
    assert kinds == [Kind.OPENED, Kind.RESOLVED]


def test_what_fails_midway_leaves_nothing_behind_and_the_rest_goes_on(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        with contextlib.suppress(ZeroDivisionError), queue.transaction():
            notifier.hear(halted(), T0)
            raise ZeroDivisionError
        assert queue.take("it", 10, T0 + 9) is None
        with queue.transaction():
            with contextlib.suppress(ZeroDivisionError), queue.attempt():
                notifier.hear(halted(), T0)
                raise ZeroDivisionError
            queue.read_up_to("topic", 0, 8)
        assert queue.take("it", 10, T0 + 9) is None
        assert queue.open_alerts() == []
        assert queue.positions() == {("topic", 0): 8}


def test_a_second_process_is_refused(tmp_path: Path) -> None:
    queue = Queue(tmp_path, random.Random(1))
    with pytest.raises(UserError, match="another gpuchaos notify uses it"):
        Queue(tmp_path, random.Random(1))
    queue.close()
    Queue(tmp_path, random.Random(1)).close()


def test_it_can_be_looked_at_while_another_owns_it_and_not_changed(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, incident())
        looking = Queue(tmp_path / "queue", random.Random(1), reading=True)
        assert looking.standing("it", T0)["waiting"] == 1
        with pytest.raises(sqlite3.OperationalError, match="readonly"):
            looking.revive("it", T0)
        looking.close()
    with pytest.raises(UserError, match="is not there"):
        Queue(tmp_path / "elsewhere", random.Random(1), reading=True)


def test_a_file_that_is_no_queue_is_named(tmp_path: Path) -> None:
    (tmp_path / "notify.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(UserError, match="is no queue"):
        Queue(tmp_path, random.Random(1))


def test_the_queue_is_its_owners_alone(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, halted())
        files = list((tmp_path / "queue").iterdir())
        assert len(files) >= 3, "its log lies beside it"
        assert [path.name for path in files if path.stat().st_mode & 0o077] == []


def test_experiments_that_run_are_known_after_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        hear(notifier, queue, experiment())
    with opened(tmp_path, HOOK) as (_, queue, notifier):
        assert list(queue.experiments()) == [("training", "exp-1")]
        hear(notifier, queue, confirmed())
        assert queue.experiments() == {}


@given(st.integers(1, 40), st.integers(0, 2**32), st.one_of(st.none(), st.floats(0, MOST_PATIENCE)))
def test_a_wait_follows_the_schedule_and_is_never_shorter_than_asked(
    tries: int, seed: int, asked: float | None
) -> None:
    found = wait(tries, random.Random(seed), asked)
    least = SCHEDULE[min(tries, len(SCHEDULE)) - 1]
    assert found >= max(least, asked or 0)
    assert found <= max(least * (1 + JITTER), asked or 0)


@pytest.mark.parametrize(
    ("header", "seconds"),
    [
        ("30", 30.0),
        ("Mon, 21 Sep 2026 14:14:00 GMT", 40.0),
        ("Mon, 21 Sep 2020 14:14:00 GMT", 0.0),
        ("99999999999999", MOST_PATIENCE),
        ("soon", None),
        ("", None),
        (None, None),
        ("-5", None),
    ],
)
def test_retry_after_is_read_as_seconds_or_date(header: str | None, seconds: float | None) -> None:
    assert retry_after(header, T0 + 0) == (seconds if seconds != 40.0 else pytest.approx(1_790_000_040.0 - T0))


async def test_a_disk_that_refuses_ends_nothing_and_nothing_is_told_twice(tmp_path: Path) -> None:
    with serving(Server()) as server:
        it = f"  - {{name: it, type: webhook, url: '{server.url}', allow_private: true}}"
        with opened(tmp_path, it) as (config, queue, notifier):
            refused = asyncio.Event()

            class Refused(Sender):
                async def send(self, receiver: Receiver, request: Request, now: float) -> Outcome:
                    sent = await super().send(receiver, request, now)
                    if len(server.seen) == 1:
                        queue._db.execute("PRAGMA query_only=ON")  # as where there is no room
                        refused.set()
                    return sent

            hear(notifier, queue, incident())
            delivering = asyncio.create_task(Desk(config, queue, Refused(), lambda: T0 + 10).run())
            await asyncio.to_thread(server.wait, lambda seen: len(seen) == 1)
            await refused.wait()
            with pytest.raises(sqlite3.OperationalError):
                hear(notifier, queue, incident(2))
            queue._db.execute("PRAGMA query_only=OFF")
            hear(notifier, queue, incident(3))
            await asyncio.to_thread(server.wait, lambda seen: len(seen) == 2)
            assert not delivering.done()
            delivering.cancel()
    told = [alert["labels"]["incident_id"] for each in server.seen for alert in each.json["alerts"]]
    assert told == ["inc-1", "inc-3"]
