"""The fault with a controller of the laboratory, and a controller that misbehaves."""

from __future__ import annotations

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from lab.bmc import NODE, PASSWORD, USER

from gpuchaos_agent import clock
from gpuchaos_agent.inject.base import Bmc, Env
from gpuchaos_agent.inject.power_cycle import PowerCycle
from gpuchaos_agent.journal import JournalEntry, Scalar

DRIVER = "n1"
TARGET = f"node/{NODE}"


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
