"""`smgate memory estimate`: the table and sentence for people, the object for programs, and refusals."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli_fakes import Cli

K3 = Path(__file__).resolve().parents[1] / "fixtures" / "sglang" / "k3_config.json"
ESTIMATE = ("memory", "estimate", "--model-config")


@pytest.fixture
def cli() -> Cli:
    return Cli("http://127.0.0.1:9")


def test_it_says_that_a_fallback_would_crash_and_where(cli: Cli) -> None:
    result = cli(*ESTIMATE, str(K3))
    assert result.code == 0
    lines = result.out.splitlines()
    assert "896 experts x 384 per GPU in 92 layers" in lines[0]
    [experts] = [line.split() for line in lines if line.startswith("routed experts")]
    assert experts[2:] == ["169.7", "634.6"]
    assert "would CRASH while loading, near layer 15" in lines[-1]
    assert "(w13 4.59, w2 2.30)" in lines[-1]
    assert "3.76 times" in lines[-3]


def test_it_says_that_a_fallback_would_hide(cli: Cli) -> None:
    out = cli(*ESTIMATE, str(K3), "--tp", "32", "--a2a", "deepep").out
    assert "ep 32" in out
    assert "would HIDE" in out
    tight = cli(*ESTIMATE, str(K3), "--tp", "32", "--ep", "32", "--mem-fraction", "0.6").out
    assert "would CRASH after loading" in tight
    assert "does not fit" in cli(*ESTIMATE, str(K3), "--tp", "4").out
    assert "no room for a KV cache" in cli(*ESTIMATE, str(K3), "--gpu-memory-gib", "200").out


def test_programs_get_bytes(cli: Cli) -> None:
    result = cli(*ESTIMATE, str(K3), "--pp", "2", "-o", "json")
    answer = json.loads(result.out)
    assert answer["apiVersion"] == "v1"
    assert len(answer["stages"]) == 2
    worst = answer["stages"][answer["worst_stage"]]
    assert worst["fallback_bytes"] - worst["packed_bytes"] == worst["excess_bytes"]
    assert isinstance(worst["packed_bytes"], int)
    assert answer["expert_layer"]["ratio"] == 3.7647
    assert "pipeline stage 1, layers 46 to 92" in cli(*ESTIMATE, str(K3), "--pp", "2").out


def test_the_config_is_a_file_or_its_folder(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(K3.read_bytes())
    assert cli(*ESTIMATE, str(tmp_path)).out == cli(*ESTIMATE, str(K3)).out


@pytest.mark.parametrize(
    ("text", "code"),
    [("{", "usage"), ("[]", "bad_model_config"), ("{}", "bad_model_config")],
)
def test_what_is_no_config_is_refused(cli: Cli, tmp_path: Path, text: str, code: str) -> None:
    (tmp_path / "config.json").write_text(text)
    result = cli(*ESTIMATE, str(tmp_path), "-o", "json")
    assert result.code == 2
    assert result.out == ""
    assert result.error["code"] == code
    assert cli(*ESTIMATE, str(tmp_path / "none")).code == 2


def test_a_refusal_names_the_field_and_what_to_do(cli: Cli) -> None:
    result = cli(*ESTIMATE, str(K3), "--tp", "72", "--a2a", "deepep", "-o", "json")
    assert result.code == 2
    assert result.error["code"] == "bad_layout"
    assert "40 more redundant experts" in result.err
    assert cli(*ESTIMATE, str(K3), "--mem-fraction", "nan").code == 2
    assert cli(*ESTIMATE, str(K3), "--gpu-memory-gib", "inf").code == 2
    assert cli(*ESTIMATE, str(K3), "--mem-fraction", "2").code == 2
