"""`erring`: the device-mapper device below the filesystem answers with EIO; its own table comes back afterwards.

A filesystem whose journal cannot be written gives itself up and stays read-only when its disk is well again. So the
plan has to agree (`remount`) that the undo unmounts it and mounts it again, once nobody has it open.
"""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Final

from gpuchaos_agent.inject import storage_probe, tools
from gpuchaos_agent.inject.base import Env, Evidence, InjectError, Payload
from gpuchaos_agent.inject.storage_mode import (
    StorageDisconnectParams,
    same_boot,
    standing,
    told,
    word,
    write,
)
from gpuchaos_agent.inject.storage_mounts import Mount, device_mapper, mounts
from gpuchaos_agent.journal import JournalEntry

#: Options of the mount table that mount(8) does not take back as they are shown.
_SHOWN_ONLY: Final = frozenset({"relatime", "rw", "seclabel"})
#: A key in a table (crypt, integrity) would be in the journal.
_SECRET: Final = frozenset({"crypt", "integrity", "era", "verity"})
_LONGEST: Final = 16384


class Erring:
    """See the module."""

    def why_not(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None) -> str | None:
        """Needs a device-mapper device that can be reloaded, mounted once, with nothing mounted below it."""
        if mount is None:
            return None
        name = device_mapper(mount.device, env.sysfs)
        if name is None:
            return f"{mount.path} is not on a device-mapper device: nothing between it and its disk can be made to err"
        reason = tools.missing("dmsetup", "mount", "umount") or _why_not_mount(env, mount)
        if reason is not None:
            return reason
        try:
            _erring(_table(name), asked.errors)
            known = tools.run(["dmsetup", "targets"])
        except InjectError as error:
            return str(error)
        needed = "error" if asked.errors == "all" else "flakey"
        loaded = any(line.split()[:1] == [needed] for line in known.splitlines())
        return None if loaded else f"this kernel has no device-mapper target {needed} loaded (modprobe dm-{needed})"

    def plan(self, env: Env, asked: StorageDisconnectParams, mount: Mount | None, fault_id: str) -> Payload:  # noqa: ARG002
        """Both tables, and how it is mounted."""
        name = device_mapper(mount.device, env.sysfs) if mount is not None else None
        if mount is None or name is None:
            raise InjectError("it is mounted no more")
        before = _table(name)
        options = [*mount.options.split(","), *mount.super_options.split(",")]
        return {
            "device": name,
            "block": f"/dev/{Path(os.path.realpath(env.sysfs / 'dev/block' / mount.device)).name}",
            "table": before,
            "erring": _erring(before, asked.errors),
            "errors": asked.errors,
            "options": ",".join(dict.fromkeys(o for o in options if o not in _SHOWN_ONLY)),
        }

    def commands(self, entry: JournalEntry) -> tuple[str, ...]:
        """dmsetup's, with both tables."""
        name = shlex.quote(word(entry, "device"))
        swap = f"dmsetup suspend --noflush --nolockfs {name} && dmsetup resume {name}"
        again = f"umount {shlex.quote(word(entry, 'mount'))} && {shlex.join(_mount(entry))}"
        return (
            f"dmsetup load {name} <<'EOF'\n{word(entry, 'erring')}\nEOF\n{swap}",
            f"dmsetup load {name} <<'EOF'\n{word(entry, 'table')}\nEOF\n{swap}",
            f"{again}  # only if it has given itself up",
        )

    def inject(self, env: Env, entry: JournalEntry) -> None:
        """Exchanges the table."""
        if standing(env, entry) is None or not same_boot(env, entry):
            raise InjectError(f"{word(entry, 'mount')} is not mounted as it was")
        _exchange(word(entry, "device"), word(entry, "erring"))

    def evidence(self, env: Env, entry: JournalEntry) -> Evidence:  # noqa: ARG002
        """EIO of the device itself, past every cache; of a write where only writes err."""
        reads = word(entry, "errors") == "all"
        said = storage_probe.run("read_device", word(entry, "block")) if reads else write(entry)
        return Evidence(said.outcome == "EIO", {**told(entry, said), "device": entry.payload.get("device")})

    def undo(self, env: Env, entry: JournalEntry) -> None:
        """Its own table again; and mounted again if it is read-only or gone by now."""
        name = word(entry, "device")
        if not same_boot(env, entry):
            return
        if _state(name) is None:
            raise InjectError(f"the device {name} is gone")
        if _is_exchanged(name, word(entry, "table")):
            _exchange(name, word(entry, "table"))
        mount = standing(env, entry)
        if mount is not None and (not mount.writable or write(entry).outcome in {"EROFS", "EIO"}):
            tools.run(["umount", mount.path])
            mount = None
        if mount is None and not any(each.path == word(entry, "mount") for each in mounts(env.procfs)):
            tools.run(_mount(entry), timeout_s=30)

    def verify(self, env: Env, entry: JournalEntry) -> bool:
        """The table is as it was, the device runs, and a write is on the disk."""
        if not same_boot(env, entry):
            return True
        name = word(entry, "device")
        return (
            _state(name) == "ACTIVE"
            and not _is_exchanged(name, word(entry, "table"))
            and standing(env, entry) is not None
            and write(entry).outcome in {"ok", "ENOSPC"}
        )


def _why_not_mount(env: Env, mount: Mount) -> str | None:
    if not mount.writable:
        return f"{mount.path} is read-only"
    found = mounts(env.procfs)
    if sum(each.device == mount.device for each in found) > 1 or mount.root != "/":
        return f"the filesystem of {mount.path} is mounted more than once: it could not be mounted again"
    if any(each.path.startswith(f"{mount.path}/") for each in found):
        return f"something is mounted below {mount.path}: it could not be mounted again"
    return None


def _table(name: str) -> str:
    table = tools.run(["dmsetup", "table", name]).strip()
    kinds = {line.split()[2] for line in table.splitlines() if len(line.split()) > 2}
    if kinds & _SECRET or not kinds or len(table) > _LONGEST:
        raise InjectError(
            f"{name} cannot be put back from a journal: its table is {', '.join(sorted(kinds)) or 'empty'}"
        )
    return table


def _erring(table: str, errors: str) -> str:
    """The same sectors, answering with EIO: all, or (over plain disks) writes alone."""
    segments = [line.split() for line in table.splitlines()]
    if errors == "all":
        return "\n".join(f"{start} {length} error" for start, length, *_ in segments)
    if any(kind != "linear" for _, _, kind, *_ in segments):
        raise InjectError("writes alone can err only over linear segments; errors: all works over any")
    # dm-flakey: up for 0 s, down for one second, over and over; and down means errors for writes.
    return "\n".join(f"{at} {n} flakey {device} {offset} 0 1 1 error_writes" for at, n, _, device, offset in segments)


def _exchange(name: str, table: str) -> None:
    tools.run(["dmsetup", "load", name], stdin=f"{table}\n")
    # Neither waits for what is under way, nor freezes the filesystem: both could last for ever on a disk that errs.
    tools.run(["dmsetup", "suspend", "--noflush", "--nolockfs", name])
    tools.run(["dmsetup", "resume", "--noudevsync", name])


def _is_exchanged(name: str, table: str) -> bool:
    waiting = tools.run(["dmsetup", "info", "-c", "--noheadings", "-o", "tables_loaded", name]).strip()
    return tools.run(["dmsetup", "table", name]).strip() != table or _state(name) != "ACTIVE" or waiting != "Live"


def _state(name: str) -> str | None:
    """`ACTIVE` or `SUSPENDED`, None where there is no such device."""
    try:
        told_by = tools.run(["dmsetup", "info", name])
    except InjectError:
        return None
    found = [line.partition(":")[2].split() for line in told_by.splitlines() if line.startswith("State:")]
    return found[0][0] if found and found[0] else None


def _mount(entry: JournalEntry) -> list[str]:
    options = word(entry, "options")
    where = [word(entry, "source"), word(entry, "mount")]
    return ["mount", "-t", word(entry, "kind"), *(["-o", options] if options else []), *where]
