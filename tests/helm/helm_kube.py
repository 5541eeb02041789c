"""A real Kubernetes API server on etcd, on loopback: what it stores, defaults, refuses and allows is what it does.

Nothing schedules: no controller and no kubelet run. What those would do to let an installation go on is done by hand:
`Kube.carry_out_jobs`.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

import httpx
import yaml
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from helm_chart import CHART, helm, programs, values_of
from lab.missing import MissingError
from lab.waiting import until

#: Loaded machines start slowly, seconds.
_START_S: Final = 90.0

Object = dict[str, Any]


class Kube:
    """The running server. Paths are the API's (`/api/v1/namespaces`)."""

    def __init__(self, url: str, folder: Path, token: str) -> None:
        self.url = url
        self.folder = folder
        self.admin = self.client(token)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "it",
            "clusters": [{"name": "it", "cluster": {"server": url, "certificate-authority": str(self.authority)}}],
            "users": [{"name": "admin", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "admin"}}],
        }
        self._config = folder / "kubeconfig"
        self._config.write_text(yaml.safe_dump(config))

    @property
    def authority(self) -> Path:
        """The certificate of the server, which it made itself."""
        return self.folder / "certs/apiserver.crt"

    def client(self, token: str) -> httpx.Client:
        """Requests in the name of whoever has the token."""
        headers = {"Authorization": f"Bearer {token}"}
        trust = ssl.create_default_context(cafile=str(self.authority))
        return httpx.Client(base_url=self.url, verify=trust, headers=headers, timeout=30)

    def get(self, path: str) -> Object:
        """What is stored there. Raises httpx.HTTPStatusError."""
        found: Object = self.admin.get(path).raise_for_status().json()
        return found

    def create(self, path: str, body: Mapping[str, Any]) -> Object:
        """Stores it; what is there already stays. Raises httpx.HTTPStatusError."""
        answer = self.admin.post(path, json=dict(body))
        if answer.status_code != httpx.codes.CONFLICT:
            assert answer.is_success, answer.text
        made: Object = answer.json()
        return made

    def namespace(self, name: str, level: str) -> str:
        """One whose pods must keep to a pod security level."""
        labels = {"pod-security.kubernetes.io/enforce": level}
        self.create("/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
        self.create(f"/api/v1/namespaces/{name}/serviceaccounts", {"metadata": {"name": "default"}})
        return name

    def helm(self, *words: str, given: Mapping[str, Any] | None = None) -> str:
        """Runs Helm against it and returns what it prints."""
        done = helm(*words, given=given, KUBECONFIG=str(self._config), HELM_CACHE_HOME=str(self.folder / "helm"))
        assert done.returncode == 0, done.stderr
        return done.stdout

    def install(self, release: str, namespace: str, values: str, **given: Any) -> str:
        """`helm upgrade --install` with a shipped set of values and what is given besides."""
        with self.carry_out_jobs(namespace):
            return self.helm(
                *("upgrade", "--install", release, str(CHART), "-n", namespace, "--timeout", "60s"),
                *("-f", str(values_of(values))),
                given=given,
            )

    def token(self, namespace: str, account: str) -> str:
        """A token of a service account, as its pods would have it."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token"
        made = self.admin.post(path, json={"spec": {"expirationSeconds": 600}}).raise_for_status().json()
        return str(made["status"]["token"])

    @contextlib.contextmanager
    def carry_out_jobs(self, namespace: str) -> Iterator[list[Object]]:
        """Says of every job that it is done, as its controller would; the list has those jobs."""
        path = f"/apis/batch/v1/namespaces/{namespace}/jobs"
        with self._seeing(path, self._finish, "completionTime") as done:
            yield done

    @contextlib.contextmanager
    def carry_out_pods(self, namespace: str) -> Iterator[list[Object]]:
        """Says of every pod that it has ended well, as its kubelet would; the list has those pods."""
        path = f"/api/v1/namespaces/{namespace}/pods"
        with self._seeing(path, lambda each: self._say(each, {"phase": "Succeeded"}), "startTime") as done:
            yield done

    @contextlib.contextmanager
    def _seeing(self, path: str, act: Callable[[str], None], over: str) -> Iterator[list[Object]]:
        done: dict[str, Object] = {}
        stop = threading.Event()

        def work() -> None:
            while not stop.wait(0.05):
                for each in self.get(path)["items"]:
                    if each["metadata"]["uid"] not in done and not each.get("status", {}).get(over):
                        act(f"{path}/{each['metadata']['name']}")
                        done[each["metadata"]["uid"]] = each
                        told.append(each)

        told: list[Object] = []
        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        try:
            yield told
        finally:
            stop.set()
            worker.join()

    def _finish(self, path: str) -> None:
        now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        conditions = [{"type": kind, "status": "True"} for kind in ("SuccessCriteriaMet", "Complete")]
        self._say(path, {"startTime": now, "completionTime": now, "succeeded": 1, "conditions": conditions})

    def _say(self, path: str, status: Mapping[str, Any]) -> None:
        kind = {"Content-Type": "application/merge-patch+json"}
        answer = self.admin.patch(f"{path}/status", json={"status": dict(status)}, headers=kind)
        # Helm may have taken it away meanwhile.
        assert answer.is_success or answer.status_code == httpx.codes.NOT_FOUND, answer.text


class Installed:
    """Name of a set of values → the namespace with its release `r`."""

    def __init__(self, server: Kube) -> None:
        self._server = server
        self.of = cache(self._install)

    def _install(self, name: str) -> str:
        namespace = self._server.namespace(f"chaos-{name}", "privileged")
        self._server.install("r", namespace, name)
        return namespace


@contextlib.contextmanager
def kube(folder: Path) -> Iterator[Kube]:
    """Starts etcd and the API server below `folder`.

    Raises:
        MissingError: etcd is not installed, or Go is not.
    """
    etcd = shutil.which("etcd")
    if etcd is None:
        raise MissingError("etcd is not installed (Debian: etcd-server)")
    server = programs() / "kube"
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    (folder / "accounts.key").write_bytes(key.private_bytes(*pem))
    token = secrets.token_hex(16)
    (folder / "tokens.csv").write_text(f"{token},admin,1,system:masters\n")
    clients, peers, port = _free_ports(3)
    store = f"http://127.0.0.1:{clients}"
    with (
        _running(
            folder / "etcd.log",
            *(etcd, "--data-dir", f"{folder}/etcd", "--listen-peer-urls", f"http://127.0.0.1:{peers}"),
            *("--listen-client-urls", store, "--advertise-client-urls", store, "--unsafe-no-fsync"),
        ),
        _running(
            folder / "kube.log",
            *(str(server), f"--etcd-servers={store}", "--bind-address=127.0.0.1", f"--secure-port={port}"),
            *(f"--cert-dir={folder}/certs", "--advertise-address=127.0.0.1", "--service-cluster-ip-range=10.96.0.0/24"),
            *("--service-account-issuer=https://kubernetes.default.svc", "--authorization-mode=RBAC"),
            "--allow-privileged",
            f"--service-account-signing-key-file={folder}/accounts.key",
            *(f"--service-account-key-file={folder}/accounts.key", f"--token-auth-file={folder}/tokens.csv"),
        ) as process,
    ):

        def ready() -> bool:
            assert process.poll() is None, (folder / "kube.log").read_text()[-2000:]
            try:
                return Kube(f"https://127.0.0.1:{port}", folder, token).admin.get("/readyz").is_success
            except (httpx.TransportError, OSError):
                return False

        until(ready, within_s=_START_S, every_s=0.1)
        yield Kube(f"https://127.0.0.1:{port}", folder, token)


@contextlib.contextmanager
def _running(log: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as file:
        process = subprocess.Popen(words, stdout=file, stderr=file)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()


def _free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        held = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in held:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in held]
