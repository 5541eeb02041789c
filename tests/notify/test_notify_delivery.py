"""A receiver that fails in every way: what is tried again, when, and what is given up."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import ssl
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from notify_cases import Seen, Server, experiment, halted, hear, incident, opened, serving

from gpuchaos_stream.notify import metrics
from gpuchaos_stream.notify.config import Config
from gpuchaos_stream.notify.delivery import Outcome, Result, Sender
from gpuchaos_stream.notify.desk import Desk
from gpuchaos_stream.notify.queue import Queue
from gpuchaos_stream.notify.receivers.base import Request
from gpuchaos_stream.notify.receivers.webhook import Webhook

SLOW = 20


def hook(server: Server, extra: str = "") -> str:
    return f"  - {{name: it, type: webhook, url: '{server.url}', allow_private: true, timeout: 5s{extra}}}"


async def attempt(url: str, **settings: object) -> Outcome:
    given = {"name": "it", "type": "webhook", "url": url, "allow_private": True, "timeout": "5s", **settings}
    receiver = Webhook.model_validate(given)
    return await Sender().send(receiver, Request(url, b"{}", {"X-Key": "s3cret"}, secrets=("s3cret",)), time.time())


async def deliver(config: Config, queue: Queue, clock_s: list[float], steps: int = 1) -> None:
    desk = Desk(config, queue, Sender(), lambda: clock_s[0])
    for _ in range(steps):
        await desk.step(config.receivers["it"])


@pytest.mark.parametrize(
    ("status", "result"),
    [
        (200, Result.DELIVERED),
        (202, Result.DELIVERED),
        (400, Result.REFUSED),
        (404, Result.REFUSED),
        (408, Result.FAILED),
        (410, Result.GONE),
        (429, Result.FAILED),
        (500, Result.FAILED),
        (503, Result.FAILED),
    ],
)
async def test_an_answer_means_what_its_status_says(status: int, result: Result) -> None:
    with serving(Server(behave=lambda _: (status, {}, b"because"))) as server:
        assert (await attempt(server.url)).result is result


async def test_a_redirect_is_not_followed() -> None:
    with serving(Server()) as other:
        behave = lambda _: (307, {"Location": other.url}, b"")  # noqa: E731
        with serving(Server(behave=behave)) as server:
            outcome = await attempt(server.url)
        assert outcome.result is Result.FAILED
        assert "redirect" in outcome.reason
        assert other.seen == []


async def test_a_receiver_that_hangs_is_given_up_in_time() -> None:
    with serving(Server(behave=lambda _: "hang")) as server:
        before = time.monotonic()
        outcome = await attempt(server.url, timeout="400ms")
    assert outcome.result is Result.FAILED
    assert "0.4 s" in outcome.reason
    assert time.monotonic() - before < SLOW / 4


async def test_a_connection_that_is_reset_or_refused_is_tried_again() -> None:
    with serving(Server(behave=lambda _: "reset")) as server:
        assert (await attempt(server.url)).result is Result.FAILED
    assert (await attempt(server.url)).result is Result.FAILED


async def test_an_endless_answer_is_cut() -> None:
    with serving(Server(behave=lambda _: (200, {}, b"x" * 3_000_000))) as server:
        outcome = await attempt(server.url)
    assert outcome.result is Result.DELIVERED
    assert len(outcome.answer) <= 65_536


async def test_a_secret_that_is_echoed_is_not_in_the_reason() -> None:
    with serving(Server(behave=lambda seen: (400, {}, seen.headers["X-Key"].encode()))) as server:
        outcome = await attempt(server.url)
    assert "s3cret" not in outcome.reason


@pytest.mark.parametrize("asked", ["120", "date"])
async def test_patience_that_is_asked_for_is_kept_for_everything_of_that_receiver(tmp_path: Path, asked: str) -> None:
    now = [1_790_000_000.0]
    date = dt.datetime.fromtimestamp(now[0] + 121, dt.UTC).strftime("%a, %d %b %Y %H:%M:%S GMT")
    header = {"Retry-After": date if asked == "date" else asked}
    with (
        serving(Server(behave=lambda _: (429, header, b""))) as server,
        opened(tmp_path, hook(server)) as (config, queue, notifier),
    ):
        hear(notifier, queue, halted())
        now[0] += 1
        await deliver(config, queue, now)
        hear(notifier, queue, experiment(id="exp-2"), now=now[0])
        now[0] += 118
        await deliver(config, queue, now)
        assert len(server.seen) == 1
        now[0] += 30
        server.behave = lambda _: (200, {}, b"")
        await deliver(config, queue, now, steps=4)
        assert queue.standing("it", now[0])["waiting"] == 0
    first = server.seen[0]
    (again,) = (each for each in server.seen[1:] if each.headers["webhook-id"] == first.headers["webhook-id"])
    assert again.body == first.body


async def test_what_is_refused_is_set_aside_counted_and_stops_nothing(tmp_path: Path) -> None:
    def refuse_halts(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        return (400 if b"ExperimentHalted" in seen.body else 200, {}, b"no such field")

    now = [1_790_000_000.0]
    before = metrics.DEAD.labels(receiver="it")._value.get()
    routes = "  - {receivers: [it], group_by: [alertname], group_wait: 1ms}"
    with serving(Server(behave=refuse_halts)) as server, opened(tmp_path, hook(server), routes) as (config, queue, n):
        hear(n, queue, halted())
        now[0] += 1
        await deliver(config, queue, now, steps=3)
        ((receiver, title, reason, _),) = queue.dead_letters()
        assert (receiver, reason) == ("it", "status 400: no such field")
        assert "halted" in title
        assert queue.standing("it", now[0])["waiting"] == 0
        assert metrics.DEAD.labels(receiver="it")._value.get() == before + 1
        server.behave = lambda _: (200, {}, b"")
        assert queue.revive("it", now[0]) == 1
        await deliver(config, queue, now)
        assert queue.dead_letters() == []
        assert len(server.seen) == 3


async def test_one_message_that_is_refused_does_not_spoil_those_it_went_with(tmp_path: Path) -> None:
    now = [1_790_000_000.0]
    taken: list[str] = []

    def behave(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        ids = [alert["labels"]["incident_id"] for alert in seen.json["alerts"]]
        if "inc-2" in ids:
            return (422, {}, b"inc-2 is not liked")
        taken.extend(ids)
        return (200, {}, b"")

    with (
        serving(Server(behave=behave)) as server,
        opened(tmp_path, hook(server)) as (config, queue, notifier),
    ):
        hear(notifier, queue, *(incident(number) for number in (1, 2, 3)))
        now[0] += 1
        await deliver(config, queue, now, steps=6)
        assert sorted(taken) == ["inc-1", "inc-3"]
        assert len(queue.dead_letters()) == 1
        assert queue.standing("it", now[0])["waiting"] == 0


async def test_a_receiver_that_is_gone_is_left_alone_until_its_settings_change(tmp_path: Path) -> None:
    now = [1_790_000_000.0]
    with serving(Server(behave=lambda _: (410, {}, b""))) as server:
        with opened(tmp_path, hook(server)) as (config, queue, notifier):
            hear(notifier, queue, halted())
            now[0] += 1
            await deliver(config, queue, now)
            hear(notifier, queue, experiment(id="exp-2"), now=now[0])
            now[0] += 500
            await deliver(config, queue, now)
            assert len(server.seen) == 1
        server.behave = lambda _: (200, {}, b"")
        with opened(tmp_path, hook(server, ", ca_file: null, authorization: null")) as (config, queue, _):
            await deliver(config, queue, now)
            assert len(server.seen) == 1, "the same settings"
        with opened(tmp_path, hook(server).replace("5s", "6s")) as (config, queue, _):
            await deliver(config, queue, now)
            assert len(server.seen) == 2


async def test_what_nobody_takes_for_a_day_is_set_aside(tmp_path: Path) -> None:
    now = [1_790_000_000.0]
    with (
        serving(Server(behave=lambda _: (500, {}, b""))) as server,
        opened(tmp_path, hook(server)) as (config, queue, notifier),
    ):
        hear(notifier, queue, halted())
        while queue.standing("it", now[0])["waiting"] and now[0] < 1_790_000_000.0 + 100_000:
            due = queue.next_due("it")
            now[0] = max(now[0], due if due is not None else now[0])
            if len(server.seen) == 12:
                now[0] += 86_000
            await deliver(config, queue, now)
        assert len(queue.dead_letters()) == 2


async def test_after_five_minutes_away_every_alert_arrives_once_and_is_resolved_after(tmp_path: Path) -> None:
    start = 1_790_000_000.0
    now = [start]
    taken: list[Seen] = []

    def behave(seen: Seen) -> tuple[int, dict[str, str], bytes]:
        if now[0] < start + 300:
            return (503, {}, b"")
        taken.append(seen)
        return (200, {}, b"")

    routes = "  - {receivers: [it], group_by: [incident_id], group_wait: 1ms}"
    with (
        serving(Server(behave=behave)) as server,
        opened(tmp_path, hook(server), routes) as (config, queue, notifier),
    ):
        desk = Desk(config, queue, Sender(), lambda: now[0])
        for number in range(6):
            hear(notifier, queue, incident(number), now=now[0])
            while now[0] < start + 40 * (number + 1):
                now[0] += 1
                while await desk.step(config.receivers["it"]):
                    pass
            hear(notifier, queue, incident(number, closed=now[0]), now=now[0])
        tried = len(server.seen)
        while queue.standing("it", now[0])["waiting"]:
            now[0] += 20
            assert now[0] < start + 1200
            while await desk.step(config.receivers["it"]):
                pass
    told: dict[str, list[str]] = {}
    for alert in (alert for each in taken for alert in each.json["alerts"]):
        told.setdefault(alert["labels"]["incident_id"], []).append(alert["status"])
    assert told == {f"inc-{number}": ["firing", "resolved"] for number in range(6)}
    assert len({each.headers["webhook-id"] for each in server.seen}) == 12
    assert tried < 60, "it is not hammered while it is away"


async def test_what_waits_for_a_receiver_out_of_service_does_not_pile_up_for_ever(tmp_path: Path) -> None:
    now = [1_790_000_000.0]
    with (
        serving(Server(behave=lambda _: (410, {}, b""))) as server,
        opened(tmp_path, hook(server)) as (config, queue, notifier),
    ):
        hear(notifier, queue, halted())
        now[0] += 1
        await deliver(config, queue, now)
        hear(notifier, queue, experiment(id="exp-2"), now=now[0])
        now[0] += 90_000
        await deliver(config, queue, now)
        assert queue.standing("it", now[0])["waiting"] == 0
        assert len(server.seen) == 1


@pytest.mark.parametrize("restarted", [False, True])
async def test_a_receiver_that_works_again_gets_at_once_what_would_have_been_tried_minutes_later(
    tmp_path: Path, restarted: bool
) -> None:
    now = [1_790_000_000.0]
    healthy = metrics.HEALTHY.labels(receiver="it")
    with (
        serving(Server(behave=lambda _: (503, {}, b""))) as server,
        opened(tmp_path, hook(server), "  - {receivers: [it], group_by: [incident_id], group_wait: 1ms}") as (
            config,
            queue,
            notifier,
        ),
    ):
        desk = Desk(config, queue, Sender(), lambda: now[0])
        for number in (1, 2):
            hear(notifier, queue, incident(number), now=now[0])
            now[0] += 1
            for _ in range(6):
                await desk.step(config.receivers["it"])
                now[0] = max(queue.next_due("it") or now[0], now[0])
        assert len({each.headers["webhook-id"] for each in server.seen}) == 2
        hear(notifier, queue, incident(3), now=now[0] - 1)
        server.behave = lambda _: (200, {}, b"")
        server.seen.clear()
        if restarted:
            healthy.set(1)
            desk = Desk(config, queue, Sender(), lambda: now[0])
            assert healthy._value.get() == 0, "what was failing when the process died is failing until it is tried"
        while await desk.step(config.receivers["it"]):
            pass
        assert len(server.seen) == 3, "nothing waits for its next try where one has just succeeded"
        assert healthy._value.get() == 1


def certificate(folder: Path, name: str) -> tuple[ssl.SSLContext, Path]:
    """A server's context with a certificate for `name` that signed itself, and the PEM to trust it by."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    pem, private = folder / f"{name}.pem", folder / f"{name}.key"
    pem.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem, private)
    return context, pem


async def test_tls_is_checked_against_the_name_although_the_address_is_connected_to(tmp_path: Path) -> None:
    context, pem = certificate(tmp_path, "localhost")
    with serving(Server(), context) as server:
        url = server.url.replace("127.0.0.1", "localhost")
        assert (await attempt(url, ca_file=pem)).result is Result.DELIVERED
        assert server.seen[0].headers["Host"] == f"localhost:{server.port}"
        unknown = await attempt(url)
        assert unknown.result is Result.FAILED
        assert "certificate" in unknown.reason.lower()
    context, pem = certificate(tmp_path, "other.example")
    with serving(Server(), context) as server:
        wrong = await attempt(server.url.replace("127.0.0.1", "localhost"), ca_file=pem)
        assert wrong.result is Result.FAILED
        assert server.seen == []


async def test_a_receiver_that_hangs_keeps_no_other_waiting(tmp_path: Path) -> None:
    with serving(Server(behave=lambda _: "hang")) as bad, serving(Server()) as good:
        both = f"{hook(bad).replace('it,', 'bad,').replace('400ms', '30s')}\n{hook(good).replace('it,', 'good,')}"
        routes = "  - {receivers: [bad, good], group_wait: 1ms}"
        with opened(tmp_path, both, routes) as (config, queue, notifier):
            hear(notifier, queue, halted(), now=time.time())
            desk = Desk(config, queue, Sender(), time.time)
            running = asyncio.create_task(desk.run())
            await asyncio.to_thread(good.wait, lambda seen: any(b"ExperimentHalted" in each.body for each in seen))
            running.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await running


async def test_an_answer_that_takes_the_message_and_breaks_off_is_no_reason_to_tell_it_again() -> None:
    with serving(Server(behave=lambda _: (202, {"Content-Length": "99"}, b"ok"))) as server:
        assert (await attempt(server.url)).result is Result.DELIVERED
    with serving(Server(behave=lambda _: (500, {"Content-Length": "99"}, b"no"))) as server:
        assert (await attempt(server.url)).result is Result.FAILED
