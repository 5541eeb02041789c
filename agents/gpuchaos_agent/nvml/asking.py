"""One card's calls, each kept to itself: what is not supported is asked once, a loss ends the reading."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from gpuchaos_agent.nvml import codes

T = TypeVar("T")


class Asking:
    """Asks one card and remembers what it cannot answer. Used by one thread at a time.

    `doing` is what is being asked at this moment, for whoever waits. `errors` maps what failed in this reading, for
    other reasons than those of the card's kind, to NVML's number.
    """

    def __init__(self) -> None:
        self.unsupported: set[str] = set()
        self.errors: dict[str, int] = {}
        self.doing = ""
        self._failures: tuple[type[Exception], ...] = (Exception,)

    def begin(self, nvml: Any) -> None:
        """Starts a reading."""
        self.errors = {}
        self._failures = codes.failures(nvml)

    def renew(self) -> None:
        """Another driver was loaded, or the card is another kind of device now (MIG): everything is asked anew."""
        self.unsupported.clear()

    def ask(self, name: str, call: Callable[[], T]) -> T | None:
        """The answer, None where there is none.

        Raises:
            CardError: the card is lost or must be reset.
            LibraryError: the library must be started anew.
        """
        if name in self.unsupported:
            return None
        self.doing = name
        try:
            return call()
        except self._failures as error:
            if isinstance(error, (AttributeError, UnicodeDecodeError)):
                # The binding lacks the call, or decodes what is no UTF-8: neither will be better next second.
                self.unsupported.add(name)
            else:
                self.failed(name, codes.code_of(error))
            return None
        finally:
            self.doing = ""

    def failed(self, name: str, code: int) -> None:
        """Judges an error that came with a value (fields) or as an exception; raises as `ask` does."""
        if code in codes.LOSSES:
            raise codes.CardError(code)
        if code in codes.RESTART:
            raise codes.LibraryError(code)
        if code in codes.UNSUPPORTED:
            self.unsupported.add(name)
        else:
            self.errors[name] = code
