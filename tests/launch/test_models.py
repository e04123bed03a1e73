"""How the gate reads a model: its config.json, the hub's cache, its drafts."""

import json
import os

import pytest
from tests.launch.asking import reported

from smgate.wire import facts
from smgate_agent.launch import model

GARBAGE = {
    "not JSON": "{",
    "a list": "[]",
    "deep": "[" * 100_000,
    "NaN": '{"architectures": ["A"], "x": NaN}',
    "no architecture": "{}",
    "architecture of another type": '{"architectures": "KimiK3ForConditionalGeneration"}',
    "architecture that is no name": '{"architectures": ["rm -rf /"]}',
    "binary": "\0\0\0",
    "too large": " " * (9 << 20),
}


@pytest.mark.parametrize("text", GARBAGE.values(), ids=GARBAGE)
def test_a_garbled_model_config_is_no_model(node, k3, text):
    (k3 / "config.json").write_text(text)
    planned, _ = reported(node, "sglang", "serve", "--model-path", str(k3))
    assert planned.model is None
    assert planned.layout.experts == 0


def test_odd_numbers_in_a_model_config_are_dropped(node, k3):
    odd = {
        "architectures": ["A"],
        "quantization_config": [1],
        "text_config": {
            "num_experts": -1,
            "hidden_size": 1e99,
            "moe_intermediate_size": True,
            "top_k": "16",
        },
    }
    (k3 / "config.json").write_text(json.dumps(odd))
    planned, _ = reported(
        node,
        "sglang",
        "serve",
        "--model-path",
        str(k3),
        "--tp",
        "-4",
        "--nnodes",
        "many",
        "--ep",
        str(10**30),
    )
    assert planned.model == facts.Model(digest=planned.model.digest, architecture="A")
    assert planned.layout == facts.Layout()
    assert planned.nnodes == 1


def test_a_pipe_in_place_of_the_model_config_costs_the_deadline_at_most(node, k3):
    (k3 / "config.json").unlink()
    os.mkfifo(k3 / "config.json")
    node.launch("sglang", "serve", "--model-path", str(k3), options=["--deadline-s", "2"])
    assert node.took_s < 8
    assert "launch_unread" in node.stderr


@pytest.mark.parametrize(
    ("variables", "folder"),
    [
        ({"HF_HUB_CACHE": "{home}/a"}, "a"),
        ({"HUGGINGFACE_HUB_CACHE": "{home}/b"}, "b"),
        ({"HF_HOME": "{home}/c"}, "c/hub"),
        ({"XDG_CACHE_HOME": "{home}/d"}, "d/huggingface/hub"),
        ({}, ".cache/huggingface/hub"),
        ({"HF_HOME": "{home}/e", "HF_HUB_CACHE": "{home}/f"}, "f"),
    ],
)
@pytest.mark.parametrize("revision", [None, "v2", "c0" * 20])
def test_a_cached_repository_is_found(tmp_path, variables, folder, revision):
    commit = "c0" * 20
    repository = tmp_path / folder / "models--moonshot--K3"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / (revision or "main")).write_text(commit)
    (repository / "snapshots" / commit).mkdir(parents=True)
    (repository / "snapshots" / commit / "config.json").write_text('{"architectures": ["A"]}')
    environ = {name: value.format(home=tmp_path) for name, value in variables.items()}
    environ["HOME"] = str(tmp_path)
    config = model.read_config("moonshot/K3", revision, environ)
    assert config == {"architectures": ["A"]}
    assert model.read_config("moonshot/K4", revision, environ) is None
    assert model.read_config("moonshot/K3", "../../etc", environ) is None


def test_the_last_reading_of_a_model_holds(node, k3):
    argv = ["sglang", "serve", "--model-path", str(k3), "--revision", "r1"]
    first, _ = reported(node, *argv)
    (k3 / "config.json").unlink()
    again, _ = reported(node, *argv)
    assert again.model == first.model
    assert again.layout == first.layout
    other, _ = reported(node, *argv[:-1], "r2")
    assert other.model is None


QUANTIZATIONS = {
    "group and top level": ({"inner": True, "top": True, "group": True}, ("mxfp4", "mxfp4")),
    "top level only": ({"inner": True, "top": True, "group": False}, ("mxfp4", None)),
    "group only": ({"inner": True, "top": False, "group": True}, (None, "mxfp4")),
    "neither": ({"inner": True, "top": False, "group": False}, (None, None)),
    # SGLang's selection looks into text_config alone, its loader also at the root.
    "at the root": ({"inner": False, "top": True, "group": True}, ("mxfp4", None)),
    "at the root, in a group": ({"inner": False, "top": False, "group": True}, ("mxfp4", None)),
}


@pytest.mark.parametrize(("where", "expected"), QUANTIZATIONS.values(), ids=QUANTIZATIONS)
def test_both_views_of_the_weight_format_are_kept_apart(where, expected):
    group = {"format": "mxfp4-x"} if where["group"] else {}
    quantization = {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}}
    if where["top"]:
        quantization["format"] = "mxfp4-x"
    config = {"architectures": ["A"], "text_config": {}}
    (config["text_config"] if where["inner"] else config)["quantization_config"] = quantization
    found = model.facts(config, "0123456789abcdef")
    formats = (found["format_top_level"], found["format_group"])
    assert tuple(text and text.removesuffix("-x") for text in formats) == expected


@pytest.mark.parametrize(
    ("draft", "flag", "expected"),
    [("awq", None, True), ("gptq_marlin", None, True), ("fp8", None, False), (None, "awq", True)],
)
def test_an_awq_or_gptq_draft_is_seen(node, k3, draft, flag, expected):
    folder = node.folder / "draft"
    folder.mkdir()
    config = {"quantization_config": {"quant_method": draft}} if draft else {}
    (folder / "config.json").write_text(json.dumps({"architectures": ["D"], **config}))
    stated = ["--speculative-draft-model-quantization", flag] if flag else []
    planned, _ = reported(
        node, "sglang", "serve", "--model", str(k3), "--speculative-draft-model-path", str(folder),
        *stated,
    )  # fmt: skip
    assert planned.draft_asserts_auto is expected


@pytest.mark.parametrize(
    ("config", "layers"),
    [
        ({"num_hidden_layers": 93, "first_k_dense_replace": 1}, 92),
        ({"num_hidden_layers": 4, "first_k_dense_replace": 1, "moe_layer_freq": 2}, 1),
        ({"num_hidden_layers": 4, "mlp_only_layers": []}, 4),
        ({"num_hidden_layers": 4, "decoder_sparse_step": 1}, 4),
        ({"num_hidden_layers": 4, "model_type": "gpt_oss"}, 4),
        ({"num_hidden_layers": 4}, None),
        ({"num_hidden_layers": 4, "mlp_only_layers": [1]}, None),
        ({"num_hidden_layers": 4, "decoder_sparse_step": 2}, None),
        ({"first_k_dense_replace": 1}, None),
        ({"num_hidden_layers": "4", "first_k_dense_replace": 1}, None),
        ({"num_hidden_layers": 4, "first_k_dense_replace": -1}, None),
        ({"num_hidden_layers": 1 << 40, "first_k_dense_replace": 1}, None),
        ({"num_hidden_layers": 1, "first_k_dense_replace": 1}, None),
    ],
)
def test_layers_with_experts_are_counted_where_the_model_says_which_they_are(config, layers):
    assert model.shape(config).get("expert_layers") == layers
    outer = {"model_type": config.pop("model_type", "k3"), "text_config": config}
    assert model.shape(outer).get("expert_layers") == layers
