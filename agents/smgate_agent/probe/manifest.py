"""What a package of trtllm-gen kernels says of itself: its checksums, and its list of kernels.

The list is `flashinferMetaInfo.h`, the C++ array that FlashInfer compiles into its module and
chooses from. Its typed fields decide here as they do there; a kernel's name only says the element
types. Read off FlashInfer's package 0.6.13; the fields are those that `trtllm_batched_gemm_runner.cu`
of 0.7.2 compares.
"""

from __future__ import annotations

import re
from typing import NamedTuple

ARCHS = {
    "10.0": ("Sm100a", "Sm100f"),
    "10.3": ("Sm100f", "Sm103a"),
    "10.7": ("Sm107a",),
}
"""Kernels that FlashInfer runs per SM, as its `isArchCompatible` has it; no other SM has any."""
HEADER = "include/flashinferMetaInfo.h"
ENUMS = "include/trtllmGen_bmm_export/GemmGatedActOptions.h"
SITU = "SiTuGlu"
BIAS_MN = 3

_LINE = re.compile(r"([0-9a-f]{64})[ \t]+\*?([A-Za-z0-9_][A-Za-z0-9_./+-]*)")
_ENTRY = re.compile(r'^\{nullptr, 0, \d+, "(\w{1,400})", \d+, "([0-9a-f]{64})"', re.MULTILINE)
_END = re.compile(r"\}, gemm::SmVersion::(Sm\w{1,20})\}")
_LENGTH = re.compile(r"^\s*static constexpr size_t \w*ListLen = (\d{1,9});", re.MULTILINE)
_FIELD = re.compile(r"/\* (m\w{1,60}) \*/ (?:[\w:]{1,80}\()?(-?\d{1,18})")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
_ENUM = re.compile(r"enum\s+class\s+ActType\b[^{;]*\{([^}]*)\}")
_MEMBER = re.compile(r"\s*(\w+)\s*(?:=\s*(\d{1,9}))?\s*")

_BOTH = {
    "mEltwiseActType": 0,
    "mTransposeMmaOutput": 1,
    "mEpilogueTileM": 128,
    "mUseShuffledMatrix": 1,
    "mIsStaticBatch": 0,
    "mUseDeepSeekFp8": 0,
}


class MalformedError(ValueError):
    """A manifest is not what FlashInfer's packages have."""


class Kernel(NamedTuple):
    """One entry of the list."""

    name: str
    sha256: str
    arch: str
    fields: dict[str, int]

    @property
    def file(self) -> str:
        """The file it is loaded from, as `BatchedGemmInterface.h` makes the name."""
        return f"{self.name[:1].upper()}{self.name[1:]}.cubin"


class Gemm(NamedTuple):
    """One of the two matrix products of a fused MoE, by what its kernels must be."""

    name: str
    prefix: str
    routed: bool
    fused: bool


GEMMS = (
    Gemm("fc1", "bmm_MxE4m3_MxE2m1MxE4m3_", routed=True, fused=True),
    Gemm("fc2", "bmm_Bfloat16_MxE2m1MxE4m3_", routed=False, fused=False),
)
"""MXFP4 weights by MXFP8 activations: to MXFP8 through SiTU, then to bfloat16."""


def checksums(text: str) -> dict[str, str]:
    """SHA-256 by file name, of a `checksums.txt`.

    Raises:
        MalformedError: a line is something else, a name leads out of the folder or stands twice.
    """
    found: dict[str, str] = {}
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None or ".." in match[2].split("/") or match[2] in found:
            raise MalformedError("checksums")
        found[match[2]] = match[1]
    if not found:
        raise MalformedError("checksums")
    return found


def activations(text: str) -> dict[str, int]:
    """The members of `ActType`: a number means another activation in another package.

    Raises:
        MalformedError: there is no such enum.
    """
    match = _ENUM.search(_COMMENT.sub("", text))
    if match is None:
        raise MalformedError("activations")
    found: dict[str, int] = {}
    following = 0
    for part in match[1].split(","):
        member = _MEMBER.fullmatch(part)
        if member is None:
            if part.strip():
                raise MalformedError("activations")
            continue
        found[member[1]] = following = int(member[2]) if member[2] else following
        following += 1
    if not found:
        raise MalformedError("activations")
    return found


def kernels(text: str) -> list[Kernel]:
    """The kernels of a `flashinferMetaInfo.h`.

    Raises:
        MalformedError: the list is cut, or is no such list.
    """
    starts = list(_ENTRY.finditer(text))
    declared = _LENGTH.search(text)
    if not starts or declared is None or int(declared[1]) != len(starts):
        raise MalformedError("kernels")
    ends = [match.start() for match in starts[1:]] + [len(text)]
    return [
        _kernel(match, text, end)
        for match, end in zip(starts, ends)  # noqa: B905 (both are of one length)
    ]


def _kernel(match: re.Match[str], text: str, end: int) -> Kernel:
    closed = _END.search(text, match.end(), end)
    if closed is None:
        raise MalformedError("kernels")
    wanted = any(match[1].startswith(gemm.prefix) for gemm in GEMMS)
    body = text[match.end() : closed.start()] if wanted else ""
    fields = {name: int(value) for name, value in _FIELD.findall(body)}
    return Kernel(match[1], match[2], closed[1], fields)


def usable(
    found: list[Kernel], gemm: Gemm, *, archs: tuple[str, ...], activation: int
) -> list[Kernel]:
    """The kernels that FlashInfer would take for this product with this gated activation."""
    return [kernel for kernel in found if _fits(kernel, gemm, archs, activation)]


def _fits(kernel: Kernel, gemm: Gemm, archs: tuple[str, ...], activation: int) -> bool:
    fields = kernel.fields
    if kernel.arch not in archs or not kernel.name.startswith(gemm.prefix):
        return False
    if any(fields.get(name) != value for name, value in _BOTH.items()):
        return False
    if fields.get("mBiasType", BIAS_MN) == BIAS_MN:
        return False
    if "mRouteImpl" not in fields or (fields["mRouteImpl"] != 0) != gemm.routed:
        return False
    if fields.get("mFusedAct") != int(gemm.fused):
        return False
    return not gemm.fused or fields.get("mActType") == activation
