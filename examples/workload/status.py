"""How a run is, from its files: by command, and as a page (`/status` JSON, `/metrics` for Prometheus)."""

from __future__ import annotations

import json
import os
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from workload.authority import not_after
from workload.ledger import Audit
from workload.settings import Folder, Settings, read_json
from workload.volume import Volume

#: How long one reading of the volume is good for, seconds.
_FRESH_S: Final = 1.0


class Status:
    """Reads the folder of a run; again and again at little cost."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder
        self._settings = folder.settings()
        self._audit = Audit(folder.ledger, self._settings.seed, self._settings.batch)
        self._volume = Volume(
            folder.checkpoints(self._settings),
            self._settings.keep,
            checksums=True,
            timeout=min(2.0, self._settings.storage_timeout),
        )
        self._looked: tuple[float, dict[str, Any]] = (0.0, {})
        self._lock = threading.Lock()

    def read(self) -> dict[str, Any]:
        """All of it."""
        with self._lock:
            return self._read()

    def close(self) -> None:
        """Ends the process that read the volume."""
        self._volume.close()

    def _read(self) -> dict[str, Any]:
        state = read_json(self._folder.state_file)
        audit = self._audit.read()
        running = state.get("state") in ("starting", "running", "restarting")
        now = time.time()
        return {
            "run": state.get("run", ""),
            "state": "dead" if running and not _alive(state.get("pid", 0)) else state.get("state", "unknown"),
            "step": audit.step,
            "loss": audit.loss,
            "restarts": state.get("restarts", 0),
            "attempt": state.get("attempt", 0),
            "last_failure": state.get("last_failure", ""),
            "steps_lost": audit.steps_lost,
            "data_lost": audit.data_lost(),
            "bad_weights_loaded": audit.bad_weights,
            "replayed_otherwise": audit.replayed_other,
            "resumed_from": audit.resumed_from,
            "refused": audit.refused,
            "checksums": self._settings.checksums,
            "ranks": [self._rank(each, now) for each in state.get("ranks", [])],
            "checkpoints": self._checkpoints(),
            "database": self._database(now),
            "certificates": self._certificates(self._settings, now),
        }

    def _rank(self, place: dict[str, Any], now: float) -> dict[str, Any]:
        beat = read_json(self._folder.heartbeat(place["rank"]))
        return {
            **place,
            "alive": _alive(place["pid"]),
            "step": beat.get("step"),
            "step_time": beat.get("step_time"),
            "compute_time": beat.get("compute_time"),
            "age": round(now - beat["time"], 3) if "time" in beat else None,
        }

    def _checkpoints(self) -> dict[str, Any]:
        at, found = self._looked
        if time.monotonic() - at > _FRESH_S or not found:
            try:
                checked: dict[str, str] = self._volume.ask({"do": "check"})[0]["checked"]
            except OSError as error:
                found = {"state": "unreachable", "good": None, "bad": None, "newest_good": None, "why": str(error)}
            else:
                good = [name for name, why in checked.items() if not why]
                damaged = {name: why for name, why in checked.items() if why}
                newest = good[-1] if good else None
                found = {"state": "ok", "good": len(good), "bad": len(damaged), "newest_good": newest, "why": ""}
                found["damaged"] = damaged
            self._looked = (time.monotonic(), found)
        return {**found, **read_json(self._folder.saves_file)}

    def _database(self, now: float) -> dict[str, Any]:
        if not self._settings.database:
            return {"state": "none"}
        found = read_json(self._folder.metadata_file) or {"state": "unknown"}
        answered = {"up": "database", "down": "cache"}.get(str(found["state"]))
        try:
            age = round(now - self._folder.metadata_file.stat().st_mtime, 3)
        except OSError:
            age = None
        return {**found, "answered_by": answered, "age": age}

    def _certificates(self, settings: Settings, now: float) -> list[dict[str, Any]]:
        found = []
        for rank in range(settings.ranks if settings.tls else 0):
            end = not_after(self._folder.tls, rank)
            left = None if end is None else round(end - now, 1)
            stamp = None if end is None else time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(end))
            found.append({"rank": rank, "not_after": stamp, "seconds_left": left})
        return found


def serve(status: Status, port: int) -> ThreadingHTTPServer:
    """The page, on this machine's own address; answers until the process ends.

    Raises:
        OSError: the port is taken.
    """

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            said = status.read()
            if self.path.startswith("/metrics"):
                kind, text = "text/plain; version=0.0.4", metrics(said)
            else:
                kind, text = "application/json", json.dumps(said) + "\n"
            body = text.encode()
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_args: object) -> None:
            """The log is the training's."""

    server = ThreadingHTTPServer(("127.0.0.1", port), Page)
    threading.Thread(target=server.serve_forever, name="status page", daemon=True).start()
    return server


def metrics(said: dict[str, Any]) -> str:
    """In Prometheus' text form; what is not known has no line."""
    rows: list[tuple[str, str, str, Any]] = [
        ("workload_step", "counter", "", said["step"]),
        ("workload_loss", "gauge", "", said["loss"]),
        ("workload_restarts_total", "counter", "", said["restarts"]),
        ("workload_steps_lost_total", "counter", "", said["steps_lost"]),
        ("workload_data_lost_samples", "gauge", "", said["data_lost"]),
        ("workload_bad_weights_loaded_total", "counter", "", said["bad_weights_loaded"]),
        ("workload_checkpoints_good", "gauge", "", said["checkpoints"]["good"]),
        ("workload_checkpoints_bad", "gauge", "", said["checkpoints"]["bad"]),
        ("workload_checkpoints_failed_total", "counter", "", said["checkpoints"].get("failed")),
        ("workload_database_up", "gauge", "", {"up": 1, "down": 0}.get(said["database"]["state"])),
        ("workload_database_records_waiting", "gauge", "", said["database"].get("waiting")),
    ]
    rows += [
        ("workload_certificate_seconds_left", "gauge", f'{{rank="{each["rank"]}"}}', each["seconds_left"])
        for each in said["certificates"]
    ]
    for name, key in (("step_time", "step_time"), ("compute_time", "compute_time"), ("heartbeat_age", "age")):
        rows += [
            (f"workload_{name}_seconds", "gauge", f'{{rank="{each["rank"]}"}}', each[key]) for each in said["ranks"]
        ]
    lines, before = [], ""
    for name, kind, labels, value in rows:
        if value is None:
            continue
        if name != before:
            lines.append(f"# TYPE {name} {kind}")
            before = name
        lines.append(f"{name}{labels} {value}")
    return "\n".join(lines) + "\n"


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, TypeError):
        return False
    except PermissionError:
        return True
    return pid > 0
