"""A whole machine for a test: Debian's kernel under QEMU, with this checkout's own Python and agent inside.

Nothing is installed into it. The host's root is the guest's, read-only, over virtio-9p; what the guest writes is in
its memory. Processors are emulated (no KVM is needed), and some fifteen times slower than the host's.
"""

from __future__ import annotations

import base64
import os
import select
import shlex
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from lab import guest_initrd
from lab.guest_kernel import GuestKernel, prepare

#: How long the kernel may take to answer the first command, seconds; 5 here, with both processors free.
BOOT_TIMEOUT_S: Final = 60.0
#: `tcg` emulates, `kvm` is fast where it works (a guest hung before its first line on a nested host).
ACCELERATOR: Final = os.environ.get("GPUCHAOS_GUEST_ACCEL", "tcg")

_INIT: Final = Path(__file__).with_name("guest_init.sh")
_ROOT: Final = Path(__file__).resolve().parents[2]

#: Module names by what they are for: `Guest(modules=MODULES["nfs"])`. All are in Debian's 6.1 kernel.
MODULES: Final[dict[str, tuple[str, ...]]] = {
    "rdma": ("crc32_generic", "dummy", "veth", "rdma_rxe", "ib_uverbs"),
    "netem": ("sch_netem", "veth"),
    "mce": ("mce-inject",),
    "hwpoison": ("hwpoison-inject",),
    "aer": ("aer_inject",),
    "flakey": ("loop", "dm-flakey", "dm-delay"),
    "nfs": ("nfsd", "nfsv4", "nfs"),
    "disk": ("loop", "ext4", "null_blk", "scsi_debug"),
}


class GuestDiedError(Exception):
    """The guest ended or stopped answering; holds the end of its console."""


@dataclass(frozen=True, slots=True)
class Result:
    """What a command in the guest came to: `rc` is the shell's, 137 where it ran past its time."""

    rc: int
    out: str


class Guest:
    """One guest. Enter it to boot it; leaving kills it, whatever it is doing.

    `numa_nodes` share memory and processors evenly; each has the distance 20 to the others. `modules` are
    loaded after boot. `folder` is `/out` inside, shared and writable; a fresh one is made, and removed unless the
    guest failed, where none is given. `qemu_args` are further arguments.
    """

    def __init__(
        self,
        *,
        memory_mb: int = 1024,
        cpus: int = 2,
        numa_nodes: int = 1,
        modules: Iterable[str] = (),
        folder: Path | None = None,
        kernel_args: str = "",
        qemu_args: Iterable[str] = (),
    ) -> None:
        self._memory = memory_mb
        self._cpus = cpus
        self._numa = numa_nodes
        self._modules = tuple(modules)
        self._own = folder is None
        self.folder = folder if folder is not None else Path(tempfile.mkdtemp(prefix="guest-"))
        self._kernel_args = kernel_args
        self._qemu_args = tuple(qemu_args)
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None
        self._rest = b""
        self._number = 0
        self.boot_s = 0.0
        #: The kernel log of the boot and of the loading of `modules`, as /dev/kmsg gave it.
        self.boot_log = ""

    @property
    def console(self) -> Path:
        """The serial console's log: the kernel's words until the first program ran, and what a panic says."""
        return self.folder / "console.log"

    def __enter__(self) -> Self:
        try:
            self._start(prepare())
            if self._modules:
                self.check(f"modprobe -a {shlex.join(self._modules)}", timeout=60)
            self.boot_log = self.dmesg()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.kill()
        if self._own and kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)

    def run(self, command: str, *, timeout: float = 30.0) -> Result:
        """Runs a shell command in the guest and waits for it; output and errors together.

        A command that is left in the background (`… &`) must not keep the output open.

        Raises:
            GuestDiedError: no answer came, twice `timeout` (seconds, of the guest's clock) after it was asked.
        """
        self._number += 1
        name = str(self._number)
        self._say(f"{name} {max(1, round(timeout))} {base64.b64encode(command.encode()).decode()}\n")
        return self._answer(name, 2 * timeout + 5)

    def check(self, command: str, *, timeout: float = 30.0) -> str:
        """As `run`, and the output of a command that must succeed."""
        done = self.run(command, timeout=timeout)
        if done.rc:
            raise AssertionError(f"in the guest, {command!r} ended with {done.rc}: {done.out}")
        return done.out

    def agent(self, arguments: str, *, timeout: float = 60.0) -> Result:
        """Runs this checkout's `gpuchaos-agent` in the guest."""
        return self.run(f"{shlex.quote(str(_ROOT / '.venv/bin/gpuchaos-agent'))} {arguments}", timeout=timeout)

    def dmesg(self) -> str:
        """The whole kernel log since boot as `/dev/kmsg` gives it."""
        return self.check("dd if=/dev/kmsg iflag=nonblock bs=8192 2>/run/guest/dd; grep -q unavailable /run/guest/dd")

    def kill(self) -> None:
        """Ends the guest at once. Its files in `folder` stay."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def _start(self, kernel: GuestKernel) -> None:
        began = time.monotonic()
        busybox = shutil.which("busybox") or "busybox"  # `prepare` has looked
        initrd = self.folder / "initrd"
        initrd.write_bytes(guest_initrd.build(kernel.modules, busybox=Path(busybox), first_program=_INIT.read_text()))
        # A socket's path has at most 107 bytes, which a test's folder may exceed.
        with tempfile.TemporaryDirectory(prefix="guest-") as short:
            path = f"{short}/commands"
            log = (self.folder / "qemu.log").open("wb")
            with log:
                self._process = subprocess.Popen(
                    self._command(kernel, initrd, path), stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            self._socket = self._connect(path)
        self._answer("ready", BOOT_TIMEOUT_S)
        initrd.unlink()
        self.boot_s = time.monotonic() - began

    def _command(self, kernel: GuestKernel, initrd: Path, commands: str) -> list[str]:
        append = f"console=ttyS0 panic=-1 mitigations=off aer_inject.aer_mask_override=1 {self._kernel_args}"
        return [
            # Killed with whoever started it, however that ends.
            *("setpriv", "--pdeathsig", "KILL"),
            "qemu-system-x86_64",
            *("-machine", "q35", "-accel", ACCELERATOR, "-cpu", "max"),
            *("-m", str(self._memory), "-smp", str(self._cpus)),
            *self._numa_arguments(),
            *("-display", "none", "-no-reboot", "-monitor", "none"),
            # A PCIe port with a card behind it, which nobody uses: for errors of the bus.
            *("-nic", "none", "-device", "pcie-root-port,id=port0,chassis=1,addr=8", "-device", "e1000e,bus=port0"),
            *("-serial", f"file:{self.console}"),
            *("-kernel", str(kernel.image), "-initrd", str(initrd), "-append", append),
            *("-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"),
            *("-virtfs", f"local,path={kernel.root},mount_tag=programs,security_model=none,readonly=on"),
            *("-virtfs", f"local,path={self.folder},mount_tag=out,security_model=none"),
            *("-device", "virtio-serial", "-device", "virtserialport,chardev=commands,name=guest.commands"),
            *("-chardev", f"socket,id=commands,path={commands},server=on,wait=off"),
            *self._qemu_args,
        ]

    def _numa_arguments(self) -> list[str]:
        if self._numa < 2:
            return []
        share = self._memory // self._numa
        made: list[str] = []
        for node in range(self._numa):
            cpus = ",".join(f"cpus={cpu}" for cpu in range(self._cpus) if cpu % self._numa == node)
            made += ["-object", f"memory-backend-ram,id=ram{node},size={share}M"]
            made += ["-numa", f"node,nodeid={node},memdev=ram{node}" + (f",{cpus}" if cpus else "")]
        return made

    def _connect(self, path: str) -> socket.socket:
        until = time.monotonic() + 10
        while True:
            connection = socket.socket(socket.AF_UNIX)
            try:
                connection.connect(path)
            except OSError:
                connection.close()
                if time.monotonic() > until or self._ended():
                    raise GuestDiedError(f"QEMU did not start: {self._last('qemu.log')}") from None
                time.sleep(0.01)  # QEMU makes its socket when it is ready, and says so nowhere else
            else:
                return connection

    def _say(self, line: str) -> None:
        if self._socket is None:
            raise GuestDiedError("the guest is not running")
        try:
            self._socket.sendall(line.encode())
        except OSError as error:
            raise GuestDiedError(f"the guest ended: {self._last('console.log')} {self._last('qemu.log')}") from error

    def _answer(self, name: str, timeout: float) -> Result:
        until = time.monotonic() + timeout
        while True:
            line, found, self._rest = self._rest.partition(b"\n")
            if not found:
                self._rest = line
                self._more(name, until)
                continue
            asked, rc, *out = line.decode().split(" ")
            if asked == name:
                return Result(int(rc), base64.b64decode(out[0] if out else "").decode("utf-8", "replace"))

    def _more(self, name: str, until: float) -> None:
        if self._socket is None:
            raise GuestDiedError("the guest is not running")
        ready, _, _ = select.select([self._socket], [], [], max(0.0, until - time.monotonic()))
        try:
            data = self._socket.recv(1 << 16) if ready else b""
        except ConnectionResetError:
            data = b""
        if not data:
            why = "ended" if ready or self._ended() else "does not answer"
            raise GuestDiedError(f"the guest {why} ({name}): {self._last('console.log')} {self._last('qemu.log')}")
        self._rest += data

    def _ended(self) -> bool:
        return self._process is None or self._process.poll() is not None

    def _last(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(errors="replace")[-2000:]
        except OSError:
            return ""
