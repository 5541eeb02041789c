"""The whole house on one machine: broker, keys, topics, worker, simulated cluster, agents, as processes.

What `gpuchaos dev`, the demo and the integration tests start; each part is the real command with real options,
so that what is tried here is what runs elsewhere.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from gpuchaos_stream.events.command import Role
from gpuchaos_stream.events.signing import KeyRing, Signer
from gpuchaos_stream.stream.brokers import LOOPBACK, Kind, RunningBroker, start_broker
from gpuchaos_stream.stream.child import Child
from gpuchaos_stream.stream.settings import KafkaSettings, environment
from gpuchaos_stream.stream.topics_admin import complete_topics

#: What the worker, the simulated cluster and the agent say when they are ready.
READY: Final = "ready"
#: What `gpuchaos serve` says, with its address.
SERVING: Final = "serve started"

_GPUCHAOS: Final = (sys.executable, "-m", "gpuchaos_stream.cli")
_AGENT: Final = (sys.executable, "-m", "gpuchaos_agent.agent")


class House:
    """A context manager: leaving it ends all it started, in the reverse order.

    `folder` gets keys, data and logs. The broker is started at `host`; with `broker` None the house uses `settings` to
    reach one that runs.
    """

    def __init__(
        self,
        folder: Path,
        *,
        broker: Kind | None = "embedded",
        host: str = LOOPBACK,
        settings: KafkaSettings | None = None,
    ) -> None:
        self.folder = folder
        self._kind = broker
        self._host = host
        self._settings = settings
        self._stack = contextlib.ExitStack()
        self.broker: RunningBroker | None = None
        self.children: list[Child] = []

    @property
    def settings(self) -> KafkaSettings:
        """How to reach the broker."""
        if self.broker is not None:
            return self.broker.settings
        if self._settings is None:
            raise RuntimeError("the house was not entered, or neither a broker nor settings were given")
        return self._settings

    @property
    def env(self) -> dict[str, str]:
        """Environment of every part: the broker, and the operator's key."""
        return {**environment(self.settings), "GPUCHAOS_KEY": str(self.key(Role.OPERATOR)), "PYTHONUNBUFFERED": "1"}

    @property
    def keyring(self) -> Path:
        """The ring of public keys."""
        return self.folder / "keys" / "keyring.json"

    def key(self, role: Role) -> Path:
        """The private key of a role."""
        return self.folder / "keys" / f"{role.value}.json"

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.folder.mkdir(parents=True, exist_ok=True)
            if self._kind is not None:
                self.broker = stack.enter_context(start_broker(self._kind, host=self._host))
            self._make_keys()
            asyncio.run(complete_topics(self.settings))
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def worker(self, name: str = "worker", *options: str) -> Child:
        """A worker, started; wait for `READY`. Its table data lies in a folder of its name."""
        return self.start(
            name,
            *_GPUCHAOS,
            "worker",
            "--key",
            str(self.key(Role.CONTROL)),
            "--keyring",
            str(self.keyring),
            "--data-dir",
            str(self.folder / name),
            *options,
        )

    def page(self, *options: str) -> Child:
        """The live page with its API, started on a free port; wait for `SERVING`."""
        return self.start("page", *_GPUCHAOS, "serve", "--port", "0", *options)

    def sim(self, *options: str) -> Child:
        """A simulated cluster, started; wait for `READY`."""
        return self.start("sim", *_GPUCHAOS, "sim", "--keyring", str(self.keyring), *options)

    def agent(self, name: str, *options: str) -> Child:
        """A node agent on this machine, started; wait for `READY`."""
        state = self.folder / f"{name}-state"
        return self.start(
            name, *_AGENT, "--node", name, "--keyring", str(self.keyring), "--state-dir", str(state), *options
        )

    def start(self, name: str, *argv: str) -> Child:
        """Any further process of the house."""
        child = Child(name, argv, log_file=self.folder / "logs" / f"{name}.log", env=self.env).start()
        self.children.append(child)
        self._stack.callback(child.stop)
        return child

    def _make_keys(self) -> None:
        if self.keyring.exists():
            return
        ring = KeyRing()
        for role in Role:
            signer = Signer.generate(role)
            signer.save(self.key(role))
            ring = ring.with_key(signer.trusted(owner="dev"))
        ring.save(self.keyring)
