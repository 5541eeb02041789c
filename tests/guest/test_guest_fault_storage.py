"""`storage-disconnect` where the kernel has what it takes: an NFS server, and a disk under device-mapper."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pytest
from guest_fault import inject, refused, undo, undo_what_stands, until
from lab.guest import MODULES, Guest
from test_guest_real_facts import nfs_server

#: The agent starts a few times in each test, on emulated processors.
pytestmark = pytest.mark.timeout(600)

FAULT: Final = "storage-disconnect"
STATE: Final = "/run/storage-state"
#: Everything that must be as it was.
LOOK: Final = """
nft list ruleset; grep -e /run/vol -e /run/mnt /proc/self/mountinfo | cut -d' ' -f3-
dmsetup table 2>/dev/null; ls -A /run/vol; cat /proc/[0-9]*/cmdline | grep -c '[g]puchaos'
"""
DISK: Final = """
set -e
truncate -s 64M /run/disk.img
losetup /dev/loop7 /run/disk.img
dmsetup create volume --noudevsync --table "0 131072 linear /dev/loop7 0"
[ -e /dev/mapper/volume ] || { mkdir -p /dev/mapper; ln -s ../dm-0 /dev/mapper/volume; }
mkfs.ext4 -q /dev/mapper/volume
mkdir -p /run/vol; mount -t ext4 -o noatime /dev/mapper/volume /run/vol
echo weights > /run/vol/checkpoint; sync
"""
NO_DISK: Final = """
umount /run/vol; dmsetup remove --noudevsync volume; losetup -d /dev/loop7; rm -f /run/disk.img /dev/mapper/volume
"""


@pytest.fixture
def disk(guest: Guest) -> Iterator[Guest]:
    guest.check(f"modprobe -a dm-mod {' '.join(MODULES['flakey'])} ext4")
    guest.check(DISK)
    yield guest
    undo_what_stands(guest, STATE)
    guest.check(NO_DISK)


def test_nfs_server_is_unreachable_and_what_waited_for_it_goes_on_afterwards(guest: Guest) -> None:
    guest.check("modprobe -a nf_tables nft_numgen; mkdir -p /run/vol")
    with nfs_server(guest):
        before = guest.run(LOOK).out
        said = inject(guest, STATE, FAULT, mode="unreachable", path="/run/mnt/checkpoint")
        assert "servers=127.0.0.1:2049" in said
        assert "probe=hangs" in said
        guest.check("setsid sh -c 'cat /run/mnt/checkpoint > /run/read' </dev/null >/dev/null 2>&1 &")
        assert guest.run("timeout -s KILL 3 stat -f /run/mnt").rc != 0
        assert guest.check("cat /run/read") == ""
        undo(guest, STATE)
        until(guest, "grep -q weights /run/read", "the reader goes on")
        guest.check("stat -f /run/mnt")
        assert guest.run(LOOK).out == before


@pytest.mark.parametrize("errors", ["all", "writes"])
def test_disk_answers_with_errors_and_its_volume_is_mounted_again_afterwards(disk: Guest, errors: str) -> None:
    before = disk.run(LOOK).out
    assert "remount: true" in refused(disk, STATE, FAULT, mode="erring", path="/run/vol")
    said = inject(disk, STATE, FAULT, mode="erring", path="/run/vol", errors=errors, remount="true")
    assert "probe=EIO" in said
    lost = disk.run("echo more > /run/vol/later && sync /run/vol/later")
    assert lost.rc != 0
    if errors == "all":
        assert disk.run("dd if=/dev/mapper/volume of=/dev/null bs=4096 count=1 iflag=direct").rc != 0
    undo(disk, STATE)
    disk.check("rm -f /run/vol/later")
    assert disk.check("cat /run/vol/checkpoint").strip() == "weights"
    assert disk.run(LOOK).out == before
    disk.check("echo more > /run/vol/later && sync /run/vol/later && rm /run/vol/later")


def test_volume_that_gave_itself_up_comes_back_once_nobody_has_it_open(disk: Guest) -> None:
    inject(disk, STATE, FAULT, mode="erring", path="/run/vol", remount="true")
    disk.check("setsid sleep 300 </run/vol/checkpoint >/dev/null 2>&1 & echo $! > /run/holder.pid", timeout=20)
    disk.run("echo more > /run/vol/later; sync /run/vol/later")
    stuck = disk.agent(f"undo --all --node n1 --state-dir {STATE}", timeout=150)
    assert stuck.rc != 0
    assert "busy" in stuck.out
    disk.check("kill $(cat /run/holder.pid)")
    undo(disk, STATE)
    disk.check("echo more > /run/vol/later && sync /run/vol/later && rm /run/vol/later")


def test_frozen_disk_is_thawed_by_another_process(disk: Guest) -> None:
    before = disk.run(LOOK).out
    said = inject(disk, STATE, FAULT, mode="hanging", path="/run/vol")
    assert "state=D" in said
    disk.check("setsid sh -c 'echo more > /run/vol/later; echo written > /run/done' </dev/null >/dev/null 2>&1 &")
    assert disk.run("sleep 1; cat /run/done").rc != 0
    undo(disk, STATE)
    until(disk, "grep -q written /run/done", "the writer goes on")
    disk.check("rm /run/vol/later /run/done")
    assert disk.run(LOOK).out == before
