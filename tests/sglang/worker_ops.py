"""What the worker can be asked: each operation calls SGLang and reports, and judges nothing."""

import contextlib
import importlib.metadata
import inspect
import io
import logging
import os
import pathlib
import platform
import sys

import torch
import worker_stubs

worker_stubs.flashinfer_is_installed()

import worker_machine
from sglang.srt.layers.moe import MoeRunnerConfig
from sglang.srt.layers.moe.utils import initialize_moe_config
from sglang.srt.layers.quantization import mxfp4
from sglang.srt.plugins import load_plugins
from sglang.srt.runtime_context import get_context
from sglang.srt.server_args import prepare_server_args

load_plugins()

_AGENTS = pathlib.Path(__file__).resolve().parents[2] / "agents"
_FIELDS = (
    "attention_backend",
    "prefill_attention_backend",
    "decode_attention_backend",
    "ep_size",
    "tp_size",
    "speculative_moe_runner_backend",
    "quantization",
)


def _told(error, stage):
    return {"stage": stage, "type": type(error).__name__, "text": str(error)}


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


@contextlib.contextmanager
def _logged():
    """The lines SGLang logs within the block. Its parser replaces the root logger's handlers."""
    handler, root = _Lines(), logging.getLogger("sglang")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    try:
        yield handler.lines
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@contextlib.contextmanager
def _environment(extra):
    """This case's variables; and what resolution itself writes into os.environ ends with it."""
    before = dict(os.environ)
    os.environ.update(extra)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def resolved_values(arguments):
    """The resolved values, from wherever this version keeps them."""
    if hasattr(arguments, "resolved_dict"):
        return arguments.resolved_dict()
    return vars(arguments)


def server_args(argv):
    """A launch's arguments, parsed and resolved; SystemExit where the parser refuses them."""
    arguments = prepare_server_args(list(argv))
    if hasattr(arguments, "resolve_once"):
        arguments.resolve_once()
    return arguments


def _parsed_and_resolved(argv, said):
    try:
        with contextlib.redirect_stderr(said):
            arguments = prepare_server_args(list(argv))
    except SystemExit as error:
        return {
            "error": {
                "stage": "parse",
                "type": "SystemExit",
                "text": said.getvalue().strip() or str(error),
            }
        }
    except Exception as error:
        # Before 0.5.19 a ServerArgs resolves itself while it is made.
        stage = "parse" if worker_machine.HAS_PLATFORM else "resolve"
        return {"error": _told(error, stage)}
    try:
        if hasattr(arguments, "resolve_once"):
            arguments.resolve_once()
    except Exception as error:
        return {"error": _told(error, "resolve")}
    values = resolved_values(arguments)
    return {
        "runner": values["moe_runner_backend"],
        "a2a": values["moe_a2a_backend"],
        "fields": {name: values.get(name) for name in _FIELDS},
    }


def resolve_argv(argv, sm, torch_cuda, env=None):
    with (
        _environment(env or {}),
        worker_machine.machine(sm=sm, torch_cuda=torch_cuda),
        _logged() as lines,
    ):
        answer = _parsed_and_resolved(argv, io.StringIO())
    return {**answer, "log": lines}


def resolve_many(cases):
    answers = []
    for case in cases:
        answer = resolve_argv(**case)
        del answer["log"]
        answers.append(answer)
    return answers


@contextlib.contextmanager
def _moe_method(runner, a2a, sm, torch_cuda):
    """Mxfp4MoEMethod as a model on this machine would make it, once flags are resolved."""
    with (
        worker_machine.machine(sm=sm, torch_cuda=torch_cuda),
        get_context().override_server_args(
            moe_runner_backend=runner, moe_a2a_backend=a2a, model_path="dummy"
        ) as published,
    ):
        # Up to 0.5.18 it is handed the arguments; since then it reads what was published.
        wanted = inspect.signature(initialize_moe_config).parameters
        initialize_moe_config(*([published] if wanted else []))
        yield mxfp4.Mxfp4MoEMethod(prefix="model.layers.1.mlp.experts")


def _k3_config(experts, hidden, intermediate):
    """The runner configuration Kimi K3 asks for: SiTU, its constants, halves not interleaved."""
    return MoeRunnerConfig(
        activation="situ",
        gemm1_alpha=4.0,
        gemm1_clamp_limit=25.0,
        gate_up_interleaved=False,
        num_experts=experts,
        num_local_experts=experts,
        hidden_size=hidden,
        intermediate_size_per_partition=intermediate,
        top_k=1,
        layer_id=0,
    )


def _layer(config):
    layer = torch.nn.Module()
    layer.moe_runner_config = config
    for name in (
        "num_experts",
        "num_local_experts",
        "hidden_size",
        "intermediate_size_per_partition",
    ):
        setattr(layer, name, getattr(config, name))
    return layer


def create_runner(runner, a2a, sm, torch_cuda):
    config = _k3_config(experts=2, hidden=256, intermediate=128)
    stage = "Mxfp4MoEMethod"
    try:
        with _moe_method(runner, a2a, sm, torch_cuda) as method:
            layer = _layer(config)
            stage = "create_weights"
            method.create_weights(layer, 2, 256, 128, torch.bfloat16)
            stage = "create_moe_runner"
            method.create_moe_runner(layer, config)
            made = getattr(method, "runner", None)
    except Exception as error:
        return {"error": _told(error, stage)}
    return {"runner": None if made is None else made.runner_backend.value}


def create_many(cases):
    return [create_runner(**case) for case in cases]


def _parameters(layer):
    return {
        name: {"dtype": str(value.dtype), "bytes": value.numel() * value.element_size()}
        for name, value in layer.named_parameters()
    }


def weights(runner, a2a, sm, torch_cuda, experts, hidden, intermediate):
    config = _k3_config(experts, hidden, intermediate)
    worker_stubs.UPCASTS.clear()
    with _moe_method(runner, a2a, sm, torch_cuda) as method:
        layer = _layer(config)
        method.create_weights(layer, experts, hidden, intermediate, torch.bfloat16)
        random = torch.Generator().manual_seed(7)
        for name, value in layer.named_parameters():
            if value.dtype == torch.uint8 and "scale" not in name:
                value.data.random_(0, 256, generator=random)
        method.create_moe_runner(layer, config)
        before = _parameters(layer)
        error = None
        try:
            method.process_weights_after_loading(layer)
        except Exception as raised:
            error = _told(raised, "process_weights_after_loading")
        after = _parameters(layer)
    return {"before": before, "after": after, "upcasts": list(worker_stubs.UPCASTS), "error": error}


def parameters(runner, a2a, sm, torch_cuda, experts, hidden, intermediate, with_bias):
    """What create_weights makes, in full size: on the meta device nothing takes memory."""
    config = _k3_config(experts, hidden, intermediate)
    with _moe_method(runner, a2a, sm, torch_cuda) as method, torch.device("meta"):
        layer = _layer(config)
        method.create_weights(layer, experts, hidden, intermediate, torch.bfloat16, with_bias)
    return {
        name: {**told, "shape": list(getattr(layer, name).shape)}
        for name, told in _parameters(layer).items()
    }


def parameters_many(cases):
    return [parameters(**case) for case in cases]


def loader(quantization_config):
    from sglang.srt.layers.quantization.compressed_tensors.compressed_tensors import (
        CompressedTensorsConfig,
    )

    config = CompressedTensorsConfig.from_config(
        dict(quantization_config, packed_modules_mapping={})
    )
    return {"sees_mxfp4": bool(config._is_mxfp4_moe("model.layers.1.mlp.experts"))}


def choices():
    import argparse

    from sglang.srt.server_args import ServerArgs

    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    found = {action.dest: action.choices for action in parser._actions}
    return {"runner": list(found["moe_runner_backend"]), "a2a": list(found["moe_a2a_backend"])}


def facts(sm, torch_cuda):
    return {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in worker_machine.facts(sm=sm, torch_cuda=torch_cuda).items()
    }


def hello():
    return {
        "sglang": importlib.metadata.version("sglang"),
        "flashinfer": importlib.metadata.version("flashinfer-python"),
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def marlin_check(sm, torch_cuda, launch):
    """The probe's own check; `sm` is null for a machine without a GPU."""
    if str(_AGENTS) not in sys.path:
        sys.path.append(str(_AGENTS))
    from smgate_agent.probe import marlin, sglang_layer

    with _environment({}):
        sglang_layer.modules()  # imported before SGLang believes in CUDA, whose packages are not here
        if sm is None:
            return marlin.run(launch)
        with worker_machine.machine(sm=sm, torch_cuda=torch_cuda):
            return marlin.run(launch)


def marlin_judged(outputs):
    """What the probe's check says of outputs of a layer: {name: [outcome, reason, control]}."""
    if str(_AGENTS) not in sys.path:
        sys.path.append(str(_AGENTS))
    import marlin_outputs

    return marlin_outputs.judged(outputs)


OPERATIONS = {
    operation.__name__: operation
    for operation in (
        hello,
        facts,
        resolve_argv,
        resolve_many,
        create_runner,
        create_many,
        weights,
        parameters,
        parameters_many,
        loader,
        choices,
        marlin_check,
        marlin_judged,
    )
}
