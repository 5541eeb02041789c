"""The stack of docker-compose.yml as processes of this machine: the very commands, environments and files of it.

What a container changes for a process is changed back here and nowhere else: host names and ports become loopback and
free ports, mounts become links below a folder, images become the programs that are in them. Grafana is not here.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

from compose_check import OURS, dockerfile, image_of, project
from lab.missing import MissingError
from lab.waiting import until

from gpuchaos_stream.stream import kafka
from gpuchaos_stream.stream.brokers import _answers
from gpuchaos_stream.stream.child import Child

#: Programs of images that are not ours: what they are called here, with what installs them on Debian.
PROGRAMS: Final = {
    "prom/prometheus": ("prometheus", "prometheus"),
    "prom/alertmanager": ("prometheus-alertmanager", "prometheus-alertmanager"),
}
NOT_HERE: Final = frozenset({"grafana", "agent"})
#: Every port of the stack; each number is one service's alone.
PORTS: Final = (9092, 29092, 29093, 9090, 9093, 8080, 9470, 9471, 9472, 3000)
#: The image's: which of its variables are not Kafka's settings, and the id that it gives a cluster.
_NOT_SETTINGS: Final = ("KAFKA_HEAP_OPTS",)
_CLUSTER_ID: Final = "5L6g3nShT-eMCtK--X86sw"
#: Seconds that a service may take to become healthy on a machine that has other work.
_HEALTHY_S: Final = 120.0
#: `read_only` of a container: all mounts but the volumes, a temporary one, and the kernel's own.
_SHUT_IN: Final = """
set -e
mount --make-rprivate /
mount --bind "$1" "$1"
mount -t tmpfs tmpfs /var/tmp
volumes=$(readlink -f "$1")
shift
cut -d' ' -f2 /proc/mounts | while read -r at; do
  case $at in /proc|/proc/*|/sys|/sys/*|/dev|/dev/*|/var/tmp|"$volumes") ;; *) mount -o remount,bind,ro "$at" ;; esac
done
cd /
exec "$@"
"""
_ADDRESS: Final = re.compile(r"(?P<host>[A-Za-z][\w-]*|\d+\.\d+\.\d+\.\d+)?:(?P<port>\d{4,5})(?!\d)")
_PORT: Final = re.compile(r"(?<=port=)\d+")


class Stack:
    """A context manager; leaving it ends what still runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.services: dict[str, Any] = project()["services"]
        self.children: dict[str, Child] = {}
        self._exit = ExitStack()
        with ExitStack() as held:
            sockets = [held.enter_context(socket.socket()) for _ in PORTS]
            for one in sockets:
                one.bind(("127.0.0.1", 0))
            self._ports = {at: one.getsockname()[1] for at, one in zip(PORTS, sockets, strict=True)}
        self._published = {
            (port["host_ip"], int(port["published"])): int(port["target"])
            for service in self.services.values()
            for port in service.get("ports") or ()
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._exit.close()

    def url(self, port: int) -> str:
        """Where what listens on this port of the stack listens here."""
        return f"http://127.0.0.1:{self._ports[port]}"

    def volume(self, name: str) -> Path:
        """A named volume."""
        return self.folder / "volumes" / name

    def start(self, name: str) -> Child:
        """Starts a service once those that it waits for are as it wants them."""
        service = self.services[name]
        for other, how in (service.get("depends_on") or {}).items():
            if other not in NOT_HERE:
                self.wait(other, how["condition"])
        self._mount(name)
        (self.folder / "volumes").mkdir(exist_ok=True)
        argv = self._kafka(service) if name == "kafka" else self._argv(name)
        pairs = [f"{key}={value}" for key, value in self._environment(name).items()]
        argv = [*self._shut_in(service), "env", "-i", *pairs, *argv]
        child = Child(name, argv, log_file=self.folder / "logs" / f"{name}.log").start()
        self.children[name] = child
        self._exit.callback(child.kill)
        return child

    def wait(self, name: str, condition: str) -> None:
        """Returns when a service is as `condition` says, in compose's words."""
        if name not in self.children:
            self.start(name)
        child = self.children[name]
        if condition == "service_completed_successfully":
            until(lambda: child.status is not None, _HEALTHY_S)
            assert child.status == 0, f"{name}: {child.tail()}"
        elif condition == "service_healthy":
            until(lambda: self.healthy(name) or not child.running, _HEALTHY_S)
            assert child.running, f"{name}: {child.tail()}"

    def healthy(self, name: str) -> bool:
        """Runs its health check once."""
        _, program, *words = self.services[name]["healthcheck"]["test"]
        words = [self.here(name, word) for word in words]
        if any("kafka-broker-api-versions" in word for word in words):  # its jar is not among those that a broker needs
            host, _, port = words[-1].partition(":")
            return _answers(host, int(port))
        command = {"python": [sys.executable], "wget": [_found("busybox", "busybox-static"), "wget"]}[program]
        return subprocess.run([*command, *words], capture_output=True, check=False).returncode == 0

    def stop(self, name: str) -> int | None:
        """Ends a service as `docker stop` does. Its exit status; None if it had to be killed."""
        child = self.children[name]
        os.kill(child.pid, signal.SIGTERM)
        grace = _seconds(self.services[name].get("stop_grace_period", "10s"))
        try:
            until(lambda: not child.running, grace)
        except TimeoutError:
            child.kill()
            return None
        return child.status

    def here(self, name: str, text: str) -> str:
        """A text of the compose file or of a mounted file, with the addresses and paths of this machine."""

        def address(found: re.Match[str]) -> str:
            host, port = found["host"], int(found["port"])
            port = self._published.get((host, port), port)
            known = host in (None, "127.0.0.1", "0.0.0.0", "localhost") or host in self.services  # noqa: S104
            return f"127.0.0.1:{self._ports[port]}" if known and port in self._ports else found[0]

        text = _ADDRESS.sub(address, text)
        text = _PORT.sub(lambda found: str(self._ports.get(int(found[0]), found[0])), text)
        text = re.sub(r"(?<=host=)0\.0\.0\.0|^0\.0\.0\.0$", "127.0.0.1", text)
        for target in sorted(self._targets(name), key=len, reverse=True):
            text = re.sub(rf"(?<![\w.}}]){re.escape(target)}(?![\w-])", f"{self._root(name)}{target}", text)
        return text

    def _targets(self, name: str) -> Iterator[str]:
        for mount in self.services[name].get("volumes") or ():
            yield mount["target"]
            if mount["target"].startswith("/keys/"):
                yield "/keys"

    def _root(self, name: str) -> Path:
        return self.folder / "roots" / name

    def _mount(self, name: str) -> None:
        for mount in self.services[name].get("volumes") or ():
            at = Path(f"{self._root(name)}{mount['target']}")
            at.parent.mkdir(parents=True, exist_ok=True)
            if mount["type"] == "volume":
                self.volume(mount["source"]).mkdir(parents=True, exist_ok=True)
                if not at.is_symlink():
                    at.symlink_to(self.volume(mount["source"]))
                continue
            source = Path(mount["source"])
            for file in [source] if source.is_file() else sorted(source.rglob("*.yaml")):
                copy = at / file.relative_to(source) if source.is_dir() else at
                copy.parent.mkdir(parents=True, exist_ok=True)
                # Rules speak of times (`10:30`) and of no machine of the stack; they are taken as they are.
                copy.write_text(file.read_text() if "rules" in file.parts else self.here(name, file.read_text()))

    def _shut_in(self, service: dict[str, Any]) -> list[str]:
        """What starts a service where nothing can be written but its volumes and a folder for temporary files."""
        if os.geteuid() != 0 or not service.get("read_only"):
            return []
        # Python and the others take /var/tmp where /tmp cannot be written; the volumes lie below /tmp.
        assert [mount.partition(":")[0] for mount in service["tmpfs"]] == ["/tmp"]  # noqa: S108
        return ["unshare", "--mount", "sh", "-c", _SHUT_IN, "sh", str(self.folder / "volumes")]

    def _environment(self, name: str) -> dict[str, str]:
        given = self.services[name].get("environment") or {}
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        fixed = {"PATH": path, "HOME": "/var/lib/gpuchaos", "PYTHONUNBUFFERED": "1"}
        return fixed | {key: self.here(name, str(value)) for key, value in given.items()}

    def _argv(self, name: str) -> list[str]:
        service = self.services[name]
        image = image_of(service)
        if service.get("entrypoint"):
            entry = service["entrypoint"]
        elif image in OURS:
            (stage,) = (stage for stage in dockerfile()["stages"] if stage["Name"] == OURS[image])
            (entry,) = (each["Value"]["CmdLine"] for each in stage["Commands"] if each["Name"] == "ENTRYPOINT")
        else:
            entry = [_found(*PROGRAMS[image])]
        return [self.here(name, word) for word in (*entry, *(service.get("command") or ()))]

    def _kafka(self, service: dict[str, Any]) -> list[str]:
        """As the image's start script: settings from the environment, the storage formatted once."""
        settings = {
            name.removeprefix("KAFKA_").lower().replace("_", "."): value
            for name, value in self._environment("kafka").items()
            if name.startswith("KAFKA_") and name not in _NOT_SETTINGS
        }
        file = self.folder / "server.properties"
        file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        java = [_found("java", "default-jre-headless"), *kafka.JVM_OPTIONS, "-cp", f"{kafka.fetch()}/*"]
        tool = [*java, "kafka.tools.StorageTool", "format", "--ignore-formatted", f"--cluster-id={_CLUSTER_ID}"]
        subprocess.run([*tool, f"--config={file}"], check=True, capture_output=True)
        return [*java, "kafka.Kafka", str(file)]


def _found(program: str, package: str) -> str:
    path = shutil.which(program)
    if path is None:
        raise MissingError(f"{program} is not installed (Debian: {package})")
    return path


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert found is not None, text
    return 60.0 * int(found[1] or 0) + int(found[2] or 0)


def in_order(services: dict[str, Any]) -> list[str]:
    """The services that run here, each after those that it waits for."""
    order: list[str] = []
    wanted = [name for name in services if name not in NOT_HERE]
    while len(order) < len(wanted):
        for name in wanted:
            waits = set(services[name].get("depends_on") or ()) - NOT_HERE
            if name not in order and waits <= set(order):
                order.append(name)
    return order
