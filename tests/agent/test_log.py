"""Log bytes to lines, and lines to the life of a server."""

import json
import random
import time

import pytest
from hypothesis import given, strategies as st
from tests.agent import samples

from smgate_agent import log_frames, log_reader, units

RUNTIME_PART_BYTES = 16384


def as_plain(lines):
    return "".join(line + "\n" for line in lines).encode()


def as_cri(lines):
    out = b""
    for line in lines:
        data = line.encode()
        parts = [
            data[at : at + RUNTIME_PART_BYTES] for at in range(0, len(data), RUNTIME_PART_BYTES)
        ]
        for number, part in enumerate(parts or [b""]):
            tag = b"P" if number < len(parts) - 1 else b"F"
            out += b"2026-11-02T10:00:00.123456789Z stderr " + tag + b" " + part + b"\n"
    return out


def as_docker(lines):
    out = b""
    for line in lines:
        text = line + "\n"
        for at in range(0, len(text), RUNTIME_PART_BYTES):
            record = {"log": text[at : at + RUNTIME_PART_BYTES], "stream": "stderr", "time": "t"}
            out += json.dumps(record).encode() + b"\n"
    return out


SHAPES = {"plain": as_plain, "cri": as_cri, "docker": as_docker}
LONG = samples.ARGS_DICT % "auto" + " " + "x" * 40_000
LINES = ["first", LONG, "", "naïve ✓ text", samples.LOAD_END]


def fold(lines, life=None):
    reader = log_reader.LogReader(life)
    for line in lines:
        reader.line(line)
    return reader.life


@pytest.mark.parametrize("shape", SHAPES)
def test_parts_of_a_long_line_are_joined(shape):
    framer = log_frames.Framer(shape)
    assert list(framer.feed(SHAPES[shape](LINES))) == LINES
    assert framer.malformed == 0
    assert framer.unfinished_bytes == 0


@pytest.mark.parametrize("shape", SHAPES)
@given(seed=st.integers(0, 1 << 32))
def test_any_split_of_the_bytes_gives_the_same_lines(shape, seed):
    chance = random.Random(seed)
    data = SHAPES[shape](LINES)
    framer = log_frames.Framer(shape)
    lines, at = [], 0
    while at < len(data):
        size = chance.choice([1, 7, 100, 5000, 20000])
        lines += framer.feed(data[at : at + size])
        at += size
        rest = data[at - framer.unfinished_bytes :] if at <= len(data) else b""
        # Reading may resume where no line was open, and gives what is still missing.
        assert lines + list(log_frames.Framer(shape).feed(rest)) == LINES
    assert lines == LINES


@pytest.mark.parametrize("shape", ["cri", "docker"])
def test_parts_of_a_line_are_joined_over_a_rotation_and_not_over_another_file(shape):
    records = SHAPES[shape](LINES).splitlines(keepends=True)
    for cut in range(len(records) + 1):
        framer = log_frames.Framer(shape)
        lines = list(framer.feed(b"".join(records[:cut])))
        framer.reset(rotated=True)
        assert lines + list(framer.feed(b"".join(records[cut:]))) == LINES
    framer = log_frames.Framer(shape)
    assert list(framer.feed(b"".join(records[:2]))) == LINES[:1]
    framer.reset()
    assert list(framer.feed(SHAPES[shape](["another container"]))) == ["another container"]


@pytest.mark.parametrize("shape", ["cri", "docker"])
def test_half_a_record_at_the_end_of_a_file_is_not_joined_to_the_next_file(shape):
    framer = log_frames.Framer(shape)
    (record,) = SHAPES[shape](["first"]).splitlines(keepends=True)
    assert list(framer.feed(record[: len(record) // 2])) == []
    framer.reset(rotated=True)
    assert list(framer.feed(SHAPES[shape](["second"]))) == ["second"]
    assert framer.malformed == 0


def test_streams_of_one_container_do_not_mix():
    data = b"t stdout P one \nt stderr F err\nt stdout F two\n"
    assert list(log_frames.Framer("cri").feed(data)) == ["err", "one two"]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_line_without_end_takes_bounded_memory_and_the_next_line_is_read(shape):
    framer = log_frames.Framer(shape)
    lines = []
    for _ in range(100):
        lines += framer.feed(b"y" * 100_000)
        assert len(framer._rest) <= log_frames.LINE_BYTES_MAX
    lines += framer.feed(b"\n" + SHAPES[shape](["after"]))
    assert lines[-1] == "after"
    assert all(len(line) <= log_frames.LINE_BYTES_MAX for line in lines)


def test_parts_without_end_take_bounded_memory():
    framer = log_frames.Framer("cri")
    for _ in range(200):
        list(framer.feed(b"t stdout P " + b"z" * 16384 + b"\n"))
    assert sum(map(len, framer._parts.values())) <= log_frames.LINE_BYTES_MAX


@given(st.sampled_from(sorted(SHAPES)), st.binary(max_size=500))
def test_any_bytes_are_framed_and_read_without_an_error(shape, data):
    reader = log_reader.LogReader()
    for line in log_frames.Framer(shape).feed(data + b"\n"):
        reader.line(line)


@pytest.mark.parametrize("line", [samples.ARGS_REPR, samples.ARGS_DICT % "auto"])
@pytest.mark.parametrize("begin", [samples.INIT, samples.INIT_OLD, samples.LOAD_BEGIN])
def test_a_start_is_followed_to_the_end_of_loading(line, begin):
    life = fold([line])
    assert (life.number, life.args.runner, life.initialised) == (1, "auto", False)
    life = fold([begin], life)
    assert life.initialised
    assert not life.loaded
    life = fold([samples.LOAD_END, samples.READY], life)
    assert life.loaded
    assert life.ready
    assert not life.died
    assert life.architecture == "KimiK3ForConditionalGeneration"
    assert life.weight_bytes == 187 * units.GIB


def test_of_two_printed_argument_lines_the_last_before_initialisation_counts():
    lines = [samples.ARGS_DICT % "auto", samples.ARGS_DICT % "flashinfer_mxfp4", samples.INIT]
    life = fold(lines)
    assert (life.number, life.args.runner) == (1, "flashinfer_mxfp4")


def test_an_argument_line_after_initialisation_is_a_new_start():
    lines = [samples.ARGS_DICT % "auto", samples.INIT, samples.LOAD_END]
    life = fold([*lines, samples.ARGS_DICT % "marlin"])
    assert (life.number, life.args.runner, life.loaded, life.weight_bytes) == (
        2,
        "marlin",
        False,
        None,
    )


def test_a_start_after_a_death_is_a_new_start_even_before_initialisation():
    life = fold([samples.ARGS_DICT % "auto", samples.SIGQUIT])
    assert life.died
    life = fold([samples.ARGS_DICT % "auto"], life)
    assert (life.number, life.died) == (2, False)


def test_a_draft_model_does_not_rename_the_model():
    life = fold(
        [samples.ARGS_DICT % "auto", samples.INIT, samples.LOAD_END, samples.DRAFT_LOAD_END]
    )
    assert life.architecture == "KimiK3ForConditionalGeneration"
    assert life.weight_bytes == 187 * units.GIB


def test_a_follower_is_ready_when_its_health_server_starts():
    assert fold([samples.ARGS_DICT % "auto", samples.INIT, samples.FOLLOWER_READY]).ready


def test_out_of_memory_in_the_upcast_is_told_from_out_of_memory_elsewhere():
    start = [samples.ARGS_DICT % "auto", samples.INIT]
    crashed = fold([*start, *samples.UPCAST_CRASH])
    assert crashed.upcast_ran_out_of_memory
    assert crashed.died
    elsewhere = fold([*start, *samples.OTHER_CRASH])
    assert not elsewhere.upcast_ran_out_of_memory
    assert elsewhere.died


def test_an_upcast_frame_under_another_error_is_no_out_of_memory():
    lines = samples.crash("upcast_from_mxfp", error="ValueError: bad shape")
    life = fold([samples.ARGS_DICT % "auto", *lines, *samples.OTHER_CRASH])
    assert not life.upcast_ran_out_of_memory


def test_the_older_name_of_the_error_counts_too():
    error = "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 4.59 GiB."
    life = fold([samples.ARGS_DICT % "auto", *samples.crash("upcast_from_mxfp", error=error)])
    assert life.upcast_ran_out_of_memory


def test_two_ranks_that_write_their_tracebacks_into_each_other_are_still_read():
    first, second = samples.UPCAST_CRASH, samples.UPCAST_CRASH
    mixed = [line for pair in zip(first, second, strict=True) for line in pair]
    assert fold([samples.ARGS_DICT % "auto", *mixed]).upcast_ran_out_of_memory


def test_a_start_after_lines_that_were_lost_is_another_one():
    reader = log_reader.LogReader()
    reader.line(samples.ARGS_DICT % "auto")
    reader.lose()
    assert reader.life.torn
    reader.line(samples.ARGS_DICT % "marlin")
    assert (reader.life.number, reader.life.torn) == (2, False)
    empty = log_reader.LogReader()
    empty.lose()
    assert empty.life == log_reader.Life()


def of_rank(number, lines):
    """As torch's hook writes an exception that nobody caught, once a process group is there."""
    lines = [lines[0].partition("exception: ")[2], *lines[1:]]
    return [f"[rank{number}]: {line}" if line else "" for line in lines]


def test_a_rank_that_is_named_before_each_line_is_read():
    lines = of_rank(3, samples.UPCAST_CRASH)
    assert fold([samples.ARGS_DICT % "auto", *lines]).upcast_ran_out_of_memory
    quiet = of_rank(3, samples.OTHER_CRASH)
    assert not fold([samples.ARGS_DICT % "auto", *quiet]).upcast_ran_out_of_memory


@given(seed=st.integers(0, 1 << 32))
def test_ranks_are_told_apart_however_their_named_lines_are_mixed(seed):
    """One upcasts and fails otherwise, another runs out of memory elsewhere: no fallback in sum."""
    chance = random.Random(seed)

    def mixed(*ranks):
        rest = [of_rank(number, lines) for number, lines in enumerate(ranks)]
        while any(rest):
            yield chance.choice([lines for lines in rest if lines]).pop(0)

    upcasts = samples.crash("upcast_from_mxfp", error="ValueError: bad shape")
    start = samples.ARGS_DICT % "auto"
    life = fold([start, *mixed(upcasts, samples.OTHER_CRASH, upcasts)])
    assert not life.upcast_ran_out_of_memory
    life = fold([start, *mixed(upcasts, samples.UPCAST_CRASH, samples.OTHER_CRASH)])
    assert life.upcast_ran_out_of_memory


def test_ranks_without_number_take_bounded_memory():
    reader = log_reader.LogReader()
    for number in range(10_000):
        reader.line(f"[rank{number}]: Traceback (most recent call last):")
    assert len(reader._stacks) <= log_reader._RANKS_MAX


@pytest.mark.parametrize("shape", ["cri", "docker"])
def test_the_lines_of_ranks_that_write_into_each_other_s_parts_are_told_apart(shape):
    """A rank's long line in parts on one stream, the other's short lines on the other, in between."""
    parts = SHAPES[shape]([LONG]).splitlines(keepends=True)
    assert len(parts) > 2
    between = [samples.INIT, samples.LOAD_END, samples.READY]
    others = SHAPES[shape](between).replace(b"stderr", b"stdout").splitlines(keepends=True)
    data = b"".join(b"".join(pair) for pair in zip(parts, others, strict=False))
    data += b"".join(parts[len(others) :])
    lines = list(log_frames.Framer(shape).feed(data))
    assert sorted(lines) == sorted([LONG, *between])


@pytest.mark.parametrize(
    "line",
    [
        "[2026-11-02 10:13:00] Receive: obj=GenerateReqInput(text='server_args={\\'moe_runner_backend\\': \\'triton\\'}')",
        "[2026-11-02 10:13:00] Finish: out={'text': ' Received sigquit from a child process.'}",
        "prompt (the server says: Load weight end. type=Evil, mem usage=999.00 GB",
    ],
)
def test_what_a_user_typed_is_not_taken_for_a_message_of_the_server(line):
    before = fold([samples.ARGS_DICT % "marlin", samples.INIT, samples.LOAD_END, samples.READY])
    assert fold([line], before) == before


def test_the_resolved_line_alone_proves_nothing():
    line = "[t] Kimi-K3 on SM100/SM103/SM107: moe_runner_backend=flashinfer_mxfp4 (FlashInfer SiTU kernels)."
    assert fold([line]) == log_reader.Life()


def test_a_busy_log_is_read_faster_than_a_server_writes():
    line = (
        "[2026-11-02 10:13:00 TP0] Decode batch, #running-req: 12, #token: 34567, token usage: 0.1"
    )
    reader = log_reader.LogReader()
    started = time.perf_counter()
    for _ in range(100_000):
        reader.line(line)
    assert time.perf_counter() - started < 20
