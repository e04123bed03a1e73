"""The `server_args=` line: both shapes, hostile values, nothing but the allowlist."""

import dataclasses

import pytest
from hypothesis import given, strategies as st
from tests.agent import samples

from smgate_agent import python_repr, server_args

LINES = [samples.ARGS_REPR, samples.ARGS_DICT % "auto"]


@pytest.mark.parametrize("line", LINES)
def test_both_shapes_give_the_outermost_fields_only(line):
    args = server_args.from_log_line(line)
    assert args == server_args.ServerArgs(
        runner="auto",
        a2a="none",
        tp=8,
        ep=1,
        pp=1,
        dp=1,
        nnodes=1,
        node_rank=0,
        dp_attention=False,
        model_path="/models/k3",
    )


@pytest.mark.parametrize("line", LINES)
@pytest.mark.parametrize("cut", range(0, 400, 7))
def test_a_cut_line_gives_the_same_values_or_none(line, cut):
    whole = dataclasses.asdict(server_args.from_log_line(line))
    args = server_args.from_log_line(line[: len(line) - cut])
    if args is not None:
        for name, value in dataclasses.asdict(args).items():
            assert value in {None, whole[name]}


def test_a_runner_sglang_does_not_know_is_named_other():
    line = "server_args={'moe_runner_backend': 'my secret runner', 'moe_a2a_backend': 'none'}"
    assert server_args.from_log_line(line).runner == "other"


@pytest.mark.parametrize(
    ("text", "name", "expected"),
    [
        ("{'tp_size': True}", "tp", None),
        ("{'tp_size': 8.0}", "tp", None),
        ("{'tp_size': '8'}", "tp", None),
        ("{'tp_size': 0}", "tp", None),
        ("{'tp_size': 99999999999999999999999}", "tp", None),
        ("{'node_rank': 0}", "node_rank", 0),
        ("{'node_rank': -1}", "node_rank", None),
        ("{'enable_dp_attention': 1}", "dp_attention", None),
    ],
)
def test_a_value_of_a_wrong_type_is_not_known(text, name, expected):
    fields = python_repr.scan_fields(text, server_args.FIELDS)
    assert getattr(server_args.from_fields(fields), name) == expected


@given(st.text(max_size=300))
def test_any_text_at_all_is_scanned_without_an_error(text):
    python_repr.scan_fields(text, server_args.FIELDS)
    python_repr.scan_fields("{'moe_runner_backend': " + text, server_args.FIELDS)
    python_repr.scan_fields("ServerArgs(" + text, server_args.FIELDS)


@given(
    st.dictionaries(
        st.sampled_from(sorted(server_args.FIELDS | {"api_key", "other", "extra"})),
        st.recursive(
            st.one_of(st.text(), st.integers(), st.booleans(), st.none(), st.binary(max_size=9)),
            lambda inner: st.one_of(
                st.lists(inner, max_size=3),
                st.tuples(inner),
                st.dictionaries(st.text(max_size=5), inner, max_size=3),
            ),
            max_leaves=5,
        ),
    )
)
def test_the_scanner_agrees_with_pythons_own_repr(fields):
    found = python_repr.scan_fields(repr(fields), server_args.FIELDS)
    for name, value in found.items():
        assert name in server_args.FIELDS
        if (isinstance(value, str) and "\\" not in repr(value)) or not isinstance(value, str):
            assert value == fields[name]
    for name in server_args.FIELDS & fields.keys():
        value = fields[name]
        if (
            value is None
            or isinstance(value, bool)
            or (isinstance(value, int) and abs(value) < 1e17)
        ):
            assert found[name] == value


@given(st.sampled_from(LINES), st.data())
def test_a_mutated_line_never_lets_a_secret_through(line, data):
    at = data.draw(st.integers(0, len(line)))
    length = data.draw(st.integers(0, 40))
    line = line[:at] + data.draw(st.text(max_size=20)) + line[at + length :]
    args = server_args.from_log_line(line)
    if args is not None:
        kept = {name: value for name, value in vars(args).items() if name != "model_path"}
        assert samples.SECRET not in repr(kept)
