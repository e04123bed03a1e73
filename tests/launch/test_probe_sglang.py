"""The probe against the real flashinfer package, in SGLang's own environment."""

import json
import pathlib
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
REMOVALS = {
    "a callable": (
        "import flashinfer.fused_moe as m; del m.trtllm_fp4_block_scale_routed_moe",
        "callable_missing:trtllm_fp4_block_scale_routed_moe",
    ),
    "a keyword": (
        "import flashinfer as m; m.trtllm_fp4_block_scale_moe = lambda routing_logits: None",
        "keyword_missing:trtllm_fp4_block_scale_moe.norm_topk_prob",
    ),
    "another number": (
        "import enum, flashinfer.tllm_enums as m\n"
        "m.ActivationType = enum.IntEnum('ActivationType', {'Situ': 2})",
        "member_value:activationtype.situ",
    ),
}

pytestmark = [pytest.mark.sglang]


def probed(archive, *argv):
    process = subprocess.run(
        [PYTHON, *argv], capture_output=True, text=True, check=False, timeout=120
    )
    (line,) = [text for text in process.stdout.splitlines() if text.startswith("smgate-result ")]
    return json.loads(line.removeprefix("smgate-result "))


def test_the_boundary_sglang_uses_is_there(archive):
    result = probed(archive, "-I", archive, "probe", "api_boundary")
    assert (result["outcome"], result["reason"]) == ("passed", "api_as_expected")


def test_a_machine_without_a_gpu_skips_the_inventory_and_says_why(archive):
    result = probed(archive, "-I", archive, "probe", "inventory")
    assert (result["outcome"], result["reason"]) == ("skipped", "no_gpu")


@pytest.mark.parametrize(("change", "reason"), REMOVALS.values(), ids=REMOVALS)
def test_what_is_missing_is_named(archive, change, reason):
    """The same package with one thing changed must fail: a check that cannot fail checks nothing."""
    code = (
        f"import sys; sys.path.append({str(archive)!r})\n{change}\n"
        "from smgate_agent import probe; probe.main(['api_boundary'])"
    )
    result = probed(archive, "-c", code)
    assert (result["outcome"], result["reason"]) == ("failed", reason)
