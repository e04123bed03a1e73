"""The alarm `does_not_fit`: a launch whose experts are too much for its GPUs as it would run them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests import given, memory_models

from smgate.cli import why as cli_why
from smgate.domain import commands, values, why
from smgate.domain.memory import fit

GIB = fit.GIB
K3 = replace(given.LAYOUT, expert_layers=92)
"""As the launch gate reads K3: 92 of its 93 layers have routed experts."""
OLD = given.build(sglang_version="0.5.18")
"""Leaves `auto` unresolved on SM107: BF16."""
SIZE = 268 * GIB


def gpus(name: str, memory_bytes: int = SIZE) -> tuple[values.Gpu, ...]:
    return (values.Gpu(uuid=f"GPU-{name}", sm="10.7", memory_bytes=memory_bytes),)


def launch(fleet: given.Fleet, name: str = "a", **changes: object) -> None:
    fleet.launch(name, **{"layout": K3, "gpus": gpus(name), **changes})


@pytest.fixture
def observed() -> given.Fleet:
    """One node in observe mode: what it launches is left to SGLang."""
    made = given.Fleet()
    made.node("a")
    return made


def memory(fleet: given.Fleet) -> dict[str, object] | None:
    found = why.explain(fleet.state, fleet.id("a"), fleet.now_us)["memory"]
    assert found is None or isinstance(found, dict)
    return found


def test_left_alone_to_bf16_it_alarms_in_observe_mode_before_it_dies(observed: given.Fleet) -> None:
    launch(observed, build=OLD)
    assert "does_not_fit" in observed.alarms()
    found = memory(observed)
    assert found is not None
    assert (found["fits"], found["form"]) == (False, "bf16")
    told = cli_why.lines(why.explain(observed.state, observed.id("a"), observed.now_us))
    [loud] = [line for line in told if line.startswith("! does not fit")]
    assert "In BF16 its experts take 635 GiB per GPU, and one has 267 GiB" in loud


def test_on_the_safe_value_it_fits_and_says_what_a_fallback_would_do() -> None:
    fleet = given.Fleet().enforce()
    fleet.node("a")
    launch(fleet, build=OLD)
    assert "does_not_fit" not in fleet.alarms()
    found = memory(fleet)
    assert found is not None
    assert (found["fits"], found["form"], found["fallback_fits"]) == (True, "packed", False)
    assert "a BF16 fallback takes 635 GiB and would run out of memory" in str(found["sentence"])
    whole = cli_why.whole_lines(why.explain(fleet.state, fleet.id("a"), fleet.now_us))
    assert "Memory" in whole


def test_a_layout_that_is_too_small_for_packed_weights_alarms_too() -> None:
    fleet = given.Fleet().enforce()
    fleet.node("a")
    launch(fleet, layout=replace(K3, tp=4))
    assert "does_not_fit" in fleet.alarms()
    found = memory(fleet)
    assert found is not None
    assert found["form"] == "packed"
    assert "it cannot load in this layout" in str(found["sentence"])
    launch(fleet, layout=K3)
    fleet.later(fleet.state.policy.episode_quiet_s)
    assert "does_not_fit" not in fleet.alarms()


def test_a_fallback_that_fits_hides_and_is_no_alarm_of_this_kind(observed: given.Fleet) -> None:
    launch(observed, build=OLD, layout=replace(K3, tp=32, ep=32))
    assert "does_not_fit" not in observed.alarms()
    found = memory(observed)
    assert found is not None
    assert (found["fits"], found["form"], found["fallback_fits"]) == (True, "bf16", True)
    assert "fit, run slow, and hide" in str(found["sentence"])


def test_what_died_of_it_alarms_until_the_next_launch_and_what_serves_does_not(
    observed: given.Fleet,
) -> None:
    launch(observed, build=OLD)
    observed.instance("a", "starting")
    observed.instance("a", "exited", exit_code=1)
    assert "does_not_fit" in observed.alarms()
    launch(observed, build=OLD)
    observed.instance("a", "serving")
    assert "does_not_fit" not in observed.alarms(), "it serves, so it has fitted"


def test_the_operators_own_flag_is_what_it_would_run(observed: given.Fleet) -> None:
    launch(observed, asked_runner="triton", asked_runner_in="argv")
    assert "does_not_fit" in observed.alarms()
    launch(observed, asked_runner="marlin", asked_runner_in="argv")
    observed.later(observed.state.policy.episode_quiet_s)
    assert "does_not_fit" not in observed.alarms()


def test_sglangs_own_answer_is_believed_before_the_model_of_it(observed: given.Fleet) -> None:
    launch(observed, build=OLD, dry_resolved=values.Pair(runner="marlin", a2a="none"))
    assert "does_not_fit" not in observed.alarms()


@pytest.mark.parametrize(
    "changes",
    [
        {"layout": given.LAYOUT},
        {"layout": replace(K3, experts=0)},
        {"gpus": gpus("a", 0)},
        {"model": given.NOT_PACKED, "model_digest": given.NOT_PACKED.digest},
        {"platform": "rocm"},
        {"argv_read": False},
    ],
    ids=["layers unread", "experts unread", "memory unread", "not packed", "rocm", "argv unread"],
)
def test_nothing_is_said_where_a_part_is_unknown(
    observed: given.Fleet, changes: dict[str, object]
) -> None:
    launch(observed, **{"build": OLD, **changes})
    assert "does_not_fit" not in observed.alarms()
    assert memory(observed) is None


def test_a_gpus_memory_is_the_nodes_where_the_launch_gate_could_not_read_it(
    observed: given.Fleet,
) -> None:
    observed.node("a", gpus=gpus("a"))
    launch(observed, build=OLD, gpus=gpus("a", 0))
    assert "does_not_fit" in observed.alarms()


def test_a_launch_is_asked_about_from_its_decision_on(observed: given.Fleet) -> None:
    launch(observed, build=OLD, nnodes=2, unit_name="k3")
    assert "does_not_fit" not in observed.alarms()
    observed.later(observed.state.policy.gather_s)
    assert "does_not_fit" in observed.alarms()


@pytest.mark.parametrize("layout", [{"tp": 8}, {"tp": 32, "ep": 32}, {"tp": 16, "pp": 2}])
def test_its_bytes_are_the_experts_of_the_whole_estimate(layout: dict[str, int]) -> None:
    whole = memory_models.of(memory_models.k3(), **layout)
    fullest = max(whole.stages, key=lambda stage: stage.expert_layers)
    found = fit.experts(replace(K3, **layout), "none")
    assert found is not None
    layers = -(-K3.expert_layers // layout.get("pp", 1))
    assert layers <= fullest.expert_layers, "never more than the fullest stage really has"
    assert found.packed_bytes * fullest.expert_layers == fullest.experts_packed.total * layers
    assert found.bf16_bytes * fullest.expert_layers == fullest.experts_bf16.total * layers


def test_an_a2a_backend_spreads_the_experts_over_all_of_tp() -> None:
    found, spread = fit.experts(replace(K3, tp=32), "deepep"), fit.experts(K3, "none")
    assert found == fit.experts(replace(K3, tp=32, ep=32), "none") != spread


def test_the_kernel_key_does_not_know_it() -> None:
    assert given.key_of(layout=K3) == given.KEY


def test_the_command_that_releases_a_unit_ends_no_alarm(observed: given.Fleet) -> None:
    launch(observed, build=OLD)
    observed.orders(commands.ReleaseUnit(unit="a", reason="its owner asked"))
    assert "does_not_fit" in observed.alarms()


def test_of_several_ranks_the_one_that_fits_least_is_told(observed: given.Fleet) -> None:
    observed.node("b")
    shape = {"nnodes": 2, "unit_name": "k3", "build": OLD}
    launch(observed, **shape, gpus=gpus("a", 2 * SIZE), settled=False)
    launch(observed, "b", **shape, node_rank=1)
    found = why.explain(observed.state, "k3", observed.now_us)["memory"]
    assert found["gpu_free_bytes"] < SIZE


def test_what_is_worked_out_once_is_worked_out_anew_for_another_value(
    observed: given.Fleet,
) -> None:
    launch(observed, build=OLD)
    assert "does_not_fit" in observed.alarms()
    observed.enforce()
    launch(observed, build=OLD)
    observed.later(observed.state.policy.episode_quiet_s)
    assert "does_not_fit" not in observed.alarms()
    observed.orders(commands.ReleaseUnit(unit="a", reason="its owner asked"))
    launch(observed, build=OLD)
    assert "does_not_fit" in observed.alarms()
