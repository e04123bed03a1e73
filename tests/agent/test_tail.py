"""Following a log file through rotation, truncation and restarts of the agent."""

import itertools
import os
import shutil

import pytest
from tests.fixtures import fake_sglang

from smgate_agent import log_files, tail

SECOND_NS = 1_000_000_000


@pytest.fixture
def log(tmp_path):
    return fake_sglang.FakeLog(tmp_path / "server.log")


@pytest.fixture
def follow():
    opened = []

    def follow(pattern, place=None):
        follower = tail.Tail(str(pattern), place=place)
        opened.append(follower)
        return follower

    yield follow
    for follower in opened:
        follower.close()


@pytest.fixture
def write(tmp_path):
    """Writes to a file, each time a second later than the last time to any."""
    seconds = itertools.count(1_800_000_000)

    def write(name, data=b""):
        path = tmp_path / name
        with path.open("ab") as file:
            file.write(data)
        at_ns = next(seconds) * SECOND_NS
        os.utime(path, ns=(at_ns, at_ns))

    return write


def drain(follower):
    return b"".join(data for data, _ in pieces(follower))


def pieces(follower):
    """What is read, and whether something is lost before it."""
    told = []
    while (piece := follower.read()).data:
        told.append((piece.data, piece.lost))
    return told


def rotate(folder, name="server.log", kept=9):
    """As logrotate renames: the oldest goes, each of the others gets the next number."""
    (folder / f"{name}.{kept}").unlink(missing_ok=True)
    for number in range(kept - 1, 0, -1):
        path = folder / f"{name}.{number}"
        if path.exists():
            path.rename(folder / f"{name}.{number + 1}")
    (folder / name).rename(folder / f"{name}.1")


def test_a_file_that_is_not_there_yet_is_waited_for(log, follow):
    follower = follow(log.path)
    assert follower.read().data == b""
    log.write(b"one\n")
    assert follower.read() == tail.Piece(data=b"one\n", fresh=True)
    log.write(b"two\n")
    assert follower.read() == tail.Piece(data=b"two\n", fresh=False)


def test_a_rotated_file_is_read_to_its_end_before_the_new_one(log, follow):
    follower = follow(log.path)
    log.write(b"old 1\n")
    assert drain(follower) == b"old 1\n"
    log.write(b"old 2\n")
    log.rotate()
    log.write(b"new 1\n")
    assert follower.read() == tail.Piece(data=b"old 2\n", fresh=False)
    assert follower.read() == tail.Piece(data=b"new 1\n", fresh=True, rotated=True)


@pytest.mark.parametrize("pattern", ["server.log", "server.log*", "*.log"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("rotations", [1, 2, 3])
def test_nothing_is_lost_over_rotations_between_two_looks(
    tmp_path, follow, write, pattern, restarted, rotations
):
    write("server.log", b"ancient\n")
    rotate(tmp_path)
    write("server.log", b"read\n")
    follower = follow(tmp_path / pattern)
    assert drain(follower) == b"read\n"
    place = follower.place()
    write("server.log", b"0\n")
    for number in range(1, rotations + 1):
        rotate(tmp_path)
        write("server.log", b"%d\n" % number)
    if restarted:
        follower.close()
        follower = follow(tmp_path / pattern, place)
    assert pieces(follower) == [(b"%d\n" % number, False) for number in range(rotations + 1)]
    write("server.log", b"after\n")
    assert pieces(follower) == [(b"after\n", False)]


@pytest.mark.parametrize("name", ["server.log-20261130", "server.log.20261130-101500"])
def test_a_rotated_file_is_found_by_whatever_name_it_got(tmp_path, log, follow, name):
    log.write(b"read\n")
    follower = follow(log.path)
    drain(follower)
    place = follower.place()
    follower.close()
    log.write(b"rest\n")
    log.path.rename(tmp_path / name)
    assert pieces(follow(log.path, place)) == [(b"rest\n", False)]  # nothing has its name yet
    log.write(b"new\n")
    assert pieces(follow(log.path, place)) == [(b"rest\n", False), (b"new\n", False)]


@pytest.mark.parametrize("pattern", ["server.log", "server.log*"])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("cuts", [1, 2])
def test_nothing_is_lost_or_read_twice_where_a_log_is_copied_and_cut(
    tmp_path, log, follow, write, pattern, restarted, cuts
):
    write("server.log", b"read, a while ago\n")
    follower = follow(tmp_path / pattern)
    assert drain(follower) == b"read, a while ago\n"
    place = follower.place()
    expected = []
    for number in range(cuts):
        rest = b"not read before cut %d, longer than what stood before\n" % number
        write("server.log", rest)
        for kept in range(cuts, 0, -1):
            if (tmp_path / f"server.log.{kept}").exists():
                (tmp_path / f"server.log.{kept}").rename(tmp_path / f"server.log.{kept + 1}")
        shutil.copyfile(log.path, tmp_path / "server.log.1")
        write("server.log.1")
        log.truncate()
        write("server.log")
        expected.append(rest)
    write("server.log", b"after the last cut, and this is longer than all that stood before it\n")
    expected.append(log.path.read_bytes())
    if restarted:
        follower.close()
        follower = follow(tmp_path / pattern, place)
    assert pieces(follower) == [(data, False) for data in expected]


def test_a_copy_that_is_made_and_not_yet_cut_is_not_read(tmp_path, log, follow, write):
    write("server.log", b"one\n")
    follower = follow(tmp_path / "server.log*")
    assert drain(follower) == b"one\n"
    shutil.copyfile(log.path, tmp_path / "server.log.1")
    write("server.log.1")
    assert follower.read().data == b""
    write("server.log", b"two\n")
    assert pieces(follower) == [(b"two\n", False)]


def test_a_writer_that_goes_on_in_the_renamed_file_is_followed_there(log, follow):
    log.write(b"one\n")
    follower = follow(log.path)
    drain(follower)
    with log.path.open("ab") as writer:  # nobody told it to open its log again
        log.rotate()
        log.path.touch()
        assert drain(follower) == b""
        writer.write(b"two\n")
        writer.flush()
        assert pieces(follower) == [(b"two\n", False)]
    log.write(b"a new server\n")
    assert pieces(follower) == [(b"a new server\n", False)]


def test_two_logs_under_one_glob_are_each_read_once(tmp_path, follow, write):
    follower = follow(tmp_path / "*.log")
    read = b""
    for turn in range(4):
        for name in ("a.log", "b.log"):
            write(name, b"%s %d\n" % (name.encode(), turn))
            read += drain(follower)
    assert sorted(read.split()) == sorted(
        (tmp_path / "a.log").read_bytes().split() + (tmp_path / "b.log").read_bytes().split()
    )


def test_a_file_that_is_cut_with_no_copy_left_is_read_from_its_beginning_and_some_is_lost(
    log, follow
):
    follower = follow(log.path)
    log.write(b"a long first life\n")
    drain(follower)
    log.truncate()
    log.write(b"short\n")
    assert follower.read() == tail.Piece(data=b"short\n", fresh=True, lost=True)
    place = follower.place()
    log.truncate()
    log.write(b"another and longer\n")
    assert follower.read() == tail.Piece(data=b"another and longer\n", fresh=True, lost=True)
    again = follow(log.path, place)
    assert again.read() == tail.Piece(data=b"another and longer\n", fresh=True, lost=True)


@pytest.mark.parametrize("suffix", sorted(log_files.COMPRESSED))
def test_what_was_compressed_before_it_was_read_is_lost_and_said_to_be(
    tmp_path, follow, write, suffix
):
    write("server.log", b"read\n")
    follower = follow(tmp_path / "server.log")
    drain(follower)
    place = follower.place()
    write("server.log", b"rest\n")
    rotate(tmp_path)
    (tmp_path / "server.log.1").unlink()
    write(f"server.log.1{suffix}", b"\x1f\x8b")
    write("server.log", b"new\n")
    # One that had it open has all of it; one that comes back has not.
    assert pieces(follower) == [(b"rest\n", False), (b"new\n", False)]
    assert pieces(follow(tmp_path / "server.log", place)) == [(b"new\n", True)]


@pytest.mark.parametrize("compressed", [0, 2])
def test_where_others_may_have_come_and_gone_between_some_may_be_lost(
    tmp_path, follow, write, compressed
):
    write("server.log", b"read\n")
    follower = follow(tmp_path / "server.log")
    drain(follower)
    (tmp_path / "server.log").unlink()
    for number in range(compressed):
        write(f"server.log.{number}.gz", b"\x1f\x8b")
    write("server.log", b"new\n")
    assert pieces(follower) == [(b"new\n", True)]


def test_what_a_file_that_is_gone_left_unread_does_not_hide_what_was_rotated_after_it(
    tmp_path, follow, write
):
    write("server.log", b"ancient\n")
    rotate(tmp_path)
    write("server.log", b"read\n")
    follower = follow(tmp_path / "server.log")
    drain(follower)
    place = follower.place()
    for data in (b"1\n", b"2\n"):
        rotate(tmp_path)
        write("server.log", data)
    (tmp_path / "server.log.2").unlink()
    again = follow(tmp_path / "server.log", place)
    assert pieces(again) == [(b"1\n", True), (b"2\n", False)]


def test_a_line_goes_on_over_a_rotation_and_not_in_another_log(tmp_path, follow, write):
    follower = follow(tmp_path / "*.log")
    rotated = []
    for name in ("0.log", "0.log", "1.log", "1.log"):
        if (tmp_path / name).exists():
            (tmp_path / name).rename(tmp_path / f"{name}.20261130-101500")
        write(name, b"%d\n" % len(rotated))
        rotated.append(follower.read().rotated)
    assert rotated == [False, True, False, True]


def test_reading_resumes_where_it_stopped(log, follow):
    follower = follow(log.path)
    log.write(b"one\ntwo\nthr")
    drain(follower)
    place = follower.place(behind_bytes=3)
    log.write(b"ee\n")
    assert follow(log.path, place).read() == tail.Piece(data=b"three\n", fresh=False)


def test_another_log_of_the_same_name_is_not_taken_for_it(log, follow):
    log.write(b"one\n")
    status = log.path.stat()
    for offset, digest in ((999, ""), (2, "0" * 16)):
        place = log_files.Place(
            device=status.st_dev, inode=status.st_ino, offset=offset, before=digest
        )
        piece = follow(log.path, place).read()
        assert piece == tail.Piece(data=b"one\n", fresh=True, lost=True)


def test_a_place_of_a_release_before_this_one_begins_with_the_newest_file(tmp_path, follow, write):
    write("server.log", b"old\n")
    rotate(tmp_path)
    write("server.log", b"new\n")
    place = log_files.Place(device=1, inode=1, offset=9, before="0" * 16)
    assert pieces(follow(tmp_path / "server.log", place)) == [(b"new\n", True)]


def test_what_was_written_between_a_read_and_the_rotation_is_read(log, follow):
    """The rotation comes in the very moment between finding nothing and looking at the name."""
    follower = follow(log.path)
    log.write(b"one\n")
    drain(follower)
    look = follower._files.newest

    def late():
        if not log.path.with_name("server.log.1").exists():
            log.write(b"last\n")
            log.rotate()
            log.write(b"new\n")
        return look()

    follower._files.newest = late
    assert pieces(follower) == [(b"last\n", False), (b"new\n", False)]


def test_of_a_glob_the_newest_file_is_followed(tmp_path, follow, write):
    write("0.log", b"first\n")
    follower = follow(tmp_path / "*.log")
    assert drain(follower) == b"first\n"
    write("1.log", b"second\n")
    assert drain(follower) == b"second\n"


def test_a_clock_that_was_set_back_holds_up_no_plain_path(tmp_path, log, follow, write):
    log.write(b"one\n")
    os.utime(log.path, ns=(1 << 62, 1 << 62))
    follower = follow(log.path)
    drain(follower)
    rotate(tmp_path)
    write("server.log", b"two\n")
    assert pieces(follower) == [(b"two\n", False)]


def test_a_directory_or_an_unreadable_place_is_no_log(tmp_path, follow):
    follower = follow(tmp_path)
    assert follower.read().data == b""
    assert follower.place() is None
