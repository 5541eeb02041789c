"""Errors that a person caused and can mend: each names the file, the field and the fix."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Bad input. The CLI prints the text and exits with status 2; nothing here is a bug of ours.

    `where` is `file:line` or what stands for it, `problem` says what is wrong, `fix` what to do.
    """

    def __init__(self, where: str, problem: str, fix: str = "") -> None:
        super().__init__(f"{where}: {problem}" + (f"; {fix}" if fix else ""))
        self.where = where
        self.problem = problem
        self.fix = fix


class UserErrors(UserError):
    """Several mistakes of one file, so that they are mended in one go."""

    def __init__(self, errors: Iterable[UserError]) -> None:
        self.errors = tuple(errors)
        first = self.errors[0]
        super().__init__(first.where, first.problem, first.fix)

    def __str__(self) -> str:
        """One line per mistake."""
        return "\n".join(str(error) for error in self.errors)


def nearest(name: str, known: Iterable[str]) -> str:
    """`did you mean 'x'?` for the known name nearest to `name`, else the list of known ones."""
    names = sorted(known)
    match = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if match:
        return f"did you mean {match[0]!r}?"
    return f"known are {', '.join(names)}" if names else ""
