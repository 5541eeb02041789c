"""Management controllers: sushy's Redfish emulator, and `ipmi_sim` with a process for a node."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from lab.missing import MissingError
from lab.waiting import until

NODE = "n2"
USER, PASSWORD = "chaos", "s3cret-Word"


# sushy-emulator


@contextmanager
def sushy(folder: Path, certificate: tuple[Path, Path] | None = None) -> Iterator[str]:
    """Sushy's fake driver with basic authentication; returns its address. Its delays are a second, not up to 11."""
    if importlib.util.find_spec("sushy_tools") is None:
        raise MissingError("sushy-tools is not installed: it is of the extra dev")
    import bcrypt  # noqa: PLC0415  (of the extra dev, as the emulator)

    users = folder / "users"
    users.write_text(f"{USER}:{bcrypt.hashpw(PASSWORD.encode(), bcrypt.gensalt(4)).decode()}\n")
    config = folder / "sushy.conf"
    # Absolute: the emulator reads it from the folder of its own package otherwise.
    system = {"uuid": str(uuid.uuid4()), "name": NODE, "power_state": "On", "external_notifier": False, "nics": []}
    config.write_text(
        f"SUSHY_EMULATOR_AUTH_FILE = {str(users)!r}\nSUSHY_EMULATOR_STATE_DIR = {str(folder)!r}\n"
        f"SUSHY_EMULATOR_FAKE_SYSTEMS = [{system!r}]\n"
    )
    port = free_port()
    code = "import random, sys; random.randint = lambda a, b: 1; from sushy_tools.emulator.main import main; main()"
    argv = [sys.executable, "-c", code, "--fake", "--config", str(config), "-i", "localhost", "-p", str(port)]
    if certificate is not None:
        argv += ["--ssl-certificate", str(certificate[0]), "--ssl-key", str(certificate[1])]
    log = folder / "sushy.log"
    with log.open("wb") as out, subprocess.Popen(argv, stdout=out, stderr=out, cwd=folder) as emulator:
        try:
            until(lambda: _listens(port) or emulator.poll() is not None, 20)
            if emulator.poll() is not None:
                raise OSError(f"sushy-emulator ended: {log.read_text()[-800:]}")
            yield f"{'https' if certificate else 'http'}://localhost:{port}"
        finally:
            emulator.kill()


# ipmi_sim

_HOOK = """#!/bin/sh
# ipmi_sim's chassis_control: the power of one "node", which is a process
cd "$(dirname "$0")" || exit 1
shift
op=$1; shift
alive() { [ -f node.pid ] && kill -0 "$(cat node.pid)" 2>/dev/null; }
on() { alive || { setsid sh ./on.sh </dev/null >/dev/null 2>&1 & echo $! >node.pid; echo on >>power.log; }; }
off() { alive && kill -9 "$(cat node.pid)"; rm -f node.pid; sh ./off.sh; echo off >>power.log; }
case $op in
get) for k in "$@"; do case $k in power) if alive; then echo power:1; else echo power:0; fi;; boot) echo boot:default;;
  esac; done;;
set) while [ $# -gt 0 ]; do k=$1; v=$2; shift 2
  case $k in power) if [ "$v" = 1 ]; then on; else off; fi;; reset) off; on;; shutdown) off;; esac; done;;
check) ;;
esac
exit 0
"""

_LAN = """name "node"
set_working_mc 0x20
  startlan 1
    addr {address} {port}
    priv_limit admin
    allowed_auths_callback none md2 md5 straight
    allowed_auths_user none md2 md5 straight
    allowed_auths_operator none md2 md5 straight
    allowed_auths_admin none md2 md5 straight
    guid a123456789abcdefa123456789abcdef
  endlan
  chassis_control "{folder}/chassis.sh 0x20"
  user 2 true "{user}" "{password}" admin 10 none md2 md5 straight
"""

_EMU = """mc_setbmc 0x20
mc_add 0x20 0 no-device-sdrs 0x23 9 8 0x9f 0x1291 0xf02 persist_sdr
sel_enable 0x20 1000 0x0a
mc_enable 0x20
"""


@dataclass
class IpmiNode:
    """A node that is a process: its power is its life."""

    url: str
    folder: Path

    @property
    def pid(self) -> int | None:
        try:
            pid = int((self.folder / "node.pid").read_text())
            os.kill(pid, 0)
        except (OSError, ValueError):
            return None
        return pid

    @property
    def power_log(self) -> list[str]:
        return (self.folder / "power.log").read_text().split()


@contextmanager
def ipmi(
    folder: Path, *, address: str = "127.0.0.1", on: str = "exec sleep 100000", off: str = ""
) -> Iterator[IpmiNode]:
    """`ipmi_sim` on a port of `address`, the node switched on.

    The node is a shell running `on`; without power it is killed, and then `off` is run.
    """
    simulator, tool = shutil.which("ipmi_sim"), shutil.which("ipmitool")
    if simulator is None or tool is None:
        raise MissingError("needs openipmi (ipmi_sim) and ipmitool: run `make tools`")
    port = free_port(socket.SOCK_DGRAM)
    hook = folder / "chassis.sh"
    hook.write_text(_HOOK)
    hook.chmod(0o755)
    (folder / "on.sh").write_text(on + "\n")
    (folder / "off.sh").write_text(off + "\n")
    (folder / "lan.conf").write_text(
        _LAN.format(address=address, port=port, folder=folder, user=USER, password=PASSWORD)
    )
    (folder / "node.emu").write_text(_EMU)
    subprocess.run([hook, "0x20", "set", "power", "1"], check=True)
    # With the cipher suite, because the simulator does not answer the question which ones it has.
    node = IpmiNode(f"ipmi://{address}:{port}?cipher=3", folder)
    argv = [simulator, "-c", str(folder / "lan.conf"), "-f", str(folder / "node.emu"), "-s", str(folder), "-n"]
    with (folder / "sim.log").open("wb") as out, subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=out) as sim:
        try:
            until(lambda: f":{port:04X}" in Path("/proc/net/udp").read_text() or sim.poll() is not None, 20)
            if sim.poll() is not None:
                raise OSError(f"ipmi_sim ended: {(folder / 'sim.log').read_text()[-500:]}")
            yield node
        finally:
            sim.kill()
            if (pid := node.pid) is not None:
                os.kill(pid, signal.SIGKILL)


def free_port(kind: socket.SocketKind = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def _listens(port: int) -> bool:
    try:
        with socket.create_connection(("localhost", port), 0.2):
            return True
    except OSError:
        return False
