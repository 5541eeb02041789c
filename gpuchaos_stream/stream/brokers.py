"""A broker as a child process: started, paused, killed, restarted; gone when its parent is gone."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final, Literal, Self

from gpuchaos_stream.errors import UserError
from gpuchaos_stream.stream import embedded, kafka
from gpuchaos_stream.stream.child import LAUNCHER
from gpuchaos_stream.stream.settings import KafkaSettings, environment

Kind = Literal["kafka", "embedded"]

#: Seconds until a started broker must answer; 2 to 3 on an idle machine, far more on a loaded one.
READY_TIMEOUT_S: Final = 60.0
#: Seconds that a broker may take to end when it is asked to.
STOP_TIMEOUT_S: Final = 5.0
#: Lines of the log that an error quotes.
_TAIL_LINES: Final = 15
#: Another process may take a port between its choice and its use.
_TRIES: Final = 3

#: Session timeout and heartbeat (seconds) on a broker that this machine runs for itself.
_SESSIONS: Final[dict[Kind, tuple[float, float]]] = {
    "kafka": (6.0, 1.0),
    "embedded": (embedded.SESSION_TIMEOUT_S, embedded.HEARTBEAT_INTERVAL_S),
}

LOOPBACK: Final = "127.0.0.1"


class RunningBroker:
    """A broker at `host`. A context manager: leaving it ends the broker and removes a temporary folder."""

    def __init__(
        self, kind: Kind, data_dir: Path, port: int, controller_port: int, *, owns_data: bool, host: str = LOOPBACK
    ) -> None:
        self.kind = kind
        self.host = host
        self.data_dir = data_dir
        self.port = port
        self._controller_port = controller_port
        self._owns_data = owns_data
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        """`host:port`, for `--bootstrap-servers`."""
        return f"{self.host}:{self.port}"

    @property
    def log_file(self) -> Path:
        """What the broker said; goes with the folder when that is temporary."""
        return self.data_dir / "broker.log"

    @property
    def settings(self) -> KafkaSettings:
        """Settings that reach it, whatever the environment says, with timeouts fit for a local broker."""
        session, heartbeat = _SESSIONS[self.kind]
        return KafkaSettings(
            bootstrap_servers=self.bootstrap,
            security_protocol="PLAINTEXT",
            ca_file=None,
            cert_file=None,
            key_file=None,
            sasl_username=None,
            sasl_password=None,
            session_timeout_s=session,
            heartbeat_interval_s=heartbeat,
        )

    @property
    def env(self) -> dict[str, str]:
        """`settings` as `KAFKA_…` variables, for a child process."""
        return environment(self.settings)

    @property
    def running(self) -> bool:
        """Whether its process lives (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    def start(self, timeout_s: float = READY_TIMEOUT_S) -> None:
        """Starts the process and returns when the broker answers.

        Raises:
            UserError: what it takes is not installed, it ended, or it does not answer in time; with its log's end.
        """
        command = self._command()
        with self.log_file.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", LAUNCHER, str(os.getpid()), *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.data_dir,
                start_new_session=True,
            )
        deadline = time.monotonic() + timeout_s
        while not _answers(self.host, self.port):
            if self._process.poll() is not None:
                raise UserError(f"broker {self.kind}", f"ended with status {self._process.returncode}", self._said())
            if time.monotonic() > deadline:
                self.kill()
                raise UserError(f"broker {self.kind}", f"does not answer after {timeout_s:.0f} s", self._said())
            time.sleep(0.05)

    def stop(self) -> None:
        """Ends it in order, by force after `STOP_TIMEOUT_S`. Does nothing when it has ended."""
        if self._process is None:
            return
        self._signal(signal.SIGCONT)
        self._signal(signal.SIGTERM)
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """Ends it as a power cut would (SIGKILL)."""
        self._signal(signal.SIGKILL)
        if self._process is not None:
            self._process.wait()

    def pause(self) -> None:
        """Stops it where it stands (SIGSTOP): connections stay open and nothing is answered."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Lets it run again after `pause`."""
        self._signal(signal.SIGCONT)

    def restart(self) -> None:
        """Starts it again on the same port and data, after `stop` or `kill`.

        Raises:
            NotImplementedError: the embedded broker, which holds its data in memory and would come back empty.
        """
        if self.kind == "embedded":
            raise NotImplementedError("the embedded broker keeps its data in memory: after a restart it is empty")
        self.stop()
        self.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        if self._owns_data:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def _command(self) -> list[str]:
        if self.kind == "kafka":
            return kafka.prepare(self.data_dir, self.host, self.port, self._controller_port)
        return embedded.command(self.host, self.port)

    def _signal(self, number: signal.Signals) -> None:
        if self.running and self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, number)

    def _said(self) -> str:
        lines = self.log_file.read_text("utf-8", "replace").splitlines()[-_TAIL_LINES:]
        return "it said:\n" + "\n".join(lines or ["nothing"])


def start_broker(kind: Kind, data_dir: Path | None = None, host: str = LOOPBACK) -> RunningBroker:
    """Starts a broker on free ports of `host` and returns it, answering; use it as a context manager.

    Without `data_dir` its data lies in a temporary folder that goes with it. The kernel kills the broker when
    the *thread* that called this ends (PR_SET_PDEATHSIG), so call it from the main thread.

    Raises:
        UserError: what it takes is not installed, or it does not start; with the end of its log.
    """
    owns = data_dir is None
    folder = Path(tempfile.mkdtemp(prefix=f"gpuchaos-{kind}-")) if data_dir is None else data_dir
    folder.mkdir(parents=True, exist_ok=True)
    for attempt in range(1, _TRIES + 1):
        port, controller_port = free_ports(host, 2)
        broker = RunningBroker(kind, folder, port, controller_port, owns_data=owns, host=host)
        try:
            broker.start()
        except UserError:
            taken = broker.log_file.exists() and "Address already in use" in broker.log_file.read_text(
                "utf-8", "replace"
            )
            broker.kill()
            if attempt == _TRIES or not taken:
                if owns:
                    shutil.rmtree(folder, ignore_errors=True)
                raise
        except BaseException:
            broker.__exit__()
            raise
        else:
            return broker
    raise AssertionError  # the last attempt returned or raised


def free_ports(host: str, count: int) -> list[int]:
    """Ports of `host`, all different, that nobody had a moment ago."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def _answers(host: str, port: int) -> bool:
    """Whether a Metadata request (version 1, of no topic) names at least one live broker.

    A connection alone says little: a KRaft node listens before its controller lets it serve.
    """
    client = b"gpuchaos"
    header = struct.pack(">hhih", 3, 1, 1, len(client)) + client  # api key, version, correlation id
    body = struct.pack(">i", 0)  # an empty list of topics
    request = header + body
    try:
        with socket.create_connection((host, port), timeout=1.0) as connection:
            connection.sendall(struct.pack(">i", len(request)) + request)
            answer = _read(connection, 4)
            size = struct.unpack(">i", answer)[0]
            content = _read(connection, size)
    except OSError:
        return False
    return len(content) >= 8 and struct.unpack(">i", content[4:8])[0] > 0


def _read(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        part = connection.recv(size - len(data))
        if not part:
            raise ConnectionResetError("the broker hung up")
        data += part
    return data
