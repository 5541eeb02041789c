"""Forged commands and malformed messages: what an attacker, a bug or a broken disk puts onto the topics."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec
from aiokafka import AIOKafkaProducer
from integration_watch import Watch

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.events.codec import PackedFrame, pack
from gpuchaos_stream.events.command import Command, SignedCommand
from gpuchaos_stream.events.envelope import Record
from gpuchaos_stream.events.frame import FrameLayout, GroupLayout, TelemetryFrame
from gpuchaos_stream.events.signing import CLOCK_TOLERANCE_S, Refusal, Signer
from gpuchaos_stream.events.topics import Topic
from gpuchaos_stream.stream.bus import Ack
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

Make = Callable[[float], Command]
Forgery = tuple[str, SignedCommand, Refusal]


def forgeries(make: Make, signer: Signer, *, wrong_role: Signer | None, untimely: bool = True) -> Iterator[Forgery]:
    """Every way in which a command of `signer` can be false: what, the command, and the refusal that it must get.

    `make` gives the command for a time, epoch seconds. `wrong_role` is a trusted key that may not ask this;
    `untimely` False leaves out what is authentic and only comes at the wrong time.
    """
    now = time.time()
    yield "by an unknown key", Signer.generate(signer.role).sign(make(now)), Refusal.UNKNOWN_KEY
    thief = Signer(signer.key_id, Signer.generate(signer.role)._private, signer.role)
    yield "under a known key's name", thief.sign(make(now)), Refusal.BAD_SIGNATURE
    true = signer.sign(make(now))
    altered = true.model_copy(update={"payload": true.payload.replace('"reason":"', '"reason":"altered ')})
    assert altered != true
    yield "altered", altered, Refusal.BAD_SIGNATURE
    other = signer.sign(make(now + 0.001))
    yield (
        "with another command's signature",
        true.model_copy(update={"signature": other.signature}),
        (Refusal.BAD_SIGNATURE),
    )
    yield "with a cut signature", true.model_copy(update={"signature": true.signature[:-8]}), Refusal.BAD_SIGNATURE
    if wrong_role is not None:
        yield "by a role that may not", wrong_role.sign(make(now)), Refusal.NOT_ALLOWED
    if untimely:
        yield "expired", signer.sign(make(now - 600.0)), Refusal.EXPIRED
        yield "from the future", signer.sign(make(now + 4 * CLOCK_TOLERANCE_S)), Refusal.NOT_YET
        endless = make(now).model_copy(update={"expires": now + 24 * 3600.0})
        yield "valid for a day", signer.sign(endless), Refusal.NOT_YET


async def send(watch: Watch, signed: SignedCommand, cluster: str) -> Ack:
    """Puts a signed command onto its topic, as anybody can who reaches the broker."""
    return await watch.bus.send(Record(topics.COMMANDS, cluster, cluster, signed.model_dump_json().encode()))


#: Deeper than any parser goes, and deeper than Python's own stack.
_DEEP: Final = (5_000, 100_000)

#: JSON that is whole, and is no event of any topic.
_NO_EVENTS: Final = (
    b"null",
    b"true",
    b"0",
    b"-1e999",
    b"NaN",
    b'"text"',
    b"[]",
    b"{}",
    b'{"schema_version":2}',
    b'{"schema_version":"1","id":7,"time":"now","cluster":null}',
    b'{"schema_version":1,"id":"","time":-1,"cluster":""}',
    b'{"id":"a","time":1e400,"cluster":"c"}',
    b'{"id":"a","time":[],"cluster":{}}',
    b'{"type":"tick"}',
    b'{"type":"no such type","id":"a","time":1,"cluster":"c"}',
    b'{"key_id":1,"payload":{},"signature":[]}',
    b'{"key_id":"k","payload":null,"signature":""}',
    b'{"id":"\\ud800","time":1,"cluster":"\\udfff"}',
    b'\xef\xbb\xbf{"id":"a"}',
    b'{"id":"\xff\xfe"}',
)


def malformed(topic: Topic, count: int, *, cluster: str, node: str) -> Iterator[bytes | None]:
    """`count` values that cannot be read as the topic's: random and none, cut, of wrong types, nested too deeply.

    On the commands topic some are addressed to `node` of `cluster`, so that its agent has to look at them.
    """
    rng = random.Random(topic.name)
    kinds = _FRAMES if topic is topics.TELEMETRY else _EVENTS
    special = list(_COMMANDS(cluster, node)) if topic is topics.COMMANDS else impossible(topic)
    for number in range(count):
        if number < len(_DEEP):
            yield _nested(_DEEP[number], binary=topic is topics.TELEMETRY)
        elif special and number % 5 == 0:
            yield special[number // 5 % len(special)]
        else:
            yield kinds[number % len(kinds)](rng)


async def flood(settings: KafkaSettings, topic: Topic, values: Iterator[bytes | None]) -> set[tuple[str, int, int]]:
    """Writes `values` to all partitions of a topic, in whole batches; returns topic, partition, offset of each."""
    producer: Any = AIOKafkaProducer(**aiokafka_options(settings), max_batch_size=1 << 20, acks="all")
    await producer.start()
    sent: set[tuple[str, int, int]] = set()
    try:
        partitions = sorted(await producer.partitions_for(topic.name))
        waiting = next(values, _END)
        turn = 0
        while waiting is not _END:
            batch = producer.create_batch()
            # Keys are of anybody; compacted topics refuse a record without one.
            while (
                waiting is not _END
                and batch.record_count() < 500
                and batch.append(key=b"\xff%d" % turn, value=waiting, timestamp=None) is not None
            ):
                waiting = next(values, _END)
            batch.close()
            partition = partitions[turn % len(partitions)]
            turn += 1
            done = await (await producer.send_batch(batch, topic.name, partition=partition))
            sent |= {(topic.name, partition, done.offset + number) for number in range(batch.record_count())}
    finally:
        await producer.stop()
    return sent


_END: Final[Any] = object()


def _nested(depth: int, *, binary: bool) -> bytes:
    if not binary:
        return b"[" * depth
    # A sound frame, and after its last field one that only a newer writer could know, nested.
    return b"\xdc\x00\x0f" + msgspec.msgpack.encode(_frame())[1:] + b"\x91" * depth + b"\x01"


def _random(rng: random.Random) -> bytes:
    # The first byte is none with which JSON, or an array of fourteen, can begin.
    return b"\xc1" + rng.randbytes(rng.randrange(1, 200))


def _cut(rng: random.Random) -> bytes:
    whole = json.dumps({"schema_version": 1, "id": "x" * 20, "time": 1.0, "cluster": "c", "node": "n", "plan": {}})
    return whole[: rng.randrange(1, len(whole) - 1)].encode()


def _typed(rng: random.Random) -> bytes:
    return rng.choice(_NO_EVENTS)


_EVENTS: Final[tuple[Callable[[random.Random], bytes | None], ...]] = (
    _random,
    _cut,
    _typed,
    lambda _: b"",
    lambda _: None,
    lambda rng: b"[" * rng.randrange(130, 400),
    lambda rng: b'{"a":' * rng.randrange(130, 400),
)


def _frame(**fields: object) -> PackedFrame:
    """A sound frame of a node that nobody has, with some fields put in place."""
    layout = FrameLayout(groups=(GroupLayout(kind="node", ids=("0",), metrics=("load_ratio",)),))
    whole = TelemetryFrame(
        cluster="nobody",
        cell="nowhere",
        node="n0",
        boot="b",
        seq=0,
        time=time.time(),
        layout=layout,
        values=(((0.5,),),),
    )
    packed: PackedFrame = msgspec.msgpack.decode(pack(whole), type=PackedFrame)
    return msgspec.structs.replace(packed, **fields)


def _bad_frames() -> list[bytes]:
    sound = _frame()
    bad: tuple[dict[str, object], ...] = (
        {"schema_version": 2},
        {"values": b"1234567"},
        {"values": b""},
        {"values": sound.values * 2},
        {"layout": b""},
        {"layout": b"[" * 5000},
        {"layout": b'{"groups":[{"kind":"no such kind","ids":["0"],"metrics":["load_ratio"]}]}'},
        {"layout": b'{"groups":[{"kind":"node","ids":["0","0"],"metrics":["load_ratio"]}]}'},
        {"layout": b'{"groups":[{"kind":"node","ids":["0"],"metrics":[1]}]}'},
        {"layout_id": "another"},
        {"shape": "another"},
        {"time": float("nan")},
        {"time": float("inf")},
        {"time": 1.7e12},
        {"time": 1.0, "clock_offset_s": 1e300},
        {"time": -1.0},
        {"clock_offset_s": float("nan")},
        {"node": ""},
        {"cell": ""},
        {"cluster": ""},
    )
    whole = msgspec.msgpack.encode(sound)
    encoded = [msgspec.msgpack.encode(msgspec.structs.replace(sound, **fields)) for fields in bad]
    cut = [whole[: len(whole) * part // 10] for part in range(1, 10)]
    wrong = [msgspec.msgpack.encode(value) for value in (None, 1, "text", [], {}, [1] * 14, ["1"] * 14, {"node": "n"})]
    return [*encoded, *cut, *wrong]


_BAD_FRAMES: Final = _bad_frames()

_FRAMES: Final[tuple[Callable[[random.Random], bytes | None], ...]] = (
    _random,
    lambda rng: rng.choice(_BAD_FRAMES),
    lambda rng: rng.choice(_BAD_FRAMES),
    _cut,
    lambda _: b"",
    lambda _: None,
    lambda rng: b"\x91" * rng.randrange(1, 2000),
)


#: Milliseconds taken for seconds, what no calendar holds, and what is no number.
_NO_TIMES: Final = (9e10, 1.7e12, 1e300, float("inf"))


def impossible(topic: Topic) -> list[bytes]:
    """Sound events of a cluster that nobody has, at times that cannot be; none for topics that the loop writes."""
    found = []
    for fields in _SOUND.get(topic.name, ()):
        sound = {"id": "impossible", "time": time.time(), "cluster": "nobody"} | fields
        for moment in _NO_TIMES:
            found.append(json.dumps(sound | {"time": moment}).encode())
            found += [
                json.dumps(sound | {name: moment}).encode()
                for name in ("start", "end", "clock_offset_s")
                if name in sound
            ]
            if "nodes" in sound:
                found.append(json.dumps(sound | {"nodes": {"n": {"last": moment}}}).encode())
    return found


#: By topic: the fields of sound events, but for what all have.
_SOUND: Final[dict[str, tuple[dict[str, object], ...]]] = {
    topics.NODES.name: ({"node": "n", "cell": "c"},),
    topics.FAULTS.name: (
        {"phase": "observed", "fault": "gpu_lost", "node": "n", "entity": "gpu/n/0", "clock_offset_s": 0.0},
    ),
    topics.OBSERVATIONS.name: (
        {"type": "tick"},
        {"type": "cell_summary", "cell": "c", "nodes": {}, "order": [], "columns": {}},
        {"type": "probe_result", "experiment_id": "e", "check": "c", "state": "ok"},
    ),
    topics.ANOMALIES.name: (
        {"anomaly_id": "a", "phase": "opened", "kind": "peer", "metric": "m", "entity": "gpu/n/0", "node": "n"}
        | {"start": 1.0, "end": 1.0, "score": 1.0},
    ),
}


def _COMMANDS(cluster: str, node: str) -> Iterator[bytes]:  # noqa: N802  (a table in the form of a function)
    """Signed by nobody, and addressed: an agent reads whom a record is for before it believes it."""
    claim: dict[str, object] = {"cluster": cluster, "node": node}
    inner: tuple[dict[str, object], ...] = (
        {},
        {"kind": []},
        {"kind": {"inject": 1}},
        {"kind": "halt", "id": [], "experiment_id": {}},
        {"kind": "inject", "id": "\ud800", "fault_id": "\udfff"},
        {"kind": "halt", "fault_id": "../../etc/passwd", "experiment_id": "x" * 5000},
        {"kind": 1e308, "expires": "never", "nonce": None},
    )
    for number, fields in enumerate(inner):
        body = json.dumps(claim | fields)
        yield body.encode()
        yield json.dumps({"payload": body}).encode()
        signed = {"key_id": stable_id(number), "payload": body, "signature": "\u00e9" * number}
        if "\\ud800" not in body:
            yield json.dumps(signed).encode()
