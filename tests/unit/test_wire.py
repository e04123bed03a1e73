"""The wire refuses what it should: the one place where strangers' bytes come in."""

import json

import pytest

from smgate.wire import base, facts

GPU = {"uuid": "GPU-0001", "sm": "10.7", "name": "NVIDIA R200"}


@pytest.mark.parametrize("text", ["a\x1b[31mred", "two\nlines", "end\n", "\x9b31m", "x" * 201])
def test_no_label_can_move_a_terminals_cursor_or_carry_a_log(text):
    with pytest.raises(base.MalformedError, match=r"\$\.name"):
        base.decode(json.dumps({**GPU, "name": text}).encode(), facts.Gpu)


@pytest.mark.parametrize("sm", ["blackwell", "10", "107", "10.77", "010.7", "10.7\n", "10.7 ", ""])
def test_an_sm_is_major_and_minor_and_nothing_else(sm):
    with pytest.raises(base.MalformedError, match=r"\$\.sm"):
        base.decode(json.dumps({**GPU, "sm": sm}).encode(), facts.Gpu)


def test_a_message_is_encoded_in_one_way_only():
    message = base.decode(json.dumps(GPU).encode(), facts.Gpu)
    again = base.decode(json.dumps(dict(reversed(GPU.items())), indent=3).encode(), facts.Gpu)
    assert base.encode(message) == base.encode(again)
    assert base.decode(base.encode(message), facts.Gpu) == message


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"{", b"\xff\xfe", b"[" * 100_000, b'{"uuid": "GPU-0001", "x": 1}'],
)
def test_what_is_no_message_is_malformed_and_says_so(body):
    with pytest.raises(base.MalformedError) as caught:
        base.decode(body, facts.Gpu)
    assert str(caught.value)
