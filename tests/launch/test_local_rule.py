"""The local rule and the kernel key against their golden vectors, and what no history may do."""

import copy
import hashlib
import json
import pathlib

import pytest
from hypothesis import given, strategies as st

from smgate.domain import keys, outcome, values
from smgate.wire import base, directive, facts
from smgate_agent.launch import kernel_key, local_rule

GOLDEN = pathlib.Path(__file__).parent.parent / "golden" / "gate"
RULE_VECTORS = json.loads((GOLDEN / "local_rule.json").read_text())
KEY_VECTORS = json.loads((GOLDEN / "kernel_key.json").read_text())


def text_of(value: object) -> str:
    """Canonical JSON written out by hand, so that it is not the code under test."""
    if isinstance(value, dict):
        return "{" + ",".join(f'"{key}":{text_of(value[key])}' for key in sorted(value)) + "}"
    return "null" if value is None else json.dumps(value, ensure_ascii=False)


def independent_key(sm: str, a2a: str, build: dict, layout: dict) -> str:
    ranks_of_one_expert = layout["tp"] // layout["ep"] or 1
    parts = {
        "a2a": a2a,
        "artifact_pins": build["artifact_pins"],
        "cuda_toolkit": build["cuda_toolkit"],
        "cute_dsl_version": build["cute_dsl_version"],
        "driver_branch": build["driver_version"].split(".")[0],
        "flashinfer_commit": build["flashinfer_commit"],
        "flashinfer_version": build["flashinfer_version"],
        "jit_cache_version": build["jit_cache_version"],
        "layout": {
            "experts_per_rank": layout["experts"] // layout["ep"],
            "hidden_size": layout["hidden_size"],
            "intermediate_per_rank": layout["intermediate_size"] // ranks_of_one_expert,
            "top_k": layout["top_k"],
        },
        "sglang_version": build["sglang_version"],
        "sm": sm,
    }
    return hashlib.sha256(text_of(parts).encode("utf-8")).hexdigest()[:16]


@pytest.mark.parametrize("vector", RULE_VECTORS, ids=[vector["name"] for vector in RULE_VECTORS])
def test_local_rule_gives_what_the_vector_says(vector):
    assert local_rule.hard_rule(vector["launch"]) == vector["rule"]
    assert (
        local_rule.decide(
            vector["launch"],
            held=vector["held"],
            last_appended=vector["last_appended"],
            on_doubt=vector["on_doubt"],
            unheard_s=vector.get("unheard_s"),
        )
        == vector["expect"]
    )


@pytest.mark.parametrize("vector", RULE_VECTORS, ids=[vector["name"] for vector in RULE_VECTORS])
def test_vectors_are_messages_of_the_contract(vector):
    base.decode(json.dumps(vector["launch"]).encode(), facts.LaunchPlanned)
    if vector["held"] is not None:
        base.decode(json.dumps(vector["held"]).encode(), directive.Directive)


@pytest.mark.parametrize("vector", KEY_VECTORS, ids=[vector["name"] for vector in KEY_VECTORS])
def test_kernel_key_gives_what_the_vector_says(vector):
    key = kernel_key.kernel_key(
        sm=vector["sm"], build=vector["build"], layout=vector["layout"], a2a=vector["a2a"]
    )
    assert key == vector["key"]
    if key is not None:
        assert key == independent_key(
            vector["sm"], vector["a2a"], vector["build"], vector["layout"]
        )


@pytest.mark.parametrize("vector", KEY_VECTORS, ids=[vector["name"] for vector in KEY_VECTORS])
def test_the_controller_computes_the_same_key(vector):
    assert vector["key"] == keys.kernel_key(
        sm=vector["sm"],
        build=values.Build(**vector["build"]),
        layout=values.Layout(**vector["layout"]),
        a2a=vector["a2a"],
    )


@pytest.mark.parametrize("vector", RULE_VECTORS, ids=[vector["name"] for vector in RULE_VECTORS])
def test_the_controller_names_the_unit_the_same(vector):
    planned = base.decode(json.dumps(vector["launch"]).encode(), facts.LaunchPlanned)
    uuids = tuple(gpu.uuid for gpu in planned.gpus)
    assert kernel_key.unit_id("node-a", vector["launch"]) == keys.unit_id("node-a", planned, uuids)


@pytest.mark.parametrize(
    "sm", ["8.0", "9.0", "10.0", "10.1", "10.3", "10.7", "11.0", "12.0", "12.1"]
)
@pytest.mark.parametrize("torch_cuda", [None, "12.2", "12.3", "12.6", "12.8", "13.0"])
def test_the_controller_has_the_same_outcome_table(sm, torch_cuda):
    versions = [*sorted(outcome.VERSIONS_RUN), "0.5.17", "0.5.24", None]
    for version in versions:
        for a2a in sorted(outcome.A2A_RUN):
            launch = {
                "gpus": [{"uuid": "GPU-0000", "sm": sm}],
                "asked_a2a": a2a,
                "build": {"sglang_version": version, "torch_cuda": torch_cuda},
            }
            case = {"sm": sm, "a2a": a2a, "sglang_version": version or ""}
            safe = outcome.safe_value(**case, torch_cuda=torch_cuda or "13.0")
            assert local_rule.safe_value(launch) == safe
            if sm in local_rule.TARGET_SMS and a2a == "none":
                refused = outcome.raises(runner=outcome.TARGET, **case, torch_cuda=torch_cuda)
                assert local_rule.starts(local_rule.TARGET, launch) == (refused is None)
            else:
                assert not local_rule.starts(local_rule.TARGET, launch)


def test_every_rule_of_the_table_has_a_vector():
    assert {vector["rule"] for vector in RULE_VECTORS} >= {
        "not_cuda",
        "model_unknown",
        "not_applicable",
        "layout_not_covered",
        "choice_unknown",
        "explicit_choice",
        "sm_unknown",
        "sm_mixed",
        "sm_unsupported",
        None,
    }


launches = st.sampled_from([vector["launch"] for vector in RULE_VECTORS])
helds = st.sampled_from([vector["held"] for vector in RULE_VECTORS])
lasts = st.sampled_from([vector["last_appended"] for vector in RULE_VECTORS])
doubts = st.sampled_from(["untouched", "safe"])


@given(launches, helds, lasts, doubts)
def test_what_is_appended_is_always_known_to_start(launch, held, last, doubt):
    before = copy.deepcopy((launch, held, last))
    outcome = local_rule.decide(launch, held=held, last_appended=last, on_doubt=doubt)
    assert (launch, held, last) == before
    assert (outcome["form"] == "append") == (outcome["value"] is not None)
    if outcome["value"] is not None:
        assert local_rule.starts(outcome["value"], launch)
        assert local_rule.hard_rule(launch) in (None, "sm_mixed", "sm_unsupported")


@given(launches, helds, lasts)
def test_without_enforce_and_without_doubt_only_a_held_decision_changes_the_command(
    launch, held, last
):
    observed = None if held is None else {**held, "units": [], "modes": {}}
    outcome = local_rule.decide(launch, held=observed, last_appended=last)
    assert outcome["form"] == "untouched"


@given(launches, helds, lasts, doubts)
def test_the_target_comes_only_from_a_held_decision_for_one_node(launch, held, last, doubt):
    outcome = local_rule.decide(launch, held=held, last_appended=last, on_doubt=doubt)
    if outcome["value"] == local_rule.TARGET:
        assert held is not None
        assert launch["nnodes"] == 1
