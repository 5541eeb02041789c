"""A management controller by IPMI over LAN, with ipmitool(1). The password goes from its file to the tool's hands."""

from __future__ import annotations

import shlex
from typing import Final
from urllib.parse import parse_qs, urlsplit

from gpuchaos_agent.inject import tools
from gpuchaos_agent.inject.base import Bmc, InjectError
from gpuchaos_agent.inject.bmc import OFF, ON, BmcError, Look, NotSentError, Order, UnansweredError, UnsupportedError

#: Order → `ipmitool chassis power` WORD (IPMI 2.0, 28.3, Chassis Control).
_WORDS: Final = {Order.CYCLE: "cycle", Order.OFF: "off", Order.ON: "on", Order.RESTART: "reset"}
#: Completion codes as ipmitool says them: this controller does not carry out this one.
_UNSUPPORTED: Final = (
    "Invalid command",
    "Invalid data field",
    "not supported",
    "Parameter out of range",
)
#: No session, or nobody to have one with.
_NOT_SENT: Final = ("Unable to establish", "Address lookup", "not found on this node", "Unable to read password")
#: Sent, and nothing came back.
_UNANSWERED: Final = ("took longer", "Unable to get Chassis Power Status", "no response", "timeout")
#: Seconds for one answer, and repetitions (-N, -R).
_ANSWER_S: Final = 2
_TRIES: Final = 3


class Ipmi:
    """One controller, by RMCP+ (`lanplus`). Each call is one ipmitool."""

    def __init__(self, access: Bmc) -> None:
        self._access = access

    def look(self) -> Look:
        """`chassis power status`: IPMI tells neither what it allows nor when it was reset."""
        said = self._run("status")
        power = ON if said.endswith(" on") else OFF if said.endswith(" off") else "unknown"
        return Look(power, able=tuple(_WORDS))

    def send(self, order: Order) -> None:
        """`chassis power on|off|cycle|reset`."""
        try:
            self._run(_WORDS[order])
        except BmcError as error:
            words = str(error)
            if any(word in words for word in _UNSUPPORTED):
                raise UnsupportedError(f"the BMC does not carry out {order}: {words}") from None
            if any(word in words for word in _NOT_SENT):
                raise NotSentError(words) from None
            if any(word in words for word in _UNANSWERED):
                raise UnansweredError(words) from None
            raise

    def typed(self, order: Order) -> str:
        """As it is run."""
        return shlex.join(self._argv(_WORDS[order]))

    def _run(self, word: str) -> str:
        try:
            return tools.run(self._argv(word), timeout_s=_ANSWER_S * _TRIES + 4.0).strip()
        except BmcError:
            raise
        except InjectError as error:
            raise BmcError(str(error)) from None

    def _argv(self, word: str) -> list[str]:
        parts = urlsplit(self._access.url)
        cipher = parse_qs(parts.query).get("cipher")
        argv = ["ipmitool", "-I", "lanplus", "-H", parts.hostname or "", "-p", str(parts.port or 623)]
        argv += ["-C", cipher[0]] if cipher else []
        argv += ["-U", self._access.user] if self._access.user else []
        # Without a password it would ask the terminal for one.
        argv += ["-f", str(self._access.password_file)] if self._access.password_file else ["-P", ""]
        return [*argv, "-N", str(_ANSWER_S), "-R", str(_TRIES), "chassis", "power", word]
