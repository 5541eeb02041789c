"""A real Kafka that lets in only whom it knows, over TLS, and lets each do only what it was granted."""

from __future__ import annotations

import contextlib
import datetime as dt
import ipaddress
import re
import socket
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.protocol.admin import CreateAclsRequest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from lab.waiting import until

from gpuchaos_stream.stream.brokers import LOOPBACK, free_ports
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.kafka import JVM_OPTIONS, PROPERTIES, fetch
from gpuchaos_stream.stream.settings import KafkaSettings, aiokafka_options

#: Who may do everything: makes the grants.
ADMIN: Final = "admin"
MECHANISM: Final = "SCRAM-SHA-512"
#: Of Kafka's protocol: what a right is over, what it allows, how its name is matched.
_KINDS: Final = {"topic": 2, "group": 3, "cluster": 4}
_OPERATIONS: Final = {"Read": 3, "Write": 4, "Create": 5, "Describe": 8}
_LITERAL: Final = 3
_ALLOW: Final = 3
#: What the broker writes for each thing that it refused.
DENIED: Final = re.compile(r"Principal = User:(\S+) is Denied operation = (\S+) from host = \S+ on resource = (\S+)")

_LOCKS: Final = """\
listeners=SASL_SSL://{host}:{port},CONTROLLER://{host}:{controller_port}
advertised.listeners=SASL_SSL://{host}:{port}
listener.security.protocol.map=SASL_SSL:SASL_SSL,CONTROLLER:PLAINTEXT
inter.broker.listener.name=SASL_SSL
sasl.enabled.mechanisms={mechanism}
sasl.mechanism.inter.broker.protocol={mechanism}
listener.name.sasl_ssl.scram-sha-512.sasl.jaas.config=\
org.apache.kafka.common.security.scram.ScramLoginModule required username="{admin}" password="{password}";
ssl.keystore.type=PEM
ssl.keystore.location={keystore}
ssl.truststore.type=PEM
ssl.truststore.location={authority}
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:{admin};User:ANONYMOUS
"""


def password(user: str) -> str:
    """Of a user of the tests."""
    return f"secret-of-{user}"


@dataclass(frozen=True)
class Right:
    """One thing that one user may do."""

    user: str
    operation: str
    kind: str
    name: str


@dataclass
class LockedKafka:
    """A broker that runs, how a user reaches it, and whom it refused what."""

    folder: Path
    port: int
    child: Child

    def settings(self, user: str, **other: Any) -> KafkaSettings:
        """What this user sets."""
        mine: dict[str, Any] = {
            "bootstrap_servers": f"{LOOPBACK}:{self.port}",
            "security_protocol": "SASL_SSL",
            "ca_file": self.folder / "ca.pem",
            "sasl_mechanism": MECHANISM,
            "sasl_username": user,
            "sasl_password": password(user),
            "session_timeout_s": 6.0,
            "heartbeat_interval_s": 1.0,
        }
        return KafkaSettings(**{**mine, **other})

    def denied(self) -> list[tuple[str, str, str]]:
        """User, operation and resource of everything that was refused until now, in order."""
        return [(match[1], match[2], match[3]) for match in DENIED.finditer(self.child.said())]

    async def grant(self, rights: Iterable[Right]) -> None:
        """Lets users do what is theirs, as Kafka's `kafka-acls` would.

        The client library has Kafka's message for it, and no method.
        """
        admin = AIOKafkaAdminClient(**aiokafka_options(self.settings(ADMIN)))
        await admin.start()
        try:
            for one in rights:
                named = _KINDS[one.kind], one.name, _LITERAL, f"User:{one.user}", "*"
                answer = await admin._send_request(CreateAclsRequest(*named, _OPERATIONS[one.operation], _ALLOW))
                assert [code for code, *_ in answer.creation_responses] == [0], (one, answer)
        finally:
            await admin.close()


@contextlib.contextmanager
def locked_kafka(folder: Path, users: Sequence[str]) -> Iterator[LockedKafka]:
    """Starts one that knows these users, and `ADMIN`; nobody but that one may do anything yet."""
    folder.mkdir(parents=True, exist_ok=True)
    certify(folder)
    port, controller_port = free_ports(LOOPBACK, 2)
    names = {"host": LOOPBACK, "port": port, "controller_port": controller_port}
    plain = PROPERTIES.format(**names, logs=folder / "logs")
    locks = _LOCKS.format(
        **names,
        mechanism=MECHANISM,
        admin=ADMIN,
        password=password(ADMIN),
        keystore=folder / "broker.pem",
        authority=folder / "ca.pem",
    )
    replaced = {line.partition("=")[0] for line in locks.splitlines()}
    kept = [line for line in plain.splitlines() if line.partition("=")[0] not in replaced]
    properties = folder / "server.properties"
    properties.write_text("\n".join(kept) + "\n" + locks)
    java = ["java", *JVM_OPTIONS, "-Dorg.slf4j.simpleLogger.log.kafka.authorizer.logger=info", "-cp", f"{fetch()}/*"]
    secrets = [f"--add-scram={MECHANISM}=[name={user},password={password(user)}]" for user in (ADMIN, *users)]
    identity = "--cluster-id=AAAAAAAAAAAAAAAAAAAAAA"
    subprocess.run(
        [*java, "kafka.tools.StorageTool", "format", identity, f"--config={properties}", *secrets],
        check=True,
        capture_output=True,
        timeout=60,
    )
    child = Child("kafka", [*java, "kafka.Kafka", str(properties)], log_file=folder / "kafka.log").start()
    try:
        running = LockedKafka(folder, port, child)
        until(lambda: _listens(port) or not child.running, 60, "no Kafka", every_s=0.05)
        assert child.running, child.tail()
        yield running
    finally:
        child.kill()


def certify(folder: Path) -> None:
    """Makes `ca.pem`, an authority, and `broker.pem`: key and certificate of a server on loopback."""
    authority, its_key = _certificate("authority of the tests", None, None)
    broker, key = _certificate("broker", authority, its_key)
    (folder / "ca.pem").write_bytes(authority.public_bytes(serialization.Encoding.PEM))
    (folder / "broker.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
        + broker.public_bytes(serialization.Encoding.PEM)
    )


def _certificate(
    name: str, issuer: x509.Certificate | None, issuers_key: ec.EllipticCurvePrivateKey | None
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    own = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(LOOPBACK))])
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject if issuer is None else issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=issuer is None, path_length=None), critical=True)
        .add_extension(own, critical=False)
        .sign(issuers_key or key, hashes.SHA256())
    )
    return made, key


def _listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection((LOOPBACK, port), timeout=1):
        return True
    return False
