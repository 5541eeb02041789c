"""Network filesystems other than NFS: Lustre, Ceph and SMB, as their kernel clients speak.

Wordings: Lustre 2.10 to 2.15 `lustre/ptlrpc/import.c` (`Connection to … was lost`, `Connection restored`) and its
console prefix `Lustre: `, `LustreError: 11-0: ` or `LustreError: 123:0:(file.c:1:function()) `; Linux `net/ceph/
osd_client.c`, `fs/ceph/mds_client.c`; `fs/smb/client/connect.c` (`fs/cifs` to 6.3).
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = ("Lustre", "ceph: ", "CIFS: ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("remote_fs", gap_s=1200.0),)

_LUSTRE: Final = r"Lustre(?:Error)?: (?:\d{1,10}:\d{1,10}:\([^()\n]{1,64}\(\)\) |\d{1,4}-\w{1,4}: )?"
_DOWN: Final = ("remote_fs_unresponsive", Severity.ERROR, "check_storage_servers")

RULES: Final = (
    Rule(
        re.compile(
            _LUSTRE + r"(?P<client>[\w.:@-]{1,96}): Connection to (?P<device>[\w.-]{1,96}) "
            r"\(at (?P<server>[\w.:@-]{1,96})\) was lost"
        ),
        *_DOWN,
        "Lustre 2.x",
        "remote_fs",
    ),
    Rule(
        re.compile(
            _LUSTRE + r"(?P<client>[\w.:@-]{1,96}): Connection restored to (?P<device>(?!\d+\.)[\w.-]{1,96}) "
            r"\(at (?P<server>[\w.:@-]{1,96})\)"
        ),
        "remote_fs_unresponsive",
        since="Lustre 2.x",
        family="remote_fs",
        part=Part.CLEAR,
    ),
    Rule(
        re.compile(
            _LUSTRE + r"(?P<client>[\w.:@-]{1,96}): This client was evicted by (?P<device>[\w.-]{1,96}); "
            r"(?P<cause>in progress operations using this service will fail)"
        ),
        "remote_fs_unresponsive",
        Severity.CRITICAL,
        "check_storage_servers",
        "Lustre 2.x",
        "remote_fs",
    ),
    Rule(re.compile(r"(?:lib)?ceph: (?P<device>osd\d{1,6}) down\b"), *_DOWN, "2.6.34", "remote_fs"),
    Rule(
        re.compile(r"libceph: (?P<device>osd\d{1,6}) up\b"),
        "remote_fs_unresponsive",
        since="2.6.34",
        family="remote_fs",
        part=Part.DETAIL,
    ),
    Rule(re.compile(r"ceph: (?:\[[^\]\n]{1,64}\]: )?(?P<device>mds\d{1,6}) hung\b"), *_DOWN, "2.6.34", "remote_fs"),
    Rule(
        re.compile(
            r"ceph: (?:\[[^\]\n]{1,64}\]: )?(?P<device>mds\d{1,6}) (?P<cause>reconnect denied|rejected session)"
        ),
        *_DOWN,
        "4.17",
        "remote_fs",
    ),
    Rule(
        re.compile(r"CIFS: (?:VFS: )?(?:\\\\)?(?P<device>[^\s\\]{1,128}) has not responded in \d{1,6} seconds"),
        *_DOWN,
        "3.x; `\\\\server` 5.3",
        "remote_fs",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """A server or target that does not answer: `device` is the target (an OST, an OSD, an MDS, a host)."""
    return table.read(RULES, record.text)
