"""A port that flaps: a process of its own takes the interface down and up, so and so often, and leaves it up.

`python -m gpuchaos_agent.inject.port_flap JSON`, by `hold.start` alone. It writes who it is into `file` before its
first effect; whoever undoes the fault finds it there. If its parent has died by then, nobody will undo it, and it
ends without having done anything.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from gpuchaos_agent.inject import port_admin
from gpuchaos_agent.inject.base import InjectError
from gpuchaos_agent.kernelfs.processes import process_stat


def flap(given: dict[str, Any], stop: threading.Event) -> None:
    """Down for half of `period_s`, up for the rest, `count` times."""
    interfaces = port_admin.from_text(given["interfaces"])
    name = interfaces[0].name
    for turn in range(int(given["count"])):
        try:
            port_admin.set_up(name, up=False)
            if turn == 0:
                sys.stdout.write("ready\n")
                sys.stdout.flush()
            stop.wait(given["period_s"] / 2)
        finally:
            # What cannot be put back now is put back by the undo.
            with contextlib.suppress(InjectError):
                port_admin.bring_up(name, interfaces)
        if stop.wait(given["period_s"] / 2):
            return


def main() -> None:
    """See the module."""
    given = json.loads(sys.argv[1])
    stop = threading.Event()

    def end(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, end)
    stat = process_stat(Path("/proc"), os.getpid())
    path = Path(given["file"])
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        json.dump({"holder_pid": os.getpid(), "holder_start": stat.start if stat else 0}, file)
    if os.getppid() == given["parent"]:
        flap(given, stop)
    else:
        path.unlink()  # whoever undoes the fault may have looked for it already


if __name__ == "__main__":
    main()
