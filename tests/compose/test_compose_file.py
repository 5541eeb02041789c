"""docker-compose.yml, as Docker reads it: what starts after what, what may do what, and that every path is there."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compose_check import OURS, ROOT, check, dockerfile, image_of, project

pytestmark = pytest.mark.timeout(600)

#: End by themselves when they are done.
ONE_SHOT = {"keys", "topics"}
#: Have no port that could be asked.
UNASKED = ONE_SHOT | {"sim", "schedule"}


def services() -> dict[str, Any]:
    found: dict[str, Any] = project()["services"]
    return found


def each(condition: Any) -> dict[str, Any]:
    """Name → what `condition` says of it, where that is anything."""
    return {name: said for name, service in services().items() if (said := condition(service))}


def test_a_mistake_in_the_file_is_refused_with_its_place(tmp_path: Path) -> None:
    wrong = tmp_path / "docker-compose.yml"
    text = (ROOT / "docker-compose.yml").read_text()
    for mistake, words in (
        (text.replace("depends_on:", "depend_on:", 1), "depend_on"),
        (text.replace("keyring:/keys/ring:ro", "keyrings:/keys/ring:ro", 1), "keyrings"),
        (text.replace("networks: [bus, watch]", "networks: [bus, wash]", 1), "wash"),
        (text.replace("kafka: {condition: service_healthy}", "kafka: {condition: healthy}", 1), "condition"),
    ):
        assert mistake != text
        wrong.write_text(mistake)
        status, said = check("compose", str(wrong))
        assert status == 1
        assert words in said


def test_the_stack_is_complete() -> None:
    names = {"kafka", "keys", "topics", "worker", "notify", "web", "sim", "agent", "schedule", "prometheus"}
    assert set(services()) == names | {"alertmanager", "grafana"}
    assert each(lambda service: service.get("profiles")) == {"agent": ["agent"]}


def test_kafka_is_the_one_that_the_tests_run_on_and_invents_no_topics() -> None:
    version = services()["kafka"]["image"].rpartition(":")[2]
    assert f"<version>{version}</version>" in (ROOT / "gpuchaos_stream/stream/kafka_pom.xml").read_text()
    assert services()["kafka"]["environment"]["KAFKA_AUTO_CREATE_TOPICS_ENABLE"] == "false"


def test_every_image_is_pinned_by_a_version_and_ours_is_the_projects() -> None:
    version = re.search(r'^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    assert version is not None
    for name, service in services().items():
        tag = service["image"].rpartition(":")[2]
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", tag), f"{name}: {service['image']}"
        if image_of(service) in OURS:
            assert tag == version[1]
            assert service["pull_policy"] == "never", f"{name}: a registry's image of that name would be started"
        else:
            assert "build" not in service


def test_each_of_our_images_is_built_by_one_service_that_starts_before_all_that_have_it() -> None:
    # Several that build the same image are built at once, and the second fails: "already exists".
    built = [name for name, service in services().items() if "build" in service]
    assert {image_of(services()[name]): services()[name]["build"]["target"] for name in built} == OURS
    assert len(built) == len(OURS)
    assert set(OURS.values()) <= {stage["Name"] for stage in dockerfile()["stages"]}

    def before(name: str) -> set[str]:
        nearest = set(services()[name].get("depends_on") or ())
        return nearest.union(*map(before, nearest))

    for name, service in services().items():
        if image_of(service) in OURS:
            builder = next(each for each in built if services()[each]["image"] == service["image"])
            assert builder in {name, *before(name)}, f"{name}: `docker compose up {name}` builds nothing"


def test_nothing_is_published_beyond_loopback_and_no_port_twice() -> None:
    ports = [port for service in services().values() for port in service.get("ports") or ()]
    assert {port["host_ip"] for port in ports} == {"127.0.0.1"}
    published = [port["published"] for port in ports]
    assert sorted(published) == ["3000", "8080", "9090", "9092", "9093"]


def test_nobody_is_root_but_the_agent_which_has_three_of_its_powers() -> None:
    # Kafka's and the images that are not ours say so themselves where the file does not.
    users = each(lambda service: service.get("user"))
    assert {name for name, user in users.items() if user.startswith("0")} == {"agent"}
    assert set(services()) - set(users) == {"kafka"}, "its image has a user of its own, appuser"
    assert each(lambda service: service.get("cap_add")) == {"agent": ["KILL", "SYS_PTRACE", "SYSLOG"]}
    assert not each(lambda service: service.get("privileged"))


def test_every_container_is_shut_in() -> None:
    for name, service in services().items():
        assert service["cap_drop"] == ["ALL"], name
        # The agent signals and reads processes that are in no container, which Docker's profile forbids.
        free = ["apparmor:unconfined"] if name == "agent" else []
        assert service["security_opt"] == ["no-new-privileges:true", *free], name
        assert service.get("read_only", False) is (name != "kafka"), name
        limits = service["deploy"]["resources"]["limits"]
        assert {"cpus", "memory", "pids"} == set(limits), name
        assert service["logging"]["options"]["max-size"], name
        assert service["restart"] == ("on-failure" if name in ONE_SHOT else "unless-stopped"), name


def test_what_can_be_asked_is_asked_and_in_less_than_its_interval() -> None:
    for name, service in services().items():
        healthcheck = service["healthcheck"]
        assert healthcheck.get("disable", False) is (name in UNASKED), name
        if name not in UNASKED:
            assert healthcheck["test"][0] == "CMD", name
            assert seconds(healthcheck["timeout"]) <= seconds(healthcheck["interval"]), name


def seconds(text: str) -> int:
    found = re.fullmatch(r"(?:(\d+)m)?(?:(\d+)s)?", text)
    assert found is not None, text
    return 60 * int(found[1] or 0) + int(found[2] or 0)


def test_each_waits_for_what_it_needs_and_for_nothing_in_a_circle() -> None:
    for name, service in services().items():
        for other, how in (service.get("depends_on") or {}).items():
            condition = how["condition"]
            assert condition != "service_healthy" or other not in UNASKED, f"{name} waits for ever for {other}"
            assert (condition == "service_completed_successfully") is (other in ONE_SHOT), f"{name}: {other}"
    assert set(in_order()) == set(services())
    for name, service in services().items():
        volumes = [mount["source"] for mount in service.get("volumes") or ()]
        if name != "keys" and {"keyring", "control-key", "operator-key", "grafana-admin"} & set(volumes):
            assert "keys" in service["depends_on"], f"{name} reads keys that may not be there yet"


def in_order() -> list[str]:
    """The services, each after those that it waits for."""
    order: list[str] = []
    while left := [name for name in services() if name not in order]:
        ready = [name for name in left if set(services()[name].get("depends_on") or ()) <= set(order)]
        assert ready, f"in a circle: {left}"
        order += ready
    return order


def test_who_can_sign_what_is_only_who_must() -> None:
    def holds(volume: str) -> set[str]:
        return {
            name
            for name, service in services().items()
            if any(mount["source"] == volume for mount in service.get("volumes") or ())
        }

    assert holds("control-key") == {"keys", "worker"}
    assert holds("operator-key") == {"keys", "web", "schedule"}
    assert holds("grafana-admin") == {"keys", "grafana"}
    assert services()["keys"]["network_mode"] == "none"
    writers = {
        (name, mount["source"])
        for name, service in services().items()
        for mount in service.get("volumes") or ()
        if mount["source"].endswith(("key", "ring", "admin")) and not mount.get("read_only")
    }
    assert {name for name, _ in writers} == {"keys"}


def test_no_secret_is_in_the_file_or_in_an_environment() -> None:
    for name, service in services().items():
        for variable, value in (service.get("environment") or {}).items():
            secret = re.search(r"PASSWORD|SECRET|TOKEN", variable)
            assert not secret or str(value).startswith("/keys/"), f"{name}: {variable}"
    read = [value for name, value in services()["grafana"]["environment"].items() if name.endswith("PASSWORD__FILE")]
    assert read == ["/keys/grafana/admin-password"]


def test_grafana_and_prometheus_have_no_way_to_kafka() -> None:
    def on(network: str) -> set[str]:
        return {name for name, service in services().items() if network in (service.get("networks") or {})}

    assert on("bus") & {"grafana", "prometheus", "alertmanager"} == set()
    assert on("bus") & on("watch") == {"worker", "notify", "web", "agent"}


def test_every_file_that_is_mounted_is_there_and_everything_that_is_kept_has_a_volume() -> None:
    named = set()
    for name, service in services().items():
        for mount in service.get("volumes") or ():
            if mount["type"] == "volume":
                named.add(mount["source"])
            elif Path(mount["source"]).is_relative_to(ROOT):
                assert mount["read_only"], f"{name}: {mount['target']}"
                tracked = subprocess.run(
                    ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", mount["source"]],
                    cwd=ROOT,
                    capture_output=True,
                    text=True,
                    check=True,
                ).stdout
                assert tracked, f"{name}: {mount['source']} is not in the project"
    assert named == set(project()["volumes"]), "a volume that nobody mounts"
    kept = each(lambda service: [m["target"] for m in service.get("volumes") or () if not m.get("read_only")])
    assert kept == {
        "kafka": ["/var/lib/kafka/data"],
        "keys": ["/keys/ring", "/keys/control", "/keys/operator", "/keys/grafana"],
        "worker": ["/var/lib/gpuchaos/worker"],
        "notify": ["/var/lib/gpuchaos/notify"],
        "agent": ["/var/lib/gpuchaos-agent"],
        "prometheus": ["/prometheus"],
        "alertmanager": ["/alertmanager"],
        "grafana": ["/var/lib/grafana"],
    }
