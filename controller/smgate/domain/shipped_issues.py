"""Owns the known issues that ship: upstream reports about the target of the shipped gate, as data.

`block` is for wrong results, a crash or a hang of the target on a build that the match names exactly.
A report without an exact version is `info`: it is listed and stops nothing, since a guess at its range
would stop good builds and let bad ones pass. Versions are matched with their local part: `0.6.17` and
`0.6.17+cu130` are one release.
"""

from __future__ import annotations

from typing import Final

from smgate.domain.policy import KIMI_K3, KnownIssue

_FLASHINFER: Final = "https://github.com/flashinfer-ai/flashinfer"
_SGLANG: Final = "https://github.com/sgl-project/sglang"
_K3: Final = (KIMI_K3.architecture,)
_TRTLLM_GEN_SMS: Final = (*KIMI_K3.baseline_sms, *KIMI_K3.candidate_sms)


def _release(*versions: str) -> tuple[str, ...]:
    """These releases exactly, with or without a local part."""
    return tuple(form for version in versions for form in (version, f"{version}+*"))


BLOCKING: Final = (
    KnownIssue(
        id="flashinfer-0.6.15-no-sm107",
        title="FlashInfer up to 0.6.15.post1 has neither SM107 nor SiTU.",
        url=f"{_FLASHINFER}/releases/tag/v0.6.15.post1",
        match={
            "sm": ("10.7",),
            "architecture": _K3,
            "flashinfer": tuple(
                form
                for minor in range(10, 16)
                for form in (*_release(f"0.6.{minor}"), f"0.6.{minor}.post*")
            ),
        },
    ),
    KnownIssue(
        id="flashinfer-0.6.17-no-situ",
        title="The Rubin cubins of FlashInfer 0.6.16 and 0.6.17 have no SiTU kernel, though the enum "
        "and the signature are there: no kernel is found for K3 on SM107.",
        url=f"{_FLASHINFER}/blob/v0.6.17/csrc/trtllm_batched_gemm_runner.cu",
        match={
            "sm": ("10.7",),
            "architecture": _K3,
            "flashinfer": (*_release("0.6.16", "0.6.17"), "0.6.16.post*"),
        },
    ),
    KnownIssue(
        id="flashinfer-4569",
        title="SM107 SiTU MXFP4 MoE of FlashInfer 0.6.18: larger tiles return NaN or leave part of "
        "the output unwritten.",
        url=f"{_FLASHINFER}/issues/4569",
        match={"sm": ("10.7",), "architecture": _K3, "flashinfer": _release("0.6.18")},
    ),
    KnownIssue(
        id="flashinfer-2569",
        title="trtllm_fp4_block_scale_moe with MXFP8 gives NaN now and then on driver 570, not on "
        "580, when the intermediate size is no multiple of 1024 (K3 on TP8: 384).",
        url=f"{_FLASHINFER}/issues/2569",
        match={"sm": ("10.0",), "architecture": _K3, "driver_branch": ("570",)},
    ),
    KnownIssue(
        id="sglang-35461",
        title="On SM120 flashinfer_mxfp4 runs the layout and the activation of GPT-OSS: wrong for K3.",
        url=f"{_SGLANG}/pull/35461",
        match={"sm": ("12.0", "12.1"), "architecture": _K3, "sglang": ("0.5.23",)},
    ),
)
"""Each stops the target on what it matches: such a unit gets the safe value."""

INFORMING: Final = (
    KnownIssue(
        id="sglang-35554",
        title="`auto` for K3 on SM107: BF16 experts up to SGLang 0.5.18, and since 0.5.19 the target, "
        "merged while its qualification was pending.",
        url=f"{_SGLANG}/pull/35554",
        severity="info",
        match={
            "sm": ("10.7",),
            "architecture": _K3,
            "sglang": tuple(f"0.5.{patch}" for patch in range(17, 24)),
        },
    ),
    KnownIssue(
        id="sglang-33132",
        title="Without the SiTU cubin pool that SGLang 0.5.17 asks for, K3 ran marlin silently.",
        url=f"{_SGLANG}/pull/33132",
        severity="info",
        match={"sm": ("10.0", "10.3"), "architecture": _K3, "sglang": ("0.5.17",)},
    ),
    KnownIssue(
        id="sglang-34340",
        title="B300: the finalize step of trtllm-gen MoE hangs silently, TGV GEMM ends with Xid 13; "
        "every 20 minutes to 3 hours, no version named.",
        url=f"{_SGLANG}/issues/34340",
        severity="info",
        match={"sm": ("10.3",), "architecture": _K3},
    ),
    KnownIssue(
        id="sglang-34360",
        title="SGLang asks for the major compute capability alone, and so runs SM100 kernels on SM103.",
        url=f"{_SGLANG}/pull/34360",
        severity="info",
        match={"sm": ("10.3",), "architecture": _K3},
    ),
    KnownIssue(
        id="flashinfer-3197",
        title="Autotuned FP4 MoE gives wrong results where the untuned one is right; no version named.",
        url=f"{_FLASHINFER}/issues/3197",
        severity="info",
        match={"sm": _TRTLLM_GEN_SMS, "architecture": _K3},
    ),
    KnownIssue(
        id="flashinfer-4588",
        title="SM103: an untuned FP4 MoE gives NaN in 0.7 to 13 % of its output from 6144 tokens on; "
        "seen with NVFP4, no version named.",
        url=f"{_FLASHINFER}/issues/4588",
        severity="info",
        match={"sm": ("10.3",), "architecture": _K3},
    ),
    KnownIssue(
        id="flashinfer-4486",
        title="NVFP4 MoE gives NaN on FlashInfer 0.6.16.post4 and 0.6.17; MXFP4 was not reported.",
        url=f"{_FLASHINFER}/issues/4486",
        severity="info",
        match={
            "sm": ("10.0", "10.3"),
            "architecture": _K3,
            "flashinfer": _release("0.6.16.post4", "0.6.17"),
        },
    ),
    KnownIssue(
        id="flashinfer-5053",
        title="SiTU with NVFP4: the first GEMM writes no block scales, all outputs are zero and the "
        "return code is 0; no version named.",
        url=f"{_FLASHINFER}/issues/5053",
        severity="info",
        match={"sm": _TRTLLM_GEN_SMS, "architecture": _K3},
    ),
    KnownIssue(
        id="flashinfer-3466",
        title="SM103: cudaErrorNoKernelImageForDevice; the name of a library is no evidence of what "
        "is in it. No version named.",
        url=f"{_FLASHINFER}/issues/3466",
        severity="info",
        match={"sm": ("10.3",), "architecture": _K3},
    ),
    KnownIssue(
        id="flashinfer-2372",
        title="Padded hidden or intermediate sizes give other results than trtllm-gen itself, which "
        "concerns K3 on TP16; no version named.",
        url=f"{_FLASHINFER}/issues/2372",
        severity="info",
        match={"sm": _TRTLLM_GEN_SMS, "architecture": _K3},
    ),
    KnownIssue(
        id="tokenspeed-284",
        title="With FLASHINFER_DISABLE_VERSION_CHECK packages that do not fit run until an illegal "
        "memory access; seen on SM90.",
        url="https://github.com/lightseekorg/tokenspeed/pull/284",
        severity="info",
        match={"disqualifying_env": ("FLASHINFER_DISABLE_VERSION_CHECK",), "architecture": _K3},
    ),
)
"""Listed beside the builds that they may concern."""

ALL: Final = (*BLOCKING, *INFORMING)
