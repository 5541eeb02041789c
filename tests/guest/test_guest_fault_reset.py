"""A machine that is reset in the middle of its faults: at boot its agent undoes them from the journal on its disk."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
from guest_fault import AGENT, inject, until
from lab.guest import Guest

#: Two boots, and the agent starts a few times on emulated processors.
pytestmark = pytest.mark.timeout(900)

#: The state's folder is on a disk that survives; with the folder whose files may be changed.
STATE: Final = "/run/disk/state"
SETTINGS: Final = f"{STATE} --config /run/agent.yaml"
BEGIN: Final = """
set -e
modprobe -a virtio_blk ext4 nf_tables nft_numgen
mkdir -p /run/disk /run/volume
mount -o noatime /dev/vda /run/disk; mount -o noatime /dev/vdb /run/volume
printf 'corruptible: [/run/disk]\nhttp_port: 0\n' > /run/agent.yaml
ip link add away type dummy; ip addr add 10.78.0.1/24 dev away; ip link set away up
"""
_SEEN: Final = "stat -c '%a %u %s %Y' /run/disk/weights.npy; sha256sum < /run/disk/weights.npy; ls -A /run/volume"


def disk(folder: Path, name: str, content: Path) -> Path:
    """An ext4 filesystem with these files, in an image that outlives every guest."""
    image = folder / name
    with image.open("wb") as file:
        file.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", "-d", str(content), str(image)], check=True)
    return image


@contextmanager
def booted(folder: Path, disks: list[Path]) -> Iterator[Guest]:
    """A guest with the disks mounted; killed at the end as a reset does, nothing written that was not on its way."""
    folder.mkdir()
    drives = [word for path in disks for word in ("-drive", f"file={path},format=raw,if=virtio")]
    with Guest(folder=folder, qemu_args=drives) as guest:
        guest.check(BEGIN, timeout=60)
        yield guest


def journal(guest: Guest) -> dict[str, dict[str, Any]]:
    """The journal's entries by fault."""
    lines = guest.check(f"for entry in {STATE}/journal/*.json; do cat $entry; echo; done").splitlines()
    return {entry["fault"]: entry for entry in map(json.loads, lines)}


def test_guest_that_is_reset_under_its_faults_undoes_them_at_boot(tmp_path: Path) -> None:
    content = tmp_path / "content"
    content.mkdir()
    np.save(content / "weights.npy", np.arange(4096, dtype=np.float32))
    (content / "weights.npy").chmod(0o640)
    right = hashlib.sha256((content / "weights.npy").read_bytes()).hexdigest()
    empty = tmp_path / "empty"
    empty.mkdir()
    disks = [disk(tmp_path, "disk.img", content), disk(tmp_path, "volume.img", empty)]

    with booted(tmp_path / "first", disks) as guest:
        before = guest.check(_SEEN)
        assert right in before
        inject(guest, SETTINGS, "memory-corruption", plane="file", path="/run/disk/weights.npy", bits=3)
        inject(guest, SETTINGS, "storage-disconnect", mode="full", path="/run/volume")
        inject(guest, SETTINGS, "network-partition", peers="10.78.0.2", force="true")
        assert {entry["state"] for entry in journal(guest).values()} == {"injected"}
        assert guest.check(_SEEN) != before
        assert guest.run("head -c 1000000 /dev/zero > /run/volume/more && sync /run/volume/more").rc != 0
        guest.run("rm -f /run/volume/more; sync")
        assert "gpuchaos" in guest.check("nft list ruleset")

    with booted(tmp_path / "second", disks) as guest:
        assert guest.check(_SEEN) != before, "a boot alone takes nothing back, or this test shows nothing"
        command = f"{AGENT} run --node n1 --state-dir {SETTINGS} --bootstrap-servers 127.0.0.1:1"
        guest.check(f"setsid {command} </dev/null >/run/agent.log 2>&1 & echo $! > /run/agent.pid")
        left = f"""grep -LE '"state":"undone"' {STATE}/journal/*.json | grep -q ."""
        until(guest, f"! {left}", "the agent undoes what stood before the reset")
        told = {name: (entry["state"], entry["reason"]) for name, entry in journal(guest).items()}
        assert told == dict.fromkeys(told, ("undone", "node rebooted"))
        assert set(told) == {"memory-corruption", "storage-disconnect", "network-partition"}
        guest.check("kill -9 $(cat /run/agent.pid)")
        assert guest.check(_SEEN) == before
        guest.check("head -c 1000000 /dev/zero > /run/volume/more && sync /run/volume/more")
        assert guest.check("nft list ruleset").strip() == ""
