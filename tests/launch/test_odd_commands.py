"""Commands as people write them, and worse: each starts with what it was given, never a traceback."""

import os
import subprocess
import sys

import pytest
from tests.launch import asking, stand_ins

ECHO = "import os, sys; os.write(1, b'\\0'.join(map(os.fsencode, sys.argv[1:])))"


@pytest.fixture
def enforced(sm107):
    sm107.hold(stand_ins.directive(modes=asking.ENFORCE))
    sm107.enroll(None)
    for name in ("numactl", "nsys", "tini"):
        wrapper = sm107.folder / "bin" / name
        wrapper.write_text('#!/bin/sh\nwhile [ "$1" != sglang ]; do shift; done; exec "$@"\n')
        wrapper.chmod(0o755)
    return sm107


def given_to_sglang(node, *argv):
    return node.launch(*argv)["argv"][1:]


WRAPPERS = {
    "numactl": ["numactl", "--cpunodebind=0", "--membind=0", "sglang"],
    "nsys": ["nsys", "profile", "--trace=cuda,nvtx", "-o", "/tmp/x", "sglang"],
    "tini": ["tini", "--", "sglang"],
    "env": ["env", "-u", "C", "A=B", "sglang"],
    "env, nested": ["env", "-", "PATH={path}", "DUMP={dump}", "env", "sglang"],
    "nice": ["nice", "-n", "0", "sglang"],
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS)
def test_a_program_in_front_of_sglang_is_kept_and_the_value_reaches_sglang(enforced, k3, wrapper):
    values = {"path": enforced.environ["PATH"], "dump": enforced.dump}
    wrapper = [part.format(**values) for part in wrapper]
    own = ["serve", "--model-path", str(k3)]
    assert given_to_sglang(enforced, *wrapper, *own) == [*own, *asking.SAFE]


@pytest.mark.parametrize("shell", [["bash", "-c"], ["sh", "-ec"], ["/bin/sh", "-c"]])
def test_a_command_inside_a_string_is_left_alone(enforced, k3, shell):
    own = ["serve", "--model-path", str(k3)]
    assert given_to_sglang(enforced, *shell, f"exec sglang {' '.join(own)}") == own
    assert "left the command as it is" in enforced.stderr


def test_the_gate_inside_the_string_steers(enforced, k3):
    inner = f"exec '{sys.executable}' -I '{enforced.archive}' launch --state-dir"
    inner += f" '{enforced.state}' --quiet -- sglang serve --model-path '{k3}'"
    own = ["serve", "--model-path", str(k3)]
    assert given_to_sglang(enforced, "bash", "-c", inner) == [*own, *asking.SAFE]


REPEATED = {
    "auto, many times": (["--moe-runner-backend", "auto"] * 50, asking.SAFE),
    "a choice first, auto last": (
        ["--moe-runner-backend=triton", "--moe-runner-b", "auto"], asking.SAFE,
    ),
    "auto first, a choice last": (["--moe-r=auto", "--moe-runner-backend", "triton"], []),
    "a model path many times": (["--model-path", "a/b", "--model-path", "{k3}"], asking.SAFE),
    "another model last": (["--model-path", "a/b"], []),
    "numbers that are none": (
        ["--tp", "eight", "--nnodes", "-3", "--node-rank", "0x7", "--ep-size", "9" * 400],
        asking.SAFE,
    ),
    "flags without values": (["--tp", "--nnodes", "--node-rank"], asking.SAFE),
    "a lone double dash": (["--"], asking.SAFE),
}  # fmt: skip


@pytest.mark.parametrize(("more", "appended"), REPEATED.values(), ids=REPEATED)
def test_repeated_and_half_written_flags(enforced, k3, more, appended):
    own = ["serve", "--model-path", str(k3), *(part.format(k3=k3) for part in more)]
    assert given_to_sglang(enforced, "sglang", *own) == [*own, *appended]


def started(node, argv, **keywords):
    """What a plain program was given, byte by byte."""
    ended = subprocess.run(
        [sys.executable, "-I", node.archive, "launch", "--state-dir", node.state, "--", *argv],
        env=node.environ, capture_output=True, check=False, timeout=60, **keywords,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    assert ended.stderr.count(b"\n") == 1
    return ended.stdout.split(b"\0")


GARBAGE = {
    "all bytes": [bytes(range(1, 256))],
    "half of a character": [b"--model-path", b"\xc3", b"--tp", b"\xff"],
    "surrogates": ["\ud800".encode("utf-8", "surrogatepass")],
    "control characters": [b"\x1b[2J\x07", b"\r\n\r\n", b"\x7f"],
    "nothing but empty": [b""] * 100,
    "a hundred kilobytes in one": [b"--model-path=" + b"m" * 100_000],
    "a hundred kilobytes in many": [b"--tp", b"8"] * 20_000,
    "JSON of a hundred kilobytes": [
        b"--json-model-override-args", b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}",
    ],
}  # fmt: skip


@pytest.mark.parametrize("garbage", GARBAGE.values(), ids=GARBAGE)
def test_any_bytes_pass_through(enforced, k3, garbage):
    assert started(enforced, ["/usr/bin/python3", "-c", ECHO, *garbage]) == garbage
    (enforced.folder / "bin" / "sglang").write_text(f"#!{sys.executable}\n{ECHO}\n")
    own = [b"serve", b"--model-path", os.fsencode(k3), *garbage]
    given = started(enforced, ["sglang", *own])
    assert given[: len(own)] == own
    assert given[len(own) :] in ([], [os.fsencode(part) for part in asking.SAFE])


BROKEN = {
    "not there": ["/no/such/command"],
    "not there, by name": ["no-such-command-anywhere"],
    "not executable": ["/etc/passwd"],
    "a folder": ["/etc"],
    "through a file": ["/etc/passwd/sglang"],
    "empty": [""],
    "a script of an interpreter that is not there": ["{script}"],
    "a name that is too long": ["x" * 5000],
}


@pytest.mark.parametrize("argv", BROKEN.values(), ids=BROKEN)
def test_a_command_that_cannot_start_ends_as_it_would_under_env(node, argv):
    """`env` is what people put in front of a command; its exit status is what they know."""
    script = node.folder / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    argv = [part.format(script=script) for part in argv]
    direct = subprocess.run(["env", *argv], capture_output=True, check=False)
    ended = subprocess.run(
        [sys.executable, "-I", node.archive, "launch", "--", *argv],
        env=node.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert direct.returncode in (126, 127)
    assert ended.returncode == direct.returncode
    assert ended.stdout == ""
    assert "Traceback" not in ended.stderr
    assert ended.stderr.count("\n") <= 2
