"""A file is the old one or the new one, whatever ends in the middle and whoever else writes there."""

import os
import pathlib
import signal
import stat
import subprocess
import sys
import threading
import time

import pytest

from smgate_agent.launch import whole_file

AGENT = pathlib.Path(whole_file.__file__).parents[1]


def temporary(path):
    return path.with_name(f".{path.name}.{os.getpid()}-{threading.get_native_id()}.tmp")


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("umask", [0o077, 0o022, 0])
@pytest.mark.parametrize("durable", [True, False])
def test_the_file_is_replaced_with_the_mode_that_was_asked_for(tmp_path, umask, durable):
    path = tmp_path / "file"
    before = os.umask(umask)
    try:
        for wanted in (whole_file.PRIVATE, whole_file.PUBLIC, 0o640):
            whole_file.replace(path, b"%o" % wanted, mode=wanted, durable=durable)
            assert (path.read_bytes(), mode(path)) == (b"%o" % wanted, wanted)
    finally:
        os.umask(before)
    assert list(tmp_path.iterdir()) == [path]


def test_a_write_that_finds_no_room_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    whole_file.replace(path, b"old", mode=0o640)
    script = (
        "import pathlib, resource, signal, sys\n"
        "from smgate_agent.launch import whole_file\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
        "try:\n"
        "    whole_file.replace(pathlib.Path(sys.argv[1]), b'n' * 100_000)\n"
        "except OSError:\n"
        "    sys.exit(7)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(path)], check=False)
    assert done.returncode == 7
    assert (path.read_bytes(), mode(path)) == (b"old", 0o640)
    assert list(tmp_path.iterdir()) == [path]


def test_a_writer_that_is_killed_at_any_moment_leaves_a_whole_file(tmp_path):
    path = tmp_path / "file"
    whole_file.replace(path, b"a" * 100_000)
    script = (
        "import pathlib, sys\n"
        "from smgate_agent.launch import whole_file\n"
        "while True:\n"
        "    for byte in b'ab':\n"
        "        whole_file.replace(pathlib.Path(sys.argv[1]), bytes([byte]) * 100_000)\n"
        "        print(flush=True)\n"
    )
    for wait_s in (0.0, 0.003, 0.01):
        with subprocess.Popen(
            [sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE
        ) as writer:
            assert writer.stdout is not None
            writer.stdout.readline()
            time.sleep(wait_s)
            writer.send_signal(signal.SIGKILL)
        assert path.read_bytes() in {b"a" * 100_000, b"b" * 100_000}


def test_a_link_that_somebody_planted_is_not_followed(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "shared"
    victim.write_bytes(b"precious")
    temporary(path).symlink_to(victim)
    whole_file.replace(path, b"new")
    assert victim.read_bytes() == b"precious"
    assert (path.read_bytes(), path.is_symlink()) == (b"new", False)
    # Nor is one in the place of the file itself.
    path.unlink()
    path.symlink_to(victim)
    whole_file.replace(path, b"newer")
    assert (victim.read_bytes(), path.read_bytes()) == (b"precious", b"newer")
    assert not path.is_symlink()


def test_what_a_killed_writer_left_does_not_stand_in_the_way(tmp_path):
    path = tmp_path / "file"
    temporary(path).write_bytes(b"half of someth")
    whole_file.replace(path, b"new")
    assert list(tmp_path.iterdir()) == [path]


def test_threads_that_write_one_file_at_once_each_write_it_whole(tmp_path):
    path, failed = tmp_path / "file", []

    def write(byte):
        try:
            for _ in range(30):
                whole_file.replace(path, byte * 50_000, durable=False)
        except OSError as exc:
            failed.append(exc)

    threads = [threading.Thread(target=write, args=(byte,)) for byte in (b"a", b"b", b"c")]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        if path.exists():
            data = path.read_bytes()
            assert data == data[:1] * 50_000
    assert failed == []
    assert list(tmp_path.iterdir()) == [path]


def test_nobody_else_in_the_agent_replaces_files():
    others = [
        path.relative_to(AGENT).as_posix()
        for path in sorted(AGENT.rglob("*.py"))
        if "O_CREAT" in path.read_text() or 'with_name(f".{' in path.read_text()
    ]
    assert others == ["launch/whole_file.py"]
