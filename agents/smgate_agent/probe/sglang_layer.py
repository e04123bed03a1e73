"""A small expert layer of Kimi K3's kind, made by SGLang's own classes as a model makes it."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import os
import types
from typing import TYPE_CHECKING, Any

import torch

from smgate_agent.probe import ending, reference, workload

if TYPE_CHECKING:
    from collections.abc import Iterator

Tensor = Any
Modules = Any

NO_COMPILER = "SGLANG_CRASH_ON_JIT_COMPILE"
"""SGLang's variable that makes it refuse to compile a kernel; it has it since it compiles this one."""
MODULES = {
    "environ": "sglang.srt.environ",
    "context": "sglang.srt.runtime_context",
    "moe": "sglang.srt.layers.moe",
    "utils": "sglang.srt.layers.moe.utils",
    "mxfp4": "sglang.srt.layers.quantization.mxfp4",
}
CALL_MODULES = {
    "dispatcher": "sglang.srt.layers.moe.token_dispatcher.standard",
    "topk": "sglang.srt.layers.moe.topk",
}
"""What it takes to call a layer; these need CUDA's packages to import."""
REFUSED = (
    ("requires a fused func", "failed", "no_fused_function"),
    ("requires SM90", "failed", "sm_refused"),
    ("not supported by Marlin", "failed", "layer_refused"),
    ("no usable cached build", "skipped", "kernel_not_prebuilt"),
)
"""What SGLang says, and what that is. A refusal is a server that would die."""


def modules() -> Modules:
    """SGLang's modules, told to compile nothing.

    Raises:
        EndedError: they do not import, or cannot be told.
    """
    os.environ[NO_COMPILER] = "1"
    found = _imported(MODULES)
    if not hasattr(found.environ.envs, NO_COMPILER):
        raise ending.EndedError("skipped", "sglang_would_compile")
    return found


def _imported(paths: dict[str, str]) -> Modules:
    with ending.named("sglang_import"):
        found = {name: importlib.import_module(path) for name, path in paths.items()}
    return types.SimpleNamespace(**found)


def sees_gpu(sglang: Modules) -> bool:
    """Whether SGLang believes to have a GPU, whose SM it then judges by."""
    platform = getattr(sglang.context, "get_platform", None)
    return platform is not None and bool(platform().device_sm)


@contextlib.contextmanager
def step(name: str) -> Iterator[None]:
    """Give an error of SGLang in here its meaning."""
    try:
        yield
    except ending.EndedError:
        raise
    except Exception as exc:
        for words, outcome, reason in REFUSED:
            if words in str(exc):
                raise ending.EndedError(outcome, reason) from exc
        raise ending.EndedError(*ending.meaning(exc, name)) from exc


class Marlin:
    """One layer with `marlin`, from its making to its output."""

    def __init__(self, sglang: Modules, shape: workload.Shape, device: str) -> None:
        self._sglang, self._shape, self._device = sglang, shape, device
        self._layer = torch.nn.Module()
        self._method: Any = None

    @contextlib.contextmanager
    def made(self, experts: reference.Experts) -> Iterator[None]:
        """The layer with these weights, before SGLang prepares them; its settings end with the block.

        Raises:
            EndedError: SGLang refuses, or raises.
        """
        sglang = self._sglang
        with contextlib.ExitStack() as stack:
            with step("construct"):
                published = stack.enter_context(
                    sglang.context.get_context().override_server_args(
                        moe_runner_backend="marlin", moe_a2a_backend="none", model_path="dummy"
                    )
                )
                initialize = sglang.utils.initialize_moe_config
                # Up to 0.5.18 it is handed the arguments; since then it reads what was published.
                initialize(*([published] if inspect.signature(initialize).parameters else []))
                self._construct(experts)
            yield

    def _construct(self, experts: reference.Experts) -> None:
        shape, layer = self._shape, self._layer
        config = self._sglang.moe.MoeRunnerConfig(
            activation="situ",
            gemm1_alpha=reference.SITU_BETA,
            gemm1_clamp_limit=reference.SITU_LINEAR_BETA,
            gate_up_interleaved=False,
            num_experts=shape.experts,
            num_local_experts=shape.experts,
            hidden_size=shape.hidden,
            intermediate_size_per_partition=shape.intermediate,
            top_k=shape.top_k,
            layer_id=0,
        )
        layer.moe_runner_config = config
        layer.num_experts = layer.num_local_experts = shape.experts
        layer.hidden_size = shape.hidden
        layer.intermediate_size_per_partition = shape.intermediate
        layer.dispatcher = types.SimpleNamespace(
            local_expert_mapping=None, num_experts=shape.experts
        )
        self._method = self._sglang.mxfp4.Mxfp4MoEMethod(prefix="model.layers.1.mlp.experts")
        with torch.device(self._device):
            self._method.create_weights(
                layer, shape.experts, shape.hidden, shape.intermediate, torch.bfloat16
            )
        for name, value in {
            "w13_weight": experts.w13,
            "w13_weight_scale": experts.w13_scales,
            "w2_weight": experts.w2,
            "w2_weight_scale": experts.w2_scales,
        }.items():
            getattr(layer, name).data.copy_(value)
        self._method.create_moe_runner(layer, config)

    def prepare(self) -> None:
        """Let SGLang bring the weights into the kernel's order.

        Raises:
            EndedError: SGLang refuses, or raises.
        """
        with step("prepare"):
            self._method.process_weights_after_loading(self._layer)

    def output(self, batch: workload.Batch) -> Tensor:
        """What the kernel computes.

        Raises:
            EndedError: it is not built, or raises.
        """
        called = _imported(CALL_MODULES)
        logits = torch.zeros(len(batch), self._shape.experts, device=self._device)
        choice = called.topk.StandardTopKOutput(
            topk_weights=batch.weights.float(), topk_ids=batch.ids, router_logits=logits
        )
        dispatched = called.dispatcher.StandardDispatchOutput
        fields = dict.fromkeys(dispatched._fields)
        fields.update(hidden_states=batch.hidden, topk_output=choice)
        with step("kernel"), torch.no_grad():
            found = self._method.apply(self._layer, dispatched(**fields)).hidden_states
            found[0, 0].item()  # an error of an asynchronous call shows here, under its own name
        return found
