"""The file for `--config`: the operator's YAML and one line more, or a refusal with a code."""

import errno
import json
import os
import stat
import subprocess
import sys

import pytest
import yaml
from hypothesis import given, settings, strategies as st
from tests.launch import nvml_library, stand_ins

from smgate_agent.launch import config_sink, local_rule

BASE = b"""# Our K3.
model-path: /models/k3
tp-size: 8   # one tray
enable-metrics: true
json-model-override-args: '{"a": 1}'
lora-paths:
- a
- b
extra:
  moe-runner-backend: not the root's
log-level: info"""


def refusal(base, value="marlin"):
    with pytest.raises(config_sink.RefusedError) as caught:
        config_sink.render(base, value)
    assert caught.value.sentence.endswith(".")
    assert caught.value.next_step.endswith(".")
    return caught.value.code


def test_one_line_is_added_and_nothing_else_changes():
    made = config_sink.render(BASE, "marlin")
    assert made == BASE + b"\nmoe-runner-backend: marlin\n"
    assert yaml.safe_load(made) == {**yaml.safe_load(BASE), "moe-runner-backend": "marlin"}


def test_without_an_override_the_file_is_the_base():
    assert config_sink.render(BASE, None) == BASE


@pytest.mark.parametrize("base", [b"", b"# nothing\n", b"---\na: 1\n", b"  a: 1\n  b: 2\n"])
def test_other_plain_forms_are_taken(base):
    made = yaml.safe_load(config_sink.render(base, "marlin"))
    assert made == {**(yaml.safe_load(base) or {}), "moe-runner-backend": "marlin"}


@pytest.mark.parametrize(
    "line",
    [
        "moe-runner-backend: auto",
        "moe_runner_backend: auto",
        "'moe-runner-backend': triton",
        '"moe-runner-backend" : triton',
        "moe-runner-b: triton",
        "moe-r: triton",
    ],
)
def test_a_base_that_sets_the_key_is_refused_in_every_spelling(line):
    assert refusal(b"a: 1\n" + line.encode() + b"\n") == "base_sets_runner"


@pytest.mark.parametrize(
    "base",
    [
        b"{a: 1}\n",
        b"- a\n",
        b"a: 1\n---\nb: 2\n",
        b"a: 1\n...\n",
        b"%YAML 1.2\n---\na: 1\n",
        b'a: "one\ntwo"\n',
        b"a: [1,\n2]\n",
        b"? a\n: 1\n",
        b"<<: *x\n",
        b"a: &x {moe-runner-backend: auto}\n",
        b'"moe\\x2drunner-backend": auto\n',
        b"a: 1\n\tb: 2\n",
        b"  a: 1\nb: 2\n",
        b"just text\n",
        b"\xff\xfe",
        b"!!map\na: 1\n",
    ],
)
def test_a_base_that_is_no_plain_mapping_is_refused(base):
    assert refusal(base) == "base_unclear"


def test_a_value_that_is_no_name_is_refused():
    assert refusal(BASE, "marlin\napi-key: x") == "base_unclear"


keys = st.text("abmoe-runckd_", min_size=1, max_size=8)
scalars = st.one_of(
    st.text(max_size=12), st.integers(), st.booleans(), st.none(), st.floats(allow_nan=False)
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=3)),
    max_leaves=8,
)


@settings(max_examples=400)
@given(
    st.dictionaries(keys, values, max_size=6),
    st.sampled_from([None, True, False]),
    st.sampled_from([40, 1000]),
)
def test_what_is_written_is_the_base_and_the_override_or_it_is_refused(mapping, flow, width):
    base = yaml.safe_dump(mapping, default_flow_style=flow, width=width).encode()
    try:
        made = config_sink.render(base, "marlin")
    except config_sink.RefusedError:
        return
    assert yaml.safe_load(made) == {**yaml.safe_load(base), "moe-runner-backend": "marlin"}


lines = st.sampled_from(
    [
        "a: 1",
        "b: |",
        "  text: x",
        "c:",
        "- d",
        "  - e",
        "# f",
        "",
        "g: 'h'",
        'i: "j',
        '"',
        "k: [",
        "]",
        "l: >-",
        "---",
        "...",
        "m: {n: o}",
        "p: q # r",
        "s: 't''u'",
        "moe-runner-backend:",
        "v: #w",
        "x : y",
        " z: 1",
        "0: 1",
        "a: - b",
        "a: b: c",
        "a: @x",
        "a: 'b' c",
        "\ta: 1",
        "a:b",
        "~: 1",
    ]
)


@settings(max_examples=1000)
@given(st.lists(lines, max_size=7))
def test_any_lines_are_extended_truly_or_refused(chosen):
    base = "\n".join(chosen).encode()
    try:
        made = config_sink.render(base, "marlin")
    except config_sink.RefusedError:
        return
    try:
        before = yaml.safe_load(base) or {}
    except yaml.YAMLError:
        return  # SGLang would not have started with the base either
    assert yaml.safe_load(made) == {**before, "moe-runner-backend": "marlin"}


@pytest.fixture
def base(tmp_path):
    path = tmp_path / "base.yaml"
    path.write_bytes(BASE)
    path.chmod(0o640)
    return path


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_new_file_has_the_bases_mode_and_an_old_one_keeps_its_own(tmp_path, base):
    out = tmp_path / "out.yaml"
    config_sink.write(out, b"a: 1\n", like=base)
    assert (out.read_bytes(), mode(out)) == (b"a: 1\n", 0o640)
    out.chmod(0o604)
    config_sink.write(out, b"a: 2\n", like=base)
    assert (out.read_bytes(), mode(out)) == (b"a: 2\n", 0o604)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.yaml", "out.yaml"]


def test_a_link_stays_and_its_target_is_replaced(tmp_path, base):
    (tmp_path / "real").mkdir()
    link = tmp_path / "out.yaml"
    link.symlink_to("real/k3.yaml")
    assert config_sink.write(link, b"a: 1\n", like=base) == tmp_path / "real/k3.yaml"
    assert link.is_symlink()
    assert link.read_bytes() == b"a: 1\n"


def test_a_reader_sees_the_old_file_or_the_new_one(tmp_path, base):
    out = tmp_path / "out.yaml"
    config_sink.write(out, b"old", like=base)
    with out.open("rb") as reader:
        config_sink.write(out, b"new", like=base)
        assert reader.read() == b"old"


def refused(*args, **options):
    with pytest.raises(config_sink.RefusedError) as caught:
        config_sink.write(*args, **options)
    return caught.value


def test_the_base_is_never_overwritten(tmp_path, base):
    (tmp_path / "link.yaml").symlink_to(base)
    assert refused(tmp_path / "link.yaml", b"x", like=base).code == "sink_is_base"
    assert base.read_bytes() == BASE


def test_a_folder_that_cannot_be_written_says_so(base):
    # Nobody can make a file there, root neither.
    said = refused(base.parent.joinpath("/proc/self/k3.yaml"), b"x", like=base)
    assert said.code in {"sink_read_only", "sink_unwritable"}
    assert "/proc/" in said.sentence


@pytest.mark.parametrize(
    ("number", "code"),
    [
        (errno.EROFS, "sink_read_only"),
        (errno.EACCES, "sink_read_only"),
        (errno.ENOSPC, "sink_unwritable"),
    ],
)
def test_each_way_to_fail_has_its_code(tmp_path, base, monkeypatch, number, code):
    def fail(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "fchmod", fail)
    said = refused(tmp_path / "out.yaml", b"x", like=base)
    assert said.code == code
    assert errno.errorcode[number] in said.sentence
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base.yaml"]


def test_a_base_that_is_not_there_or_too_large_is_refused(tmp_path):
    for path in (tmp_path / "gone", tmp_path):
        with pytest.raises(config_sink.RefusedError) as caught:
            config_sink.read_base(path)
        assert caught.value.code == "base_unreadable"
    (tmp_path / "large").write_bytes(b"#" * (config_sink.BASE_BYTES_MAX + 1))
    with pytest.raises(config_sink.RefusedError):
        config_sink.read_base(tmp_path / "large")


@pytest.fixture(scope="module")
def archive(tmp_path_factory):
    return stand_ins.build_archive(tmp_path_factory.mktemp("gate"))


class Launch:
    """A launch whose value goes into a file, before a controller that decides `marlin`."""

    def __init__(self, folder, archive, base):
        self.node = stand_ins.Node(folder, archive)
        gpus = [{"uuid": "GPU-0001-aaaa", "sm": "10.7"}]
        library = nvml_library.write(folder / "nvml", gpus)
        self.node.environ["LD_LIBRARY_PATH"] = str(library)
        self.base = base
        self.out = folder / "out.yaml"
        self.options = ("--base-config", str(base), "--write-config", str(self.out))
        self.applied = {}

    def run(self, *more, value="marlin"):
        form = "append" if value else "untouched"

        def decide(launch):
            given = local_rule.given_for(launch)
            unit = stand_ins.entry(launch, form, value, "as_decided", given_for=given)
            return stand_ins.directive(unit)

        argv = ["sglang", "serve", "--model-path", "/m", *more]
        with stand_ins.Controller(stand_ins.honest(decide)) as controller:
            self.node.enroll(controller.url)
            seen = self.node.launch(*argv, options=self.options)["argv"]
            (launch,) = controller.launches()
            (self.applied,) = [fact["payload"] for fact in controller.facts()]
        assert seen[1:] == argv[1:], "nothing is appended"
        assert launch["sink"] == "file"
        return launch


@pytest.fixture
def launch(tmp_path, archive, base):
    (tmp_path / "node").mkdir()
    return Launch(tmp_path / "node", archive, base)


def test_a_launch_finds_the_value_in_its_file_and_the_controller_hears_of_it(launch):
    launch.run("--config", str(launch.out))
    assert launch.out.read_bytes() == BASE + b"\nmoe-runner-backend: marlin\n"
    assert (launch.applied["form"], launch.applied["value"]) == ("appended", "marlin")
    assert "wrote --moe-runner-backend marlin" in launch.node.stderr
    seen = launch.run("--config", str(launch.out), value=None)
    assert (seen["asked_runner"], seen["config_file"]) == (None, "read"), "the base is what counts"
    assert launch.out.read_bytes() == BASE, "an earlier override does not stay"


REFUSED = {
    "config_not_named": (BASE, ()),
    "override_defeated": (BASE, ("--config", "{out}", "--moe-runner-backend", "auto")),
    "base_unclear": (b"{log-level: info}", ("--config", "{out}")),
    "base_sets_runner": (b"moe-runner-backend: auto\n", ("--config", "{out}")),
}


@pytest.mark.parametrize("code", REFUSED)
def test_what_is_refused_is_told_and_the_server_finds_its_base(launch, code):
    text, argv = REFUSED[code]
    launch.base.write_bytes(text)
    launch.out.write_text("moe-runner-backend: flashinfer_mxfp4\n")
    launch.run(*(word.format(out=launch.out) for word in argv))
    assert launch.out.read_bytes() == text
    assert (launch.applied["form"], launch.applied["value"]) == ("untouched", None)
    assert launch.applied["code"] == code


def test_a_base_that_is_gone_is_told_and_the_command_starts(launch):
    launch.base.unlink()
    launch.run("--config", str(launch.out))
    assert launch.applied["code"] == "base_unreadable"
    assert not launch.out.exists()


@pytest.mark.parametrize("form", ["apart", "joined"])
def test_wrong_options_leave_the_base_and_no_earlier_override(launch, form):
    """The gate cannot decide then, and the server must start all the same."""
    launch.out.write_text("moe-runner-backend: flashinfer_mxfp4\n")
    files = launch.options
    if form == "joined":
        files = tuple(f"{files[at]}={files[at + 1]}" for at in (0, 2))
    argv = ("sglang", "serve", "--model-path", "/m", "--config", str(launch.out))
    seen = launch.node.launch(*argv, options=("--deadline-s", "soon", *files))["argv"]
    assert seen[1:] == list(argv[1:])
    assert "usage_error" in launch.node.stderr
    assert launch.out.read_bytes() == BASE


def prepare(launch, *options):
    command = [sys.executable, "-I", str(launch.node.archive), "launch", "--prepare", *options]
    command += ["--state-dir", str(launch.node.state), "--deadline-s", "5"]
    command += ["--on-doubt", "safe", "--", "sglang", "serve", "--model-path", "/m"]
    command += ["--config", str(launch.out)]
    return subprocess.run(
        command, env=launch.node.environ, check=False, capture_output=True, text=True, timeout=60
    )


def test_preparing_writes_the_file_and_starts_nothing(launch):
    done = prepare(launch, *launch.options)
    assert (done.returncode, done.stdout) == (0, "")
    assert launch.out.read_bytes() == BASE, "nobody decided, and no model was read: as it is"
    assert not launch.node.dump.exists()
    records = list((launch.node.state / "launches").glob("*.json"))
    assert [json.loads(path.read_text())["pid"] for path in records] == [None]


@pytest.mark.parametrize("options", [(), ("--base-config", "/x")])
def test_preparing_nothing_is_a_usage_error_that_starts_nothing(launch, options):
    done = prepare(launch, *options)
    assert (done.returncode, done.stdout) == (0, "")
    assert "usage_error" in done.stderr
