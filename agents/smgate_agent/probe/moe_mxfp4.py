"""Check `moe_mxfp4`: the fused SiTU MoE, called as SGLang calls it, gives the right numbers.

The launch's own per-rank shapes; 1 to 8192 tokens; FlashInfer's first choice of tactic and the tuned
one; every output buffer and the memory around it full of NaN before the call; each call repeated, with
another one between. `device: "cpu"` in what the check is told runs the same on CPU tensors, for a test
with a package in FlashInfer's place; nothing is known of a GPU by that.
"""

from __future__ import annotations

from typing import Any

from smgate_agent.probe import ending, hardware, kernel, reference, results, trial, workload

Json = dict[str, Any]

SEED = 20_260_819


def run(launch: Json) -> Json:
    """Passed if every output is right; else the reason is the first measure that was not."""
    numbers: dict[str, float] = {}
    try:
        control = _run(launch, numbers)
    except trial.WrongError as wrong:
        return results.result("failed", wrong.reason, numbers, control=wrong.control)
    except ending.EndedError as ended:
        return results.result(ended.outcome, ended.reason, {**numbers, **ended.numbers})
    reason = "outputs_right" if control == "caught" else "control_missed"
    return results.result("passed", reason, numbers, control=control)


def _run(launch: Json, numbers: dict[str, float]) -> str:
    shape = workload.shape(launch.get("layout") or {})
    first, *others = hardware.devices(launch)
    ending.import_flashinfer()
    unpacked = first != hardware.CPU or launch.get("unpacked") is True
    full = _trial(first, shape, numbers, unpacked=unpacked)
    for tuned in (False, True) if _tunes(first) else (False,):
        for tokens in workload.TOKENS:
            full.judge(tokens, tuned=tuned)
    for device in others:
        # The same build on the same kind of GPU: one look at each is about the GPU, not the kernel.
        _trial(device, shape, {}, unpacked=unpacked).judge(trial.CONTROL_TOKENS, tuned=False)
    numbers["devices"] = float(1 + len(others))
    return full.control


def _tunes(device: str) -> bool:
    """Whether the tuned half can run. Only a package in FlashInfer's place has no autotuner."""
    try:
        kernel.tuning()
    except kernel.CallableMissingError:
        if device != hardware.CPU:
            raise
        return False
    return True


def _trial(
    device: str, shape: workload.Shape, numbers: dict[str, float], *, unpacked: bool
) -> trial.Trial:
    found = hardware.prepare(device)
    if device != hardware.CPU:
        hardware.require_fused_moe(found)
    with ending.named("reference"):
        reference.self_check(device)
        source = workload.Source(shape, device, SEED)
        experts = source.experts()
    with ending.named("weights"):
        fused = kernel.FusedMoe(experts, shape)
    by_flashinfer = found in (0, hardware.RUBIN)
    return trial.Trial(
        source, experts, fused, numbers, unpacked=unpacked, by_flashinfer=by_flashinfer
    )
