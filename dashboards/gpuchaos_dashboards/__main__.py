"""Writes the dashboards, or says which of them are not what the code makes: `python -m gpuchaos_dashboards`."""

from __future__ import annotations

import argparse
import sys

from gpuchaos_dashboards import FOLDER, PAGES, rendered


def main(argv: list[str] | None = None) -> int:
    """Status 0 when all is written or as it should be, 1 when a file is not what the code makes."""
    parser = argparse.ArgumentParser(prog="gpuchaos_dashboards", description=main.__doc__)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--write", action="store_true", help="write dashboards/*.json anew")
    which.add_argument("--check", action="store_true", help="(default) compare them with what the code makes")
    given = parser.parse_args(argv)
    wrong = 0
    for uid in PAGES:
        path, text = FOLDER / f"{uid}.json", rendered(uid)
        if given.write:
            path.write_text(text)
        elif not path.is_file() or path.read_text() != text:
            wrong = 1
            sys.stderr.write(f"{path.name} is not what the code makes: run `make dashboards`\n")
    return wrong


if __name__ == "__main__":
    sys.exit(main())
