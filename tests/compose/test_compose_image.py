"""The images without a Docker engine: the Dockerfile as Docker parses it, and what it installs, installed here."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any, Final

import pytest
from compose_check import OURS, ROOT, check, dockerfile

pytestmark = pytest.mark.timeout(600)

#: Of the checkout, what Docker is given: the lines of .dockerignore that begin with `!`.
CONTEXT: Final = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
LOCKS: Final = ("worker", "agent", "build")


def commands(stage: str, name: str) -> list[dict[str, Any]]:
    """The commands of one kind in a stage of the Dockerfile."""
    (found,) = (each for each in dockerfile()["stages"] if each["Name"] == stage)
    return [each["Value"] for each in found["Commands"] if each["Name"] == name]


def test_docker_reads_the_dockerfile_and_its_linter_has_nothing_to_say(tmp_path: Path) -> None:
    assert dockerfile()["warnings"] == []
    wrong = tmp_path / "Dockerfile"
    wrong.write_text((ROOT / "Dockerfile").read_text().replace("HEALTHCHECK --interval", "HEALTHCHECK --every", 1))
    status, said = check("dockerfile", str(wrong))
    assert status == 1
    assert "unknown flag: --every" in said


def test_the_base_is_pinned_and_the_compiler_stays_behind() -> None:
    (argument,) = (each["Args"][0] for each in dockerfile()["arguments"])
    assert re.fullmatch(r"python:3\.12\.\d+-slim-bookworm", argument["Value"])
    for target in OURS.values():
        (stage,) = (each for each in dockerfile()["stages"] if each["Name"] == target)
        assert stage["Base"] == "${PYTHON}", "begun anew, with what was built and nothing that built it"
        assert [each["From"] for each in commands(target, "COPY")] == [f"{target}-packages"]
        assert not any("gcc" in line for each in commands(target, "RUN") for line in each["CmdLine"])


def test_the_worker_is_nobody_and_the_agent_root() -> None:
    assert commands("worker", "USER") == [{"User": "10001:10001"}]
    assert commands("agent", "USER") == [{"User": "0:0"}]
    for target in OURS.values():
        (health,) = commands(target, "HEALTHCHECK")
        assert health["Health"]["Test"][0] == "CMD", "no shell between Docker and the answer"
        labels = {each["Key"] for command in commands(target, "LABEL") for each in command["Labels"]}
        assert {f"org.opencontainers.image.{name}" for name in ("title", "licenses", "version", "revision")} <= labels


def test_every_file_that_is_copied_is_in_the_context_and_nothing_else_is() -> None:
    copied = {
        path.rstrip("/")
        for stage in dockerfile()["stages"]
        for each in commands(stage["Name"], "COPY")
        if not each["From"]
        for path in each["SourcePaths"]
    }
    assert {path.split("/")[0] for path in copied} == set(CONTEXT)
    assert [path for path in copied if not (ROOT / path).exists()] == []
    assert (ROOT / ".dockerignore").read_text().splitlines()[1] == "*"


def entries(name: str) -> dict[str, tuple[str, ...]]:
    """`name==version ; marker` → hashes, of a lock file."""
    found: dict[str, tuple[str, ...]] = {}
    text = re.sub(r"^\s*#.*\n", "", (ROOT / f"requirements/{name}.txt").read_text(), flags=re.MULTILINE)
    for entry in text.replace("\\\n", " ").splitlines():
        what, *hashes = entry.split("--hash=")
        found[what.strip()] = tuple(each.strip() for each in hashes)
    return found


@pytest.mark.parametrize("name", LOCKS)
def test_an_image_gets_what_the_lock_has(name: str) -> None:
    whole = {what.partition(" ;")[0]: hashes for what, hashes in entries("lock").items()}
    part = {what.partition(" ;")[0]: hashes for what, hashes in entries(name).items()}
    assert part
    assert {what: hashes for what, hashes in part.items() if whole.get(what) != hashes} == {}, "run `make lock`"


def test_the_agents_image_has_nothing_heavy() -> None:
    names = {what.partition("==")[0] for what in entries("agent")}
    assert names & {"faust-streaming", "numpy", "scikit-learn", "click", "fastapi"} == set()
    assert {"pydantic", "aiokafka", "nvidia-ml-py"} <= names
    assert {"faust-streaming", "fastapi", "uvicorn", "opentelemetry-sdk"} <= {
        what.partition("==")[0] for what in entries("worker")
    }


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that the Dockerfile's stage `wheel` builds, of the files that Docker is given."""
    source, out = tmp_path_factory.mktemp("context"), tmp_path_factory.mktemp("wheels")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", "--", *CONTEXT],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, source / name)
    words = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation", "--wheel-dir", str(out), "."]
    subprocess.run([sys.executable, *words], cwd=source, check=True)
    (found,) = out.glob("*.whl")
    return found


def test_the_wheel_has_every_file_that_a_command_reads(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    code = {path for path in (*(ROOT / "gpuchaos_stream").rglob("*"), *(ROOT / "agents").rglob("*")) if path.is_file()}
    wanted = {
        path.relative_to(ROOT).as_posix().removeprefix("agents/")
        for path in code
        if "__pycache__" not in path.parts and "egg-info" not in str(path)
    }
    assert wanted - names == set()
    rules = {f"gpuchaos_stream/shipped/{path.relative_to(ROOT)}" for path in (ROOT / "rules").rglob("*.yaml")}
    assert rules - names == set()


#: Target → commands that must work of what it installs, from any folder, without a broker.
WORKS: Final = {
    "worker": (
        ("gpuchaos", "--help"),
        ("gpuchaos", "worker", "--help"),
        ("gpuchaos", "serve", "--openapi"),
        ("gpuchaos", "schedule", "--help"),
        ("gpuchaos", "rules", "check"),
        ("gpuchaos", "schema"),
    ),
    "agent": (
        ("gpuchaos-agent", "--version"),
        ("gpuchaos-agent", "faults"),
        ("gpuchaos-agent", "--once", "--print"),
    ),
}


@pytest.mark.soak
@pytest.mark.parametrize("target", WORKS)
def test_what_an_image_installs_works_alone(target: str, wheel: Path, tmp_path: Path) -> None:
    """The Dockerfile's own steps, in a fresh environment: the packages by hash, the wheel, and its commands."""
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    pip = [tmp_path / "venv/bin/pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "--require-hashes", "-r", ROOT / f"requirements/{target}.txt"], check=True)
    subprocess.run([*pip, "--no-deps", wheel], check=True)
    subprocess.run([tmp_path / "venv/bin/pip", "check"], check=True)
    bare = {"PATH": f"{tmp_path / 'venv/bin'}:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": str(tmp_path)}
    for words in WORKS[target]:
        done = subprocess.run(words, cwd=tmp_path, env=bare, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stderr}"
