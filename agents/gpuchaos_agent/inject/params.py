"""What the parameter models of faults share: which parameters belong together, and what an address is."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel

from gpuchaos_agent.inject import endpoints


def belong(given: BaseModel, by: str, only: Mapping[str, tuple[object, ...]]) -> None:
    """Refuses parameters that were given and that nobody reads with this value of `by`.

    `only` is: parameter → the values of `by` with which it means something.

    Raises:
        ValueError: one of them means nothing here; the text names it and the values that it is for.
    """
    chosen = getattr(given, by)
    for name, values in only.items():
        if name in given.model_fields_set and getattr(given, name) is not None and chosen not in values:
            raise ValueError(f"{name} is for {by} {' or '.join(map(_word, values))}, and {by} is {_word(chosen)}")


def need(given: BaseModel, by: str, required: Mapping[object, tuple[str, ...]]) -> None:
    """Refuses a value of `by` without the parameters that it needs. `required` is: value → parameters.

    Raises:
        ValueError: some are missing; the text names them.
    """
    chosen = getattr(given, by)
    missing = [name for name in required.get(chosen, ()) if getattr(given, name) is None]
    if missing:
        raise ValueError(f"{by} {_word(chosen)} needs {', '.join(missing)}")


def one_place(text: str) -> str:
    """One place, as `host:port` or `[v6]:port`.

    Raises:
        ValueError: it is none.
    """
    end = endpoints.parse(text)
    if end.host is None or end.ports is None or not end.ports.isdecimal() or "/" in end.host:
        raise ValueError(f"{text!r} is not one place; write it like db.local:5432 or [fd00::1]:6379")
    return text


def _word(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
