"""CPUs that are too hot: their clock is throttled, at last the machine is shut down.

Wordings: Linux `arch/x86/kernel/cpu/mce/therm_throt.c` to 5.11, `drivers/thermal/intel/therm_throt.c` since, with and
without `mce: `; `drivers/thermal/thermal_core.c` (`critical temperature reached`). All CPUs
of a package say it at once.
"""

from __future__ import annotations

import re
from typing import Final

from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import table
from gpuchaos_agent.words.base import NONE, Family, Finding, Part
from gpuchaos_agent.words.table import Rule
from gpuchaos_stream.events.base import Severity

HINTS: Final = (" temperature", "Hardware Protection shutdown")
WRITERS: Final = frozenset({Writer.KERNEL, Writer.INJECTED})
#: Each CPU says it at most every 300 s (`CHECK_INTERVAL`).
FAMILIES: Final = (Family("cpu_heat", gap_s=310.0, any_device=True),)

_FAULT: Final = "cpu_over_temperature"

RULES: Final = (
    Rule(
        re.compile(
            r"(?:mce: )?CPU(?P<cpu>\d{1,5}): (?P<scope>Core|Package) temperature (?:is )?above threshold, "
            r"cpu clock (?:is )?throttled \(total events = (?P<events>\d{1,12})\)"
        ),
        _FAULT,
        Severity.WARNING,
        "check_cooling",
        "2.6; `is` 5.6",
        "cpu_heat",
    ),
    Rule(
        re.compile(r"(?:mce: )?CPU\d{1,5}: (?:Core|Package) (?:temperature/speed normal|temperature is normal)"),
        NONE,
        since="2.6",
        family="cpu_heat",
        part=Part.DETAIL,
        says={"cooled": True},
    ),
    Rule(
        re.compile(r"(?:thermal )?(?P<zone>[\w-]{1,32})(?:: [\w-]{1,32})?: (?P<cause>critical temperature reached)\b"),
        _FAULT,
        Severity.CRITICAL,
        "check_cooling",
        "3.x; `thermal zone: type` 5.10",
        "cpu_heat",
    ),
)


def read(record: LogRecord) -> Finding | None:
    """A CPU or a thermal zone over its threshold; `events` is the counter since boot that the line gives."""
    return table.read(RULES, record.text)
