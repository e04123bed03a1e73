"""SGLang's own code as a fixture: one process of its interpreter per version and session.

`sglang` is SGLang 0.5.23 from `.venv-sglang`, which `make test` builds; `old_sglang` runs a test once
for each older version. Those are deselected unless they are asked for: 0.5.18 by SMGATE_TEST_ALL=1
(`make test-all`), others by SMGATE_TEST_SGLANG="0.5.19 0.5.22". What is selected and whose
environment is missing fails; nothing here is skipped.
"""

import itertools
import json
import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
WORKER = Path(__file__).with_name("worker.py")
FIXTURES = ROOT / "tests" / "fixtures" / "sglang"
BASE_VERSION = "0.5.23"
OLDER = ("0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22")
RECORDED = ("0.5.17", *OLDER)
"""The agent reads what 0.5.17 says as well; nothing is claimed of what it resolves."""


def asked_for(environment, versions=OLDER):
    """Of these older versions those that this run was asked to cover."""
    wanted = set(environment.get("SMGATE_TEST_SGLANG", "").split())
    unknown = wanted - set(RECORDED)
    if unknown:
        raise pytest.UsageError(f"SMGATE_TEST_SGLANG names no older version: {sorted(unknown)}")
    if environment.get("SMGATE_TEST_ALL", "") not in ("", "0"):
        wanted.add("0.5.18")
    return tuple(version for version in versions if version in wanted)


def require_env(version):
    """The interpreter of this SGLang's environment; a clear failure where it was not built."""
    name = ".venv-sglang" if version == BASE_VERSION else f".venv-sglang-{version}"
    python = ROOT / name / "bin" / "python"
    if not (ROOT / name / ".smgate-stamp").is_file():
        pytest.fail(
            f"{name} is missing or half built: run ops/dev/sglang_env.sh {version}", pytrace=False
        )
    return python


class Worker:
    """Asks tests/sglang/worker.py, whose docstring lists the operations."""

    def __init__(self, python, log):
        self.python = python
        self._log = log
        with log.open("w") as stderr:
            self._process = subprocess.Popen(
                [str(python), str(WORKER)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                text=True,
            )
        self.version = self.ask("hello")["sglang"]

    def ask(self, operation, **fields):
        self._process.stdin.write(json.dumps({"op": operation, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            pytest.fail(f"the SGLang worker ended:\n{self._log.read_text()[-4000:]}", pytrace=False)
        answer = json.loads(line)
        if "failed" in answer:
            pytest.fail(f"{operation}: {answer['failed']}\n{self._log.read_text()[-4000:]}")
        return answer["ok"]

    def ask_each(self, operation, cases, batch=200):
        """Answers for many cases, in their order, a batch per line."""
        answers = []
        remaining = iter(cases)
        while part := list(itertools.islice(remaining, batch)):
            answers += self.ask(operation, cases=part)
        return answers

    def close(self):
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(timeout=20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


@pytest.fixture(scope="session")
def sglang(tmp_path_factory):
    worker = Worker(require_env(BASE_VERSION), tmp_path_factory.mktemp("sglang") / "worker.log")
    yield worker
    worker.close()


@pytest.fixture(scope="session", params=OLDER)
def old_sglang(request, tmp_path_factory):
    worker = Worker(require_env(request.param), tmp_path_factory.mktemp("sglang") / "worker.log")
    yield worker
    worker.close()


@pytest.fixture(params=RECORDED)
def recorded_older(request):
    """A version of which there are recordings, and its interpreter."""
    return request.param, require_env(request.param)


def pytest_collection_modifyitems(config, items):
    wanted = asked_for(os.environ, RECORDED)
    dropped = [
        item
        for item in items
        for name in ("old_sglang", "recorded_older")
        if name in getattr(item, "fixturenames", ()) and item.callspec.params[name] not in wanted
    ]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = [item for item in items if item not in set(dropped)]


@pytest.fixture(scope="session")
def fixtures_folder():
    return FIXTURES


@pytest.fixture(scope="session")
def record_script():
    return Path(__file__).with_name("record_fixtures.py")


@pytest.fixture(scope="session")
def k3_config():
    """A fresh copy of Kimi K3's config.json, full size, at each call."""
    text = (FIXTURES / "k3_config.json").read_text()
    return lambda: json.loads(text)


@pytest.fixture(scope="session")
def k3_layouts(k3_config):
    """config.json by where it says how its weights are quantised."""

    def changed(change):
        config = k3_config()
        change(config, config["text_config"]["quantization_config"])
        return config

    def drop_top(_, quantization):
        del quantization["format"]

    def drop_group(_, quantization):
        del quantization["config_groups"]["group_0"]["format"]

    def drop_both(config, quantization):
        drop_top(config, quantization)
        drop_group(config, quantization)

    def drop_all(config, _):
        del config["text_config"]["quantization_config"]

    def move_to_root(config, quantization):
        drop_all(config, quantization)
        config["quantization_config"] = quantization

    def int4(_, quantization):
        quantization["format"] = "pack-quantized"
        group = quantization["config_groups"]["group_0"]
        group["format"] = "pack-quantized"
        group["weights"].update(type="int")

    return {
        "group_and_top": k3_config(),
        "group_only": changed(drop_top),
        "top_only": changed(drop_group),
        "scheme_only": changed(drop_both),
        "at_the_root": changed(move_to_root),
        "int4": changed(int4),
        "none": changed(drop_all),
    }


@pytest.fixture(scope="session")
def k3_models(k3_layouts, tmp_path_factory):
    """A model folder for each layout: what `--model-path` is given."""
    folder = tmp_path_factory.mktemp("models")
    for name, config in k3_layouts.items():
        (folder / name).mkdir()
        (folder / name / "config.json").write_text(json.dumps(config))
    return {name: str(folder / name) for name in k3_layouts}
