"""The gate on machines with something missing: the command starts, soon, without a traceback."""

import ast
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import zipfile

import pytest
from tests.launch import apart, asking, stand_ins

PLAIN = os.path.realpath(sys.executable)
"""The Python below the virtual environment, which may go away with the folder it is in."""
NOTE = """
import os, sys
open(os.environ["DUMP"], "w").write("\\n".join(sys.argv[1:]) + "\\n")
print("served")
"""
FIRST_PYTHON = (3, 10)


ADDED_MS_MAX = 10_000
"""What the gate may add when nobody answers."""


def pythons():
    """Every Python on this machine, by version: what PATH has and what pyenv built."""
    names = [shutil.which(f"python3.{minor}") for minor in range(6, 20)]
    built = pathlib.Path(os.environ.get("PYENV_ROOT") or pathlib.Path.home() / ".pyenv")
    names += [str(path) for path in built.glob("versions/3.*/bin/python3")]
    found = {}
    for name in [sys.executable, "/usr/bin/python3", *filter(None, names)]:
        asked = [name, "-c", "import sys; print(*sys.version_info[:2])"]
        try:
            told = subprocess.run(asked, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            continue  # a pyenv shim of a version that is not chosen
        found.setdefault(tuple(map(int, told.split())), name)
    return found


PYTHONS = pythons()
MODERN = {version: path for version, path in PYTHONS.items() if version >= FIRST_PYTHON}
OLD = {version: path for version, path in PYTHONS.items() if version < FIRST_PYTHON}


def named(found):
    return ["{}.{}".format(*version) for version in found]


@pytest.fixture
def noting(sm107, k3):
    """A node whose command needs nothing of the machine, and a launch that is steered."""
    package = sm107.folder / "site" / "sglang"
    (package / "__init__.py").write_text("")
    (package / "launch_server.py").write_text(NOTE)
    sm107.argv = [PLAIN, "-m", "sglang.launch_server", "--model-path", str(k3)]
    sm107.hold(stand_ins.directive(modes=asking.ENFORCE))
    sm107.enroll(None)
    return sm107


def appended(node, *, at=None, **keywords):
    """What the command was given behind its own arguments; the gate ran apart."""
    ended = apart.gate(node, node.argv, python=PLAIN, at=at, **keywords)
    node.stderr = ended.stderr
    assert (ended.returncode, ended.stdout) == (0, "served\n"), ended.stderr
    assert "Traceback" not in ended.stderr
    (added_ms,) = re.findall(r"^smgate-launch: .* ([0-9]+) ms\)\n\Z", ended.stderr)
    assert int(added_ms) < ADDED_MS_MAX
    own, given = node.argv[3:], node.dump.read_text().splitlines()
    assert given[: len(own)] == [part.replace(str(node.folder), at or "*") for part in own] or (
        given[: len(own)] == own
    )
    return given[len(own) :]


def test_a_read_only_file_system(noting):
    folder, dump = noting.folder, noting.dump
    dump.write_text("")
    setup = (
        f"mount --bind '{folder}' '{folder}'; mount --bind '{dump}' '{dump}';"
        f"mount -o remount,bind,ro '{folder}'; cd '{folder}'"
    )
    assert appended(noting, setup=setup) == asking.SAFE
    assert sorted(path.name for path in noting.state.iterdir()) == [
        "credential.json", "directive.json",
    ]  # fmt: skip


def test_a_full_state_folder(noting):
    """One MiB without a free byte: what is held is read, nothing new is kept, no debris is left."""
    state, aside = noting.state, noting.folder / "aside"
    setup = (
        f"mkdir '{aside}'; cp '{state}'/* '{aside}'; mount -t tmpfs -o size=1m none '{state}';"
        f"cp '{aside}'/* '{state}'; dd if=/dev/zero of='{state}/filler' bs=4k 2>/dev/null || :;"
        f"'$@'; ls -AR '{state}' > '{aside}/listing'; exit 0"
    ).replace("'$@'", '"$@"')
    assert appended(noting, setup=setup) == asking.SAFE
    left = set((aside / "listing").read_text().split())
    assert left >= {"credential.json", "directive.json", "filler"}
    assert not {name for name in left if name.startswith((".", "launch-"))}


@pytest.mark.parametrize(
    "setup", ["mount -t tmpfs none /proc", "umount -l /proc"], ids=["empty /proc", "no /proc"]
)
def test_without_proc(noting, setup):
    assert appended(noting, setup=setup) == asking.SAFE


def test_without_a_folder_for_temporary_files(noting):
    """The node's folder is under another name, because the usual place of it goes away."""
    setup = (
        f"mount --bind '{noting.folder}' /mnt; mount -t tmpfs -o ro none /var/tmp;"
        "mount -t tmpfs -o ro none /tmp; cd /mnt"
    )
    assert appended(noting, setup=setup, at="/mnt") == asking.SAFE


def test_without_home_and_almost_any_environment(noting):
    bare = {name: noting.environ[name] for name in ("DUMP", "PYTHONPATH", "LD_LIBRARY_PATH")}
    assert appended(noting, environ=bare) == asking.SAFE


# Networks


LOOPBACK = ("--mount", "--net")
UP = "ip link set lo up"


def test_without_any_network(noting):
    noting.enroll("http://10.255.255.1:8080")
    assert appended(noting, kinds=LOOPBACK) == asking.SAFE
    assert "controller_unreachable" in noting.stderr


def test_a_network_that_swallows_every_packet(noting):
    """A queue that is full: the kernel drops what comes in, and a connection is never made."""
    with contextlib.ExitStack() as opened:
        server = opened.enter_context(socket.create_server(("127.0.0.1", 0), backlog=0))
        with contextlib.suppress(TimeoutError):
            for _ in range(20):
                address = server.getsockname()
                opened.enter_context(socket.create_connection(address, timeout=0.5))
            pytest.fail("this kernel takes any number of connections")
        noting.enroll(f"http://127.0.0.1:{server.getsockname()[1]}")
        assert appended(noting) == asking.SAFE
    assert "controller_silent" in noting.stderr


def test_a_name_server_that_does_not_answer(noting):
    noting.enroll("http://smgate.example.net:8080")
    resolver = noting.folder / "resolv.conf"
    resolver.write_text("nameserver 127.0.0.1\n")
    setup = f"{UP}; mount --bind '{resolver}' /etc/resolv.conf; {apart.QUIET_RESOLVER}"
    assert appended(noting, kinds=LOOPBACK, setup=setup) == asking.SAFE
    assert "controller_silent" in noting.stderr


# Pythons


def test_the_sources_keep_to_the_oldest_python(archive):
    with zipfile.ZipFile(archive) as opened:
        names = [name for name in opened.namelist() if name.endswith(".py")]
        assert len(names) > 20
        for name in names:
            oldest = (3, 4) if name == "__main__.py" else FIRST_PYTHON
            ast.parse(opened.read(name), name, feature_version=oldest)


@pytest.mark.parametrize("python", MODERN.values(), ids=named(MODERN))
def test_every_python_steers_the_launch(noting, archive, python):
    ended = subprocess.run(
        [python, "-I", archive, "launch", "--state-dir", noting.state, "--", *noting.argv],
        env=noting.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "served\n"), ended.stderr
    assert noting.dump.read_text().splitlines()[-2:] == asking.SAFE
    assert "DeprecationWarning" not in ended.stderr


@pytest.mark.parametrize("python", OLD.values(), ids=named(OLD))
def test_a_python_that_is_too_old_starts_the_command_as_it_is(node, archive, python):
    ended = subprocess.run(
        [python, "-I", archive, "launch", "--", "/bin/sh", "-c", "echo $0; exit 5", "as it is"],
        env=node.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (5, "as it is\n")
    assert ended.stderr == "smgate-launch: left the command as it is (python_too_old)\n"
    ended = subprocess.run([python, "-I", archive, "launch", "--", "/no/such"], check=False)
    assert ended.returncode == 127


def test_an_archive_with_a_broken_part_starts_the_command_as_it_is(node, archive):
    broken = node.folder / "broken.pyz"
    with zipfile.ZipFile(archive) as whole, zipfile.ZipFile(broken, "w") as part:
        for name in whole.namelist():
            text = whole.read(name)
            part.writestr(name, b"import nothing_there" if name.endswith("gate.py") else text)
    ended = subprocess.run(
        [sys.executable, "-I", broken, "launch", "--", "/bin/echo", "started"],
        env=node.environ, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout) == (0, "started\n")
    assert "gate_error_modulenotfounderror" in ended.stderr
