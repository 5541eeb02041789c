"""Recovery checks against real services: a page with JSON, TCP, TLS, PostgreSQL, Redis; and servers that misbehave."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import shutil
import socket
import ssl
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from experiments_help import plan
from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_stream.events.observation import CheckState, ProbeResult
from gpuchaos_stream.experiments.address import parse_address
from gpuchaos_stream.experiments.plan import JsonField
from gpuchaos_stream.experiments.probes import Prober, one_field

OK, BAD, UNKNOWN = CheckState.OK, CheckState.BAD, CheckState.UNKNOWN
PASSWORD = "pencil, and räksmörgås"  # noqa: S105  (of a server that lives for one test)

Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def ask(kind: str, now: float = 0.0, **fields: Any) -> ProbeResult:
    """What one check of a plan's `recovery` is answered."""
    asked = plan(recovery=[{"name": "it", kind: fields}])
    async with Prober() as prober:
        (result,) = await prober.ask("e1", "c", asked, now or time.time())
    return result


@asynccontextmanager
async def serving(handler: Handler, **fields: Any) -> AsyncIterator[str]:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, EOFError):
            await handler(reader, writer)
        writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0, **fields)
    async with server:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"


def says(raw: bytes) -> Handler:
    async def handler(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(raw)
        await writer.drain()
        await reader.read()

    return handler


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


@pytest.mark.parametrize("kind", ["tcp", "tls", "postgres", "redis"])
async def test_a_refused_connection_is_bad_and_silence_is_unknown_within_its_time(kind: str, nobody: str) -> None:
    assert (await ask(kind, address=nobody)).state is BAD
    if kind != "tcp":
        began = time.monotonic()
        async with serving(says(b"")) as address:
            result = await ask(kind, address=address, timeout="300ms")
        assert (result.state, result.detail) == (UNKNOWN, "no answer within 0.3 s")
        assert time.monotonic() - began < 3


async def test_a_name_that_nobody_knows_is_unknown() -> None:
    result = await ask("tcp", address="no-such-host.invalid:80", timeout="5s")
    assert result.state is UNKNOWN
    assert result.detail


async def test_tcp_is_content_with_a_connection() -> None:
    async with serving(says(b"")) as address:
        assert (await ask("tcp", address=address)).state is OK


@pytest.mark.parametrize("kind", ["tls", "postgres", "redis"])
@pytest.mark.parametrize("raw", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n", b"\0" * 64, b"\xff" * 64])
async def test_a_server_that_speaks_something_else_is_never_in_tolerance(kind: str, raw: bytes) -> None:
    async with serving(says(raw)) as address:
        assert (await ask(kind, address=address, timeout="300ms")).state is not OK


# -- TLS ------------------------------------------------------------------------------------------------------


class Authority:
    """A certificate authority, and the certificates that it signs, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "authority")])
        self.file = folder / "ca.pem"
        own = self._made(self._name, self._key, days=10, ca=True)
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def context(self, name: str, *, begins: float = -1, days: float = 1) -> ssl.SSLContext:
        """A server's, with a certificate for `name` from `begins` days from now on."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = self._made(subject, key, begins=begins, days=days, host=name)
        file = self.folder / f"{name}-{begins}-{days}.pem"
        plain = serialization.NoEncryption()
        form = serialization.PrivateFormat.PKCS8
        file.write_bytes(
            key.private_bytes(serialization.Encoding.PEM, form, plain) + made.public_bytes(serialization.Encoding.PEM)
        )
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(file)
        return context

    def _made(
        self, subject: x509.Name, key: Any, *, days: float, begins: float = -1, ca: bool = False, host: str = ""
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now + dt.timedelta(days=begins))
            .not_valid_after(now + dt.timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        )
        if host:
            builder = builder.add_extension(x509.SubjectAlternativeName([x509.DNSName(host)]), critical=False)
        return builder.sign(self._key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(
    ("certificate", "check", "state", "words"),
    [
        ({}, {}, OK, ""),
        ({}, {"valid_for": "1h"}, OK, ""),
        ({"days": 0.01}, {"valid_for": "1h"}, BAD, "holds for 86"),
        ({"begins": -2, "days": -1}, {}, BAD, "expired"),
        ({"begins": 1, "days": 2}, {}, BAD, "not yet valid"),
        ({}, {"name": "other"}, BAD, "mismatch"),
        ({}, {"ca": None}, BAD, "issuer"),
        ({}, {"ca": "/no/such/file"}, UNKNOWN, "No such file"),
    ],
)
async def test_a_certificate_is_judged_by_authority_name_and_time(
    authority: Authority, certificate: dict[str, float], check: dict[str, Any], state: CheckState, words: str
) -> None:
    async with serving(says(b""), ssl=authority.context("web", **certificate)) as address:
        fields = {"name": "web", "ca": str(authority.file)} | check
        result = await ask("tls", address=address, **{k: v for k, v in fields.items() if v is not None})
    assert result.state is state, result.detail
    assert words in result.detail
    if state is OK:
        assert result.value == pytest.approx(86400, abs=60)


# -- databases ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


@pytest.fixture(scope="module")
def postgres(free_port: int) -> Iterator[tuple[str, Path]]:
    """Address of a real server and its folder; users log in as they are called."""
    places = sorted(Path("/usr/lib/postgresql").glob("*/bin"))
    initdb = shutil.which("initdb", path=os.pathsep.join([os.environ["PATH"], *map(str, places)]))
    if initdb is None or shutil.which("psql") is None:
        pytest.skip("PostgreSQL is not here: run `make tools`")
    tools = Path(initdb).resolve().parent if not shutil.which("pg_ctl") else Path(initdb).parent
    become = ["setpriv", "--reuid=postgres", "--regid=postgres", "--clear-groups"] if os.geteuid() == 0 else []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        data = folder / "data"
        if become:
            shutil.chown(folder, "postgres", "postgres")

        def run(*argv: str, by: Sequence[str] = become) -> None:
            subprocess.run([*by, *argv], check=True, capture_output=True, timeout=60, cwd=folder)

        run(str(tools / "initdb"), "-D", str(data), "-U", "trusted", "-A", "trust", "--no-sync")
        options = f"-p {free_port} -c listen_addresses=127.0.0.1 -c unix_socket_directories='' -c fsync=off"
        run(str(tools / "pg_ctl"), "-D", str(data), "-w", "-l", str(folder / "log"), "-o", options, "start")
        address = f"127.0.0.1:{free_port}"
        psql = ["psql", "-h", "127.0.0.1", "-p", str(free_port), "-U", "trusted", "-d", "postgres", "-c"]
        for user, how in (("scram", "scram-sha-256"), ("md5", "md5"), ("clear", "scram-sha-256")):
            run(
                *psql,
                f"set password_encryption = '{how}'",
                "-c",
                f"create role {user} login password '{PASSWORD}'",
                by=(),
            )
        ways = {"trusted": "trust", "scram": "scram-sha-256", "md5": "md5", "clear": "password", "barred": "reject"}
        (data / "pg_hba.conf").write_text(
            "".join(f"host all {user} 127.0.0.1/32 {way}\n" for user, way in ways.items())
        )
        run(*psql, "select pg_reload_conf()", by=())
        (folder / "password").write_text(PASSWORD + "\n")
        (folder / "wrong").write_text("wrong\n")
        try:
            yield address, folder
        finally:
            run(str(tools / "pg_ctl"), "-D", str(data), "-m", "immediate", "-w", "stop")


@pytest.mark.parametrize(
    ("user", "password", "state", "words"),
    [
        ("trusted", None, OK, ""),
        ("scram", "password", OK, ""),
        ("md5", "password", OK, ""),
        ("clear", "password", OK, ""),
        ("scram", None, UNKNOWN, "no password_file is given"),
        ("scram", "wrong", BAD, "28P01"),
        ("md5", "wrong", BAD, "28P01"),
        ("barred", "password", BAD, "28000"),
        ("scram", "nowhere", UNKNOWN, "No such file"),
    ],
)
async def test_a_real_postgres_is_asked_for_one_row(
    postgres: tuple[str, Path], user: str, password: str | None, state: CheckState, words: str
) -> None:
    address, folder = postgres
    given = {"password_file": str(folder / password)} if password else {}
    result = await ask("postgres", address=address, user=user, database="postgres", timeout="10s", **given)
    assert result.state is state, result.detail
    assert words in result.detail
    assert PASSWORD not in result.detail


async def test_a_database_that_is_not_there_is_bad(postgres: tuple[str, Path]) -> None:
    result = await ask("postgres", address=postgres[0], user="trusted", database="nowhere", timeout="10s")
    assert (result.state, "3D000" in result.detail) == (BAD, True)


@pytest.fixture(scope="module")
def redis() -> Iterator[tuple[str, Path]]:
    binary = shutil.which("redis-server")
    if binary is None:
        pytest.skip("Redis is not here: run `make tools`")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "password").write_text(PASSWORD + "\n")
        (folder / "wrong").write_text("wrong\n")
        argv = [
            binary,
            "--port",
            str(port),
            "--bind",
            "127.0.0.1",
            "--save",
            "",
            "--dir",
            name,
            "--requirepass",
            PASSWORD,
        ]
        server = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline:
                with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
            yield f"127.0.0.1:{port}", folder
        finally:
            server.terminate()
            server.wait(10)


@pytest.mark.parametrize(
    ("fields", "state", "words"),
    [
        ({"password_file": "password"}, OK, ""),
        ({"password_file": "password", "user": "default"}, OK, ""),
        ({}, UNKNOWN, "no password_file is given"),
        ({"password_file": "wrong"}, BAD, "WRONGPASS"),
    ],
)
async def test_a_real_redis_is_asked_for_a_pong(
    redis: tuple[str, Path], fields: dict[str, str], state: CheckState, words: str
) -> None:
    address, folder = redis
    given = {k: str(folder / v) if k == "password_file" else v for k, v in fields.items()}
    result = await ask("redis", address=address, timeout="10s", **given)
    assert result.state is state, result.detail
    assert words in result.detail


async def test_a_redis_that_is_still_loading_is_bad() -> None:
    async with serving(says(b"-LOADING Redis is loading the dataset in memory\r\n")) as address:
        result = await ask("redis", address=address)
    assert (result.state, result.detail) == (BAD, "PING: -LOADING Redis is loading the dataset in memory")


# -- a field of a page ----------------------------------------------------------------------------------------

PAGE = b'{"step": 12, "data_lost": 0, "ok": true, "checkpoints": {"state": "ok", "all": [{"good": true}]}, "no": null}'


@pytest.mark.parametrize(
    ("field", "state"),
    [
        ({"path": "step", "op": ">=", "value": 12}, OK),
        ({"path": "step", "op": ">", "value": 12}, BAD),
        ({"path": "data_lost", "value": 0}, OK),
        ({"path": "data_lost", "value": False}, BAD),
        ({"path": "ok", "value": True}, OK),
        ({"path": "checkpoints.state", "value": "ok"}, OK),
        ({"path": "checkpoints.state", "op": "!=", "value": "ok"}, BAD),
        ({"path": "checkpoints.all.0.good", "value": True}, OK),
        ({"path": "checkpoints.all.1.good", "value": True}, UNKNOWN),
        ({"path": "checkpoints.state", "op": ">=", "value": 1}, UNKNOWN),
        ({"path": "no", "op": ">=", "value": 1}, UNKNOWN),
        ({"path": "missing.there", "value": 1}, UNKNOWN),
        ({"path": "step.deeper", "value": 1}, UNKNOWN),
    ],
)
def test_a_field_of_a_page_is_compared_and_one_that_is_not_there_is_unknown(
    field: dict[str, Any], state: CheckState
) -> None:
    assert one_field(PAGE, JsonField.model_validate(field))[0] is state


@given(st.binary(max_size=40), st.sampled_from(["==", "!=", ">=", "<"]), st.sampled_from([1, "x", True]))
def test_no_page_raises(page: bytes, op: Any, value: Any) -> None:
    one_field(page, JsonField(path="a.0", op=op, value=value))
    one_field(b'{"a": [' + page + b"]}", JsonField(path="a.0", op=op, value=value))


async def test_a_page_is_read_only_where_its_status_is_right() -> None:
    async def page(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = await reader.readuntil(b"\r\n\r\n")
        status = b"200 OK" if b"GET /good" in line else b"503 No"
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s" % (status, len(PAGE), PAGE))
        await writer.drain()

    async with serving(page) as address:
        field = {"path": "step", "op": ">=", "value": 12}
        good = await ask("http", url=f"http://{address}/good", field=field)
        bad = await ask("http", url=f"http://{address}/bad", field=field)
    assert (good.state, good.value) == (OK, 12.0)
    assert (bad.state, bad.detail) == (BAD, "status 503")


@pytest.mark.parametrize(
    ("text", "found"),
    [("db:5432", ("db", 5432)), ("10.0.0.7:1", ("10.0.0.7", 1)), ("[fd00::1]:443", ("fd00::1", 443))],
)
def test_an_address_is_a_host_and_a_port(text: str, found: tuple[str, int]) -> None:
    assert parse_address(text) == found


@pytest.mark.parametrize("text", ["db", "db:", ":5432", "db:x", "db:0", "db:65536", "fd00::1:443", "http://db:80/"])
def test_what_is_no_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no address"):
        parse_address(text)
