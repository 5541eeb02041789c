"""What each injected fault does to others, by its form: the knowledge that attribution rests on, as data.

A form is what one parameter chooses (`memory-corruption` with `plane: file` damages a file, without it it writes a
record into a log). What a form is not expected to do is not charged to it, however near and however soon: a GPU that
falls off the bus while a process is stopped has fallen off by itself.
"""

from __future__ import annotations

from typing import Final

from gpuchaos_stream.correlate.expectation import (
    BACK_S,
    COALESCE_S,
    DATABASE,
    DEVICE,
    JOB,
    PORT_DOWN,
    PORT_PAIN,
    TORN,
    WATCHDOG_S,
    Expectation,
    database,
    dead,
    named,
    silent,
    stall,
    storage,
    via,
)

Expectations = tuple[Expectation, ...]

#: Fault → the parameter that chooses its form, and the form without it; as agents say it (`faults.json`).
CHOOSES: Final[dict[str, tuple[str, str]]] = {
    "memory-corruption": ("plane", "telemetry"),
    "storage-disconnect": ("mode", ""),
    "database-outage": ("mode", "refused"),
    "certificate-expiry": ("kind", "expired"),
}

#: What says that servers on the network are away: NFS, Lustre and Ceph, iSCSI, NVMe over fabrics.
_SERVERS_AWAY: Final = storage(
    "nfs_unresponsive",
    "nfs_stale_handle",
    "nfs_lock_lost",
    "remote_fs_unresponsive",
    "nvme_timeout",
    "nvme_lost",
    "nvme_path_failure",
    "raid_failed",
    "fs_readonly",
    "fs_error",
    "disk_io_error",
    "disk_path_failure",
    "hung_task",
)


def _mode(*names: str) -> Expectations:
    """One way for a volume to be away. What was being written when it went is cut, and refused when it is read."""
    return (storage(*names), TORN, *dead(60.0, BACK_S, 0.85))


def _refused(*names: str) -> Expectations:
    """One way for a certificate not to hold. Clients that say only that the check failed say `tls_ca_config`."""
    return (
        Expectation(
            named(*names, "tls_ca_config", "db_unreachable", "broker_unreachable"),
            named("process", "node", "job"),
            via("entity", "owner", "node", "job", "cell"),
            10.0,
            300.0,
            0.95,
            "clients refuse the certificate",
        ),
        *dead(60.0, BACK_S, 0.7),
    )


#: Fault → form → what it does. The whole table of such a fault is that of all its forms, the first one's word first.
FORMS: Final[dict[str, dict[str, Expectations]]] = {
    "memory-corruption": {
        "file": (
            # It lies there unread until a run resumes, and then a rank ends or goes on with the one before.
            Expectation(
                named("checkpoint_corrupt"),
                named("node", "process", "job"),
                JOB,
                BACK_S,
                WATCHDOG_S,
                0.95,
                "the file that was damaged is refused by who reads it",
            ),
            *dead(60.0, BACK_S),
        ),
        # The record speaks for itself (its mark); the program on that GPU may be ended by whoever believes it.
        "telemetry": (
            Expectation(
                named(
                    "injected",
                    "spoof_or_injected",
                    "gpu_ecc_dbe",
                    "gpu_ecc_contained",
                    "gpu_ecc_uncontained",
                    "gpu_row_remap_pending",
                    "gpu_row_remap_failure",
                    "gpu_memory_repair_pending",
                    "gpu_channel_reset",
                    "gpu_unknown_xid",
                ),
                named("gpu", "node"),
                DEVICE,
                COALESCE_S,
                60.0,
                1.0,
                "the record that was written",
                marked=True,
            ),
            *dead(15.0, 120.0),
        ),
        # It aims at the node itself, the record of a GPU's error never does.
        "machine-check": (
            Expectation(
                named("mce_corrected", "mem_ce"),
                named("node"),
                via("entity"),
                COALESCE_S,
                60.0,
                0.95,
                "the machine check that was injected",
            ),
            Expectation(
                named("injected", "spoof_or_injected"),
                named("node"),
                via("entity"),
                COALESCE_S,
                60.0,
                1.0,
                "the records around the machine check",
                marked=True,
            ),
            *dead(15.0, 120.0),
        ),
    },
    "storage-disconnect": {
        "unreachable": (_SERVERS_AWAY, TORN, *dead(60.0, BACK_S, 0.85)),
        "hanging": _mode("hung_task"),
        "readonly": _mode("fs_readonly"),
        "full": _mode("fs_full", "fs_error"),
        "erring": _mode("disk_io_error", "disk_path_failure", "raid_failed", "fs_error", "fs_readonly", "hung_task"),
    },
    "database-outage": {
        "refused": (DATABASE, *dead(60.0, BACK_S, 0.75)),
        "reset": (DATABASE, *dead(60.0, BACK_S, 0.75)),
        "hanging": (DATABASE, *dead(60.0, BACK_S, 0.75)),
        # The server is up and writes for those who have a connection.
        "exhausted": (database("db_connection_limit", "db_unreachable"), *dead(60.0, BACK_S, 0.75)),
    },
    "certificate-expiry": {
        "expired": _refused("cert_expired"),
        # Some libraries have one text for both: expired or not yet valid.
        "not-yet-valid": _refused("clock_skew", "cert_expired"),
        "wrong-name": _refused(),
    },
}

#: Faults whose parameters choose how much, and not what.
PLAIN: Final[dict[str, Expectations]] = {
    "process-stop": (
        # Other ranks of the job stop when its watchdog ends them, or when more was stopped than was asked for.
        Expectation(
            named("running"),
            named("process", "job"),
            via("entity", "job"),
            60.0,
            WATCHDOG_S,
            1.0,
            "the process is stopped",
        ),
        *stall(10.0, 120.0, 0.95),
    ),
    "network-partition": (
        silent(5.0, 60.0),
        _SERVERS_AWAY,
        database("db_unreachable", "db_connection_limit", "db_write_refused", "broker_unreachable"),
        TORN,
        *dead(30.0, BACK_S, 0.9),
    ),
    "rdma-link": (PORT_DOWN, PORT_PAIN, *dead(15.0, BACK_S, 0.95)),
    "numa-misalignment": (
        Expectation(
            named("numa_misaligned_ratio"), named("process"), DEVICE, 5.0, 30.0, 1.0, "its CPUs are off its GPU's node"
        ),
        Expectation(named("remote_rate"), named("numa"), DEVICE, 5.0, 120.0, 0.95, "pages come from the other node"),
        *stall(20.0, 300.0, 0.9),
    ),
    "power-cycle": (silent(5.0, 60.0), PORT_DOWN, PORT_PAIN, TORN, *dead(10.0, BACK_S, 0.95)),
    "service-latency": (
        Expectation(
            named(
                "collective_timeout",
                "rendezvous_failed",
                "db_unreachable",
                "broker_unreachable",
                "nfs_unresponsive",
                "remote_fs_unresponsive",
            ),
            named("process", "node", "job"),
            JOB,
            60.0,
            BACK_S,
            0.75,
            "calls to the slow service run into their time-outs",
        ),
        *dead(30.0, 300.0, 0.8),
    ),
}

#: For a fault that is in neither table: its job stalls, and nothing of what hardware says.
UNKNOWN: Final = stall(15.0, 300.0, 0.8)
