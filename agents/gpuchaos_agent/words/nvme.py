"""NVMe: commands that time out, controllers that are gone, multipath devices without a path.

Wordings: Linux `drivers/nvme/host/{pci,core,tcp,rdma,multipath}.c`. `I/O 22 QID 0 timeout` to 5.16, then `I/O 22
(Admin Cmd) QID 0`, since 6.1 `I/O tag 22 (2016) opcode 0x2 (Admin Cmd) QID 0`; `Removing after probe failure
status: -19` to 6.3, since then `Disabling device after reset failure: -19`. To 4.13 the device is `nvme BDF`.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.table import BDF, Rule
from gpuchaos_stream.events.base import Severity

#: Not the driver's name: every boot has lines of it.
HINTS: Final = (
    *(" QID ", "Device not ready; abort", "controller is down; ", "frozen state error detected"),
    *("Removing after probe failure", "Disabling device after reset failure", "detected capacity change from "),
    *(" - failing I/O", " - requeuing I/O", "starting error recovery", "failed nvme_keep_alive_end_io "),
    *("Reconnecting in ", "Successfully reconnected"),
)
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
#: A reset is given up after two waits of 30 s (`io_timeout`, `shutdown_timeout`).
FAMILIES: Final = (Family("nvme", gap_s=75.0), Family("nvme_path", gap_s=60.0), Family("nvme_fabric", gap_s=660.0))

_AT: Final = rf"nvme (?P<device>nvme\d{{1,5}}|{BDF}): "
_COMMAND: Final = (
    r"I/O (?:tag )?\d{1,6}(?: \([^()\n]{1,32}\))?(?: (?:type \d{1,3} )?opcode 0x[0-9a-f]{1,2} \([^()\n]{1,40}\))? "
)

RULES: Final = (
    Rule(
        re.compile(_AT + _COMMAND + r"QID (?P<queue>\d{1,5}) timeout, (?P<cause>completion polled|abort)"),
        "nvme_timeout",
        Severity.WARNING,
        "monitor",
        "4.14; `(Admin Cmd)` 5.17; `tag` 6.1",
        "nvme",
    ),
    Rule(
        re.compile(_AT + _COMMAND + r"QID (?P<queue>\d{1,5}) timeout(?:, (?P<cause>[a-z ]{1,40}))?"),
        "nvme_timeout",
        Severity.ERROR,
        "check_disk",
        "as above",
        "nvme",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>Device not ready; aborting (?:reset|initialisation))"),
        "nvme_timeout",
        Severity.ERROR,
        "check_disk",
        "3.3; `, CSTS=` 5.19",
        "nvme",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>controller is down; will reset): CSTS=0x[0-9a-f]{1,8}"),
        "nvme_timeout",
        Severity.ERROR,
        "check_disk",
        "4.10",
        "nvme",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>frozen state error detected, reset controller)"),
        "nvme_timeout",
        Severity.ERROR,
        "check_disk",
        "4.4",
        "nvme",
    ),
    Rule(
        re.compile(
            _AT + r"(?:Removing after probe failure status|Disabling device after reset failure): (?P<errno>-\d{1,4})"
        ),
        "nvme_lost",
        Severity.CRITICAL,
        "replace_disk",
        "`Removing` to 6.3, `Disabling` since",
        "nvme",
    ),
    Rule(
        re.compile(r"(?P<device>nvme\d{1,5})n\d{1,5}: detected capacity change from [1-9]\d{0,19} to 0\b"),
        NONE,
        since="4.9",
        family="nvme",
        part=Part.DETAIL,
        says={"cause": "capacity_zero"},
    ),
    Rule(
        re.compile(r"block (?P<device>nvme\w{1,16}): no available path - failing I/O"),
        "nvme_path_failure",
        Severity.CRITICAL,
        "check_storage_path",
        "4.15",
        "nvme_path",
    ),
    Rule(
        re.compile(r"block (?P<device>nvme\w{1,16}): no (?:usable )?path(?: available)? - requeuing I/O"),
        "nvme_path_failure",
        Severity.WARNING,
        "check_storage_path",
        "4.15; `usable` 5.0",
        "nvme_path",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>starting error recovery|failed nvme_keep_alive_end_io error=\d{1,5})"),
        "nvme_path_failure",
        Severity.ERROR,
        "check_storage_path",
        "4.8 (RDMA), 5.0 (TCP)",
        "nvme_fabric",
    ),
    Rule(
        re.compile(_AT + r"(?P<cause>Reconnecting in \d{1,5} seconds)"),
        NONE,
        since="4.8",
        family="nvme_fabric",
        part=Part.DETAIL,
    ),
    Rule(
        re.compile(_AT + r"Successfully reconnected\b"),
        "nvme_path_failure",
        since="4.8",
        family="nvme_fabric",
        part=Part.CLEAR,
    ),
)


def read(record: LogRecord) -> Finding | None:
    """What is said of a controller (`nvme2`), or of a multipath block device (`nvme0n1`)."""
    return table.read(RULES, record.text)
