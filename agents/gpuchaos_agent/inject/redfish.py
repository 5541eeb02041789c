"""A management controller by Redfish (DMTF DSP0266): what it allows is read from it, never assumed.

Nothing but the standard library, because the agent is light. An answer never sends our password elsewhere: links
are taken as paths on the same host, and redirections are not followed.
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import shlex
import ssl
import time
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from gpuchaos_agent.inject import bmc
from gpuchaos_agent.inject.base import Bmc
from gpuchaos_agent.inject.bmc import BmcError, Look, NotSentError, Order, UnansweredError, UnsupportedError

#: One answer may take this long, seconds, and one question with its repetitions `_ASK_S`.
_ANSWER_S: Final = 5.0
_ASK_S: Final = 8.0
#: Between two repetitions where the controller names no time of its own, and the longest that it may name, seconds.
_AGAIN_S: Final = 0.3
_LONGEST_AGAIN_S: Final = 2.0
#: Most that is read of an answer, bytes.
_MOST: Final = 1 << 20
#: Too busy, or still starting: the question was not taken. And a gateway's word that it does not know.
_BUSY: Final = frozenset({429, 503})
_LOST: Final = frozenset({502, 504})
#: Order → ResetTypes of DSP2046 that do it, the best first.
_RESETS: Final[dict[Order, tuple[str, ...]]] = {
    Order.CYCLE: ("PowerCycle",),
    Order.OFF: ("ForceOff",),
    Order.ON: ("On", "ForceOn"),
    Order.RESTART: ("ForceRestart",),
}
_ACTION: Final = "#ComputerSystem.Reset"
_SESSIONS: Final = "/redfish/v1/SessionService/Sessions"


class Redfish:
    """One system of one Redfish service. Each call asks anew; nothing is kept but the session's token."""

    def __init__(self, access: Bmc) -> None:
        self._access = access
        parts = urlsplit(access.url)
        self._secure = parts.scheme == "https"
        self._host, self._port = parts.hostname or "", parts.port
        self._basic = True
        self._token: str | None = None
        self._session: str | None = None

    def look(self) -> Look:
        """Power state, time of the last reset, and the ResetTypes that are allowed."""
        try:
            _, system = self._system()
            allowed = self._allowed(system)
            able = tuple(order for order, kinds in _RESETS.items() if allowed is None or set(kinds) & set(allowed))
            boot = system.get("BootProgress")
            last_boot = boot.get("LastStateTime") if isinstance(boot, Mapping) else None
            mark = str(system.get("LastResetTime") or last_boot or "")
            return Look(str(system.get("PowerState") or "unknown"), mark, able)
        finally:
            self._leave()

    def send(self, order: Order) -> None:
        """Posts the first ResetType of the order that the service allows."""
        try:
            try:
                path, system = self._system()
                allowed = self._allowed(system)
            except UnsupportedError:
                raise
            except BmcError as error:
                raise NotSentError(str(error)) from None
            kinds = [kind for kind in _RESETS[order] if allowed is None or kind in allowed]
            if not kinds:
                raise UnsupportedError(f"the BMC allows no {order}; it allows {', '.join(allowed or ())}")
            target = _dig(system, "Actions", _ACTION, "target") or f"{path}/Actions/ComputerSystem.Reset"
            self._ask("POST", str(target), {"ResetType": kinds[0]})
        finally:
            self._leave()

    def typed(self, order: Order) -> str:
        """As curl(1), which asks for the password."""
        system = self._access.system or "SYSTEM"
        path = system if system.startswith("/") else f"/redfish/v1/Systems/{system}"
        url = f"{self._access.url.rstrip('/')}{path}/Actions/ComputerSystem.Reset"
        words = ["curl", "-sS", *(["-u", self._access.user] if self._access.user else [])]
        words += ["--cacert", str(self._access.ca_file)] if self._access.ca_file else []
        words += ["-k"] if self._access.insecure else []
        words += ["-H", "Content-Type: application/json", "-d", json.dumps({"ResetType": _RESETS[order][0]}), url]
        return shlex.join(words)

    # What the service holds

    def _system(self) -> tuple[str, dict[str, Any]]:
        path = self._access.system
        if path is None or not path.startswith("/"):
            root = self._ask("GET", "/redfish/v1/")
            collection = str(_dig(root, "Systems", "@odata.id") or "/redfish/v1/Systems")
            if path is not None:
                path = f"{collection.rstrip('/')}/{path}"
            else:
                members = self._ask("GET", collection).get("Members")
                found = [m["@odata.id"] for m in members or () if isinstance(m, Mapping) and "@odata.id" in m]
                if len(found) != 1:
                    names = ", ".join(str(each).rsplit("/", 1)[-1] for each in found[:8]) or "none"
                    raise BmcError(f"the BMC has {len(found)} systems ({names}): say which one in its `system`")
                path = str(found[0])
        return path, self._ask("GET", path)

    def _allowed(self, system: Mapping[str, Any]) -> tuple[str, ...] | None:
        """The ResetTypes of the action or of its ActionInfo; None where the service tells none."""
        action = _dig(system, "Actions", _ACTION)
        if not isinstance(action, Mapping):
            raise UnsupportedError("the BMC's system has no ComputerSystem.Reset action")
        values = action.get("ResetType@Redfish.AllowableValues")
        info = action.get("@Redfish.ActionInfo")
        if values is None and isinstance(info, str):
            parameters = self._ask("GET", info).get("Parameters")
            named = (p for p in parameters or () if isinstance(p, Mapping) and p.get("Name") == "ResetType")
            values = next((p.get("AllowableValues") for p in named), None)
        return tuple(str(value) for value in values) if isinstance(values, list) else None

    # How it is asked

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        """The answer, with repetitions where the question was not taken; a question that may have been is not repeated.

        A 401 is answered with a session, once: services may have basic authentication switched off.
        """
        deadline = time.monotonic() + _ASK_S
        if not self._basic and self._token is None:
            self._enter()
        while True:
            try:
                status, headers, content = self._once(method, path, body)
            except (NotSentError, UnansweredError) as error:
                if time.monotonic() >= deadline or (isinstance(error, UnansweredError) and method != "GET"):
                    raise
                wait: float | None = _AGAIN_S
            else:
                if status == 401 and self._token is None and self._access.user:
                    self._basic = False  # asking so again could lock the account
                    self._enter()
                    continue
                wait = _busy_s(method, path, status, headers)
                if wait is None or time.monotonic() >= deadline:
                    return _judged(method, path, status, content)
            time.sleep(wait or 0.0)

    def _enter(self) -> None:
        body = {"UserName": self._access.user, "Password": bmc.password(self._access)}
        status, headers, _ = self._once("POST", _SESSIONS, body)
        token, place = headers.get("X-Auth-Token"), headers.get("Location")
        if status not in {200, 201, 204} or not token:
            raise BmcError(f"the BMC refuses user {self._access.user!r} (401, and {status} for a session)")
        self._token, self._session = token, urlsplit(place or "").path or None

    def _leave(self) -> None:
        """Sessions are few on a BMC: ours is given back, or runs out by itself."""
        if self._session is not None:
            with contextlib.suppress(BmcError):
                self._once("DELETE", self._session, None)
        self._token = self._session = None

    def _once(
        self, method: str, path: str, body: Mapping[str, Any] | None
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        if not path.startswith("/") or path.startswith("//"):
            raise BmcError(f"the BMC names {path!r}, which is no path on it")
        connection = self._connection()
        try:
            try:
                connection.connect()
            except ssl.SSLCertVerificationError as error:
                raise BmcError(f"the BMC's certificate is not trusted: {error.verify_message}") from None
            except OSError as error:
                raise NotSentError(f"the BMC at {self._host} cannot be reached: {error.strerror or error}") from None
            try:
                data = None if body is None else json.dumps(body).encode()
                connection.request(method, path, data, self._headers(path))
                answer = connection.getresponse()
                return answer.status, answer.headers, answer.read(_MOST)
            except (OSError, http.client.HTTPException) as error:
                raise UnansweredError(f"the BMC at {self._host} gave no answer: {type(error).__name__}") from None
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if not self._secure:
            return http.client.HTTPConnection(self._host, self._port, timeout=_ANSWER_S)
        try:
            context = ssl.create_default_context(cafile=self._access.ca_file)
        except (OSError, ssl.SSLError) as error:
            raise BmcError(f"the BMC's CA file {self._access.ca_file} cannot be used: {error}") from None
        if self._access.insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return http.client.HTTPSConnection(self._host, self._port, timeout=_ANSWER_S, context=context)

    def _headers(self, path: str) -> dict[str, str]:
        headers = {"Accept": "application/json", "Content-Type": "application/json", "OData-Version": "4.0"}
        if self._token is not None:
            headers["X-Auth-Token"] = self._token
        elif self._access.user and path != _SESSIONS:
            pair = f"{self._access.user}:{bmc.password(self._access)}".encode()
            headers["Authorization"] = "Basic " + base64.b64encode(pair).decode()
        return headers


def _busy_s(method: str, path: str, status: int, headers: http.client.HTTPMessage) -> float | None:
    """How long to wait before asking again, seconds; None where this is the answer.

    Raises:
        UnansweredError: a gateway does not know what became of an order.
    """
    if status in _LOST and method != "GET":
        raise UnansweredError(f"the BMC answers {status} to {method} {path}")
    if status not in _BUSY | _LOST:
        return None
    named = headers.get("Retry-After") or ""
    return min(float(named), _LONGEST_AGAIN_S) if named.isdigit() else _AGAIN_S


def _judged(method: str, path: str, status: int, content: bytes) -> dict[str, Any]:
    """The body of a good answer.

    Raises:
        BmcError: it is none; `UnsupportedError` where the service says that it cannot do this at all.
    """
    if 200 <= status < 300:
        if not content.strip():
            return {}
        try:
            body = json.loads(content)
        except ValueError:
            raise BmcError(f"the BMC's answer to {method} {path} is no JSON") from None
        if not isinstance(body, dict):
            raise BmcError(f"the BMC's answer to {method} {path} is no object")
        return body
    words = _words(content)
    text = f"the BMC answers {status} to {method} {path}" + (f": {words}" if words else "")
    # 400 with one of these is a ResetType that was listed and is not carried out after all.
    unsupported = ("NotSupported", "NotImplemented", "ValueNotInList", "ParameterValue", "ActionParameter")
    if method == "POST" and (status in {405, 501} or (status == 400 and any(word in words for word in unsupported))):
        raise UnsupportedError(text)
    raise BmcError(text)


def _words(content: bytes) -> str:
    """Message ids and messages of a Redfish error, shortened."""
    try:
        error = json.loads(content)["error"]
        infos = error.get("@Message.ExtendedInfo") or [{}]
        words = [str(error.get("code") or ""), str(error.get("message") or ""), str(infos[0].get("MessageId") or "")]
    except (ValueError, TypeError, KeyError, IndexError, AttributeError):
        return ""
    return "; ".join(word for word in words if word)[:300]


def _dig(body: Any, *names: str) -> Any:
    for name in names:
        body = body.get(name) if isinstance(body, Mapping) else None
    return body
