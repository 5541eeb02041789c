"""Management controllers to try on: sushy's emulator, `ipmi_sim` with a process for a node, and one that misbehaves."""

from __future__ import annotations

import base64
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpuchaos_agent import clock
from gpuchaos_agent.inject.base import Bmc, Env
from gpuchaos_agent.inject.power_cycle import PowerCycle
from gpuchaos_agent.journal import JournalEntry, Scalar

DRIVER, NODE = "n1", "n2"
TARGET = f"node/{NODE}"
USER, PASSWORD = "chaos", "s3cret-Word"


def until(happened: Callable[[], Any], within_s: float = 10.0) -> Any:
    """What `happened` returned once that was true; fails the test where it never is."""
    deadline = time.monotonic() + within_s
    while not (found := happened()):
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
    return found


def fault(access: Bmc, **env: Any) -> PowerCycle:
    return PowerCycle(Env(node=DRIVER, boot_id=clock.boot_id(), bmcs={NODE: access}, **env))


def entry(of: PowerCycle, *, age_s: float = 0.0, fault_id: str = "f1", **params: Scalar) -> JournalEntry:
    now = clock.now()
    return JournalEntry(
        fault_id=fault_id,
        experiment_id="e1",
        command_id="c1",
        fault="power-cycle",
        entity=TARGET,
        params=params,
        payload=of.plan(TARGET, params, fault_id),
        boot_id=clock.boot_id(),
        order=0,
        created=now.wall - age_s,
        lease_s=60,
        lease_expires=now.wall - age_s + 60,
        lease_deadline=now.boot - age_s + 60,
    )


def access(url: str, folder: Path, **fields: Any) -> Bmc:
    file = folder / "bmc-password"
    file.write_text(PASSWORD + "\n")
    return Bmc(url, USER, file, **fields)


# sushy-emulator


@contextmanager
def sushy(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """sushy's fake driver with basic authentication; returns its address. Its delays are a second, not up to 11."""
    pytest.importorskip("sushy_tools", reason="sushy-tools (extra dev) is not installed")
    import bcrypt

    users = folder / "users"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    config = folder / "sushy.conf"
    # Absolute: the emulator reads it from the folder of its own package otherwise.
    system = {"uuid": str(uuid.uuid4()), "name": NODE, "power_state": "On", "external_notifier": False, "nics": []}
    config.write_text(
        f"SUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\nSUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\n"
        f"SUSHY_EMULATOR_FAKE_SYSTEMS = [{system!r}]\n"
    )
    port = free_port()
    code = "import random, sys; random.randint = lambda a, b: 1; from sushy_tools.emulator.main import main; main()"
    argv = [sys.executable, "-c", code, "--fake", "--config", str(config), "-i", "localhost", "-p", str(port)]
    if certificate is not None:
        argv += ["--ssl-certificate", str(certificate[0]), "--ssl-key", str(certificate[1])]
    log = folder / "sushy.log"
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out, cwd=folder) as emulator:
        try:
            until(lambda: _listens(port) or emulator.poll() is not None, 20)
            assert emulator.poll() is None, log.read_text()[-800:]
            yield f"{'https' if certificate else 'http'}://localhost:{port}"
        finally:
            emulator.kill()


# ipmi_sim

_HOOK = """#!/bin/sh
# ipmi_sim's chassis_control: the power of one "node", which is a process
cd "$(dirname "$0")" || exit 1
shift
op=$1; shift
alive() { [ -f node.pid ] && kill -0 "$(cat node.pid)" 2>/dev/null; }
on() { alive || { setsid sleep 100000 </dev/null >/dev/null 2>&1 & echo $! >node.pid; echo on >>power.log; }; }
off() { alive && kill -9 "$(cat node.pid)"; rm -f node.pid; echo off >>power.log; }
case $op in
get) for k in "$@"; do case $k in power) if alive; then echo power:1; else echo power:0; fi;; boot) echo boot:default;;
  esac; done;;
set) while [ $# -gt 0 ]; do k=$1; v=$2; shift 2
  case $k in power) if [ "$v" = 1 ]; then on; else off; fi;; reset) off; on;; shutdown) off;; esac; done;;
check) ;;
esac
exit 0
"""

_LAN = """name "node"
set_working_mc 0x20
  startlan 1
    addr 127.0.0.1 {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{folder}/chassis.sh 0x20"
  user 2 true "{user}" "{password}" admin 10 none md2 md5 straight
"""

_EMU = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
"""


@dataclass
class IpmiNode:
    """A node that is a process: its power is its life."""

    url: str
    folder: Path

    @property
    def pid(self) -> int | None:
        try:
            pid = int((self.folder / "node.pid").read_text())
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid

    @property
    def power_log(self) -> list[str]:
        return (self.folder / "power.log").read_text().split()


@contextmanager
def ipmi(folder: Path) -> Iterator[IpmiNode]:
    """`ipmi_sim` on a port of its own, the node switched on."""
    simulator, tool = shutil.which("ipmi_sim"), shutil.which("ipmitool")
    if simulator is None or tool is None:
        pytest.skip("needs openipmi (ipmi_sim) and ipmitool: run `make tools`")
    port = free_port(socket.SOCK_DGRAM)
    hook = folder / "chassis.sh"
    hook.write_text(_HOOK)
    hook.chmod(0o755)
    (folder / "lan.conf").write_text(_LAN.format(port=port, folder=folder, user=USER, password=PASSWORD))
    (folder / "node.emu").write_text(_EMU)
    subprocess.run([hook, "0x20", "set", "power", "1"], check=True)
    # With the cipher suite, because the simulator does not answer the question which ones it has.
    node = IpmiNode(f"ipmi://127.0.0.1:{port}?cipher=3", folder)
    argv = [simulator, "-c", folder / "lan.conf", "-f", folder / "node.emu", "-s", folder, "-n"]
    with (folder / "sim.log").open("wb") as out, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out) as sim:
        try:
            until(lambda: f":{port:04X}" in Path("/proc/net/udp").read_text() or sim.poll() is not None, 20)
            assert sim.poll() is None, (folder / "sim.log").read_text()[-500:]
            yield node
        finally:
            sim.kill()
            if (pid := node.pid) is not None:
                os.kill(pid, signal.SIGKILL)


# One that misbehaves


@dataclass
class Unruly:
    """A Redfish service as strange as a test needs. `power` changes `delay_s` after an order, when it is read.

    `answers` maps `METHOD path-suffix` to statuses that are given before the real answer, one each. `silent` are
    ResetTypes that are carried out without an answer, `hollow` those that are answered and not carried out.
    """

    allowed: list[str] | None = field(default_factory=lambda: ["On", "ForceOff", "ForceRestart", "PowerCycle"])
    action_info: bool = False
    sessions_only: bool = False
    answers: dict[str, list[int]] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    hollow: set[str] = field(default_factory=set)
    delay_s: float = 0.0
    reset_times: bool = False
    systems: tuple[str, ...] = ("1",)
    power: str = "On"
    orders: list[str] = field(default_factory=list)
    sessions: set[str] = field(default_factory=set)
    logins: int = 0
    resets: int = 0
    pending: list[tuple[float, str]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self) -> str:
        while self.pending and self.pending[0][0] <= time.monotonic():
            self.power = self.pending.pop(0)[1]
        return self.power

    def order(self, kind: str) -> None:
        self.orders.append(kind)
        if kind in self.hollow:
            return
        at = time.monotonic() + self.delay_s
        steps = {"ForceOff": ["Off"], "On": ["On"], "ForceOn": ["On"], "PowerCycle": ["Off", "On"]}.get(kind, [])
        self.pending += [(at + 0.8 * index, state) for index, state in enumerate(steps)]
        self.resets += kind in {"ForceRestart", "PowerCycle"}


@contextmanager
def unruly(service: Unruly) -> Iterator[str]:
    """Runs it; returns its address."""

    class Handler(_Handler):
        bmc = service

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    bmc: Unruly

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        if not self._first():
            return
        root = "/redfish/v1"
        path = self.path.rstrip("/")
        with self.bmc.lock:
            if path == root:
                self._say(200, {"Systems": {"@odata.id": f"{root}/Systems"}})
            elif path == f"{root}/Systems":
                self._say(200, {"Members": [{"@odata.id": f"{root}/Systems/{each}"} for each in self.bmc.systems]})
            elif path.endswith("ResetActionInfo"):
                values = {"Name": "ResetType", "AllowableValues": self.bmc.allowed}
                self._say(200, {"Parameters": [{"Name": "Other"}, values]})
            elif path.removeprefix(f"{root}/Systems/") in self.bmc.systems:
                self._say(200, self._system(path))
            else:
                self._say(404, {})

    def _system(self, path: str) -> dict[str, Any]:
        action: dict[str, Any] = {"target": f"{path}/Actions/ComputerSystem.Reset"}
        if self.bmc.action_info:
            action["@Redfish.ActionInfo"] = f"{path}/ResetActionInfo"
        elif self.bmc.allowed is not None:
            action["ResetType@Redfish.AllowableValues"] = self.bmc.allowed
        told = {"LastResetTime": f"2024-01-01T00:00:{self.bmc.resets:02}Z"} if self.bmc.reset_times else {}
        return {"PowerState": self.bmc.now(), "Actions": {"#ComputerSystem.Reset": action}, **told}

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.endswith("/Sessions"):
            self._login(body)
            return
        if not self._first():
            return
        kind = body["ResetType"]
        with self.bmc.lock:
            if kind in self.bmc.refused:
                self.bmc.orders.append(kind)
                message = "Base.1.0.ActionParameterNotSupported"
                self._say(self.bmc.refused[kind], {"error": {"code": message, "message": "no such thing here"}})
                return
            self.bmc.order(kind)
        if kind in self.bmc.silent:
            self.connection.shutdown(socket.SHUT_RDWR)
            self.close_connection = True
            return
        self._say(204, None)

    def do_DELETE(self) -> None:
        self.bmc.sessions.discard(self.path)
        self._say(204, None)

    def _login(self, body: dict[str, str]) -> None:
        if (body["UserName"], body["Password"]) != (USER, PASSWORD):
            self._say(401, {})
            return
        self.bmc.logins += 1
        place = f"/redfish/v1/SessionService/Sessions/{self.bmc.logins}"
        self.bmc.sessions.add(place)
        self._say(201, {}, {"X-Auth-Token": f"token-{self.bmc.logins}", "Location": place})

    def _first(self) -> bool:
        """Whether the real answer is due."""
        for key, statuses in self.bmc.answers.items():
            method, _, suffix = key.partition(" ")
            if method == self.command and self.path.rstrip("/").endswith(suffix) and statuses:
                self._say(statuses.pop(0), {}, {"Retry-After": "0"})
                return False
        basic = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        session = (self.headers.get("X-Auth-Token") or "").startswith("token-")
        if not (session or (not self.bmc.sessions_only and self.headers.get("Authorization") == basic)):
            self._say(401, {})
            return False
        return True

    def _say(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        content = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("localhost", port), 0.2):
            return True
    except OSError:
        return False
