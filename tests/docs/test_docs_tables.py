"""What the documentation says in tables is what the code says."""

from __future__ import annotations

import pytest
from docs_tables import ROOT, TABLES, pages, rewritten, tables_in
from pydantic import BaseModel

from gpuchaos_stream.experiments.faults import FAULTS
from gpuchaos_stream.experiments.plan import Plan


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in pages()])
def test_the_tables_of_a_page_are_what_the_code_says(page: str) -> None:
    text = (ROOT / page).read_text()
    assert text == rewritten(text), "run: .venv/bin/python tests/docs/docs_tables.py"


def test_every_table_is_shown_somewhere() -> None:
    shown = {name for page in pages() for name in tables_in(page.read_text())}
    assert shown == set(TABLES)


def _fields(model: type[BaseModel], prefix: str = "") -> set[str]:
    found = set()
    for name, field in model.model_fields.items():
        found.add(prefix + name)
        for part in (field.annotation, *getattr(field.annotation, "__args__", ())):
            if isinstance(part, type) and issubclass(part, BaseModel):
                found |= _fields(part, f"{prefix}{name}.")
    return found


def test_every_field_of_a_plan_is_explained() -> None:
    text = (ROOT / "docs/experiments.md").read_text()
    # A check of recovery is one of the steady state: explained once.
    names = {name.replace("recovery.", "steady_state.checks.") for name in _fields(Plan)}
    assert [name for name in sorted(names) if f"`{name}`" not in text] == []


def test_the_first_page_says_which_faults_can_really_be_injected() -> None:
    text = (ROOT / "README.md").read_text()
    honest = text[text.index("## What does not work yet") :]
    available = {name for name, kind in FAULTS.items() if kind.available}
    assert {name for name in FAULTS if f"`{name}`" in honest} == available
