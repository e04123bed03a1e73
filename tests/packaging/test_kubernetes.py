"""The kustomizations that ship render, and Kubernetes would take what they give."""

from __future__ import annotations

import copy
import pathlib
import re
import shutil
import subprocess
import sys
import tomllib

import pytest
import yaml
from tests.agent import fake_controller
from tests.packaging import conftest, objects

from smgate import config
from smgate_agent import config as agent_config
from smgate_agent.launch import options

SYSTEM = "system"
RULES = conftest.ROOT / "ops/prometheus/smgate.rules.yml"
ANNOTATION_BYTES_MAX = 256 * 1024
"""`kubectl apply` keeps a whole object in one annotation; Kubernetes allows this much of them."""
AGENT_MEMORY_MIB_MAX = 60


@pytest.mark.kubectl
@pytest.mark.parametrize("version", objects.VERSIONS)
@pytest.mark.parametrize("folder", conftest.KUSTOMIZATIONS)
def test_kubernetes_would_take_what_a_folder_renders(
    render: conftest.Render, folder: str, version: str
) -> None:
    things = render(folder)
    assert things
    assert [said for thing in things for said in objects.problems(thing, version)] == []


@pytest.mark.kubectl
def test_what_kubernetes_would_not_take_is_found(render: conftest.Render) -> None:
    [agent] = [thing for thing in render(SYSTEM) if thing["kind"] == "DaemonSet"]
    broken = copy.deepcopy(agent)
    broken["spec"]["template"]["spec"]["tolerance"] = []
    assert objects.problems(broken, "1.37") != []
    foreign = {**broken, "kind": "LeaderWorkerSet"}
    assert objects.problems(foreign, "1.37") != []


@pytest.mark.kubectl
@pytest.mark.parametrize("folder", conftest.KUSTOMIZATIONS)
def test_no_secret_ships(render: conftest.Render, folder: str) -> None:
    assert [thing["kind"] for thing in render(folder) if thing["kind"] == "Secret"] == []


@pytest.mark.kubectl
def test_every_pod_is_locked_down_and_only_the_agent_is_root(render: conftest.Render) -> None:
    for thing in render(SYSTEM):
        for _, pod in objects.pods(thing):
            context = pod["securityContext"]
            assert context.get("runAsNonRoot") or thing["kind"] == "DaemonSet"
            assert context["seccompProfile"] == {"type": "RuntimeDefault"}
            assert pod["automountServiceAccountToken"] is False
            for container in [*pod["containers"], *pod["initContainers"]]:
                seen = container["name"] == "agent"
                assert container["securityContext"] == {
                    "allowPrivilegeEscalation": False,
                    "readOnlyRootFilesystem": True,
                    "capabilities": {"drop": ["ALL"], **({"add": ["SYS_PTRACE"]} if seen else {})},
                }, container["name"]


@pytest.mark.kubectl
def test_the_agent_takes_no_gpu_and_has_room_for_what_it_needs(render: conftest.Render) -> None:
    [pod] = [
        pod for thing in render(SYSTEM) if thing["kind"] == "DaemonSet"
        for _, pod in objects.pods(thing)
    ]  # fmt: skip
    assert "nvidia.com/gpu" not in str([c["resources"] for c in pod["containers"]])
    [agent] = pod["containers"]
    environ = {one["name"]: one.get("value") for one in agent["env"]}
    assert environ["NVIDIA_DRIVER_CAPABILITIES"] == "utility"
    for amount in (agent["resources"]["requests"], agent["resources"]["limits"]):
        assert int(amount["memory"].removesuffix("Mi")) > AGENT_MEMORY_MIB_MAX


@pytest.mark.kubectl
def test_the_agent_and_the_gate_meet_at_the_default_paths(render: conftest.Render) -> None:
    [pod] = [
        pod for thing in render(SYSTEM) if thing["kind"] == "DaemonSet"
        for _, pod in objects.pods(thing)
    ]  # fmt: skip
    hosts = {one["name"]: one["hostPath"]["path"] for one in pod["volumes"] if "hostPath" in one}
    [agent] = pod["containers"]
    mounts = {one["mountPath"]: one["name"] for one in agent["volumeMounts"]}
    logs = ("/var/log/pods", "/var/log/containers")
    for path in (str(pathlib.Path(options.AGENT_SOCKET).parent), options.STATE_DIR, *logs):
        assert hosts[mounts[path]] == path
    assert pod["hostPID"], "processes of other pods are not seen without it"
    assert pod["hostNetwork"], "servers at the node's loopback address are not reached without it"
    assert pod["dnsPolicy"] == "ClusterFirstWithHostNet", "the controller's name is the cluster's"
    assert str(agent_config.DEFAULT_PATH.parent) in mounts


@pytest.mark.kubectl
def test_the_settings_of_the_agent_are_ones_it_takes_also_where_a_server_is_declared(
    render: conftest.Render, tmp_path: pathlib.Path
) -> None:
    [shipped] = [thing for thing in render(SYSTEM) if thing["kind"] == "ConfigMap"]
    page = shipped["data"]["agent.toml"]
    declared = re.sub(r"^# ?(\[\[instance\]\]|\w+ = )", r"\1", page, flags=re.MULTILINE)
    for text, restarters in ((page, []), (declared, ["external"])):
        (tmp_path / "agent.toml").write_text(text)
        settings = agent_config.load(tmp_path / "agent.toml", {})
        assert [one.restarter for one in settings.instance] == restarters
        assert settings.metrics_host == "0.0.0.0"
        assert settings.bake_interval_s == 60


@pytest.mark.kubectl
def test_the_controller_is_told_by_settings_that_it_has(render: conftest.Render) -> None:
    [pod] = [
        pod for thing in render(SYSTEM) if thing["kind"] == "Deployment"
        for _, pod in objects.pods(thing)
    ]  # fmt: skip
    [container] = pod["containers"]
    environ = {one["name"]: one.get("value", "postgresql://db/smgate") for one in container["env"]}
    settings = config.load(environ)
    assert settings.host == "0.0.0.0"  # a pod's own
    assert settings.database_url == "postgresql://db/smgate"
    assert [
        config.PREFIX + name.upper() for name in ("database_url", "host", "signing_key_file")
    ] == (sorted(environ))
    assert container["ports"][0]["containerPort"] == settings.port


@pytest.mark.kubectl
def test_the_signing_key_is_the_controllers_alone(
    render: conftest.Render, tmp_path: pathlib.Path
) -> None:
    """What the pod does with a mounted secret, done here: the mode is one that it accepts."""
    from smgate.service import signing

    [pod] = [
        pod for thing in render(SYSTEM) if thing["kind"] == "Deployment"
        for _, pod in objects.pods(thing)
    ]  # fmt: skip
    [copier] = [one for one in pod["initContainers"] if one["name"] == "key"]
    for name in ("secret", "key"):
        (tmp_path / name).mkdir()
    (tmp_path / "secret/signing-key").write_text("5a" * 32 + "\n")
    (tmp_path / "secret/signing-key").chmod(0o440)
    with pytest.raises(signing.BadKeyError):
        signing.load(tmp_path / "secret/signing-key", create=False)
    script = copier["command"][2].replace(" /", f" {tmp_path}/")
    subprocess.run([*copier["command"][:2], script], check=True)
    signing.load(tmp_path / "key/signing.key", create=False)


@pytest.mark.kubectl
def test_a_machine_is_enrolled_once(render: conftest.Render, tmp_path: pathlib.Path) -> None:
    """The init container's own command, run on the real program and a controller that goes away."""
    [pod] = [
        pod for thing in render(SYSTEM) if thing["kind"] == "DaemonSet"
        for _, pod in objects.pods(thing)
    ]  # fmt: skip
    [enroll] = pod["initContainers"]
    script = enroll["command"][2].replace("/var/lib/smgate-agent", str(tmp_path / "state"))
    script = script.replace("/join/", f"{tmp_path}/")
    (tmp_path / "token").write_text(fake_controller.TOKEN)
    environ = {
        "PATH": f"{pathlib.Path(sys.executable).parent}:/usr/bin:/bin",
        "SMGATE_STATE_DIR": str(tmp_path / "state"),
        "NODE": "node-1",
    }
    run = [*enroll["command"][:2], script]
    with fake_controller.FakeController() as controller:
        environ["CONTROLLER"] = controller.url
        subprocess.run(run, env=environ, check=True, capture_output=True)
        asked = len(controller.requests)
    assert asked == 1
    subprocess.run(run, env=environ, check=True, capture_output=True)
    (tmp_path / "state/credential.json").unlink()
    assert subprocess.run(run, env=environ, check=False, capture_output=True).returncode != 0


def test_the_images_are_of_this_version() -> None:
    project = tomllib.loads((conftest.ROOT / "pyproject.toml").read_text())["project"]
    system = yaml.safe_load((conftest.SHIPPED / "system/kustomization.yaml").read_text())
    assert {image["newTag"] for image in system["images"]} == {project["version"]}


@pytest.mark.kubectl
def test_the_gate_fits_into_a_config_map_under_one_name(render: conftest.Render) -> None:
    [gate] = render("gate")
    assert gate["metadata"]["name"] == "smgate-gate", "a hash would restart every server"
    assert len(yaml.safe_dump(gate)) < ANNOTATION_BYTES_MAX


def test_the_alerts_of_the_operator_are_those_of_the_rules_file(tmp_path: pathlib.Path) -> None:
    """The command at the top of the file makes the file, and it holds the rules."""
    shutil.copytree(conftest.ROOT / "ops/prometheus", tmp_path / "prometheus")
    shutil.copytree(conftest.SHIPPED / "monitoring", tmp_path / "kubernetes/monitoring")
    page = (conftest.SHIPPED / "monitoring/prometheusrule.yaml").read_text()
    command = "".join(line.removeprefix("#") for line in page.splitlines()[1:3])
    folder = tmp_path / "kubernetes/monitoring"
    subprocess.run(["sh", "-c", command], cwd=folder, check=True)
    assert (folder / "prometheusrule.yaml").read_text() == page, command
    assert yaml.safe_load(page)["spec"] == yaml.safe_load(RULES.read_text())


@pytest.mark.kubectl
def test_the_jobs_are_those_that_the_alerts_and_the_example_expect(render: conftest.Render) -> None:
    example = yaml.safe_load((RULES.parent / "prometheus.example.yml").read_text())
    names = {job["job_name"] for job in example["scrape_configs"]}
    monitors = [thing for thing in render("monitoring") if thing["kind"].endswith("Monitor")]
    assert {thing["metadata"]["name"] for thing in monitors} == names
    scraped = {
        thing["metadata"]["labels"].get(monitors[0]["spec"]["jobLabel"]): thing
        for thing in render(SYSTEM)
        if thing["kind"] in ("Service", "DaemonSet")
    }
    for monitor in monitors:
        wanted = monitor["spec"]["selector"]["matchLabels"]["app.kubernetes.io/name"]
        assert wanted == monitor["metadata"]["name"], "the job's name is this label's value"
        [endpoint] = [
            *monitor["spec"].get("endpoints", ()),
            *monitor["spec"].get("podMetricsEndpoints", ()),
        ]
        assert f"'name': '{endpoint['port']}'" in str(scraped[wanted])
