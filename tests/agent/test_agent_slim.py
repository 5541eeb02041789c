from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from gpuchaos_agent.slim import _clean

SMAPS = """\
10000-13000 r-xp 00001000 fd:00 77 /usr/lib/libone.so.1
Rss:                  12 kB
Anonymous:             0 kB
Swap:                  0 kB
VmFlags: rd ex mr mw me
13000-14000 r--p 00003000 fd:00 77 /usr/lib/libone.so.1
Anonymous:             4 kB
Swap:                  0 kB
14000-15000 r--p 00004000 fd:00 77 /usr/lib/libone.so.1
Anonymous:             0 kB
Swap:                  4 kB
15000-16000 rw-p 00005000 fd:00 77 /usr/lib/libone.so.1
Anonymous:             0 kB
Swap:                  0 kB
16000-18000 r--p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
18000-19000 r--s 00000000 fd:00 78 /usr/share/shared
Anonymous:             0 kB
Swap:                  0 kB
19000-1a000 r--p 00000000 fd:00 79 /usr/lib/with blank.so
Anonymous:             0 kB
Swap:                  0 kB
1a000-1b000 r-xp 00000000 fd:00 80 /usr/bin/python3.11
Anonymous:             0 kB
Swap:                  0 kB
1b000-1c000 r--p 00000000 fd:00 81 /usr/share/locale/locale-archive
Anonymous:             0 kB
Swap:                  0 kB
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]
Anonymous:             0 kB
Swap:                  0 kB
"""


def test_only_what_was_never_written_is_given_back_and_what_is_in_swap_counts_as_written(tmp_path: Path) -> None:
    smaps = tmp_path / "smaps"
    smaps.write_text(SMAPS)
    assert list(_clean(smaps, "/usr/bin/python3.11")) == [(0x10000, 0x3000), (0x19000, 0x1000), (0x1A000, 0x1000)]


def test_a_system_without_such_a_list_gives_nothing_back(tmp_path: Path) -> None:
    assert list(_clean(tmp_path / "smaps", "/usr/bin/python3.11")) == []


def test_a_process_works_on_after_giving_back_and_holds_less() -> None:
    code = (
        "import asyncio, re, aiokafka, cryptography.hazmat.primitives.asymmetric.ed25519 as ed, prometheus_client\n"
        "from gpuchaos_agent import slim\n"
        "from gpuchaos_stream.events import envelope\n"
        "rss = lambda: int(re.search(r'^Rss:\\s+(\\d+)', open('/proc/self/smaps_rollup').read(), re.M)[1])\n"
        "before = rss()\n"
        "slim.give_back()\n"
        "after = rss()\n"
        "slim.give_back()\n"
        "key = ed.Ed25519PrivateKey.generate()\n"
        "key.public_key().verify(key.sign(b'x'), b'x')\n"
        "asyncio.run(asyncio.sleep(0))\n"
        "prometheus_client.generate_latest()\n"
        "raise SystemExit(0 if after < before else f'{before} kB before, {after} kB after')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
