"""A real Apache Kafka for development and tests: fetched with Maven, one KRaft node on loopback.

The versions are pinned in `kafka_pom.xml`. The jars go to a cache folder named after that file's hash, so a
changed version is fetched anew and an old cache is never believed.
"""

from __future__ import annotations

import base64
import hashlib
import os
import shutil
import subprocess
import tempfile
from importlib.resources import files
from pathlib import Path
from typing import Final

from gpuchaos_stream.errors import UserError

#: Seconds that Maven may take for about 45 jars (43 MB; 5 s on a fast line).
FETCH_TIMEOUT_S: Final = 600.0
#: Seconds that formatting the storage may take (a JVM start: 1.5 s idle).
FORMAT_TIMEOUT_S: Final = 60.0

#: Small enough to run beside a test suite on two cores: 360 MB resident, ready in 2 to 3 s.
JVM_OPTIONS: Final = (
    "-Xmx512m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn",
    "-Dorg.slf4j.simpleLogger.showDateTime=true",
)

#: One node that is broker and controller. Every internal topic has one partition and one copy; joining a
#: group is not delayed; a session may be as short as 1 s, so that tests need not wait for the dead. The node's
#: own session is short too: after a kill it may register again only when the old session has ended (9 s).
PROPERTIES: Final = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@{host}:{controller_port}
listeners=PLAINTEXT://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=PLAINTEXT://{host}:{port}
controller.listener.names=CONTROLLER
log.dirs={logs}
auto.create.topics.enable=false
num.network.threads=2
num.io.threads=4
group.initial.rebalance.delay.ms=0
group.min.session.timeout.ms=1000
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.num.partitions=1
share.coordinator.state.topic.replication.factor=1
controlled.shutdown.enable=false
broker.heartbeat.interval.ms=500
broker.session.timeout.ms=3000
log.cleaner.dedupe.buffer.size=8388608
"""

#: Programs that it takes, and what installs them on Debian.
_NEEDED: Final = {"java": "a Java runtime, 17 or newer (openjdk-17-jre-headless)", "mvn": "Maven (maven)"}


def kafka_available() -> bool:
    """Whether `java` and `mvn` are on the PATH; nothing is started to find out."""
    return all(shutil.which(program) for program in _NEEDED)


def fetch() -> Path:
    """The folder of Kafka's jars, fetched once. Two processes may ask at once: the first to finish wins.

    Raises:
        UserError: Java or Maven is missing, or Maven could not resolve the versions.
    """
    for program, package in _NEEDED.items():
        if shutil.which(program) is None:
            raise UserError(
                "broker kafka", f"`{program}` is not on the PATH", f"install {package}, or use the embedded broker"
            )
    pom = files("gpuchaos_stream.stream").joinpath("kafka_pom.xml").read_bytes()
    home = _cache_root() / f"kafka-{hashlib.sha256(pom).hexdigest()[:16]}"
    if home.is_dir():
        return home
    home.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=home.parent, prefix=".fetch-") as folder:
        source = Path(folder, "pom.xml")
        source.write_bytes(pom)
        target = Path(folder, "lib")
        _maven(source, target)
        try:
            target.rename(home)
        except OSError:
            if not home.is_dir():  # not the other process's doing
                raise
    return home


def prepare(data: Path, host: str, port: int, controller_port: int) -> list[str]:
    """Formats the storage in `data` unless it is, and returns the command that runs the broker.

    Raises:
        UserError: as `fetch`, or the storage cannot be formatted.
    """
    jars = fetch()
    data.mkdir(parents=True, exist_ok=True)
    logs = data / "logs"
    properties = data / "server.properties"
    properties.write_text(PROPERTIES.format(host=host, port=port, controller_port=controller_port, logs=logs))
    java = ["java", *JVM_OPTIONS, "-cp", f"{jars}/*"]
    if not (logs / "meta.properties").exists():
        cluster = base64.urlsafe_b64encode(os.urandom(16)).decode().rstrip("=")
        _format([*java, "kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", f"--config={properties}"])
    return [*java, "kafka.Kafka", str(properties)]


def _cache_root() -> Path:
    root = os.environ.get("XDG_CACHE_HOME")
    return (Path(root) if root else Path.home() / ".cache") / "gpuchaos"


def _maven(pom: Path, target: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies", f"-DoutputDirectory={target}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            "broker kafka", f"Maven did not finish in {FETCH_TIMEOUT_S:.0f} s", "check the way to its repository"
        ) from error
    if done.returncode or not any(target.glob("kafka_*.jar")):
        said = (done.stdout + done.stderr).strip().splitlines()
        reason = next((line for line in said if "ERROR" in line), said[-1] if said else "it said nothing")
        raise UserError(
            "broker kafka", f"Maven could not fetch Apache Kafka: {reason}", "check ~/.m2/settings.xml and the network"
        )


def _format(command: list[str]) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=FORMAT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise UserError(
            "broker kafka", f"formatting its storage took over {FORMAT_TIMEOUT_S:.0f} s", "is the machine overloaded?"
        ) from error
    if done.returncode:
        said = (done.stdout + done.stderr).strip()
        raise UserError("broker kafka", f"its storage could not be formatted: {said[-500:]}", "is the folder writable?")
