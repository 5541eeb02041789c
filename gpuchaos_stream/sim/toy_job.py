"""A small real job: it computes, and its log tells each step. What the demo's agent watches on this machine.

python -m gpuchaos_stream.sim.toy_job --log train.log --pidfile train.pid
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import time
from pathlib import Path


def main(argv: list[str] | None = None) -> None:
    """Steps until it is ended. `--step-s` is the length of one step in seconds, most of it spent waiting."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--pidfile", type=Path, required=True)
    parser.add_argument("--step-s", type=float, default=0.2)
    given = parser.parse_args(argv)
    given.pidfile.write_text(str(os.getpid()))
    with given.log.open("w", buffering=1) as log:
        due = time.monotonic()
        for step in itertools.count(1):
            began = time.monotonic()
            _compute(step)
            due = max(due + given.step_s, began)  # a stopped process does not hurry afterwards
            time.sleep(max(0.0, due - time.monotonic()))
            log.write(f"step={step} step_time={time.monotonic() - began:.4f}\n")
            if step == 1:
                print(f"ready: pid {os.getpid()}", flush=True)  # noqa: T201  (whoever started it waits for this)


def _compute(step: int) -> str:
    """A millisecond of real work."""
    return hashlib.pbkdf2_hmac("sha256", b"step", str(step).encode(), 1000).hex()


if __name__ == "__main__":
    main()
