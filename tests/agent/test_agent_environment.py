from __future__ import annotations

from dataclasses import fields, replace
from pathlib import Path

from gpuchaos_agent import config, environment
from gpuchaos_agent.inject.base import Bmc, Env

FULL = Env(
    node="n1",
    boot_id="b",
    procfs=Path("/p"),
    kmsg=Path("/k"),
    protected=frozenset({"postgres", "nginx"}),
    any_process=True,
    sysfs=Path("/s"),
    state_dir=Path("/state"),
    brokers=("k1:9092", "k2:9092"),
    bmc=Bmc("https://bmc", "root", Path("/secret"), "1", Path("/ca.pem"), insecure=True),
    bmcs={"n2": Bmc("ipmi://10.0.0.2")},
    reload_commands={"nginx": ("nginx", "-s", "reload")},
    corruptible=(Path("/ckpt"),),
)
CALLABLES = {"job_of", "gpu_pci", "gpu_of"}


def test_what_undoing_needs_comes_back_as_it_was() -> None:
    again = environment.unpacked(environment.packed(FULL))
    for item in fields(Env):
        if item.name not in CALLABLES:
            assert getattr(again, item.name) == getattr(FULL, item.name), item.name


def test_every_field_is_set_in_this_test_so_that_a_new_one_is_not_forgotten() -> None:
    plain = Env(node="other", boot_id="other")
    same = {item.name for item in fields(Env) if getattr(plain, item.name) == getattr(FULL, item.name)}
    assert same <= CALLABLES


def test_the_password_itself_is_never_packed(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2")
    env = replace(FULL, bmc=Bmc("https://bmc", "root", secret))
    assert "hunter2" not in environment.packed(env)


def test_the_environment_of_the_settings_has_their_paths_and_the_brokers(tmp_path: Path) -> None:
    settings = config.load(None, node="n7", state_dir=str(tmp_path), sysfs="/s7")
    env = environment.of(settings, brokers=("k:1",))
    assert (env.node, env.state_dir, env.sysfs, env.brokers) == ("n7", tmp_path, Path("/s7"), ("k:1",))
