"""The gate's question to SGLang, put to a package of the form that each version has.

The forms are recorded from the versions themselves (`tests/fixtures/sglang/parsers`); the real ones are asked in
`tests/sglang/test_dry_resolve.py`. What was asked for and what it resolves to differ here.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from smgate_agent.launch import dry_resolve, sources
from smgate_agent.launch.children import Children

FORMS = sorted((Path(__file__).parents[1] / "fixtures/sglang/parsers").glob("*.json"))
ASKED, RESOLVED = ("auto", "none"), ("marlin", "deepep")
NAMES = ("moe_runner_backend", "moe_a2a_backend")
CLASS = """
import os
print("SGLang prints too")
class ServerArgs:
    def __init__(self, values):
        self._values = values
        {at_once}
    def _take(self, values):
        self._values = values
        self.__dict__.update(values)
"""


def package(folder, form):
    """A `sglang` of this form."""
    srt = folder / "sglang" / "srt"
    srt.mkdir(parents=True)
    asked, resolved = (dict(zip(NAMES, pair, strict=True)) for pair in (ASKED, RESOLVED))
    lines = CLASS.format(at_once="pass" if form["resolve_once"] else f"self._take({resolved})")
    if form["resolve_once"]:
        lines += f"    def resolve_once(self):\n        self._values = {resolved}\n"
    if form["resolved_dict"]:
        lines += "    def resolved_dict(self):\n        return dict(self._values)\n"
    parameters = ", ".join(form["prepare_server_args"])
    lines += f"def prepare_server_args({parameters}):\n"
    lines += "    assert argv == ['--model-path', 'k3'] and os.environ['HF_HUB_OFFLINE'] == '1'\n"
    lines += f"    return ServerArgs({asked})\n"
    (srt / "server_args.py").write_text(lines)
    plugins = f"def load_plugins({', '.join(form['load_plugins'])}): print('plugins')\n"
    (srt / "plugins.py").write_text(plugins)


def test_every_version_has_a_form():
    assert [path.stem for path in FORMS] == [f"0.5.{patch}" for patch in range(17, 24)]


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_what_a_version_of_this_form_resolves_is_told(path, tmp_path, monkeypatch):
    package(tmp_path, json.loads(path.read_text()))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    argv = [sys.executable, "-c", sources.script(dry_resolve.SCRIPT)]
    ended = Children().run([*argv, '["--model-path", "k3"]'], timeout_s=60)
    told = ended.result()
    assert tuple(told.pop(name) for name in dry_resolve.FIELDS) == RESOLVED
    assert set(told.values()) == {None}, "nothing is made up of what this package does not have"


@pytest.mark.parametrize("missing", ["prepare_server_args", "load_plugins"])
def test_a_version_without_what_is_asked_says_nothing(missing, tmp_path, monkeypatch):
    package(tmp_path, json.loads(FORMS[-1].read_text()))
    for path in (tmp_path / "sglang/srt").glob("*.py"):
        path.write_text(path.read_text().replace(f"def {missing}", "def renamed"))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    argv = [sys.executable, "-c", sources.script(dry_resolve.SCRIPT), '["--model-path", "k3"]']
    process = subprocess.run(argv, capture_output=True, check=False, text=True)
    assert (process.returncode, process.stdout) == (1, "")
