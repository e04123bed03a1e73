"""One device's run of the fused MoE: calls, judgements, and what a wrong output looks like."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from smgate_agent.probe import ending, judge, kernel, mx, reference, workload

Tensor = Any

CONTROL_TOKENS = 128
"""Enough rows for every kind of error to show; the wrong references cost four more runs."""
ACTIVATION_ERROR_MAX = 0.04
"""Norm of what rounding to FP8 took over the norm of the input; 0.027 for a normal distribution, and as
much with a scale one step too large."""
NUMERIC = ("cosine_low", "relative_error_high", "element_error_high")
"""Measures that say that an output is wrong, but not how."""
POISON_BYTES_PER_VALUE = 4


class WrongError(Exception):
    """An output was not right; `control` says whether the judge can tell right from wrong."""

    def __init__(self, reason: str, control: str = "not_run") -> None:
        super().__init__(reason)
        self.reason, self.control = reason, control


@dataclass(frozen=True)
class Case:
    """A batch, quantised, with its reference."""

    batch: workload.Batch
    quantized: tuple[Tensor, Tensor]
    expected: Tensor


@dataclass
class Trial:
    """What is called, with what, and what was measured."""

    source: workload.Source
    experts: reference.Experts
    fused: kernel.FusedMoe
    numbers: dict[str, float]
    unpacked: bool
    by_flashinfer: bool
    control: str = "not_run"
    _drawn: dict[int, tuple[Case, Case]] = field(default_factory=dict)

    def judge(self, tokens: int, *, tuned: bool) -> None:
        """Call with this many tokens and judge each output.

        Raises:
            WrongError: an output is not right.
            EndedError: a call raised.
        """
        self.numbers["last_tokens"], self.numbers["last_tuned"] = float(tokens), float(tuned)
        name = f"m{tokens}.{'tuned' if tuned else 'untuned'}"
        first, second = self._cases(tokens)
        if tuned:
            with ending.named("tuning"), kernel.tuning():
                self._call(first)
        outputs = [
            self._call(first),
            self._call(second, packed=not (self.unpacked and tokens > kernel.PACKED_TOKENS_MAX)),
            self._call(first),
        ]
        for case, output in zip((first, second, first), outputs, strict=True):
            bad = self._bad(name, case, output, stale=outputs[0])
            if bad is not None:
                raise WrongError(bad, self.control)
        differing = (_bits(outputs[0]) != _bits(outputs[2])).double().mean().item()
        self.numbers[f"{name}.repeat_difference_share"] = differing
        if differing:
            raise WrongError("output_not_repeatable", self.control)

    def _cases(self, tokens: int) -> tuple[Case, Case]:
        """Two different inputs of one size, the same ones for the untuned and the tuned calls."""
        if tokens not in self._drawn:
            self._drawn[tokens] = self._draw(tokens)
        return self._drawn[tokens]

    def _draw(self, tokens: int) -> tuple[Case, Case]:
        """A single token has no other order, so another one is drawn."""
        first = self._case(self.source.batch(tokens))
        if tokens == 1:
            return first, self._case(self.source.batch(tokens))
        turned = first.batch.reversed()
        return first, Case(turned, self._activations(turned), first.expected.flip(0))

    def _case(self, batch: workload.Batch) -> Case:
        quantized = self._activations(batch)
        with ending.named("reference"):
            return Case(batch, quantized, self._reference(batch, quantized))

    def _activations(self, batch: workload.Batch) -> tuple[Tensor, Tensor]:
        """The FP8 rows the kernel is given. They are judged too: the kernel's reference reads them."""
        with ending.named("quantizer"):
            quantized = kernel.activations(batch.hidden, by_flashinfer=self.by_flashinfer)
            wanted = batch.hidden.float()
            error = (mx.decode_mxfp8(*quantized) - wanted).norm() / wanted.norm()
        if not error.item() <= ACTIVATION_ERROR_MAX:
            self.numbers["activation_error"] = error.item()
            raise WrongError("activations_wrong")
        return quantized

    def _reference(
        self,
        batch: workload.Batch,
        quantized: tuple[Tensor, Tensor],
        *,
        experts: reference.Experts | None = None,
        activation: reference.Activation = reference.situ,
        expert_shift: int = 0,
    ) -> Tensor:
        return reference.moe(
            mx.decode_mxfp8(*quantized),
            batch.ids,
            batch.weights,
            experts or self.experts,
            activation=activation,
            expert_shift=expert_shift,
        )

    def _call(self, case: Case, *, packed: bool = True) -> Tensor:
        _poison_memory(case)
        with ending.named("kernel"):
            output = self.fused(case.batch, case.quantized, packed=packed)
            output[0, 0].item()  # an error of an asynchronous call shows here, under its own name
        return output

    def _bad(self, name: str, case: Case, output: Tensor, *, stale: Tensor) -> str | None:
        """The reason why this output is not right, or None. The control is run once, or here."""
        measures = judge.measure(output, case.expected)
        for measured, value in vars(measures).items():
            # Of several outputs the worst is kept.
            worse = min if measured == "cosine" else max
            key = f"{name}.{measured}"
            self.numbers[key] = worse(self.numbers.get(key, value), value)
        bad = measures.bad()
        if bad is None and (len(case.batch) != CONTROL_TOKENS or self.control != "not_run"):
            return None
        wrong = self._wrong_references(case)
        references = [case.expected, case.expected * judge.CONTROL_SHARE, *wrong.values()]
        self.control = "caught" if judge.tells_apart(output, references) else "missed"
        if output is not stale and torch.equal(_bits(output), _bits(stale)):
            return bad and "output_stale"
        return _likeness(output, case.expected, wrong) or bad if bad in NUMERIC else bad

    def _wrong_references(self, case: Case) -> dict[str, Tensor]:
        """What known kinds of wrong kernel give, by the reason each is told by."""
        changes: dict[str, dict[str, Any]] = {
            "activation_is_swiglu": {"activation": reference.swiglu},
            "gate_and_up_swapped": {"activation": reference.swapped},
            "expert_off_by_one": {"expert_shift": 1},
            "scale_layout_wrong": {"experts": self.fused.misread(self.experts)},
        }
        with ending.named("reference"):
            return {
                reason: self._reference(case.batch, case.quantized, **change)
                for reason, change in changes.items()
            }


def _likeness(output: Tensor, expected: Tensor, wrong: dict[str, Tensor]) -> str | None:
    """The known kind of error that gives exactly this output."""
    for reason, reference_of_it in wrong.items():
        if judge.measure(output, reference_of_it).bad() is None:
            return reason
    return "output_scaled" if judge.is_scaled(output, expected) else None


def _bits(output: Tensor) -> Tensor:
    return output.view(torch.int16)


def _poison_memory(case: Case) -> None:
    """Leave NaN in the memory that the kernel's own buffers will be taken from.

    Output of a kernel that reads what it never wrote was right or wrong by what lay there before.
    """
    values, _ = case.quantized
    if values.is_cuda:
        size = values.numel() * case.batch.ids.shape[1] * POISON_BYTES_PER_VALUE
        torch.full((size,), 0xFF, dtype=torch.uint8, device=values.device)
