"""What SGLang resolves by itself, against `smgate.domain.upstream`, which was written from its rules.

Every expected value is what SGLang's own parser and resolution give in the same run. The model is
asked with the parsed `config.json` and nothing of SGLang's.
"""

import itertools

import pytest

from smgate.domain import outcome, upstream

pytestmark = pytest.mark.sglang

SMS = ("8.0", "9.0", "10.0", "10.1", "10.3", "10.7", "11.0", "12.0", "12.1")
RUNNERS = ("auto", "marlin", "flashinfer_mxfp4", "triton", "deep_gemm", "megamoe")
A2A = ("none", "deepep", "mooncake", "megamoe", "flashinfer")
CUDAS = ("12.6", "12.8", "13.0")
LAYOUTS = ("group_and_top", "group_only", "top_only", "int4", "none")
ODD_LAYOUTS = ("scheme_only", "at_the_root")

# Enough for every a2a backend to get past the checks that have nothing to do with the runner.
COMMON = (
    *("--tp-size", "8", "--device", "cuda", "--trust-remote-code", "--skip-tokenizer-init"),
    *("--mem-fraction-static", "0.85", "--disable-cuda-graph"),
)
DATA_PARALLEL = ("--dp-size", "8", "--enable-dp-attention")


def launch(model, runner, a2a):
    flags = ["--model-path", model, *COMMON]
    # Explicit auto is no other request than none; test_an_explicit_auto_is_no_choice shows it.
    if runner != "auto":
        flags += ["--moe-runner-backend", runner]
    if a2a != "none":
        flags += ["--moe-a2a-backend", a2a]
    if a2a == "flashinfer":
        flags += DATA_PARALLEL
    return flags


def compare(worker, models, configs, combinations):
    combinations = list(combinations)
    cases = [
        {"argv": launch(models[layout], runner, a2a), "sm": sm, "torch_cuda": cuda}
        for sm, runner, a2a, layout, cuda in combinations
    ]
    wrong = []
    for (sm, runner, a2a, layout, cuda), real in zip(
        combinations, worker.ask_each("resolve_many", cases), strict=True
    ):
        model = upstream.upstream_auto(
            sglang_version=worker.version,
            sm=sm,
            torch_cuda=cuda,
            a2a=a2a,
            backend=runner,
            hf_config=configs[layout],
        )
        if "error" in real:
            same = real["error"]["stage"] == "resolve" and model.raises == "a2a_refused"
        else:
            same = (model.runner, model.a2a) == (real["runner"], real["a2a"])
        if not same:
            wrong.append(((sm, runner, a2a, layout, cuda), real, model))
    assert not wrong, f"{len(wrong)} of {len(combinations)}, the first: {wrong[0]}"
    return len(combinations)


@pytest.mark.parametrize("sm", SMS)
def test_the_model_resolves_as_sglang_does(sglang, k3_models, k3_layouts, sm):
    combinations = itertools.product((sm,), RUNNERS, A2A, LAYOUTS, CUDAS)
    compared = compare(sglang, k3_models, k3_layouts, combinations)
    assert compared == len(RUNNERS) * len(A2A) * len(LAYOUTS) * len(CUDAS)


def test_the_model_resolves_odd_checkpoints_as_sglang_does(sglang, k3_models, k3_layouts):
    combinations = itertools.product(
        SMS, ("auto", "marlin"), ("none", "megamoe"), ODD_LAYOUTS, ("12.6", "12.8")
    )
    compare(sglang, k3_models, k3_layouts, combinations)


def test_older_sglang_resolves_k3_as_the_model_says(old_sglang, k3_models, k3_layouts):
    combinations = itertools.product(
        SMS, RUNNERS, A2A, ("group_and_top", "top_only"), ("12.6", "12.8")
    )
    compare(old_sglang, k3_models, k3_layouts, combinations)


def test_sm107_is_what_separates_0_5_18_from_0_5_19(old_sglang, k3_models):
    answers = {
        sm: old_sglang.ask(
            "resolve_argv",
            argv=launch(k3_models["group_and_top"], "auto", "none"),
            sm=sm,
            torch_cuda="12.8",
        )["runner"]
        for sm in ("10.3", "10.7")
    }
    selects_sm107 = old_sglang.version != "0.5.18"
    assert answers["10.3"] == outcome.TARGET
    assert answers["10.7"] == (outcome.TARGET if selects_sm107 else "auto")


@pytest.mark.parametrize("layout", [*LAYOUTS, *ODD_LAYOUTS])
def test_the_loader_sees_mxfp4_where_the_model_says_so(sglang, k3_layouts, layout):
    config = k3_layouts[layout]
    quantization = config.get("quantization_config") or config["text_config"].get(
        "quantization_config"
    )
    sees = (
        quantization is not None
        and sglang.ask("loader", quantization_config=quantization)["sees_mxfp4"]
    )
    assert (upstream.mxfp4_layout(config) != "none") == sees


def test_the_gate_depends_on_the_cuda_that_torch_was_built_for(sglang):
    """The real `_check_cuda_device_version`, told a torch of each CUDA."""
    for sm, cuda in itertools.product(SMS, ("12.2", "12.3", *CUDAS)):
        facts = sglang.ask("facts", sm=sm, torch_cuda=cuda)
        seen = {name for name in ("sm90", "sm100", "sm120") if facts[f"is_{name}"]}
        assert seen == {outcome.device_class(sm=sm, torch_cuda=cuda)} - {None}, (sm, cuda)


def test_a_torch_without_cuda_is_no_cuda_machine(sglang):
    assert sglang.ask("facts", sm="10.7", torch_cuda=None)["is_cuda"] is False


@pytest.mark.parametrize("sm", ["10.3", "10.7", "9.0"])
def test_an_explicit_auto_is_no_choice(sglang, k3_models, sm):
    bare = launch(k3_models["group_and_top"], "auto", "none")
    asked = [
        sglang.ask("resolve_argv", argv=argv, sm=sm, torch_cuda="12.8")["runner"]
        for argv in (bare, [*bare, "--moe-runner-backend", "auto"])
    ]
    assert asked[0] == asked[1]


@pytest.mark.parametrize("runner", ["marlin", "flashinfer_mxfp4"])
def test_the_last_flag_wins(sglang, k3_models, runner):
    bare = launch(k3_models["group_and_top"], "auto", "none")
    for named in ("auto", "triton", "deep_gemm"):
        argv = [*bare, "--moe-runner-backend", named, "--moe-runner-backend", runner]
        answer = sglang.ask("resolve_argv", argv=argv, sm="10.7", torch_cuda="12.8")
        assert answer["runner"] == runner


def test_the_selected_line_of_the_log_is_no_proof(sglang, k3_models):
    """Resolved or not, an unresolved launch says nothing at all of it."""
    said = {}
    for layout in ("group_and_top", "top_only"):
        argv = launch(k3_models[layout], "auto", "none")
        answer = sglang.ask("resolve_argv", argv=argv, sm="10.7", torch_cuda="12.8")
        said[answer["runner"]] = [line for line in answer["log"] if "moe_runner_backend" in line]
    assert said["auto"] == []
    assert len(said[outcome.TARGET]) == 1


def test_sglang_refuses_what_its_parser_does_not_know(sglang, k3_models):
    argv = [*launch(k3_models["none"], "auto", "none"), "--moe-runner-backend", "no_such_runner"]
    answer = sglang.ask("resolve_argv", argv=argv, sm="10.7", torch_cuda="12.8")
    assert answer["error"]["stage"] == "parse"
    assert "invalid choice" in answer["error"]["text"]
