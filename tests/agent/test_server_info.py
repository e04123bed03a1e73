"""`/server_info` bodies: what is read, what is not known, what is refused."""

import json

import pytest
from hypothesis import given, strategies as st
from tests.agent import samples

from smgate_agent import server_info, units


def test_resolved_pair_version_and_weights_are_read():
    info = server_info.parse(samples.SERVER_INFO)
    assert (info.args.runner, info.args.a2a, info.args.tp) == ("auto", "none", 8)
    assert info.version == "0.5.23"
    assert info.weight_bytes == 647 * units.GIB


def test_the_value_a_person_asked_for_is_not_taken_for_the_resolved_one():
    assert b"marlin" in samples.SERVER_INFO
    assert server_info.parse(samples.SERVER_INFO).args.runner == "auto"


def test_no_secret_is_in_what_is_kept():
    assert samples.SECRET not in repr(server_info.parse(samples.SERVER_INFO))


@pytest.mark.parametrize(
    "states",
    [
        None,
        [],
        {},
        "x",
        [{}],
        [{"memory_usage": None}],
        [{"memory_usage": {"weight": "1"}}],
        [{"memory_usage": {"weight": -1}}],
        [{"memory_usage": {"weight": 0}}],
        [{"memory_usage": {"weight": 1e30}}],
        [{"memory_usage": {"weight": True}}],
        [{"memory_usage": {"weight": 100.0}}, {"memory_usage": {}}],
    ],
)
def test_weights_that_are_not_said_by_every_rank_are_unknown(states):
    body = json.dumps({"moe_runner_backend": "auto", "internal_states": states}).encode()
    info = server_info.parse(body)
    assert info.weight_bytes is None
    assert info.args.runner == "auto"


def test_the_fullest_data_parallel_rank_counts():
    states = [{"memory_usage": {"weight": weight}} for weight in (10.1, 12.3, 11)]
    body = json.dumps({"internal_states": states}).encode()
    assert server_info.parse(body).weight_bytes == 25 * units.STEP


@pytest.mark.parametrize("field", ["moe_runner_backend", "moe_a2a_backend", "version", "tp_size"])
@pytest.mark.parametrize("value", [None, 1.5, [], {}, [["x"]], {"a": 1}, "", "x" * 9999, True])
def test_a_field_of_a_wrong_type_is_unknown_and_spoils_nothing_else(field, value):
    body = json.loads(samples.SERVER_INFO)
    body[field] = value
    info = server_info.parse(json.dumps(body).encode())
    assert info.args.ep == 1
    if field == "version":
        assert info.version is None
    elif field == "tp_size":
        assert info.args.tp is None
    else:
        kept = info.args.runner if field == "moe_runner_backend" else info.args.a2a
        assert kept in {None, "other"}


@pytest.mark.parametrize(
    "body",
    [b"", b"null", b"[]", b"1", b'"x"', b"{", b"{}x", b"<html>", b"\xff\xfe", b"[" * 100_000],
)
def test_what_is_no_json_object_is_malformed(body):
    with pytest.raises(server_info.MalformedBodyError):
        server_info.parse(body)
    with pytest.raises(server_info.MalformedBodyError):
        server_info.parse_architecture(body)


def test_the_error_text_does_not_quote_the_body():
    with pytest.raises(server_info.MalformedBodyError) as caught:
        server_info.parse(b'{"api_key": "' + samples.SECRET.encode())
    assert samples.SECRET not in str(caught.value)
    assert caught.value.__cause__ is None


@given(st.binary(max_size=300))
def test_random_bytes_raise_nothing_else(body):
    try:
        server_info.parse(body)
        server_info.parse_architecture(body)
    except server_info.MalformedBodyError:
        pass


@given(st.data())
def test_a_mutated_body_raises_nothing_else_and_keeps_no_secret(data):
    body = bytearray(samples.SERVER_INFO)
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        info = server_info.parse(bytes(body))
    except server_info.MalformedBodyError:
        return
    kept = {name: value for name, value in vars(info.args).items() if name != "model_path"}
    assert samples.SECRET not in repr((kept, info.version))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (samples.MODEL_INFO, "KimiK3ForConditionalGeneration"),
        (b'{"architectures":null}', None),
        (b'{"architectures":[]}', None),
        (b'{"architectures":["A","B"]}', None),
        (b'{"architectures":["not a name"]}', None),
        (b"{}", None),
    ],
)
def test_an_architecture_is_taken_only_if_there_is_exactly_one(body, expected):
    assert server_info.parse_architecture(body) == expected
