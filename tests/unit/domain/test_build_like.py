"""A person accepts that a key is like a qualified one: which may differ, and how long it stands."""

from dataclasses import replace

import pytest
from tests import given

from smgate.domain import commands, decisions, likeness, rulings

AHEAD = given.build(jit_cache_version="0.7.2+cu130")


@pytest.fixture
def fleet():
    """One key is qualified; another server's differs from it in the jit-cache alone."""
    made = given.Fleet().enforce().qualified()
    made.node("a")
    made.launch("a", build=AHEAD)
    return made


AHEAD_KEY = given.key_of(AHEAD)


def accept(key=AHEAD_KEY, like=given.KEY):
    return commands.AcceptBuild(kernel_key=key, like=like, reason="compiled ahead")


def test_an_accepted_key_is_qualified_and_says_in_what_it_differs(fleet):
    fleet.rollout()
    assert fleet.told("a")[1] == given.SAFE
    assert "build_not_qualified" in fleet.override("a").also
    (event,) = fleet.orders(accept())
    assert event.differs == {"jit_cache_version": ("0.7.2+cu130", "unknown")}
    assert fleet.standing(AHEAD) == "qualified"
    assert fleet.told("a") == ("append", given.TARGET, "granted")
    assert fleet.orders(accept()) == ()


def test_its_evidence_is_as_old_as_what_was_measured(fleet):
    fleet.later(80 * 86400)
    fleet.orders(accept())
    fleet.later(11 * 86400)
    fleet.rollout()
    assert "evidence_old" in fleet.override("a").also


@pytest.mark.parametrize(
    "changes",
    [
        {"jit_cache_version": "0.7.2"},
        {"cute_dsl_version": "4.3.1"},
        {"jit_cache_version": "0.7.2", "cute_dsl_version": "4.3.1"},
    ],
)
def test_the_packaging_of_the_same_kernels_may_differ(fleet, changes):
    made = given.build(**changes)
    fleet.launch("a", build=made)
    assert fleet.orders(accept(given.key_of(made)))


@pytest.mark.parametrize(
    "changes",
    [
        {"sglang_version": "0.5.22"},
        {"flashinfer_version": "0.7.3"},
        {"flashinfer_commit": "beabf500"},
        {"artifact_pins": {"TRTLLM_GEN_BMM": "49bce842"}},
        {"driver_version": "590.12"},
        {"cuda_toolkit": "13.1"},
        {"jit_cache_version": "0.7.2", "cuda_toolkit": "13.1"},
    ],
    ids=",".join,
)
def test_another_kernel_compiler_or_driver_is_never_like(fleet, changes):
    made = given.build(**changes)
    fleet.launch("a", build=made)
    assert fleet.refuses(accept(given.key_of(made))) == "too_different"


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"tp": 4}, None),
        ({"ep": 8}, None),
        ({"hidden_size": 7168}, "too_different"),
        ({"top_k": 8}, "too_different"),
    ],
)
def test_one_model_cut_otherwise_may_be_like_and_another_model_is_not(fleet, changes, code):
    layout = replace(given.LAYOUT, **changes)
    fleet.launch("a", layout=layout)
    command = accept(given.key_of(layout=layout))
    if code is None:
        fleet.orders(command)
        assert fleet.state.keys[command.kernel_key].standing == "qualified"
    else:
        assert fleet.refuses(command) == code


def test_another_sm_or_a2a_is_never_like(fleet):
    for changes in ({"sm": "10.3"}, {"a2a": "deepep"}):
        uuids = (f"GPU-of-{changes.get('sm')}",)
        fleet.check("a", "moe_mxfp4", "skipped", made=AHEAD, gpu_uuids=uuids, **changes)
        assert fleet.refuses(accept(given.key_of(AHEAD, **changes))) == "too_different"


def test_only_a_key_that_was_measured_itself_is_a_measure(fleet):
    third = given.build(cute_dsl_version="4.3.1")
    fleet.launch("a", build=third)
    ahead, key = given.key_of(AHEAD), given.key_of(third)
    assert fleet.refuses(accept(key, ahead)) == "build_not_qualified"
    fleet.orders(accept())
    assert fleet.refuses(accept(key, ahead)) == "not_measured"
    fleet.passes(*given.POOL, made=AHEAD)
    assert fleet.seen(decisions.BuildQualified)[-1].kernel_key == ahead
    assert fleet.orders(accept(key, ahead))


def test_an_unknown_key_is_neither_accepted_nor_a_measure(fleet):
    assert fleet.refuses(accept("x")) == "unknown_build"
    assert fleet.refuses(accept(like="x")) == "unknown_build"


def test_a_key_that_failed_itself_is_not_accepted(fleet):
    fleet.check("a", outcome="failed", made=AHEAD)
    assert fleet.refuses(accept()) == "build_suspect"
    fleet.check("p1", outcome="failed", made=AHEAD)
    assert fleet.refuses(accept()) == "build_failed"


def test_when_the_other_key_becomes_suspect_the_accepted_one_starts_nothing_and_ends_nothing(fleet):
    fleet.orders(accept())
    fleet.rollout()
    fleet.node("b")
    assert fleet.unit("a").grant is not None
    fleet.check("p1", outcome="failed")
    assert fleet.standing() == "suspect"
    assert fleet.standing(AHEAD) == "unknown"
    assert fleet.unit("a").grant is not None
    fleet.launch("b", build=AHEAD)
    assert fleet.told("b")[1] == given.SAFE
    fleet.passes("p2", "p3")
    fleet.orders(
        commands.RuleBuild(kernel_key=given.KEY, ruling="cleared", node="p1", reason="dust")
    )
    fleet.passes("p1")
    assert (fleet.standing(), fleet.standing(AHEAD)) == ("qualified", "unknown")


def test_when_a_person_confirms_a_failure_of_the_other_key_the_accepted_one_is_unknown(fleet):
    fleet.node("p4", pool=True)
    fleet.check("p4", outcome="failed")
    fleet.passes(*given.POOL)
    assert fleet.standing() == "qualified"
    fleet.orders(accept())
    fleet.orders(
        commands.RuleBuild(kernel_key=given.KEY, ruling="confirmed", node="p4", reason="seen")
    )
    assert (fleet.standing(), fleet.standing(AHEAD)) == ("failed", "unknown")


def test_an_accepted_key_is_suspect_by_its_own_failure_and_the_other_is_not(fleet):
    fleet.orders(accept())
    fleet.check("p1", outcome="failed", made=AHEAD)
    assert (fleet.standing(AHEAD), fleet.standing()) == ("suspect", "qualified")
    assert fleet.state.keys[given.key_of(AHEAD)].accepted_like is None


def test_an_acceptance_of_what_the_log_does_not_know_changes_nothing(fleet):
    for key, like in (("x", given.KEY), (given.key_of(AHEAD), "x")):
        event = rulings.BuildAccepted(kernel_key=key, like=like, differs={}, reason="r")
        fleet.record(event, "operator:alice")
    assert fleet.standing(AHEAD) == "unknown"


def test_every_field_that_makes_a_key_is_compared(fleet):
    one = fleet.state.keys[given.KEY]
    others = [
        replace(one, sm="10.3"),
        replace(one, a2a="deepep"),
        *(
            replace(one, build=replace(one.build, **{name: value}))
            for name, value in {
                "sglang_version": "x",
                "flashinfer_version": "x",
                "flashinfer_commit": "x",
                "artifact_pins": {"x": "y"},
                "jit_cache_version": "x",
                "cute_dsl_version": "x",
                "cuda_toolkit": "x",
                "driver_version": "1.0",
            }.items()
        ),
        *(
            replace(one, layout=replace(one.layout, **{name: 32}))
            for name in ("experts", "hidden_size", "intermediate_size", "top_k")
        ),
    ]
    compared = [likeness.differences(one, other) for other in others]
    assert all(len(found) == 1 for found in compared)
    assert {name for found in compared for name in found} == set(likeness.key_fields(one))
    assert likeness.differences(one, replace(one, build=given.build(torch_version="x"))) == {}
