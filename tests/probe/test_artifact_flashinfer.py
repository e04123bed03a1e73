"""The check against FlashInfer 0.7.2.post1 itself: its store, its pins, its reading of the list."""

import json
import pathlib
import subprocess

import pytest
from tests.probe import cubins

pytestmark = pytest.mark.sglang

ROOT = pathlib.Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-sglang" / "bin" / "python"
PACKAGE = """
import pathlib
__version__ = {version!r}
def get_cubin_dir():
    return str(pathlib.Path(__file__).parent / "cubins")
"""
ASK = """
import json, os, sys
sys.path.insert(0, {agents!r})
from smgate_agent.probe import artifact, manifest, stores
ours = stores.stores(os.environ)[0]
said = artifact.run({{"sm": "10.7"}})["reason"]
from flashinfer import artifacts
from flashinfer.jit import env, trtllm_gen_metainfo as metainfo
text = open({header!r}).read()
kept, dropped = metainfo.filter_metainfo(text, metainfo.BLACKWELL_CUBIN_ARCHS)[1:]
print(json.dumps({{
    "theirs": str(env.FLASHINFER_CUBIN_DIR), "ours": [ours.name, str(ours.folder)], "said": said,
    "pin": list(stores.pin("10.7")),
    "real_pin": [artifacts.ArtifactPath.TRTLLM_GEN_BMM, artifacts.CheckSumHash.TRTLLM_GEN_BMM],
    "archs": manifest.ARCHS, "kernels": len(manifest.kernels(text)), "their_kernels": [kept, dropped],
    "real_archs": [list(metainfo.BLACKWELL_CUBIN_ARCHS), list(metainfo.RUBIN_CUBIN_ARCHS)],
}}))
"""


def asked(tmp_path, environ):
    (tmp_path / "home").mkdir(exist_ok=True)
    process = subprocess.run(
        [PYTHON, "-c", ASK.format(agents=str(ROOT / "agents"), header=str(cubins.FIXTURE / "flashinferMetaInfo.h"))],
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path / "home"), **environ},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr[-2000:]
    return json.loads(process.stdout.splitlines()[-1])


@pytest.fixture
def package(tmp_path):
    def write(version):
        folder = tmp_path / "site" / "flashinfer_cubin"
        folder.mkdir(parents=True)
        (folder / "__init__.py").write_text(PACKAGE.format(version=version))
        (folder / "_build_meta.py").write_text(f"__version__ = {version!r}\n")
        return {"PYTHONPATH": str(tmp_path / "site")}

    return write


@pytest.mark.parametrize(("version", "variables", "winner"), [
    (None, {}, "cache"),
    (None, {"FLASHINFER_WORKSPACE_BASE": "/nowhere"}, "cache"),
    (None, {"FLASHINFER_CUBIN_DIR": "/staged"}, "env"),
    (cubins.VERSION, {}, "package"),
    (cubins.VERSION, {"FLASHINFER_CUBIN_DIR": "/staged"}, "env"),
])  # fmt: skip
def test_the_store_that_wins_is_flashinfers(tmp_path, package, version, variables, winner):
    environ = {**variables, **(package(version) if version else {})}
    if "FLASHINFER_WORKSPACE_BASE" in environ:
        environ["FLASHINFER_WORKSPACE_BASE"] = str(tmp_path / "work")
    found = asked(tmp_path, environ)
    assert found["ours"] == [winner, found["theirs"]]
    missing = "manifest_missing" if winner == "package" else "manifest_not_here"
    assert found["said"] == f"{missing}:{winner}"


@pytest.mark.parametrize("version", ["0.7.2", cubins.VERSION + "+cu130"])
def test_a_package_that_flashinfer_ignores_is_a_mismatch(tmp_path, package, version):
    found = asked(tmp_path, package(version))
    assert found["said"] == "cubin_version_mismatch"
    assert "site" not in found["theirs"]


def test_pins_architectures_and_kernels_are_flashinfers(tmp_path):
    found = asked(tmp_path, {})
    assert [found["pin"][0] + "/", found["pin"][1]] == found["real_pin"]
    blackwell, rubin = found["real_archs"]
    assert found["archs"]["10.7"] == rubin
    assert sorted({*found["archs"]["10.0"], *found["archs"]["10.3"]}) == sorted(blackwell)
    assert found["their_kernels"] == [found["kernels"], 0]
