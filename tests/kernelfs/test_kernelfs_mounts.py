from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gpuchaos_agent.kernelfs.mounts import Mount, local, parse, space


def line(path: str, kind: str, *, device: str, options: str = "rw,relatime", own: str = "rw") -> str:
    return f"36 35 {device} / {path} {options} shared:1 - {kind} /dev/any {own}\n"


def test_a_mount_is_read_with_its_escaped_path() -> None:
    (mount,) = parse(line(r"/srv/two\040words", "xfs", device="8:1"))
    assert mount == Mount(path="/srv/two words", kind="xfs", device="8:1", writable=True)


def test_a_mount_is_writable_only_if_its_filesystem_is_too() -> None:
    text = line("/a", "ext4", device="8:1", options="ro,relatime") + line("/b", "ext4", device="8:2", own="ro,x")
    assert [mount.writable for mount in parse(text)] == [False, False]


def test_each_local_filesystem_is_asked_once_where_its_path_is_shortest() -> None:
    text = (
        line("/var/lib/kubelet/pods/1/volumes/a", "xfs", device="259:1")
        + line("/data", "xfs", device="259:1")
        + line("/", "ext4", device="8:1")
        + line("/proc", "proc", device="0:5")
        + line("/boot", "ext4", device="8:2", options="ro")
        + line("/snap/x", "squashfs", device="7:1")
    )
    assert [mount.path for mount in local(parse(text))] == ["/", "/data"]


def test_what_may_wait_for_a_server_is_never_asked_nor_what_is_below_it() -> None:
    text = (
        line("/", "ext4", device="8:1")
        + line("/home", "nfs4", device="0:50")
        + line("/home/scratch", "xfs", device="8:3")
        + line("/homes", "xfs", device="8:4")
        + line("/auto", "autofs", device="0:51")
        + line("/auto/disk", "ext4", device="8:5")
        + line("/lustre", "lustre", device="0:52")
        + line("/mnt/s3", "fuse.s3fs", device="0:53")
        + line("/new", "kind-of-tomorrow", device="0:54")
    )
    assert [mount.path for mount in local(parse(text))] == ["/", "/homes"]


def test_of_two_mounts_on_one_path_the_upper_one_is_asked() -> None:
    text = line("/run/fast", "tmpfs", device="0:20") + line("/run/fast", "tmpfs", device="0:30")
    assert [mount.device for mount in local(parse(text))] == ["0:30"]


def test_the_root_of_a_container_is_asked_and_other_overlays_are_not() -> None:
    text = line("/", "overlay", device="0:60") + line("/var/lib/docker/overlay2/x/merged", "overlay", device="0:61")
    assert [mount.path for mount in local(parse(text))] == ["/"]


@given(st.text(max_size=200))
def test_any_text_is_read_without_an_error(text: str) -> None:
    local(parse(text))


def test_the_root_of_this_machine_has_a_size_and_procfs_has_none() -> None:
    found = space("/")
    assert found is not None
    assert 0 <= found.blocks <= 1
    assert found.free_bytes >= 0
    assert space("/proc") is None
    assert space("/there/is/no/such/path") is None
