"""Block devices and the ways to them: I/O errors, SCSI, iSCSI, Fibre Channel, device mapper.

Wordings: Linux `block/blk-core.c` (`end_request:` to 4.1, `blk_update_request:` to 5.16, bare since), `fs/buffer.c`,
`drivers/scsi/{scsi_error,scsi_lib,scsi_transport_fc,scsi_transport_iscsi}.c`, `drivers/scsi/libiscsi.c`,
`drivers/md/{dm-mpath,dm-thin}.c`. Floppies, CD drives and nbd that probe empty media are no faults.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = (
    *(
        "I/O error",
        " error, dev ",
        "offline",
        "offlined",
        "blocked FC remote port",
        "Failing path ",
        "Reinstating path",
    ),
    *("ping timeout of ", "conn error (", "session recovery timed out", "out-of-data-space", "@ LBA "),
)
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
FAMILIES: Final = (Family("disk", gap_s=30.0), Family("disk_path", gap_s=120.0))

_DEVICE: Final = r"(?P<device>(?!fd\d|sr\d|nbd\d)[a-z][\w!/-]{1,31})"
_BLOCK: Final = r"(?:blk_update_request: |end_request: |print_req_error: )?"
_SCSI: Final = r"(?:sd|ses|st|scsi) (?P<device>\d{1,5}:\d{1,5}:\d{1,5}:\d{1,20}): (?:\[(?P<disk>\w{1,16})\] )?"

RULES: Final = (
    Rule(
        re.compile(rf"{_BLOCK}critical space allocation error, dev {_DEVICE}, sector \d"),
        "fs_full",
        Severity.ERROR,
        "free_disk_space",
        "3.10",
        "disk",
        says={"cause": "thin_pool"},
    ),
    Rule(
        re.compile(
            rf"{_BLOCK}(?P<cause>I/O|critical (?:medium|target|nexus)|protection|recoverable transport|timeout"
            rf"|device offline) error, dev {_DEVICE}, (?:logical block|sector) \d"
        ),
        "disk_io_error",
        Severity.ERROR,
        "check_disk",
        "2.6; prefixes to 5.16",
        "disk",
    ),
    Rule(
        re.compile(rf"Buffer I/O error on dev(?:ice)? {_DEVICE}, logical block \d"),
        "disk_io_error",
        Severity.ERROR,
        "check_disk",
        "2.6; `dev` 3.18",
        "disk",
    ),
    Rule(
        re.compile(
            r"(?P<device>nvme\w{1,16}): (?P<op>[\w -]{1,32})\(0x[0-9a-f]{1,2}\) @ LBA \d{1,20}, \d{1,10} blocks, "
            r"(?P<cause>[^()\n]{1,60}) \(sct 0x[0-9a-f] / sc 0x[0-9a-f]{1,2}\)"
        ),
        "disk_io_error",
        Severity.ERROR,
        "check_disk",
        "5.18",
        "disk",
    ),
    Rule(
        re.compile(
            _SCSI + r"(?P<cause>rejecting I/O to offline device|Device offlined - not ready after error recovery)"
        ),
        "disk_io_error",
        Severity.CRITICAL,
        "replace_disk",
        "2.6",
        "disk",
    ),
    Rule(
        re.compile(r" ?connection(?P<device>\d{1,9}:\d{1,5}): (?P<cause>ping timeout of \d{1,5} secs expired)"),
        "disk_path_failure",
        Severity.WARNING,
        "check_storage_path",
        "2.6.25",
        "disk_path",
    ),
    Rule(
        re.compile(r" ?connection(?P<device>\d{1,9}:\d{1,5}): detected conn error \((?P<errno>\d{1,5})\)"),
        "disk_path_failure",
        Severity.WARNING,
        "check_storage_path",
        "2.6.25",
        "disk_path",
    ),
    Rule(
        re.compile(r" ?session(?P<device>\d{1,9}): (?P<cause>session recovery timed out after \d{1,6} secs)"),
        "disk_path_failure",
        Severity.ERROR,
        "check_storage_path",
        "2.6.18",
        "disk_path",
    ),
    Rule(
        re.compile(
            r" ?rport-(?P<device>\d{1,5}:\d{1,5}-\d{1,5}): blocked FC remote port time out: (?P<cause>[a-z ]{1,60})"
        ),
        "disk_path_failure",
        Severity.ERROR,
        "check_storage_path",
        "2.6.18",
        "disk_path",
    ),
    Rule(
        re.compile(r"device-mapper: multipath: (?:\d{1,5}:\d{1,7}: )?Failing path (?P<device>\d{1,5}:\d{1,7})\."),
        "disk_path_failure",
        Severity.WARNING,
        "check_storage_path",
        "2.6; map number 5.1",
        "disk_path",
    ),
    Rule(
        re.compile(r"device-mapper: multipath: (?:\d{1,5}:\d{1,7}: )?Reinstating path (?P<device>\d{1,5}:\d{1,7})\."),
        "disk_path_failure",
        since="4.14",
        family="disk_path",
        part=Part.CLEAR,
    ),
    Rule(
        re.compile(r"device-mapper: thin: (?P<device>\d{1,5}:\d{1,7}): switching pool to out-of-data-space"),
        "fs_full",
        Severity.ERROR,
        "free_disk_space",
        "3.15",
        "disk",
        says={"cause": "thin_pool"},
    ),
)


def read(record: LogRecord) -> Finding | None:
    """An I/O error, or a path that failed; `device` as the kernel names it (`sda`, `0:0:1:0`, `8:16`)."""
    return table.read(RULES, record.text)
