"""What people publish is refused when it is written, never when it is used."""

from dataclasses import fields, replace

import pytest
from tests import given

from smgate.domain import context, errors, issues, matching, plan_check, policy

PLAN = policy.RolloutPlan(id="r1", gate=given.GATE, sm="10.7", waves=(policy.Wave(count=1),))
GATES = {given.GATE: policy.KIMI_K3}
NAN, INF = float("nan"), float("inf")


def refused(check, *args):
    with pytest.raises(errors.RejectedError) as refusal:
        check(*args)
    return refusal.value.code


@pytest.mark.parametrize(
    ("text", "is_one"),
    [("10.7", True), ("9.0", True), ("12.1", True)]
    + [
        (text, False)
        for text in (
            "blackwell",
            "10",
            "10.",
            ".7",
            "107",
            "010.7",
            "10.77",
            "1000.7",
            "10.x",
            "",
            "10.\u0667",
        )
    ],
)
def test_an_sm_is_major_and_minor(text, is_one):
    assert policy.is_sm(text) is is_one


@pytest.mark.parametrize(
    "changes",
    [
        {"waves": ()},
        {"waves": (policy.Wave(),)},
        {"waves": (policy.Wave(count=1, percent=1),)},
        {"waves": (policy.Wave(count=1, select=policy.Selector(units=("a",))),)},
        {"waves": (policy.Wave(select=policy.Selector()),)},
        {"waves": (policy.Wave(count=0),)},
        {"waves": (policy.Wave(percent=0),)},
        {"waves": (policy.Wave(percent=100.1),)},
        {"waves": (policy.Wave(percent=NAN),)},
        {"waves": (policy.Wave(percent=50), policy.Wave(percent=49.9))},
        {"waves": (policy.Wave(count=2), policy.Wave(percent=9), policy.Wave(count=1))},
        {"success_percent": 0},
        {"success_percent": 101},
        {"success_percent": NAN},
        {"failure_percent": 0},
        {"failure_percent": -1},
        {"failure_percent": INF},
        {"failures_max": 0},
        {"min_sample": 0},
        {"max_in_flight": 0},
        {"wave_timeout_s": 0},
        {"rollout_timeout_s": 0},
        {"bake_s": -1},
        {"sm": "10.3"},
        {"sm": "blackwell"},
    ],
    ids=str,
)
def test_a_plan_that_would_fail_open_is_refused(changes):
    assert refused(plan_check.validate, replace(PLAN, **changes), GATES) == "bad_policy"


@pytest.mark.parametrize(
    "changes",
    [
        {"waves": (policy.Wave(percent=0.01), policy.Wave(count=9), policy.Wave(percent=100))},
        {"success_percent": 100, "failure_percent": 100},
        {"bake_s": 0, "min_sample": 1},
    ],
    ids=str,
)
def test_a_plan_at_its_boundaries_is_taken(changes):
    plan_check.validate(replace(PLAN, **changes), GATES)


def test_a_gate_for_weights_no_rule_can_tell_is_refused():
    other = replace(policy.KIMI_K3, weight_format="nvfp4-pack-quantized")
    assert refused(policy.validate_gate, other) == "bad_policy"


@pytest.mark.parametrize("name", [field.name for field in fields(policy.Policy)])
def test_no_number_of_the_policy_may_be_negative(name):
    assert refused(policy.validate_policy, replace(policy.Policy(), **{name: -1})) == "bad_policy"


@pytest.mark.parametrize(
    "changes",
    [
        {"min_serving_share": 1.01},
        {"min_serving_share": NAN},
        {"max_units_down": 0},
        {"drain_timeout_s": 0},
        {"drain_on_failed_build": "sometimes"},
    ],
    ids=str,
)
def test_a_drain_budget_that_cannot_mean_what_it_says_is_refused(changes):
    assert refused(policy.validate_policy, replace(policy.Policy(), **changes)) == "bad_policy"


@pytest.mark.parametrize("share", [0, 1, 0.9])
def test_a_serving_share_may_be_all_or_nothing(share):
    policy.validate_policy(policy.Policy(min_serving_share=share))


@pytest.mark.parametrize("name", ["min_gpu_sets", "confirm_passes", "breaker_bad_units"])
def test_counts_that_zero_would_turn_off_may_not_be_zero(name):
    assert refused(policy.validate_policy, replace(policy.Policy(), **{name: 0})) == "bad_policy"


@pytest.mark.parametrize(
    "changes",
    [
        {"candidate_sms": (), "baseline_sms": ()},
        {"candidate_sms": ("blackwell",)},
        {"candidate_sms": ("10.0",)},
        {"required_checks": ()},
        {"target": "auto"},
        {"target": ""},
    ],
    ids=str,
)
def test_a_gate_that_cannot_mean_what_it_says_is_refused(changes):
    assert refused(policy.validate_gate, replace(policy.KIMI_K3, **changes)) == "bad_policy"


@pytest.mark.parametrize(
    "match",
    [
        {},
        {"flashinfer_minimum": ("0.7",)},
        {"flashinfer": ()},
        {"flashinfer": ("*",)},
        {"flashinfer": ("0.*.1",)},
        {"flashinfer": ("0.7.**",)},
        {"flashinfer": (">=0.6.16",)},
        {"flashinfer": ("0.6.16, 0.6.17",)},
        {"sm": ("107",)},
        {"sm": ("sm107",)},
        {"driver_branch": ("580.95.05",)},
        {"driver_branch": ("580.*",)},
    ],
    ids=str,
)
def test_an_issue_over_unknown_fields_or_over_everything_is_refused(match):
    issue = policy.KnownIssue(id="i", title="t", match=match)
    assert refused(policy.validate_issue, issue) == "bad_policy"


@pytest.mark.parametrize("match", [{"sm": ("10.7", "12.*")}, {"driver_branch": ("580", "5*")}])
def test_an_issue_over_values_of_the_fields_form_is_taken(match):
    policy.validate_issue(policy.KnownIssue(id="i", title="t", match=match))


@pytest.mark.parametrize(
    ("pattern", "value", "fits"),
    [
        ("0.6.16", "0.6.16", True),
        ("0.6.16", "0.6.160", False),
        ("0.6.16", "0.6.16.post1", False),
        ("0.6.16.*", "0.6.16.post1", True),
        ("0.6.16.*", "0.6.16", False),
        ("0.6.1*", "0.6.17", True),
    ],
)
def test_an_issue_matches_by_equality_or_a_trailing_wildcard(pattern, value, fits):
    assert matching.fits(pattern, value) is fits


@pytest.mark.parametrize("name", policy.MATCH_FIELDS)
def test_every_field_an_issue_may_name_is_read_from_a_launch(name):
    fleet = given.Fleet().enforce()
    fleet.node("a")
    every = given.build(
        flashinfer_commit="ab" * 4,
        torch_version="2.13.0",
        cute_dsl_version="4.8",
        disqualifying_env=("FLASHINFER_DISABLE",),
    )
    fleet.launch("a", build=every)
    ctx = context.of_unit(fleet.state, fleet.unit("a"), fleet.now_us)
    reading = issues.reading_of(ctx.members[0])
    assert reading is not None
    (value,) = dict(zip(policy.MATCH_FIELDS, reading, strict=True))[name]
    issue = policy.KnownIssue(id="i", title="t", match={name: ("no", value)})
    assert issues.matches(issue, ctx.members[0]) == "yes"
    other = policy.KnownIssue(id="i", title="t", match={name: (value + "x",)})
    assert issues.matches(other, ctx.members[0]) == "no"
