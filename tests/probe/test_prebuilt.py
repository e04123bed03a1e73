"""With FlashInfer's own code: what a server's start compiled is loaded, and nothing is compiled."""

import json
import os
import pathlib
import subprocess

import pytest
from tests.sglang.conftest import BASE_VERSION, require_env

ROOT = pathlib.Path(__file__).resolve().parents[2]
ASK = """
import json, pathlib, sys
from flashinfer.jit import core
from smgate_agent.probe import ending, prebuilt

source = pathlib.Path(sys.argv[1]); library = sys.argv[2] == "library"
spec = core.gen_jit_spec("smgate_tried", [source])
if library:
    spec.jit_library_path.parent.mkdir(parents=True)
    spec.jit_library_path.write_bytes(b"no library")
prebuilt.load_what_is_built()
try:
    spec.build_and_load()
except ending.EndedError as ended:
    print(json.dumps([ended.outcome, ended.reason]))
except Exception as exc:
    print(json.dumps([type(exc).__name__, str(exc)]))
"""

pytestmark = [pytest.mark.sglang]


@pytest.fixture
def answer(tmp_path):
    """What FlashInfer's description of a module does, with a ninja that says this."""

    def ask(library, ninja, *, nvcc=True):
        python = require_env(BASE_VERSION)
        folder = tmp_path / "bin"
        folder.mkdir()
        asked = tmp_path / "asked"
        if ninja is not None:
            said, status = ninja
            (folder / "ninja").write_text(
                f'#!/bin/sh\nprintf "%s " "$@" >>{asked}\necho "{said}"\nexit {status}\n'
            )
            (folder / "ninja").chmod(0o755)
        compiler = tmp_path / "cuda" / "bin" / "nvcc"
        if nvcc:
            compiler.parent.mkdir(parents=True)
            compiler.write_text(
                "#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n"
            )
            compiler.chmod(0o755)
        source = tmp_path / "tried.cu"
        source.write_text("")
        ended = subprocess.run(
            [python, "-c", ASK, source, "library" if library else "none"],
            capture_output=True,
            text=True,
            check=False,
            env={
                **os.environ,
                "PATH": str(folder),
                "PYTHONPATH": str(ROOT / "agents"),
                "FLASHINFER_WORKSPACE_BASE": str(tmp_path),
                "FLASHINFER_CUDA_ARCH_LIST": "10.7a",
                "FLASHINFER_DISABLE_JIT": "1",
                "CUDA_HOME": str(tmp_path / "cuda"),
            },
        )
        assert ended.stdout, ended.stderr
        return json.loads(ended.stdout.splitlines()[-1]), asked

    return ask


def test_a_kernel_that_a_server_compiled_is_loaded(answer):
    """The file is no library, so that loading it is what fails."""
    (kind, said), asked = answer(library=True, ninja=("ninja: no work to do.", 0))
    assert kind != "skipped"
    assert "smgate_tried.so" in said
    assert asked.read_text().startswith("-n -C ")


@pytest.mark.parametrize(
    ("library", "ninja"),
    [
        (False, ("ninja: no work to do.", 0)),
        (True, ("[1/2] nvcc tried.cu", 0)),
        (True, ("ninja: error: loading build.ninja", 1)),
        (True, None),
    ],
    ids=["not compiled", "to compile anew", "ninja fails", "no ninja"],
)
def test_a_kernel_that_would_be_compiled_is_not(answer, library, ninja):
    found, _ = answer(library=library, ninja=ninja)
    assert found == ["skipped", "kernels_not_prebuilt"]


def test_without_a_compiler_nobody_can_say_that_it_is_up_to_date(answer):
    found, _ = answer(library=True, ninja=("ninja: no work to do.", 0), nvcc=False)
    assert found == ["skipped", "kernels_not_prebuilt"]
