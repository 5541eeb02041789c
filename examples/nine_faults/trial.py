"""One fault on one site: what is changed in the example's plan, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import yaml

from gpuchaos_stream.errors import UserErrors
from gpuchaos_stream.experiments.check import check
from gpuchaos_stream.experiments.plan import Plan
from gpuchaos_stream.yamlfile import Document

EXAMPLES: Final = Path(__file__).resolve().parents[1]


@dataclass(frozen=True, slots=True)
class Trial:
    """A fault, by the plan in `examples/` that it is tried with.

    `words` are replaced in the text of the plan (places of the example by those of the site), `fields` in the plan
    itself, by dotted name. `provoke` is called once when the fault stands: what has the workload meet it. By what the
    workload said before and after, `met` says whether it has: a trial whose fault was not met is tried again.
    """

    file: str
    words: Mapping[str, str]
    fields: Mapping[str, Any] = field(default_factory=dict)
    provoke: Callable[[], None] = lambda: None
    met: Callable[[dict[str, Any], dict[str, Any]], bool] = lambda _before, _after: True

    def plan(self) -> Plan:
        """The plan as it runs on the site.

        Raises:
            UserErrors: it would be refused.
        """
        path = EXAMPLES / self.file
        text = path.read_text()
        for word, other in self.words.items():
            text = text.replace(word, other)
        data = yaml.safe_load(text)
        for name, value in self.fields.items():
            *above, last = name.split(".")
            inner = data
            for part in above:
                inner = inner[part]
            inner[last] = value
        document = Document(path, data, {})
        plan = document.validate(Plan)
        errors = check(plan, document=document)
        if errors:
            raise UserErrors(errors)
        return plan


class Site(Protocol):
    """Nodes with agents, a workload on them, and the faults that they can suffer."""

    @property
    def name(self) -> str:
        """For the table."""

    @property
    def cluster(self) -> str:
        """Whose nodes they are; each site is a cluster of its own."""

    @property
    def trials(self) -> tuple[Trial, ...]:
        """In the order in which they are tried."""

    def status(self) -> dict[str, Any]:
        """What the workload says of itself; empty while it says nothing."""

    def ready(self) -> None:
        """Returns when all parts are up and the workload trains."""
