"""`database-outage`: one database cannot be reached, or has no connection to give, for the clients of this node.

By the network, in an nftables table of its own: new connections refused, open ones reset, or everything silent. Or
by the database itself: a process of ours takes its connections until it answers that there are no more.
"""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from gpuchaos_agent.inject import endpoints, hold, nft
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.database_probe import Attempt, Engine, Outcome, ask, attempt
from gpuchaos_agent.inject.database_rules import body
from gpuchaos_agent.inject.endpoints import Network
from gpuchaos_agent.inject.params import belong
from gpuchaos_agent.journal import JournalEntry, Scalar
from gpuchaos_agent.kernelfs import files
from gpuchaos_agent.kernelfs.processes import process_stat
from gpuchaos_stream.events.base import Authored

_HOLDER: Final = "gpuchaos_agent.inject.database_holder"
_ASK_S: Final = 1.0
_WAIT_S: Final = 0.4
_STEP_S: Final = 0.02
_FULL_WITHIN_S: Final = 10.0
_PROC: Final = Path("/proc")

#: What an attempt of a client meets in each mode.
_EXPECTED: Final = {
    "refused": frozenset({Outcome.REFUSED}),
    "reset": frozenset({Outcome.REFUSED, Outcome.RESET}),
    "hanging": frozenset({Outcome.SILENCE}),
    "exhausted": frozenset({Outcome.FULL}),
}


def _address(text: str) -> str:
    found = endpoints.parse(text)
    if found.host is None or found.ports is None or "-" in found.ports or "/" in found.host:
        raise ValueError(f"{text!r} is not one database; write db.local:5432 or [fd00::1]:6379")
    return text.strip()


class DatabaseOutageParams(Authored):
    """`address` is one database, `host:port`. `connections` is the most that `exhausted` opens.

    `scope` node: what programs and pods of this node send to it. `all`: also what reaches it here from elsewhere,
    which means something on the database's own node.
    """

    engine: Engine
    address: Annotated[str, AfterValidator(_address)]
    mode: Literal["refused", "reset", "hanging", "exhausted"] = "refused"
    scope: Literal["node", "all"] = "node"
    connections: int = Field(default=12000, ge=1, le=50000)

    @model_validator(mode="after")
    def _of_the_mode(self) -> Self:
        belong(self, "mode", {"connections": ("exhausted",), "scope": ("refused", "reset", "hanging")})
        return self


class DatabaseOutage:
    """One database out of reach; see the module."""

    name = "database-outage"
    layer = "connections to one database: TCP from this node, or the database's own connection limit"
    certifies = ("database-fallback",)
    not_certified = ("storage-failover", "data-durability", "node-isolation", "database-failover")
    params: type[Authored] = DatabaseOutageParams

    def __init__(self, env: Env, *, lookup: endpoints.Lookup = endpoints.lookup) -> None:
        self._env = env
        self._lookup = lookup
        self._standing: dict[str, socket.socket] = {}

    def unavailable(self) -> str | None:
        """`exhausted` needs nothing; what the other modes need is asked for by `check`."""
        return None

    def check(self, target: str, params: Mapping[str, Scalar]) -> str | None:
        """Refuses a database that does not answer even now, and the agent's own brokers."""
        if target != f"node/{self._env.node}":
            return f"the target must be node/{self._env.node}, not {target}"
        asked = DatabaseOutageParams.model_validate(params)
        reason = nft.unavailable() if asked.mode != "exhausted" else None
        if reason is not None:
            return reason
        try:
            networks, port = self._where(asked)
            for broker in self._env.brokers:
                way = endpoints.parse(broker)
                if way.ports == str(port) and set(endpoints.networks_of(way, self._lookup)) & set(networks):
                    return f"{asked.address} is the agent's own broker {broker}"
        except (InjectError, ValueError) as error:
            return str(error)
        _, now = _first_answer(asked.engine, networks, port)
        if now.outcome is Outcome.ANSWERED:
            return None
        return f"{asked.engine} at {asked.address} does not answer even now: {now.outcome} ({now.words})"

    def plan(self, target: str, params: Mapping[str, Scalar], fault_id: str) -> Payload:  # noqa: ARG002
        """Table and rules, or the permit of the holder; and what the database answers before."""
        asked = DatabaseOutageParams.model_validate(params)
        networks, port = self._where(asked)
        probed, before = _first_answer(asked.engine, networks, port)
        made: Payload = {
            "engine": asked.engine,
            "mode": asked.mode,
            "probe": probed,
            "port": port,
            "before": str(before.outcome),
            "before_ms": before.milliseconds,
        }
        if asked.mode == "exhausted":
            permit = self._env.state_dir / "hold" / f"{fault_id}.permit"
            return {**made, "permit": str(permit.absolute()), "connections": asked.connections}
        rules = body(networks, port, asked.mode, everybody=asked.scope == "all")
        return {**made, "table": nft.table_name(fault_id), "rules": rules}

    def resources(self, target: str, params: Mapping[str, Scalar]) -> frozenset[str]:  # noqa: ARG002
        """The path to the database."""
        return frozenset({f"path:{DatabaseOutageParams.model_validate(params).address}"})

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """The input of nft and the table's removal, or the holder and its permit."""
        if "table" in entry.payload:
            return nft.commands(str(entry.payload["table"]), str(entry.payload["rules"]))
        permit = entry.payload["permit"]
        return (f"touch {permit}", f"python -m {_HOLDER} {' '.join(_arguments(entry))}", f"rm {permit}")

    def inject(self, entry: JournalEntry) -> None:
        """Makes the table, or starts the holder and waits until the server is full."""
        if entry.boot_id != self._env.boot_id:
            raise InjectError("this was planned before a reboot")
        if "table" in entry.payload:
            if entry.payload["mode"] == "reset":
                self._stand(entry)
            nft.apply(str(entry.payload["table"]), str(entry.payload["rules"]))
            return
        permit = Path(str(entry.payload["permit"]))
        try:
            permit.parent.mkdir(parents=True, exist_ok=True)
            permit.touch()
        except OSError as error:
            raise InjectError(f"{permit}: {error.strerror}") from error
        hold.start(_HOLDER, _arguments(entry), log=permit.with_suffix(".log"), ready_s=_FULL_WITHIN_S)

    def evidence(self, entry: JournalEntry) -> Evidence:
        """What one more client meets, what the counters saw, and for `reset` what became of an open connection."""
        payload = entry.payload
        mode, engine = str(payload["mode"]), _engine(entry)
        detail: Payload = {"before": payload.get("before"), "before_ms": payload.get("before_ms")}
        standing = self._standing.pop(entry.fault_id, None)
        moved = True
        if standing is not None:
            with standing:
                became = ask(engine, standing, _WAIT_S)
            detail["open_connection"] = str(became.outcome)
            moved = became.outcome is Outcome.RESET
        deadline = time.monotonic() + _WAIT_S
        while True:
            met = attempt(engine, str(payload["probe"]), int(payload["port"] or 0), _WAIT_S)
            if met.outcome in _EXPECTED[mode] or time.monotonic() >= deadline:
                break
            time.sleep(_STEP_S)
        detail |= {"now": str(met.outcome), "now_words": met.words, "now_ms": met.milliseconds}
        moved = moved and met.outcome in _EXPECTED[mode] and payload.get("before") == Outcome.ANSWERED
        if "table" in payload:
            packets = sum(counter.packets for counter in nft.counters(str(payload["table"])).values())
            detail["packets"] = packets
            moved = moved and packets > 0
        else:
            detail["holder_pid"] = next(iter(_holders(entry)), (None, 0))[0]
        return Evidence(moved, detail)

    def undo(self, entry: JournalEntry) -> None:
        """Removes the table; takes the permit away and ends the holder, which gives its connections back."""
        standing = self._standing.pop(entry.fault_id, None)
        if standing is not None:
            standing.close()
        if "table" in entry.payload:
            if not nft.gone_with_boot(entry, self._env.boot_id):
                nft.remove(str(entry.payload["table"]))
            return
        permit = Path(str(entry.payload["permit"]))
        # First: a holder that is only just being started finds no permit and takes nothing.
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            permit.unlink()
        for pid, start in _holders(entry):
            found = entry.model_copy(update={"payload": {"holder_pid": pid, "holder_start": start}})
            hold.stop(found, entry.boot_id)
        permit.with_suffix(".log").unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            permit.parent.rmdir()

    def verify(self, entry: JournalEntry) -> bool:
        """No table; no permit and no holder."""
        if "table" in entry.payload:
            return nft.gone_with_boot(entry, self._env.boot_id) or not nft.exists(str(entry.payload["table"]))
        return not Path(str(entry.payload["permit"])).exists() and not _holders(entry)

    def _where(self, asked: DatabaseOutageParams) -> tuple[tuple[Network, ...], int]:
        found = endpoints.parse(asked.address)
        return endpoints.networks_of(found, self._lookup), int(found.ports or 0)

    def _stand(self, entry: JournalEntry) -> None:
        """One open connection, so that it can be seen to break."""
        address = (str(entry.payload["probe"]), int(entry.payload["port"] or 0))
        with contextlib.suppress(OSError):
            self._standing[entry.fault_id] = socket.create_connection(address, timeout=_WAIT_S)


def _first_answer(engine: Engine, networks: tuple[Network, ...], port: int) -> tuple[str, Attempt]:
    """The first address of the database that answers, or the last that did not."""
    deadline = time.monotonic() + 2 * _ASK_S
    tried = Attempt(Outcome.UNREACHABLE, "it has no address")
    address = ""
    for network in networks:
        address = str(network.network_address)
        tried = attempt(engine, address, port, min(_ASK_S, max(deadline - time.monotonic(), 0.05)))
        if tried.outcome is Outcome.ANSWERED:
            break
    return address, tried


def _arguments(entry: JournalEntry) -> list[str]:
    payload = entry.payload
    permit = Path(str(payload["permit"]))
    given = {
        "engine": payload["engine"],
        "address": payload["probe"],
        "port": payload["port"],
        "most": payload["connections"],
        "permit": permit,
        "entry": permit.parents[1] / "journal" / f"{entry.fault_id}.json",
        "until": entry.lease_deadline,
    }
    return [word for name, value in given.items() for word in (f"--{name}", str(value))]


def _holders(entry: JournalEntry) -> list[tuple[int, int]]:
    """Pid and start time of the processes that hold this fault: their command line names its permit."""
    found = []
    for process in _PROC.glob("[0-9]*"):
        words = (files.text(process / "cmdline") or "").split("\0")
        if _HOLDER in words and str(entry.payload["permit"]) in words:
            stat = process_stat(_PROC, int(process.name))
            if stat is not None and stat.state not in "ZX":
                found.append((int(process.name), stat.start))
    return found


def _engine(entry: JournalEntry) -> Engine:
    return "redis" if entry.payload["engine"] == "redis" else "postgres"


STRATEGY = DatabaseOutage
