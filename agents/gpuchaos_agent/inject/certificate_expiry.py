"""`certificate-expiry`: a server presents a certificate that is expired, not yet valid, or for another name.

It is signed by the right authority and equal to the right one in all else, so that nothing but its validity can be
what clients refuse. Only the first certificate of the file changes; the private key is not read. The right bytes lie
in the agent's folder and are put back one for one, unless somebody has renewed the certificate meanwhile: the new
one stays then, because that is the recovery. The copy is kept for as long as the wrong one is in the file. With
`method: clock` the clock of a process is shifted instead (`shifted_clock.py`).
"""

from __future__ import annotations

import datetime as dt
import shlex
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

import structlog
from pydantic import AfterValidator, Field, model_validator

from gpuchaos_agent.inject import (
    certificate_file,
    certificates,
    file_systems,
    reload,
    shifted_clock,
    tls_look,
)
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.certificate_file import sha256
from gpuchaos_agent.inject.certificates import Kind
from gpuchaos_agent.inject.params import belong, need, one_place
from gpuchaos_agent.inject.reload import How, Signal
from gpuchaos_agent.inject.tls_look import Address, NobodyError, Protocol
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_stream.events.base import Authored

_log = structlog.get_logger(__name__)

_LOOK_S: Final = 0.05
#: A server of several processes has changed when this many handshakes after one another say so.
_HANDSHAKES: Final = 2
_NEEDED: Final[dict[object, tuple[str, ...]]] = {
    "certificate": ("cert_file", "ca_file", "ca_key_file", "address"),
    "clock": ("pidfile",),
}
#: Parameter → the method that reads it.
_OF_METHOD: Final = {
    **dict.fromkeys(("cert_file", "ca_file", "ca_key_file", "address", "server_name", "protocol"), ("certificate",)),
    **dict.fromkeys(("reload", "signal", "command", "within", "include_brokers"), ("certificate",)),
    "shift_days": ("clock",),
}
#: Parameter → how the server is told, where that reads it.
_OF_RELOAD: Final = {"pidfile": ("signal",), "signal": ("signal",), "command": ("command",)}
_PATH: Final = r"^/\P{Cc}+$"


class CertificateExpiryParams(Authored):
    """`cert_file`: what the server reads. `ca_file`, `ca_key_file`: the authority that signed it. `address`:
    `host:port` where it is served, and `server_name` what clients ask for. `reload`: how the server is told: by
    `signal` to the process in `pidfile`, by a `command` of the agent's `reload_commands`, or `none` where it watches
    the file. `within`: seconds until it must be served. `shift_days` is for the method `clock`.
    """

    method: Literal["certificate", "clock"] = "certificate"
    kind: Kind = "expired"
    cert_file: str | None = Field(default=None, pattern=_PATH)
    ca_file: str | None = Field(default=None, pattern=_PATH)
    ca_key_file: str | None = Field(default=None, pattern=_PATH)
    address: Annotated[str, AfterValidator(one_place)] | None = None
    server_name: str | None = Field(default=None, min_length=1)
    protocol: Protocol = "tls"
    reload: How = "none"
    pidfile: str | None = Field(default=None, pattern=_PATH)
    signal: Signal = "HUP"
    command: str | None = None
    within: float = Field(default=5.0, ge=0.5, le=20)
    include_brokers: bool = False
    shift_days: float = Field(default=400.0, ge=1, le=36500)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        need(self, "method", _NEEDED)
        if self.method == "clock" and self.kind == "wrong-name":
            raise ValueError("no clock makes a name wrong: kind must be expired or not-yet-valid")
        if self.reload == "signal" and self.pidfile is None:
            raise ValueError("reload: signal needs pidfile")
        if self.reload == "command" and self.command is None:
            raise ValueError("reload: command needs command, a name of the agent's reload_commands")
        belong(self, "method", _OF_METHOD)
        if self.method == "certificate":
            belong(self, "reload", _OF_RELOAD)
        return self


class CertificateExpiry:
    """The certificate that a server presents; see the module."""

    name = "certificate-expiry"
    layer = "the certificate that a server presents in the TLS handshake"
    certifies = ("certificate-renewal",)
    not_certified = ("node-loss", "network-partition", "node-isolation")
    params: type[Authored] = CertificateExpiryParams

    def __init__(self, env: Env) -> None:
        self._env = env

    def unavailable(self) -> str | None:
        """Nothing of the node itself is needed."""
        return None

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses where what is served is not what is in the file, is not trusted already, or could not be changed."""
        if target != f"node/{self._env.node}":
            return f"the target must be node/{self._env.node}, where the server's files are, not {target}"
        asked = CertificateExpiryParams.model_validate(params)
        if asked.method == "clock":
            return shifted_clock.unfit(self._env, Path(str(asked.pidfile)))
        try:
            return self._why_not(asked)
        except InjectError as error:
            return str(error)

    def _why_not(self, asked: CertificateExpiryParams) -> str | None:
        path = Path(str(asked.cert_file)).resolve()
        reason = certificate_file.unfit(path)
        if reason is not None:
            return reason
        content = certificates.read(path)
        leaf = certificates.leaf_of(content)
        self._spoiled(asked, content)
        reason = reload.unfit(
            self._env, how=asked.reload, pidfile=asked.pidfile, name=asked.signal, command=asked.command
        )
        if reason is not None:
            return reason
        at = self._address(asked, content)
        if not asked.include_brokers and self._is_broker(at):
            return f"{asked.address} is a broker of this agent; its way to Kafka is cut only with include_brokers: true"
        if tls_look.presented(at) != certificates.digest(leaf):
            return f"the server at {asked.address} presents another certificate than the first one of {path}"
        distrusted = tls_look.distrust(at)
        return f"a client refuses {at.name} at {asked.address} already: {distrusted}" if distrusted else None

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:  # noqa: ARG002
        """Which bytes become which: hashes of both, the wrong certificate itself, and where the right bytes will be."""
        asked = CertificateExpiryParams.model_validate(params)
        if asked.method == "clock":
            shift = asked.shift_days if asked.kind == "expired" else -asked.shift_days
            return {"method": "clock", **shifted_clock.planned(self._env, Path(str(asked.pidfile)), shift, fault_id)}
        path = Path(str(asked.cert_file)).resolve()
        content = certificates.read(path)
        wrong = self._spoiled(asked, content)
        at = self._address(asked, content)
        made = certificates.leaf_of(wrong)
        return {
            "method": "certificate",
            "cert_file": str(asked.cert_file),
            "path": str(path),
            "fresh": str(path.with_name(f".{path.name}.{fault_id}")),
            "copy": str(self._env.state_dir / f"certificate-{fault_id}.pem"),
            "mtime_ns": path.stat().st_mtime_ns,
            **file_systems.planned(path.parent, self._env),
            "right": sha256(content),
            "wrong": sha256(certificates.with_leaf(content, wrong)),
            "leaf": wrong.decode(),
            "leaf_digest": certificates.digest(made),
            "not_before": made.not_valid_before_utc.isoformat(),
            "not_after": made.not_valid_after_utc.isoformat(),
            "host": at.host,
            "port": at.port,
            "server_name": at.name,
            "ca_file": str(at.ca_file),
            "protocol": at.protocol,
            "within": asked.within,
            **reload.planned(
                self._env, how=asked.reload, pidfile=asked.pidfile, name=asked.signal, command=asked.command
            ),
        }

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The file, or the process whose clock it is."""
        asked = CertificateExpiryParams.model_validate(params)
        return frozenset({f"clock:{asked.pidfile}" if asked.method == "clock" else f"file:{asked.cert_file}"})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """Copy, replace, reload; and back. The new file appears beside the old one first."""
        payload = entry.payload
        if payload.get("method") == "clock":
            return shifted_clock.typed(payload)
        path, copy, fresh = (shlex.quote(str(payload.get(name))) for name in ("path", "copy", "fresh"))
        again = reload.typed(payload)
        wrong = (
            f"mv {fresh} {path}  # first certificate: valid {payload.get('not_before')} to {payload.get('not_after')}"
        )
        return (f"cp -p {path} {copy}", wrong, *again, f"mv {copy} {path}", *again)

    def inject(self, entry: JournalEntry) -> None:
        """Keeps a copy, replaces the file, tells the server, and waits until it presents the new certificate."""
        payload = entry.payload
        if payload.get("method") == "clock":
            shifted_clock.shift(payload)
            return
        path = Path(str(payload["path"]))
        content = certificates.read(path)
        if sha256(content) != payload["right"]:
            raise InjectError(f"{path} was changed by somebody else a moment ago")
        certificate_file.keep(Path(str(payload["copy"])), content)
        wrong = certificates.with_leaf(content, str(payload["leaf"]).encode())
        certificate_file.replace(path, wrong, fresh=Path(str(payload["fresh"])))
        reload.tell(payload, self._env.procfs)
        self._wait(payload, wrong=True)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """The handshake: the wrong certificate is presented, and a client that trusts the authority refuses it."""
        payload = entry.payload
        if payload.get("method") == "clock":
            return shifted_clock.evidence(payload)
        at = _address_of(payload)
        ours = tls_look.presented(at) == payload.get("leaf_digest")
        refused = tls_look.distrust(at)
        detail: Payload = {
            "address": f"{at.host}:{at.port}",
            "presented_wrong": ours,
            "client_says": refused,
            **{name: payload.get(name) for name in ("not_before", "not_after", "reload")},
        }
        return Evidence(ours and refused is not None, detail)

    def undo(self, entry: JournalEntry) -> None:
        """Puts the right bytes back, or leaves a renewed certificate where it is, and tells the server."""
        payload = entry.payload
        if payload.get("method") == "clock":
            shifted_clock.restore(entry, self._env)
            return
        copy = Path(str(payload["copy"]))
        restored = self._restore(entry, copy)
        Path(str(payload["fresh"])).unlink(missing_ok=True)
        if restored or self._presents_wrong(payload):
            reload.tell(payload, self._env.procfs)
            self._wait(payload, wrong=False)
            if self._presents_wrong(payload):
                raise InjectError(f"the server at {payload['host']}:{payload['port']} still presents the wrong one")
        if self._is_in_file(entry):
            raise InjectError(f"somebody has put the wrong certificate back into {payload['path']}")
        certificate_file.discard(copy)

    def _restore(self, entry: JournalEntry, copy: Path) -> bool:
        """Whether bytes were put back."""
        payload = entry.payload
        path, leaf = Path(str(payload["path"])), str(payload["leaf_digest"])
        if not file_systems.holds(path.parent, entry, self._env):
            return False
        present = certificates.read(path) if path.exists() else b""
        if sha256(present) == payload["right"] or not (present or copy.exists()):
            return False
        if present and not certificates.holds(present, leaf):
            if certificates.first(present) is None:
                raise InjectError(f"{path} holds no certificate any more; {copy} is the right file")
            _log.info("the certificate was renewed meanwhile and stays", fault_id=entry.fault_id, path=str(path))
            return False
        content = certificates.read(copy)
        if sha256(content) != payload["right"]:
            raise InjectError(f"{copy} is not the copy that was made")
        mtime_ns = payload.get("mtime_ns")
        if present and sha256(present) != payload["wrong"]:  # somebody has changed something else in it
            content, mtime_ns = certificates.exchanged(present, leaf, content), None
        certificate_file.replace(
            path, content, fresh=Path(str(payload["fresh"])), mtime_ns=mtime_ns if isinstance(mtime_ns, int) else None
        )
        return True

    def _is_in_file(self, entry: JournalEntry) -> bool:
        path = Path(str(entry.payload["path"]))
        if not file_systems.holds(path.parent, entry, self._env) or not path.exists():
            return False
        return certificates.holds(certificates.read(path), str(entry.payload["leaf_digest"]))

    def verify(self, entry: JournalEntry) -> bool:
        """The wrong certificate is neither in the file nor presented."""
        payload = entry.payload
        if payload.get("method") == "clock":
            return shifted_clock.is_gone(entry, self._env)
        return not self._is_in_file(entry) and not self._presents_wrong(payload)

    def _presents_wrong(self, payload: Payload) -> bool:
        try:
            return tls_look.presented(_address_of(payload)) == payload.get("leaf_digest")
        except NobodyError:
            return False  # whoever starts there reads the file

    def _wait(self, payload: Payload, *, wrong: bool) -> None:
        """Until the server has changed, or its time is over; what it presents then is for others to judge."""
        deadline = time.monotonic() + float(str(payload.get("within") or 5.0))
        same = 0
        while same < _HANDSHAKES:
            same = same + 1 if self._presents_wrong(payload) is wrong else 0
            if time.monotonic() >= deadline:
                return
            if not same:
                time.sleep(_LOOK_S)

    def _spoiled(self, asked: CertificateExpiryParams, content: bytes) -> bytes:
        leaf = certificates.leaf_of(content)
        issuer = certificates.issuer_of(leaf, Path(str(asked.ca_file)), Path(str(asked.ca_key_file)))
        return certificates.spoiled(leaf, issuer, asked.kind, dt.datetime.now(dt.UTC))

    def _address(self, asked: CertificateExpiryParams, content: bytes) -> Address:
        host, _, port = str(asked.address).rpartition(":")
        host = host.strip("[]")
        name = asked.server_name or next(iter(certificates.names_of(certificates.leaf_of(content))), host)
        return Address(host, int(port), name.replace("*", "any"), Path(str(asked.ca_file)), asked.protocol)

    def _is_broker(self, at: Address) -> bool:
        """Whether one of the agent's own brokers is there, under whatever name."""
        here = {at.host, *_addresses(at.host)}
        for broker in self._env.brokers:
            host, _, port = broker.rpartition(":")
            if port == str(at.port) and here & {host, *_addresses(host)}:
                return True
        return False


def _address_of(payload: Payload) -> Address:
    protocol: Protocol = "postgres" if payload.get("protocol") == "postgres" else "tls"
    port = int(str(payload["port"]))
    return Address(str(payload["host"]), port, str(payload["server_name"]), Path(str(payload["ca_file"])), protocol)


def _addresses(host: str) -> set[str]:
    try:
        return {str(found[4][0]) for found in socket.getaddrinfo(host.strip("[]"), None)}
    except OSError:
        return set()


STRATEGY = CertificateExpiry
