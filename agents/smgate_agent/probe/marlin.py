"""Check `marlin`: the safe value works here, by SGLang's own functions.

It makes a small layer of Kimi K3's kind with `marlin` as a model would, lets SGLang prepare its
weights, and compares what the kernel computes with plain torch. It runs what is built already and
compiles nothing.
"""

from __future__ import annotations

import importlib.util
from typing import TYPE_CHECKING, Any

from smgate_agent.probe import driver, ending
from smgate_agent.probe.results import result

if TYPE_CHECKING:
    from smgate_agent.probe import reference, workload

Tensor = Any

EXPERTS, TOP_K = 8, 4
"""The kernel does not change with the number of experts; a small layer is made in a moment."""
HIDDEN, INTERMEDIATE = 3584, 384
"""Kimi K3's on one of eight ranks, where the launch does not say."""
HIDDEN_ALIGN, INTERMEDIATE_ALIGN = 256, 128
"""SGLang pads to these for marlin (`Mxfp4MoEMethod.create_weights`)."""
TOKENS = (1, 16, 128)
SEED = 7


class Run:
    """What was measured, and what the negative control did."""

    def __init__(self) -> None:
        self.numbers: dict[str, float] = {}
        self.control = "not_run"


def run(launch: dict[str, Any]) -> dict[str, Any]:
    """Passed if a layer was made, prepared and computed what it should on every GPU of the launch."""
    done = Run()
    try:
        reason = _run(launch, done)
        outcome = "passed"
    except ending.EndedError as ended:
        outcome, reason = ended.outcome, ended.reason
        done.numbers.update(ended.numbers)
    return result(outcome, reason, done.numbers, control=done.control)


def _run(launch: dict[str, Any], done: Run) -> str:
    if importlib.util.find_spec("sglang") is None:
        raise ending.EndedError("skipped", "sglang_missing")
    if (launch.get("a2a") or "none") != "none":
        raise ending.EndedError("skipped", "a2a_not_covered")
    found = driver.read(driver.load())
    own = launch.get("gpu_uuids") or []
    reason = driver.untouchable(found, own)
    if reason is not None and reason != "no_gpu":
        raise ending.EndedError("skipped", reason)
    try:
        from smgate_agent.probe import hardware, sglang_layer
    except ImportError as exc:
        raise ending.EndedError("error", "torch_missing") from exc

    sglang = sglang_layer.modules()
    if reason == "no_gpu":
        _on("cpu", sglang, launch, done)
        raise ending.EndedError("skipped", "no_gpu")
    for device in hardware.visible(launch):
        _on(device, sglang, launch, done)
    return "kernel_right"


def _on(device: str, sglang: Any, launch: dict[str, Any], done: Run) -> None:  # noqa: ANN401
    from smgate_agent.probe import sglang_layer, workload

    source = workload.Source(_shape(launch.get("layout") or {}), device, SEED)
    experts = source.experts()
    layer = sglang_layer.Marlin(sglang, source.shape, device)
    with layer.made(experts):
        done.numbers["constructed"] = 1.0
        if device == "cpu" and not sglang_layer.sees_gpu(sglang):
            return
        try:
            layer.prepare()
        except ending.EndedError as ended:
            if device == "cpu" and ended.outcome != "failed":
                return  # without a GPU only a refusal says something
            raise
        for tokens in TOKENS:
            batch = source.batch(tokens)
            _judge(layer.output(batch), references(batch, experts), done)


def _shape(layout: dict[str, Any]) -> workload.Shape:
    from smgate_agent.probe import workload

    try:
        whole = workload.shape(layout)
        hidden, inner = whole.hidden, whole.padded_intermediate
    except ending.EndedError:
        hidden, inner = HIDDEN, INTERMEDIATE
    hidden, inner = _up(hidden, HIDDEN_ALIGN), _up(inner, INTERMEDIATE_ALIGN)
    return workload.Shape(EXPERTS, EXPERTS, 0, hidden, inner, inner, TOP_K)


def _up(value: int, multiple: int) -> int:
    return -(-value // multiple) * multiple


def references(batch: workload.Batch, experts: reference.Experts) -> list[Tensor]:
    """What the layer must compute, then what SwiGLU and exchanged halves would."""
    from smgate_agent.probe import reference

    activations = (reference.situ, reference.swiglu, reference.swapped)
    return [expected(batch, experts, one) for one in activations]


def _judge(output: Tensor, computed: list[Tensor], done: Run) -> None:
    from smgate_agent.probe import judge

    right, *wrong = computed
    measures = judge.measure(output, right)
    for name, value in vars(measures).items():
        worse = min if name == "cosine" else max
        done.numbers[name] = worse(done.numbers.get(name, value), value)
    caught = judge.tells_apart(output, [right, right * judge.CONTROL_SHARE, *wrong])
    done.control = "missed" if done.control == "missed" or not caught else "caught"
    bad = measures.bad()
    if bad is not None:
        raise ending.EndedError("failed", bad)
    if done.control == "missed":
        raise ending.EndedError("error", "control_missed")


def expected(batch: workload.Batch, experts: reference.Experts, activation: Any) -> Tensor:  # noqa: ANN401
    """What the layer must compute, float32: unlike the target, marlin keeps 16 bits in between."""
    import torch

    from smgate_agent.probe import mx

    output = torch.zeros(batch.hidden.shape, dtype=torch.float32, device=batch.hidden.device)
    hidden = batch.hidden.float()
    for number in range(len(experts)):
        share = ((batch.ids == number) * batch.weights.float()).sum(-1, keepdim=True)
        w13 = mx.decode_mxfp4(experts.w13[number], experts.w13_scales[number])
        gate, up = (hidden @ w13.T).chunk(2, dim=-1)
        w2 = mx.decode_mxfp4(experts.w2[number], experts.w2_scales[number])
        output += share * (activation(gate, up) @ w2.T)
    return output
