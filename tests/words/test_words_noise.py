"""What a healthy node says concludes nothing: benign lines of many drivers, and this machine's own boot."""

from __future__ import annotations

import os

import pytest
from kernel_words_kit import events, said

from gpuchaos_agent.logs.kmsg import KmsgFramer
from gpuchaos_agent.logs.record import LogRecord, Writer
from gpuchaos_agent.words import registry
from gpuchaos_agent.words.base import NONE, Part

#: How long after the start of the kernel a record still is of its boot, microseconds. Later ones may tell of
#: what tests on this machine really did (an OOM kill, a full filesystem).
BOOT_US = 60_000_000

#: Drivers that load, filesystems that are mounted, links that come up once, and everything with alarming words.
BENIGN = """\
Linux version 6.8.0-45-generic (buildd@host) (gcc 13.2.0) #45-Ubuntu SMP PREEMPT_DYNAMIC
Command line: BOOT_IMAGE=/vmlinuz root=/dev/md0 ro panic=10 nmi_watchdog=1 pci=noaer
Kernel command line: BOOT_IMAGE=/vmlinuz root=/dev/md0 ro panic=10 nmi_watchdog=1 pci=noaer
x86/fpu: Supporting XSAVE feature 0x001: 'x87 floating point registers'
MCE: In-kernel MCE decoding enabled.
mce: CPU supports 32 MCE banks
mce: CPU0: Thermal monitoring enabled (TM1)
EDAC MC: Ver: 3.0.0
EDAC MC3: Giving out device to module i10nm_edac controller Intel_10nm Socket#0 IMC#3: DEV 0000:fe:0f.0 (INTERRUPT)
RAS: Correctable Errors collector initialized.
GHES: APEI firmware first mode is enabled by APEI bit and WHEA _OSC.
ERST: Error Record Serialization Table (ERST) support is initialized.
HEST: Table parsing has been initialized.
BERT: Total records found: 0
NMI watchdog: Enabled. Permanently consumes one hw-PMU counter.
rcu: INFO: nothing of importance
rcu: \tOffload RCU callbacks from CPUs: (none).
acpi PNP0A08:01: _OSC: OS now controls [PCIeHotplug SHPCHotplug PME AER PCIeCapability LTR DPC]
pcieport 0000:15:01.0: PME: Signaling with IRQ 125
pcieport 0000:15:01.0: AER: enabled with IRQ 125
pcieport 0000:15:01.0: DPC: enabled with IRQ 125
pcieport 0000:15:01.0: pciehp: Slot #4 AttnBtn- PwrCtrl- MRL- AttnInd- PwrInd- HotPlug+ Surprise+ Interlock- NoCompl-
pcieport 0000:15:01.0: pciehp: Slot(4): Card present
pcieport 0000:15:01.0: pciehp: Slot(4): Link Up
pci 0000:18:00.0: 252.048 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x16 link at 0000:15:01.0
mlx5_core 0000:18:00.0: firmware version: 28.39.2048
mlx5_core 0000:18:00.0: 504.112 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x16 link)
mlx5_core 0000:18:00.0: Rate limit: 127 rates are supported, range: 0Mbps to 195312Mbps
mlx5_core 0000:18:00.0: E-Switch: Total vports 10, per vport: max uc(128) max mc(2048)
mlx5_core 0000:18:00.0: Port module event: module 0, Cable plugged
mlx5_core 0000:18:00.0: mlx5_pcie_event:301:(pid 931): PCIe slot advertised sufficient power (75W).
mlx5_core 0000:18:00.0: MLX5E: StrdRq(1) RqSz(8) StrdSz(2048) RxCqeCmprss(0 enhanced)
mlx5_core 0000:18:00.0 ens6f0np0: renamed from eth0
mlx5_core 0000:18:00.0 ens6f0np0: Link up
mlx5_core 0000:18:00.0 mlx5_0: Port: 1 Link INIT
mlx5_core 0000:18:00.0 mlx5_0: Port: 1 Link ACTIVE
mlx5_core 0000:18:00.0: mlx5_cmd_out_err:835:(pid 2211): ACCESS_REG(0x805) op_mod(0x1) failed, status bad operation(0x2)
infiniband mlx5_0: set_sysfs_entries
efa 0000:00:1d.0: enabling device (0010 -> 0012)
igb 0000:05:00.0 eno1: igb: eno1 NIC Link is Up 1000 Mbps Full Duplex, Flow Control: RX
IPv6: ADDRCONF(NETDEV_CHANGE): eno1: link becomes ready
bond0: (slave ens6f0np0): link status definitely up, 400000 Mbps full duplex
nvidia: loading out-of-tree module taints kernel.
nvidia-nvlink: Nvlink Core is being initialized, major device number 511
NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  550.90.07  Release Build
nvidia-modeset: Loading NVIDIA UNIX Open Kernel Mode Setting Driver for x86_64  550.90.07
nvme nvme0: pci function 0000:41:00.0
nvme nvme0: Shutdown timeout set to 8 seconds
nvme nvme0: 64/0/0 default/read/poll queues
ata1: SATA link down (SStatus 4 SControl 300)
sd 0:0:0:0: [sda] Write cache: enabled, read cache: enabled, doesn't support DPO or FUA
blk_update_request: I/O error, dev sr0, sector 0 op 0x0:(READ) flags 0x80700
I/O error, dev fd0, sector 0 op 0x0:(READ) flags 0x0 phys_seg 1 prio class 2
md: raid1 personality registered for level 1
md/raid1:md0: active with 2 out of 2 mirrors
md0: detected capacity change from 0 to 1874059264
device-mapper: multipath: version 1.14.0 loaded
EXT4-fs (md0): mounted filesystem 2c1f2c52-aaaa-bbbb-cccc-000000000001 ro with ordered data mode. Quota mode: none.
EXT4-fs (md0): re-mounted 2c1f2c52-aaaa-bbbb-cccc-000000000001 r/w. Quota mode: none.
EXT4-fs (md0): re-mounted 2c1f2c52-aaaa-bbbb-cccc-000000000001 ro. Quota mode: none.
EXT4-fs (sdc1): error count since last fsck: 2
XFS (nvme0n1p1): Mounting V5 Filesystem 2c1f2c52-aaaa-bbbb-cccc-000000000002
XFS (nvme0n1p1): Ending clean mount
BTRFS info (device dm-1): using free space tree
FS-Cache: Netfs 'nfs' registered for caching
NFS: Registering the id_resolver key type
Key type id_legacy registered
nfs: mounting filer:/export
NFSD: all clients done reclaiming, ending NFSv4 grace period (net f0000000)
Lustre: Mounted scratch-client
libceph: mon0 (1)198.51.100.1:6789 session established
audit: type=1400 audit(1700000000.100:7): apparmor="STATUS" operation="profile_load" name="oom-kill"
oom_reaper: idle
OOM killer disabled.
OOM killer enabled.
workqueue: nvidia_p2p_work hogged CPU for >10000us 4 times, consider switching to WQ_UNBOUND
perf: interrupt took too long (2502 > 2500), lowering kernel.perf_event_max_sample_rate to 79750
systemd[1]: Starting Machine Check Exception Logging Daemon...
EXT4-fs (sda2): shut down requested (1) by fstest
""".splitlines()


@pytest.mark.parametrize("text", BENIGN)
def test_a_benign_line_concludes_nothing(text: str) -> None:
    assert [event.finding.fault for event in events([text])] == []


def test_the_benign_lines_together_conclude_nothing() -> None:
    assert [(event.finding.fault, event.key) for event in events(BENIGN)] == []


@pytest.mark.parametrize("text", BENIGN)
def test_a_benign_line_is_no_fault_as_a_programs_line_either(text: str) -> None:
    finding = said(text, writer=Writer.PROGRAM)
    assert finding is None or finding.part is not Part.FAULT or finding.fault == NONE


def boot_records() -> list[LogRecord]:
    """The kernel's own records of this machine's boot; skips where they are not to be had."""
    try:
        descriptor = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    except OSError as error:
        pytest.skip(f"/dev/kmsg: {error.strerror}")
    framer, records = KmsgFramer(), []
    try:
        while True:
            try:
                records += [*framer.feed(os.read(descriptor, 8192)), *framer.flush()]
            except BrokenPipeError:  # records were overwritten while we read
                continue
            except BlockingIOError:
                break
    finally:
        os.close(descriptor)
    return [record for record in records if record.writer is Writer.KERNEL and (record.usec or 0) < BOOT_US]


@pytest.mark.soak  # a machine that has been up for long no longer has them; the guest's boot is read in every run
def test_the_boot_of_this_machine_says_nothing_that_is_not_there() -> None:
    records = boot_records()
    if not records:
        pytest.skip("the records of the boot have been overwritten")
    found = [finding for record in records if (finding := registry.read(record)) is not None]
    assert [finding for finding in found if finding.part is Part.FAULT and finding.fault != NONE] == []
