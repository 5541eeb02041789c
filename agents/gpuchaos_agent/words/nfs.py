"""The NFS client: servers that do not answer, locks and leases that are lost, handles that are stale.

Wordings: Linux `net/sunrpc/clnt.c` (the program's name stands first: `nfs:`, `lockd:`), `fs/nfs/{nfs4state,
nfs4client,inode}.c`; `NFS: __` before the function since 4.20. `still trying` is a hard mount, which hangs; `timed
out` a soft one, whose program gets EIO. A server that answers again says `OK`.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = (": server ", "NFS: ", "NFSv4: ", "nfs4_reclaim_open_state: ")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
#: A hard mount repeats its complaint only now and then (a quarter of an hour was seen): one outage until `OK`.
FAMILIES: Final = (Family("nfs_server", gap_s=3600.0), Family("nfs_state", gap_s=30.0))

_PROGRAM: Final = r"(?:nfs\d?|lockd|nfsacl|statd|nlm): server (?P<device>[^\s,]{1,255}) "
_DOWN: Final = ("nfs_unresponsive", Severity.CRITICAL, "check_nfs_server")
_LOST: Final = ("nfs_lock_lost", Severity.ERROR, "restart_app_after_storage")
_STALE: Final = ("nfs_stale_handle", Severity.ERROR, "remount_nfs")

RULES: Final = (
    Rule(
        re.compile(_PROGRAM + r"not responding, still trying"),
        *_DOWN,
        "2.6",
        "nfs_server",
        says={"cause": "hard_mount_waits"},
    ),
    Rule(
        re.compile(_PROGRAM + r"not responding, timed out"),
        *_DOWN,
        "2.6",
        "nfs_server",
        says={"cause": "soft_mount_gave_up"},
    ),
    Rule(re.compile(_PROGRAM + r"OK\b"), "nfs_unresponsive", since="2.6", family="nfs_server", part=Part.CLEAR),
    Rule(
        re.compile(r"(?:NFS: )?(?:__)?nfs4_reclaim_open_state: (?P<cause>Lock reclaim failed)!"),
        *_LOST,
        "3.0; `NFS: ` 4.20",
        "nfs_state",
    ),
    Rule(
        re.compile(r"(?:NFS: )?(?:__)?nfs4_reclaim_open_state: unhandled error (?P<errno>-\d{1,5})"),
        *_LOST,
        "2.6",
        "nfs_state",
    ),
    Rule(
        re.compile(r"NFSv4: state recovery failed for open file (?P<path>[^\n]{1,255}), error = (?P<errno>-\d{1,5})"),
        *_LOST,
        "4.15",
        "nfs_state",
    ),
    Rule(
        re.compile(
            r"NFS: state manager(?:: )?(?P<cause>[a-z ]{0,40}) failed on NFSv4 server (?P<device>[^\s,]{1,255}) "
            r"with error (?P<errno>-?\d{1,6})"
        ),
        *_LOST,
        "2.6.35",
        "nfs_state",
    ),
    Rule(
        re.compile(r"NFS: server (?P<device>[^\s,]{1,255}) error: (?P<cause>fileid changed)"),
        *_STALE,
        "2.6",
        "nfs_state",
    ),
    Rule(
        re.compile(r"NFS: nfs4_discover_server_trunking unhandled error (?P<errno>-116)\b"),
        *_STALE,
        "3.7",
        "nfs_state",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """What the client says of a server; `device` and `server` are its name or address as mounted."""
    finding = table.read(RULES, record.text)
    if finding is not None and finding.device:
        finding.evidence["server"] = finding.device
    return finding
