"""The archive, built once from these sources, and a node to run it on."""

import json
import pathlib

import pytest
from tests.launch import nvml_library, stand_ins

ROOT = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def archive(tmp_path_factory):
    return stand_ins.build_archive(tmp_path_factory.mktemp("gate"))


@pytest.fixture
def node(tmp_path, archive):
    return stand_ins.Node(tmp_path, archive)


@pytest.fixture
def k3(tmp_path):
    """A model folder with Kimi K3's config.json."""
    folder = tmp_path / "models" / "k3"
    folder.mkdir(parents=True)
    config = (ROOT / "tests/fixtures/sglang/k3_config.json").read_text()
    assert "KimiK3ForConditionalGeneration" in json.loads(config)["architectures"]
    (folder / "config.json").write_text(config)
    return folder


@pytest.fixture
def sm107(node):
    """Two SM107 GPUs on the node."""
    gpus = [{"uuid": f"GPU-{index:04d}-aaaa", "sm": "10.7"} for index in range(2)]
    node.environ["LD_LIBRARY_PATH"] = str(nvml_library.write(node.folder / "nvml", gpus))
    return node
