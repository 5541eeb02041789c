"""What the agent may do follows from what is enabled, and from nothing else; the chart and the agent agree on it."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest
import yaml
from helm_chart import AGENT_ALONE, CHART, ROOT, agent, helm, one, render

from gpuchaos_agent.collect.registry import collectors
from gpuchaos_agent.config import AgentSettings
from gpuchaos_agent.inject.registry import strategies
from gpuchaos_stream.experiments.faults import FAULTS

#: The first build takes minutes.
pytestmark = pytest.mark.timeout(1800)

NEEDS: Final = yaml.safe_load((CHART / "files/needs.yaml").read_text())
#: Collectors that want nothing.
QUIET: Final = ["node", "numa", "gpu", "place"]
FOLDER: Final = {"hostPaths": [{"path": "/mnt/volume", "readOnly": False}]}
#: What is asked for → host namespaces, capabilities, privileged, seccomp. By hand, from docs/faults and docs/agent.md.
EXPECTED: Final[list[tuple[dict[str, Any], str, str, bool, str]]] = [
    ({}, "", "", False, "RuntimeDefault"),
    ({"collectors": ["process"]}, "PID", "SYS_PTRACE", False, "RuntimeDefault"),
    ({"collectors": ["rdma"]}, "Network", "", False, "RuntimeDefault"),
    ({"collectors": ["kernel_log"]}, "", "", False, "RuntimeDefault"),
    ({"collectors": ["kernel_log"], "kernelLog": "kmsg"}, "", "", True, "RuntimeDefault"),
    ({"faults": ["process-stop"]}, "PID", "KILL", False, "RuntimeDefault"),
    ({"faults": ["numa-misalignment"]}, "PID", "SYS_NICE SYS_PTRACE", False, "Unconfined"),
    ({"faults": ["network-partition"]}, "Network", "NET_ADMIN", False, "RuntimeDefault"),
    ({"faults": ["rdma-link"]}, "Network", "NET_ADMIN", False, "RuntimeDefault"),
    ({"faults": ["rdma-link"], "infiniband": True}, "Network", "", True, "RuntimeDefault"),
    ({"faults": ["database-outage"]}, "Network", "NET_ADMIN", False, "RuntimeDefault"),
    ({"faults": ["database-outage/exhausted"]}, "", "", False, "RuntimeDefault"),
    ({"faults": ["service-latency"]}, "Network", "NET_ADMIN SYS_ADMIN", False, "RuntimeDefault"),
    ({"faults": ["storage-disconnect/full"], **FOLDER}, "PID", "DAC_OVERRIDE", False, "RuntimeDefault"),
    ({"faults": ["storage-disconnect/hanging"], **FOLDER}, "PID", "SYS_ADMIN", False, "RuntimeDefault"),
    ({"faults": ["storage-disconnect/unreachable"], **FOLDER}, "Network PID", "NET_ADMIN", False, "RuntimeDefault"),
    ({"faults": ["storage-disconnect"], **FOLDER}, "Network PID", "", True, "RuntimeDefault"),
    ({"faults": ["memory-corruption/telemetry"]}, "", "", True, "RuntimeDefault"),
    (
        {"faults": ["memory-corruption/file"], "corruptible": ["/ckpt"]},
        "",
        "DAC_OVERRIDE DAC_READ_SEARCH",
        False,
        "RuntimeDefault",
    ),
    ({"faults": ["power-cycle"]}, "", "", False, "RuntimeDefault"),
    ({"faults": ["certificate-expiry"], **FOLDER}, "PID", "CHOWN DAC_OVERRIDE FOWNER KILL", False, "RuntimeDefault"),
    ({"faults": ["process-stop", "network-partition"]}, "Network PID", "KILL NET_ADMIN", False, "RuntimeDefault"),
]


@pytest.mark.parametrize(
    ("given", "host", "capabilities", "privileged", "seccomp"), EXPECTED, ids=[str(row[0]) for row in EXPECTED]
)
def test_what_is_enabled_decides_what_the_agent_may(
    given: dict[str, Any], host: str, capabilities: str, privileged: bool, seccomp: str
) -> None:
    pod = agent({"collectors": QUIET, **given})
    container = pod["containers"][0]
    rights = container["securityContext"]
    assert " ".join(name for name in ("Network", "PID") if pod.get(f"host{name}")) == host
    assert rights.get("privileged", False) is privileged
    assert pod["securityContext"]["seccompProfile"]["type"] == seccomp
    assert rights["readOnlyRootFilesystem"] is True
    if not privileged:
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert " ".join(rights["capabilities"].get("add", ())) == capabilities


@pytest.mark.parametrize(
    ("given", "free"),
    [
        ({"collectors": QUIET}, False),
        ({"collectors": ["process"]}, True),
        ({"collectors": QUIET, "faults": ["network-partition"]}, False),
        ({"collectors": QUIET, "faults": ["process-stop"]}, True),
        ({"collectors": QUIET, "faults": ["storage-disconnect/full"], **FOLDER}, False),
        ({"collectors": QUIET, "faults": ["storage-disconnect/readonly"], **FOLDER}, True),
    ],
)
def test_who_signals_reads_or_mounts_what_is_the_nodes_is_free_of_the_runtimes_apparmor_profile(
    given: dict[str, Any], free: bool
) -> None:
    values = {**AGENT_ALONE, "agent": given}
    for version, at in (("1.30.0", "appArmorProfile: {type: Unconfined}"), ("1.29.9", "apparmor.security.beta")):
        done = helm("template", "r", str(CHART), "--kube-version", version, given=values)
        assert done.returncode == 0, done.stderr
        assert (at in done.stdout) is free, version
        assert ("apparmor" in done.stdout.lower()) is free, version


@pytest.mark.parametrize(
    ("given", "mounted"),
    [
        ({"collectors": QUIET}, []),
        ({"collectors": ["kernel_log"]}, ["/etc/machine-id", "/var/log/journal"]),
        ({"collectors": ["kernel_log"], "kernelLog": "kmsg"}, ["/dev/kmsg"]),
        ({"collectors": QUIET, "faults": ["memory-corruption/telemetry"]}, ["/dev/kmsg"]),
        ({"collectors": QUIET, "faults": ["memory-corruption/machine-check"]}, ["/dev/kmsg", "/sys/kernel/debug"]),
        ({"collectors": QUIET, "faults": ["rdma-link/down"], "infiniband": True}, ["/dev/infiniband"]),
        ({"collectors": QUIET, "hostPaths": [{"path": "/var/log/jobs", "readOnly": True}]}, ["/var/log/jobs"]),
    ],
)
def test_of_the_node_it_sees_its_state_and_what_is_asked_for(given: dict[str, Any], mounted: list[str]) -> None:
    pod = agent(given)
    seen = {each["name"]: each for each in pod["volumes"] if "hostPath" in each}
    assert sorted(each["hostPath"]["path"] for each in seen.values()) == sorted(["/var/lib/gpuchaos-agent", *mounted])
    writable = {
        each["mountPath"]
        for each in pod["containers"][0]["volumeMounts"]
        if each["name"] in seen and not each.get("readOnly")
    }
    looked_at = {"/etc/machine-id", "/var/log/journal", "/var/log/jobs"}
    assert writable == {"/var/lib/gpuchaos-agent", *mounted} - looked_at


def test_the_table_names_the_agents_own_collectors() -> None:
    assert set(NEEDS["collectors"]) == set(collectors())


def test_the_table_names_the_agents_own_faults_and_each_of_their_forms() -> None:
    assert set(NEEDS["faults"]) == set(strategies())
    forms = {name: {form.value for form in fault.forms if form.value} for name, fault in FAULTS.items()}
    assert {name: set(row.get("forms", ())) for name, row in NEEDS["faults"].items()} == forms


def row_of(fault: str) -> list[dict[str, Any]]:
    row = NEEDS["faults"][fault]
    return list(row.get("forms", {"": row}).values())


@pytest.mark.parametrize("fault", NEEDS["faults"])
def test_every_capability_that_the_agent_says_a_fault_needs_is_in_its_row(fault: str) -> None:
    module = ROOT / "agents/gpuchaos_agent/inject"
    # What its own files ask for, and what its page says under Needs.
    code = "".join(path.read_text() for path in module.glob(f"{fault.replace('-', '_')}*.py"))
    code += (module / "nft.py").read_text() if "nft" in code else ""
    page = (ROOT / f"docs/faults/{fault}.md").read_text()
    needs = re.search(r"^## Needs$(.*?)(?:^## |\Z)", page, re.MULTILINE | re.DOTALL)
    assert needs is not None
    said = set(re.findall(r"CAP_([A-Z_]+)", code + needs[1]))
    given = {name for row in row_of(fault) for name in row.get("capabilities", {})}
    assert said - given == set()


def test_every_right_has_its_reason() -> None:
    rows = [*NEEDS["collectors"].values(), *(row for fault in NEEDS["faults"] for row in row_of(fault))]
    assert [row for row in rows if set(row) - {"capabilities"} and not row.get("reason")] == []
    assert all(len(why) > 10 for row in rows for why in row.get("capabilities", {}).values())


def test_each_capability_says_in_the_cluster_who_wants_it() -> None:
    objects = render(given={**AGENT_ALONE, "agent": {"collectors": ["process"], "faults": ["process-stop"]}})
    told = one(objects, "DaemonSet")["spec"]["template"]["metadata"]["annotations"]["gpuchaos/capabilities"]
    assert yaml.safe_load(told) == {
        "KILL": ["fault process-stop: SIGSTOP and SIGCONT to a job's process, which is another user's"],
        "SYS_PTRACE": ["collector process: numa_maps of a job that is another user's"],
    }


def test_without_faults_no_command_is_believed_and_nothing_may_stand() -> None:
    objects = render(given={**AGENT_ALONE, "agent": {"collectors": QUIET}})
    settings = yaml.safe_load(one(objects, "ConfigMap", "-agent")["data"]["agent.yaml"])
    assert "keyring" not in settings
    assert settings["most_faults"] == 0
    assert set(settings) <= set(AgentSettings.model_fields)


@pytest.mark.parametrize(
    ("given", "constraints"),
    [
        ({"collectors": QUIET}, "hostmount-anyuid"),
        ({"collectors": QUIET, "faults": ["power-cycle"]}, "hostmount-anyuid"),
        ({"collectors": QUIET, "faults": ["process-stop"]}, "privileged"),
        ({"collectors": ["rdma"]}, "privileged"),
    ],
)
def test_on_openshift_the_role_names_the_constraints_that_suffice(given: dict[str, Any], constraints: str) -> None:
    objects = render(given={**AGENT_ALONE, "agent": {**given, "openshift": {"enabled": True}}})
    (rule,) = one(objects, "Role")["rules"]
    assert rule["resourceNames"] == [constraints]
    assert rule["verbs"] == ["use"]


def test_selinux_options_are_the_agents_containers_and_left_out_where_there_are_none() -> None:
    assert "seLinuxOptions" not in agent({})["containers"][0]["securityContext"]
    given = {"seLinuxOptions": {"type": "spc_t"}}
    assert agent(given)["containers"][0]["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}


def test_the_runtime_class_is_left_out_where_it_is_empty() -> None:
    assert "runtimeClassName" not in agent({})
    assert agent({"nvidia": {"runtimeClassName": "nvidia"}})["runtimeClassName"] == "nvidia"


def test_gpus_are_asked_for_only_where_they_are_read() -> None:
    def names(given: dict[str, Any]) -> set[str]:
        return {each["name"] for each in agent(given)["containers"][0]["env"]}

    assert "NVIDIA_VISIBLE_DEVICES" in names({"collectors": ["gpu"]})
    assert "NVIDIA_VISIBLE_DEVICES" not in names({"collectors": ["node"]})


def test_the_agents_image_has_what_reads_the_journal() -> None:
    stage = (ROOT / "Dockerfile").read_text().rpartition("\nFROM ")[2]
    assert "gpuchaos-agent" in stage
    assert " systemd " in stage, "journalctl is in it, and agent.kernelLog is journal"


def test_an_agent_is_not_killed_for_what_only_a_person_can_mend() -> None:
    (container,) = agent({})["containers"]
    asked = {
        probe: container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")
    }
    assert asked == {"startupProbe": "/livez", "livenessProbe": "/livez", "readinessProbe": "/readyz"}


@pytest.mark.parametrize("labels", [{}, {"cell": "example.com/cell"}])
def test_a_policy_lets_the_step_that_reads_the_nodes_labels_reach_the_api_server(labels: dict[str, str]) -> None:
    given = {"collectors": ["node"], "fromNodeLabels": labels}
    objects = render(given={**AGENT_ALONE, "agent": given, "networkPolicy": {"enabled": True}})
    egress = one(objects, "NetworkPolicy", "-agent")["spec"]["egress"]
    assert any({"port": 6443, "protocol": "TCP"} in rule["ports"] for rule in egress) is bool(labels)
