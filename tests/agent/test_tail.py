"""Following a log file through rotation, truncation and restarts of the agent."""

import os

import pytest
from tests.fixtures import fake_sglang

from smgate_agent import tail


@pytest.fixture
def log(tmp_path):
    return fake_sglang.FakeLog(tmp_path / "server.log")


def drain(follower):
    data = b""
    while piece := follower.read().data:
        data += piece
    return data


def test_a_file_that_is_not_there_yet_is_waited_for(log):
    follower = tail.Tail(str(log.path))
    assert follower.read().data == b""
    log.write(b"one\n")
    assert follower.read() == tail.Piece(data=b"one\n", fresh=True)
    log.write(b"two\n")
    assert follower.read() == tail.Piece(data=b"two\n", fresh=False)
    follower.close()


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(log):
    follower = tail.Tail(str(log.path))
    log.write(b"old 1\n")
    assert drain(follower) == b"old 1\n"
    log.write(b"old 2\n")
    log.rotate()
    log.write(b"new 1\n")
    assert follower.read() == tail.Piece(data=b"old 2\n", fresh=False)
    assert follower.read() == tail.Piece(data=b"new 1\n", fresh=True)
    follower.close()


def test_a_truncated_file_is_read_from_its_beginning(log):
    follower = tail.Tail(str(log.path))
    log.write(b"a long first life\n")
    drain(follower)
    log.truncate()
    log.write(b"short\n")
    assert follower.read() == tail.Piece(data=b"short\n", fresh=True)
    follower.close()


def test_a_file_that_was_cut_and_grew_past_the_place_is_read_from_its_beginning(log):
    follower = tail.Tail(str(log.path))
    log.write(b"first\n")
    drain(follower)
    place = follower.place()
    log.truncate()
    log.write(b"another and longer\n")
    assert follower.read() == tail.Piece(data=b"another and longer\n", fresh=True)
    follower.close()
    again = tail.Tail(str(log.path), place=place)
    assert again.read() == tail.Piece(data=b"another and longer\n", fresh=True)
    again.close()


def test_reading_resumes_where_it_stopped_only_in_the_same_file(log):
    follower = tail.Tail(str(log.path))
    log.write(b"one\ntwo\nthr")
    drain(follower)
    place = follower.place(behind_bytes=3)
    follower.close()
    log.write(b"ee\n")
    again = tail.Tail(str(log.path), place=place)
    assert again.read() == tail.Piece(data=b"three\n", fresh=False)
    again.close()
    log.rotate()
    log.write(b"other\n")
    other = tail.Tail(str(log.path), place=place)
    assert other.read() == tail.Piece(data=b"other\n", fresh=True)
    other.close()


def test_a_place_beyond_the_end_is_not_trusted(log):
    log.write(b"one\n")
    status = log.path.stat()
    place = tail.Place(device=status.st_dev, inode=status.st_ino, offset=999, before="")
    follower = tail.Tail(str(log.path), place=place)
    assert follower.read() == tail.Piece(data=b"one\n", fresh=True)
    follower.close()


def test_of_a_glob_the_newest_file_is_followed(tmp_path):
    first, second = tmp_path / "0.log", tmp_path / "1.log"
    first.write_bytes(b"first\n")
    follower = tail.Tail(str(tmp_path / "*.log"))
    assert drain(follower) == b"first\n"
    second.write_bytes(b"second\n")
    os.utime(first, ns=(1, 1))
    assert drain(follower) == b"second\n"
    follower.close()


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_a_log_that_was_compressed_after_rotation_is_not_followed(log, suffix):
    follower = tail.Tail(f"{log.path}*")
    log.write(b"first\n")
    assert drain(follower) == b"first\n"
    log.write(b"last\n")
    rotated = log.path.with_name(log.path.name + ".1")
    log.rotate()
    log.write(b"new\n")
    rotated.with_name(rotated.name + suffix).write_bytes(b"\x1f\x8b compressed")
    os.utime(log.path, ns=(1, 1))
    rotated.unlink()
    assert drain(follower) == b"last\nnew\n"
    follower.close()


def test_a_directory_or_an_unreadable_place_is_no_log(tmp_path):
    follower = tail.Tail(str(tmp_path))
    assert follower.read().data == b""
    assert follower.place() is None
