"""What SGLang itself makes of the MoE runner for Kimi K3, as a model written from its rules.

Pure, and no copy of SGLang: `tests/sglang/test_upstream.py` runs SGLang's own resolution over every
combination and compares. A version, architecture, runner or a2a outside the model has a code that
says so and no values; nothing is guessed. The rules, per launch:

1. The runner `megamoe` is an alias: runner `auto`, a2a `megamoe`, whatever a2a was named.
2. a2a `megamoe` is refused where the GPU is not of class SM90 or SM100 (from 0.5.21 on).
3. `auto` becomes `flashinfer_mxfp4` if the GPU is of class SM100 (major 10, and torch built for
   CUDA 12.8 or newer), its exact SM is on the version's list, and the checkpoint's MXFP4 format
   stands where the gate looks: in a group of `text_config.quantization_config.config_groups`.
   The a2a backend is not asked.
4. a2a `flashinfer` is refused unless the runner is one of a few, none of which concern K3.
5. Everything else stays as it was asked for. An `auto` that stays makes BF16 of MXFP4 experts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from smgate.domain import outcome

ARCHITECTURE: Final = "KimiK3ForConditionalGeneration"

MxfpLayout = Literal["group", "top_level", "none"]
"""Where an MXFP4 checkpoint says so: `group`, where SGLang's gate sees it; `top_level`, where the
loader sees it and the gate does not; `none`, where neither does."""

Code = Literal[
    "version_unknown",
    "architecture_unknown",
    "not_cuda",
    "runner_unknown",
    "a2a_unknown",
    "a2a_refused",
    "explicit",
    "selected",
    "no_mxfp4",
    "sm_not_selected",
    "torch_cuda_too_old",
    "format_not_seen",
]

SENTENCES: Final[dict[Code, str]] = {
    "version_unknown": "This SGLang version is not modelled.",
    "architecture_unknown": "Only KimiK3ForConditionalGeneration is modelled.",
    "not_cuda": "Only a torch built for CUDA is modelled.",
    "runner_unknown": "This MoE runner is not modelled.",
    "a2a_unknown": "This MoE a2a backend is not modelled.",
    "a2a_refused": "SGLang refuses this a2a backend here while it resolves its flags.",
    "explicit": "A runner was named, and SGLang keeps it.",
    "selected": "SGLang resolves auto to flashinfer_mxfp4.",
    "no_mxfp4": "auto stays: the checkpoint has no MXFP4 experts.",
    "sm_not_selected": "auto stays: this SGLang does not select a packed runner on this SM.",
    "torch_cuda_too_old": "auto stays: torch is built for a CUDA that does not know this SM.",
    "format_not_seen": "auto stays: SGLang's gate does not see the MXFP4 format, its loader does.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Resolution:
    """What a launch resolves to. A field is None where the model has no answer.

    `memory_fallback`: the experts would be made BF16. `raises`: why the server would die while it
    makes its experts (`outcome.REFUSALS`), or `a2a_refused` where it does not get that far.
    """

    code: Code
    runner: str | None = None
    a2a: str | None = None
    memory_fallback: bool | None = None
    raises: outcome.Refusal | Literal["a2a_refused"] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rules:
    """What differs between SGLang versions."""

    selected_sms: frozenset[str]
    checks_megamoe_platform: bool
    flashinfer_a2a_runners: frozenset[str]


_BEFORE_SM107 = frozenset({"10.0", "10.3"})
_WITH_SM107 = frozenset({"10.0", "10.3", "10.7"})
_OLD = _Rules(
    selected_sms=_BEFORE_SM107,
    checks_megamoe_platform=False,
    flashinfer_a2a_runners=frozenset(),
)
_MIDDLE = _Rules(
    selected_sms=_WITH_SM107,
    checks_megamoe_platform=False,
    flashinfer_a2a_runners=frozenset({"deep_gemm"}),
)
_NEW = _Rules(
    selected_sms=_WITH_SM107,
    checks_megamoe_platform=True,
    flashinfer_a2a_runners=frozenset({"deep_gemm"}),
)
_RULES: Final[dict[str, _Rules]] = {
    "0.5.18": _OLD,
    "0.5.19": _MIDDLE,
    "0.5.20": _MIDDLE,
    "0.5.21": _NEW,
    "0.5.22": _NEW,
    "0.5.23": _NEW,
}
VERSIONS: Final = frozenset(_RULES)


def upstream_auto(
    *,
    sglang_version: str,
    sm: str,
    torch_cuda: str | None,
    a2a: str,
    backend: str,
    hf_config: Mapping[str, Any],
) -> Resolution:
    """What this SGLang resolves `--moe-runner-backend backend --moe-a2a-backend a2a` to.

    `hf_config` is the parsed `config.json`; `sm` is of device 0, which is all that SGLang looks at.
    """
    return upstream_auto_of(
        sglang_version=sglang_version,
        sm=sm,
        torch_cuda=torch_cuda,
        a2a=a2a,
        backend=backend,
        architecture=architecture_of(hf_config),
        layout=mxfp4_layout(hf_config),
    )


def upstream_auto_of(
    *,
    sglang_version: str,
    sm: str,
    torch_cuda: str | None,
    a2a: str,
    backend: str,
    architecture: str | None,
    layout: MxfpLayout,
) -> Resolution:
    """`upstream_auto` for who has the two things it reads of `config.json`, not the file."""
    rules = _RULES.get(sglang_version)
    unknown = _outside_the_model(
        rules=rules, torch_cuda=torch_cuda, a2a=a2a, backend=backend, architecture=architecture
    )
    if unknown is not None or rules is None:
        return Resolution(code=unknown or "version_unknown")
    if backend == "megamoe":
        backend, a2a = "auto", "megamoe"
    found = outcome.device_class(sm=sm, torch_cuda=torch_cuda)
    if a2a == "megamoe" and rules.checks_megamoe_platform and found not in {"sm90", "sm100"}:
        return Resolution(code="a2a_refused", raises="a2a_refused")
    code = _code(rules=rules, sm=sm, found=found, backend=backend, layout=layout)
    runner = outcome.TARGET if code == "selected" else backend
    if a2a == "flashinfer" and runner not in rules.flashinfer_a2a_runners:
        return Resolution(code="a2a_refused", raises="a2a_refused")
    refusal = None
    if layout != "none":
        refusal = outcome.raises(
            runner=runner, a2a=a2a, sm=sm, sglang_version=sglang_version, torch_cuda=torch_cuda
        )
    return Resolution(
        code=code,
        runner=runner,
        a2a=a2a,
        memory_fallback=is_memory_fallback(runner=runner, a2a=a2a, layout=layout),
        raises=refusal,
    )


def _outside_the_model(
    *,
    rules: _Rules | None,
    torch_cuda: str | None,
    a2a: str,
    backend: str,
    architecture: str | None,
) -> Code | None:
    if rules is None:
        return "version_unknown"
    if architecture != ARCHITECTURE:
        return "architecture_unknown"
    if torch_cuda is None:
        return "not_cuda"
    if backend != "megamoe" and backend not in outcome.RUNNERS_RUN:
        return "runner_unknown"
    if a2a not in outcome.A2A_RUN:
        return "a2a_unknown"
    return None


def _code(*, rules: _Rules, sm: str, found: str | None, backend: str, layout: MxfpLayout) -> Code:
    """Rule 3, with the reason why `auto` stays where it stays."""
    if backend != "auto":
        return "explicit"
    if layout == "none":
        return "no_mxfp4"
    if sm not in rules.selected_sms:
        return "sm_not_selected"
    if found != "sm100":
        return "torch_cuda_too_old"
    return "selected" if layout == "group" else "format_not_seen"


def is_memory_fallback(*, runner: str, a2a: str, layout: MxfpLayout) -> bool:
    """Whether a server with this resolved pair makes BF16 of its MXFP4 experts (on CUDA)."""
    return (
        layout != "none"
        and runner in {"auto", "triton"}
        and a2a not in {"megamoe", "flashinfer_megamoe"}
    )


def architecture_of(hf_config: Mapping[str, Any]) -> str | None:
    """The first of `architectures`, by which SGLang chooses its rules."""
    names = hf_config.get("architectures")
    if isinstance(names, list | tuple) and names and isinstance(names[0], str):
        return names[0]
    return None


def mxfp4_layout(hf_config: Mapping[str, Any]) -> MxfpLayout:
    """Where `config.json` says MXFP4: for SGLang's gate, for its loader alone, or nowhere.

    The gate reads `text_config.quantization_config` and there the groups' formats alone. The loader
    takes the first of the root's `quantization_config`, the text config's and `compression_config`,
    and there the format at the top, or a group of 4-bit floats in blocks of 32.
    """
    text = hf_config.get("text_config")
    in_text = text.get("quantization_config") if isinstance(text, Mapping) else None
    if any("mxfp4" in str(group.get("format", "")) for group in _groups(in_text)):
        return "group"
    places = (hf_config.get("quantization_config"), in_text, hf_config.get("compression_config"))
    read = next((place for place in places if place is not None), None)
    if isinstance(read, Mapping) and (
        "mxfp4" in str(read.get("format") or "") or any(map(_is_mxfp4_scheme, _groups(read)))
    ):
        return "top_level"
    return "none"


def _groups(quantization: object) -> list[Mapping[str, Any]]:
    groups = quantization.get("config_groups") if isinstance(quantization, Mapping) else None
    if not isinstance(groups, Mapping):
        return []
    return [group for group in groups.values() if isinstance(group, Mapping)]


def _is_mxfp4_scheme(group: Mapping[str, Any]) -> bool:
    weights = group.get("weights")
    targets = group.get("targets")
    return (
        isinstance(weights, Mapping)
        and isinstance(targets, list)
        and "Linear" in targets
        and weights.get("num_bits") == 4  # noqa: PLR2004  (the four bits of MXFP4)
        and weights.get("type") == "float"
        and weights.get("strategy") == "group"
        and weights.get("group_size") == 32  # noqa: PLR2004  (its block of 32)
        and weights.get("symmetric", True) is True
    )
