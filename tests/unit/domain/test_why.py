"""What an answer says about itself: its mode, and each fact in words."""

from tests import given

from smgate.cli import why as cli_why
from smgate.domain import commands, decisions, facts, rulings, why


def explained(fleet, node):
    return why.explain(fleet.state, fleet.id(node), fleet.now_us)


def test_the_mode_is_said_for_an_sm_that_is_no_candidate():
    fleet = given.Fleet().enforce("9.0")
    fleet.node("a", sm="9.0")
    fleet.launch("a", sm="9.0")
    assert explained(fleet, "a")["override"]["code"] == "sm_unsupported"
    assert explained(fleet, "a")["mode"] == "enforce"


def test_a_machine_without_a_gpu_has_no_mode():
    fleet = given.Fleet().enforce()
    fleet.node("a", gpus=())
    fleet.launch("a", platform="none", gpus=())
    assert explained(fleet, "a")["mode"] is None


def test_a_unit_in_bf16_that_was_given_back_names_who_gave_it_back_and_what_was_seen():
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.launch("a", build=given.build(sglang_version="0.5.18"))
    fleet.orders(commands.ReleaseUnit(unit="a", reason="its owner asked"))
    released = fleet.state.units[fleet.id("a")].hands_off_position
    fleet.serves("a", "auto")
    answer = explained(fleet, "a")
    assert (answer["override"]["code"], answer["memory_fallback"]) == ("released", ["active"])
    first, seen = [fact["position"] for fact in answer["facts"]]
    assert first == released > 0
    assert isinstance(fleet.history[seen - 1].event, facts.EffectiveSeen)


def test_a_server_that_would_die_if_left_alone_has_a_sentence_for_it():
    fleet = given.Fleet().enforce()
    fleet.node("a")
    fleet.launch("a", asked_a2a="deepep")
    alone = explained(fleet, "a")["if_left_alone"]
    assert alone["raises"] == "no_fused_function"
    assert "dies at construction" in alone["raises_sentence"]
    assert "dies at construction" in " ".join(cli_why.left_alone({"if_left_alone": alone}))


def test_an_event_without_words_is_told_by_its_values():
    assert why.says(decisions.Adopted(unit="a", kernel_key=None)) == "unit a"
    excluded = rulings.UnitExcluded(unit="a", reason="mine, for now")
    assert why.says(excluded) == "mine, for now"
