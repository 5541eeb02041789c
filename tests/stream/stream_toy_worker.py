"""A Faust worker for tests: counts events per key in a table and answers every tenth with a halt, idempotently.

Run by the tests as a child process: `stream_toy_worker.py APP_ID DATADIR`, broker from `KAFKA_…`. An event is
JSON `{"key": …, "n": …}`. With `TOY_STUCK` set it never finishes a batch. The table holds `[count, offset of the
last event applied]` per key.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import faust
from mode import Worker

from gpuchaos_stream.events import topics
from gpuchaos_stream.events.base import stable_id
from gpuchaos_stream.stream.app_factory import make_app
from gpuchaos_stream.stream.bulk import bulk_topic
from gpuchaos_stream.stream.settings import load
from gpuchaos_stream.stream.watchdog import install_watchdog


def build(app_id: str, datadir: Path) -> Any:
    settings = load()
    app = make_app(app_id, settings, datadir)
    # Far shorter than in earnest, and longer than what these tests do to the broker.
    install_watchdog(app, settings, limit_s=float(os.environ.get("TOY_LIMIT_S", "25")), look_s=0.5)
    stuck = "TOY_STUCK" in os.environ
    source = bulk_topic(app, topics.FAULTS.name)
    table = app.Table("state", key_type=str, partitions=4)

    @app.agent(source)
    async def apply(stream: Any) -> None:
        async for event in stream.events():
            if stuck:
                await asyncio.Event().wait()
            counts: dict[str, int] = defaultdict(int)
            last: dict[str, int] = {}
            halts = []
            for record in event.value:
                body = json.loads(record.value)
                key = body["key"]
                if key not in last:
                    stored = table.get(key)
                    counts[key], last[key] = stored or (0, -1)
                if record.offset <= last[key]:
                    continue
                counts[key] += 1
                last[key] = record.offset
                if body["n"] % 10 == 0:
                    halts.append((stable_id(key, body["n"]), record.partition, body["n"]))
            # Effects first and acknowledged, state afterwards: a crash between repeats an effect with the same id.
            sent = [
                await app.producer.send(
                    topics.COMMANDS.name,
                    key=app_id.encode(),
                    value=json.dumps([halt, number]).encode(),
                    partition=partition,
                    timestamp=None,
                    headers={},
                )
                for halt, partition, number in halts
            ]
            await asyncio.gather(*sent)
            for key, count in counts.items():
                table[key] = (count, last[key])
            sys.stdout.write(f"applied {len(event.value)}\n")
            sys.stdout.flush()

    return app


def main() -> None:
    app = build(sys.argv[1], Path(sys.argv[2]))
    worker: Worker = faust.Worker(app, loglevel="info", redirect_stdouts=False)
    worker.execute_from_commandline()


if __name__ == "__main__":
    main()
