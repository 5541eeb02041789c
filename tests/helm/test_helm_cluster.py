"""The chart in a real Kubernetes API server: what is stored, what is admitted, and who may do what."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import httpx
import pytest
import yaml
from helm_chart import CHART, ROOT, SETS, Object, of_kind, one, pods, values_of
from helm_kube import Installed, Kube

from gpuchaos_agent import config

#: The first build takes minutes; one server for all of them.
pytestmark = [pytest.mark.timeout(1800), pytest.mark.xdist_group("kubernetes")]

#: Kind → where its objects are.
PLACES: Final = {
    "ServiceAccount": "api/v1/{}/serviceaccounts",
    "ConfigMap": "api/v1/{}/configmaps",
    "Service": "api/v1/{}/services",
    "PersistentVolumeClaim": "api/v1/{}/persistentvolumeclaims",
    "Deployment": "apis/apps/v1/{}/deployments",
    "DaemonSet": "apis/apps/v1/{}/daemonsets",
    "Job": "apis/batch/v1/{}/jobs",
    "PodDisruptionBudget": "apis/policy/v1/{}/poddisruptionbudgets",
    "HorizontalPodAutoscaler": "apis/autoscaling/v2/{}/horizontalpodautoscalers",
    "NetworkPolicy": "apis/networking.k8s.io/v1/{}/networkpolicies",
    "Ingress": "apis/networking.k8s.io/v1/{}/ingresses",
    "Role": "apis/rbac.authorization.k8s.io/v1/{}/roles",
    "RoleBinding": "apis/rbac.authorization.k8s.io/v1/{}/rolebindings",
    "ClusterRole": "apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "PodMonitor": "apis/monitoring.coreos.com/v1/{}/podmonitors",
    "ServiceMonitor": "apis/monitoring.coreos.com/v1/{}/servicemonitors",
    "PrometheusRule": "apis/monitoring.coreos.com/v1/{}/prometheusrules",
}
_QUANTITY: Final = re.compile(r"(\d+(?:\.\d+)?)(m|k|Ki|Mi|Gi)?\Z")
_TIMES: Final[dict[str | None, Decimal | int]] = {
    "m": Decimal("0.001"),
    "k": 1000,
    "Ki": 1 << 10,
    "Mi": 1 << 20,
    "Gi": 1 << 30,
    None: 1,
}


def place(kind: str, namespace: str) -> str:
    return "/" + PLACES[kind].format(f"namespaces/{namespace}")


def manifest(server: Kube, namespace: str, release: str = "r") -> list[Object]:
    """What Helm says that it has installed, hooks included."""
    texts = [server.helm("get", what, release, "-n", namespace) for what in ("manifest", "hooks")]
    return [each for text in texts for each in yaml.safe_load_all(text) if each]


def missed(meant: Any, stored: Any, path: str = "") -> list[str]:
    """Where what is stored is not what was meant; what the server adds is left out."""
    if isinstance(meant, dict):
        held = stored if isinstance(stored, dict) else {}
        return [each for key, value in meant.items() for each in missed(value, held.get(key), f"{path}.{key}")]
    if isinstance(meant, list) and isinstance(stored, list) and len(meant) == len(stored):
        both = zip(meant, stored, strict=True)
        return [each for number, (one, other) in enumerate(both) for each in missed(one, other, f"{path}[{number}]")]
    same = meant == stored or (not meant and stored is None) or _quantity(meant) == _quantity(stored)
    return [] if same else [f"{path}: {meant!r} is {stored!r}"]


def _quantity(value: Any) -> Any:
    match = _QUANTITY.match(str(value))
    return Decimal(match[1]) * _TIMES[match[2]] if match else value


@pytest.mark.parametrize("name", SETS)
def test_what_is_stored_is_what_was_meant(server: Kube, installed: Installed, name: str) -> None:
    namespace = installed.of(name)
    objects = [each for each in manifest(server, namespace) if each["kind"] != "Pod"]
    assert {"Deployment", "DaemonSet", "Job", "ConfigMap"} <= {each["kind"] for each in objects}
    for each in objects:
        stored = server.get(f"{place(each['kind'], namespace)}/{each['metadata']['name']}")
        assert missed(each, stored) == [], f"{each['kind']} {each['metadata']['name']}"


@pytest.mark.parametrize("name", SETS)
def test_pods_of_the_control_plane_are_admitted_where_pods_are_restricted(
    server: Kube, installed: Installed, name: str
) -> None:
    restricted = server.namespace(f"restricted-{name}", "restricted")
    seen = []
    for who, spec in pods(manifest(server, installed.of(name))):
        if "serviceAccountName" in spec:
            server.create(
                f"/api/v1/namespaces/{restricted}/serviceaccounts", {"metadata": {"name": spec["serviceAccountName"]}}
            )
        answer = _admit(server, restricted, who, spec)
        if who.endswith("-agent"):
            assert answer.status_code == httpx.codes.FORBIDDEN
            assert "violates PodSecurity" in answer.text
        else:
            assert answer.is_success, answer.text
            seen.append(who)
    assert {"r-gpuchaos-worker", "r-gpuchaos-web", "r-gpuchaos-topics", "r-gpuchaos-answers"} <= set(seen)


@pytest.mark.parametrize("name", SETS)
def test_the_agent_is_admitted_where_pods_are_privileged_and_nowhere_else(
    server: Kube, installed: Installed, name: str
) -> None:
    namespace = installed.of(name)
    (who, spec), *_ = [(who, spec) for who, spec in pods(manifest(server, namespace)) if who.endswith("-agent")]
    assert _admit(server, namespace, who, spec).is_success
    baseline = server.namespace(f"baseline-{name}", "baseline")
    server.create(f"/api/v1/namespaces/{baseline}/serviceaccounts", {"metadata": {"name": who}})
    refused = _admit(server, baseline, who, spec)
    assert refused.status_code == httpx.codes.FORBIDDEN
    assert "hostPath" in refused.text


def _admit(server: Kube, namespace: str, name: str, spec: Object) -> httpx.Response:
    """As the controller would ask; nothing is stored."""
    body = {"metadata": {"name": f"{name}-0"}, "spec": spec}
    return server.admin.post(f"/api/v1/namespaces/{namespace}/pods?dryRun=All", json=body)


def accounts(server: Kube, namespace: str) -> list[str]:
    found = [each["metadata"]["name"] for each in server.get(place("ServiceAccount", namespace))["items"]]
    return [name for name in found if name.startswith("r-gpuchaos")]


def allowed(client: httpx.Client, namespace: str) -> set[tuple[str, str, str]]:
    """Group, resource and verb of all that whoever asks may do, but to ask that."""
    body = {"spec": {"namespace": namespace}}
    path = "/apis/authorization.k8s.io/v1/selfsubjectrulesreviews"
    rules = client.post(path, json=body).raise_for_status().json()["status"]["resourceRules"]
    return {
        (group, resource, verb)
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if not resource.startswith("selfsubject")
    }


@pytest.mark.parametrize("name", SETS)
def test_a_service_account_may_do_what_its_pod_needs_and_nothing_else(
    server: Kube, installed: Installed, name: str
) -> None:
    namespace = installed.of(name)
    found = accounts(server, namespace)
    assert {"r-gpuchaos-worker", "r-gpuchaos-web", "r-gpuchaos-agent", "r-gpuchaos-topics"} <= set(found)
    for account in found:
        reads_nodes = name == "full" and account.endswith("-agent")
        with server.client(server.token(namespace, account)) as client:
            may = allowed(client, namespace)
            if reads_nodes:
                assert may == {("", "nodes", "get"), ("security.openshift.io", "securitycontextconstraints", "use")}
            else:
                assert may == set(), account
            answers = {
                "own node": client.get("/api/v1/nodes/gpu-1").status_code,
                "nodes": client.get("/api/v1/nodes").status_code,
                "secrets": client.get(f"/api/v1/namespaces/{namespace}/secrets").status_code,
                "config": client.get(f"{place('ConfigMap', namespace)}/r-gpuchaos-rules").status_code,
                "delete": client.delete(f"{place('DaemonSet', namespace)}/r-gpuchaos-agent").status_code,
                "label": client.patch(
                    "/api/v1/nodes/gpu-1",
                    json={"metadata": {"labels": {"x": "y"}}},
                    headers={"Content-Type": "application/merge-patch+json"},
                ).status_code,
                "grant": client.post(
                    place("RoleBinding", namespace),
                    json={
                        "metadata": {"name": "mine"},
                        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "admin"},
                    },
                ).status_code,
            }
            expected = dict.fromkeys(answers, httpx.codes.FORBIDDEN.value)
            assert answers == {**expected, **({"own node": 200} if reads_nodes else {})}, account


def test_rights_and_role_of_the_agent_follow_the_faults_of_an_upgrade(server: Kube) -> None:
    namespace = server.namespace("chaos-faults", "privileged")

    def state(*faults: str) -> tuple[Any, Any, Any]:
        quiet = {"collectors": ["node"], "openshift": {"enabled": True}, "faults": list(faults)}
        server.install("r", namespace, "minimal", agent=quiet)
        spec = server.get(f"{place('DaemonSet', namespace)}/r-gpuchaos-agent")["spec"]["template"]["spec"]
        (rule,) = server.get(f"{place('Role', namespace)}/r-gpuchaos-agent-scc")["rules"]
        rights = spec["containers"][0]["securityContext"]
        return rights["capabilities"].get("add"), spec.get("hostPID"), rule["resourceNames"]

    assert state() == (None, None, ["hostmount-anyuid"])
    assert state("process-stop") == (["KILL"], True, ["privileged"])
    assert state() == (None, None, ["hostmount-anyuid"])


def node_settings(
    server: Kube, tmp_path: Path, *, account: str, namespace: str, node: str = "gpu-1", labels: str = ""
) -> subprocess.CompletedProcess[str]:
    """The agent's first step as its pod runs it, with a service account's own token."""
    (tmp_path / "token").write_text(server.token(namespace, account))
    (tmp_path / "ca.crt").write_text(server.authority.read_text())
    objects = manifest(server, namespace)
    settings = one(objects, "ConfigMap", "-agent")
    (tmp_path / "agent.yaml").write_text(settings["data"]["agent.yaml"])
    (step,) = of_kind(objects, "DaemonSet")[0]["spec"]["template"]["spec"]["initContainers"]
    told = {each["name"]: each.get("value", node) for each in step["env"]}
    url = httpx.URL(server.url)
    env = {
        **told,
        "KUBERNETES_SERVICE_HOST": url.host,
        "KUBERNETES_SERVICE_PORT": str(url.port),
        "ACCOUNT": str(tmp_path),
        "FROM": str(tmp_path / "agent.yaml"),
        "TO": str(tmp_path / "made.yaml"),
        **({"LABELS": labels} if labels else {}),
    }
    return subprocess.run(
        [sys.executable, str(CHART / "files/node_settings.py")],
        env={"PATH": os.environ["PATH"], **env},
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_agent_learns_its_cell_and_rack_from_its_node(server: Kube, installed: Installed, tmp_path: Path) -> None:
    done = node_settings(server, tmp_path, account="r-gpuchaos-agent", namespace=installed.of("full"))
    assert done.returncode == 0, done.stderr
    settings = config.load(tmp_path / "made.yaml")
    assert (settings.cell, settings.rack, settings.cluster) == ("su-3", "rack-7", "training")
    assert settings.jobs[0].job == "llama"


@pytest.mark.parametrize(
    ("account", "node", "labels", "said"),
    [
        ("r-gpuchaos-worker", "gpu-1", "", "node gpu-1 cannot be read: HTTP Error 403"),
        ("r-gpuchaos-agent", "gpu-2", "", "node gpu-2 cannot be read: HTTP Error 404"),
        ("r-gpuchaos-agent", "gpu-1", '{"cell": "example.com/none"}', "node gpu-1 has no label example.com/none"),
    ],
)
def test_a_node_that_cannot_be_placed_is_said_so(
    server: Kube, installed: Installed, tmp_path: Path, account: str, node: str, labels: str, said: str
) -> None:
    given = {"account": account, "node": node, "labels": labels}
    done = node_settings(server, tmp_path, namespace=installed.of("full"), **given)
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "made.yaml").exists()


def test_no_worker_starts_before_the_topics_are_made(server: Kube) -> None:
    namespace = server.namespace("chaos-waiting", "privileged")
    words = ("install", "r", str(CHART), "-n", namespace, "-f", str(values_of("minimal")), "--timeout", "1s")
    with pytest.raises(AssertionError, match="pre-install"):
        server.helm(*words)
    assert server.get(place("Deployment", namespace))["items"] == []
    (job,) = server.get(place("Job", namespace))["items"]
    assert "--replication=3" in job["spec"]["template"]["spec"]["containers"][0]["args"]


def test_upgrade_and_rollback_keep_what_is_kept(server: Kube) -> None:
    namespace = server.namespace("chaos-kept", "privileged")
    secrets = f"/api/v1/namespaces/{namespace}/secrets"
    server.create(secrets, {"metadata": {"name": "gpuchaos-control"}, "stringData": {"control.json": "{}"}})

    def kept() -> tuple[str, ...]:
        volume = server.get(f"{place('PersistentVolumeClaim', namespace)}/r-gpuchaos-notify")
        key = server.get(f"{secrets}/gpuchaos-control")
        # No controller runs that would let it go: deleted, it would only be marked.
        assert "deletionTimestamp" not in volume["metadata"]
        return volume["metadata"]["uid"], volume["spec"]["resources"]["requests"]["storage"], key["metadata"]["uid"]

    def worker() -> Object:
        spec: Object = server.get(f"{place('Deployment', namespace)}/r-gpuchaos-worker")["spec"]
        return spec

    server.install("r", namespace, "full")
    before, first = kept(), worker()
    harmless: dict[str, list[str]] = {"faults": [], "corruptible": []}
    server.install("r", namespace, "full", worker={"dryRun": True, "stage": "detect"}, agent=harmless)
    assert "--dry-run" in worker()["template"]["spec"]["containers"][0]["args"]
    assert kept() == before
    with server.carry_out_jobs(namespace) as jobs:
        server.helm("rollback", "r", "1", "-n", namespace)
    assert jobs == []  # a rollback makes no topics: those that are there have records
    assert worker() == first
    assert kept() == before

    server.helm("uninstall", "r", "-n", namespace)
    assert kept() == before
    left = {
        kind
        for kind, path in PLACES.items()
        for each in server.get(place(kind, namespace))["items"]
        if each["metadata"].get("labels", {}).get("app.kubernetes.io/instance") == "r"
        and ("{}" in path or each["metadata"]["name"].startswith(f"{namespace}-"))
    }
    # What the job left behind, and the queue.
    assert left == {"Job", "ServiceAccount", "PersistentVolumeClaim"}


def page_commands() -> list[list[str]]:
    """What the page tells to type, without the options that every line of it has."""
    page = (ROOT / "docs/kubernetes.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines() if line.startswith("helm ")]


def test_the_commands_of_the_page_work_one_after_the_other(
    server: Kube, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (ROOT / "docs/kubernetes.md").read_text()
    values = re.search(r"^```yaml helm\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert values is not None
    (tmp_path / "my-values.yaml").write_text(values[1])
    (tmp_path / "helm").symlink_to(ROOT / "helm")
    monkeypatch.chdir(tmp_path)
    server.namespace("gpuchaos", "privileged")
    commands = page_commands()
    assert [words[0] for words in commands] == [
        *("lint", "upgrade", "test", "upgrade", "upgrade", "upgrade", "rollback", "uninstall")
    ]
    with server.carry_out_jobs("gpuchaos"), server.carry_out_pods("gpuchaos"):
        for words in commands:
            server.helm(*words)
    assert server.get(place("Deployment", "gpuchaos"))["items"] != []  # of the other release
    agents = server.get(place("DaemonSet", "gpuchaos-nodes"))["items"]
    assert [each["metadata"]["name"] for each in agents] == ["nodes-gpuchaos-agent"]
