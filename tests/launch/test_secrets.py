"""What people write into argv, config files and the environment stays on the node."""

import json

import pytest
from tests.launch import stand_ins

SECRET = "sk-planted-7f3a9c"
PLANTED = {
    "api key": ["--api-key", SECRET],
    "api key with an equals sign": [f"--api-key={SECRET}"],
    "model path": ["--model-path", f"s3://{SECRET}@bucket/model"],
    "positional model": [f"https://user:{SECRET}@host/model"],
    "revision": ["--model-path", "org/model", "--revision", SECRET],
    "runner": ["--moe-runner-backend", SECRET.replace("-", "_")],
    "a2a": ["--moe-a2a-backend", SECRET.replace("-", "_")],
    "rendezvous": ["--dist-init-addr", f"user:{SECRET}@host:1"],
    "ranks": ["--tp", SECRET, "--nnodes", SECRET, "--node-rank", SECRET, "--base-gpu-id", SECRET],
    "draft": ["--speculative-draft-model-path", f"hf://{SECRET}"],
    "overrides": ["--json-model-override-args", json.dumps({"token": SECRET})],
    "config file name": ["--config", f"/nowhere/{SECRET}.yaml"],
    "unread command": None,
}


def told(node, argv, **keywords):
    """Everything that left: bytes to the controller, stderr, and the state folder."""
    with stand_ins.Controller(stand_ins.honest(hands_off)) as controller:
        node.enroll(controller.url)
        node.launch(*argv, **keywords)
        assert controller.launches()
    kept = b"".join(path.read_bytes() for path in node.state.rglob("*") if path.is_file())
    return controller.received + node.stderr.encode(), kept


def hands_off(launch):
    return stand_ins.directive(stand_ins.entry(launch, "untouched", None, "observe"))


def forms(secret):
    return [secret.encode(), secret.replace("-", "_").encode(), secret[3:].encode()]


@pytest.mark.parametrize("planted", PLANTED.values(), ids=PLANTED)
def test_secrets_in_argv_are_neither_sent_nor_printed_nor_kept(node, planted):
    argv = ["sglang", "serve", *planted] if planted else ["/bin/sh", "-c", f"exec sglang {SECRET}"]
    sent, kept = told(node, argv)
    for form in forms(SECRET):
        assert form not in sent
        assert form not in kept


def test_secrets_in_files_and_environment_are_neither_sent_nor_printed(sm107, k3):
    config = json.loads((k3 / "config.json").read_text())
    config["api_key"] = SECRET
    config["text_config"]["quantization_config"]["config_groups"]["group_0"]["token"] = SECRET
    (k3 / "config.json").write_text(json.dumps(config))
    (sm107.folder / "c.yaml").write_text(
        f"model-path: {k3}\napi-key: {SECRET}\nadmin-api-key: {SECRET}\nlog-level: {SECRET}\n"
        f"speculative-draft-model-path: {SECRET}\nmoe-runner-backend: auto\n"
    )
    sent, kept = told(
        sm107, ["sglang", "serve", "--config", "c.yaml"],
        environ={
            "HF_TOKEN": SECRET, "SGLANG_API_KEY": SECRET, "FLASHINFER_CUBINS_REPOSITORY": SECRET,
            "LWS_LEADER_ADDRESS": f"{SECRET} x", "CUDA_VISIBLE_DEVICES": f"0,{SECRET}",
        },
    )  # fmt: skip
    for form in forms(SECRET):
        assert form not in sent
        assert form not in kept
    assert b"FLASHINFER_CUBINS_REPOSITORY" in sent


def test_the_nodes_own_credential_goes_to_the_controller_alone(node):
    sent, _ = told(node, ["sglang", "serve", "--model-path", "m"])
    assert sent.count(b"node-credential-of-a") == sent.count(b"Authorization: Bearer ")
    assert "node-credential-of-a" not in node.stderr


@pytest.mark.parametrize(
    "url", ["http://user:sk-planted-7f3a9c@no-such-host.invalid:1", "http://sk-planted-7f3a9c/"]
)
def test_a_secret_in_the_controllers_address_is_not_printed(node, url):
    node.enroll(url)
    node.launch("sglang", "serve", options=["--deadline-s", "3"])
    assert SECRET not in node.stderr
