"""Every event ever written can be read, folded and written again, byte for byte.

`tests/golden/events` has one file per event name and schema version: the payload as the log stores
it. A file is never changed; a later version of an event is another file. Where an event gained a
field with a default, `NAME+WHAT.v1.json` has what is written since, and the older one still reads.
"""

import copy
import dataclasses
import json
import pathlib

import pytest

from smgate.domain import events, evolve, state
from smgate.log import codec

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "events"
FILES = sorted(FOLDER.iterdir())
HISTORY = [
    "change_asked",
    "change_held",
    "drain_ordered",
    "drain_hook_ended",
    "drain_failed",
    "drain_finished",
    "gate_published",
    "policy_published",
    "gate_mode_set",
    "leadership_taken",
    "rules_changed",
    "node_enrolled",
    "node_reported",
    "node_went_silent",
    "node_returned",
    "launch_planned",
    "self_test_wanted",
    "check_finished",
    "build_suspected",
    "build_cleared",
    "build_qualified",
    "build_accepted",
    "rollout_proposed",
    "rollout_approved",
    "rollout_started",
    "wave_opened",
    "wave_joined",
    "granted",
    "override_set",
    "override_applied",
    "instance_changed",
    "effective_seen",
    "weights_seen",
    "gpu_fault_seen",
    "bake_interval",
    "golden_finished",
    "memory_fallback_seen",
    "memory_fallback_cleared",
    "gap_noticed",
    "unit_disagreed",
    "target_faulted",
    "build_failed",
    "check_ruled",
    "grant_ended",
    "grant_revoked",
    "wave_judged",
    "rollout_paused",
    "rollout_resumed",
    "rollout_halted",
    "rollout_aborted",
    "rollout_completed",
    "breaker_tripped",
    "breaker_reset",
    "adopted",
    "adoption_decided",
    "flag_adopted",
    "memory_cleared",
    "unit_excluded",
    "unit_included",
    "pin_set",
    "pin_removed",
    "override_released",
    "freeze_declared",
    "freeze_lifted",
    "gate_disabled",
    "gate_enabled",
    "gate_graduated",
    "issue_published",
    "issue_withdrawn",
    "build_announced",
    "episode_opened",
    "episode_updated",
    "episode_closed",
    "wait_timed_out",
    "fleet_unreachable",
    "fleet_reachable",
    "fleet_expected",
    "node_retired",
    "fact_redacted",
    "break_glass_used",
    "change_accepted",
    "change_withdrawn",
    "log_restored",
    "opening_recorded",
    "directive_held",
    "restore_finished",
]
"""The order in which the files tell one story."""

NO_MARK = {"gap_noticed", "rules_changed", "fact_redacted", "opening_recorded"}
"""A gap that this story never opened, what was never held, what is blanked, what was folded already."""

BOOKKEEPING = (
    "position",
    "now_us",
    "events_total",
    "touched",
    "touched_nodes",
    "world_position",
)


def parts(path):
    name, version, _ = path.name.rsplit(".", 2)
    return name.partition("+")[0], int(version.removeprefix("v"))


def gained(older, newer):
    """What is written of an event beside what was written before, at any depth."""
    if isinstance(older, dict) and isinstance(newer, dict):
        assert older.keys() <= newer.keys()
        found = [newer[key] for key in newer.keys() - older.keys()]
        return found + [one for key in older for one in gained(older[key], newer[key])]
    if isinstance(older, list) and isinstance(newer, list):
        assert len(older) == len(newer)
        return [one for pair in zip(older, newer, strict=True) for one in gained(*pair)]
    assert older == newer
    return []


def payload(name):
    return (FOLDER / f"{name}.v1.json").read_bytes().removesuffix(b"\n")


def recorded(position, name):
    nodes = "facts" in codec.NAMES[name].__module__
    return events.Recorded(
        position=position,
        at_us=1_764_480_000_000_000,  # never moves, so that time alone leaves no mark
        occurred_at_us=1_764_480_000_000_000,
        stream="s",
        version=position,
        actor="node:node-a" if nodes else "controller",
        event=codec.decode(name, 1, payload(name)),
    )


def contents(fleet):
    kept = copy.deepcopy(fleet)
    return {
        field.name: getattr(kept, field.name)
        for field in dataclasses.fields(kept)
        if field.name not in BOOKKEEPING
    }


def test_every_name_has_its_file_and_every_file_a_name():
    ever = {(name, v + 1) for name in codec.NAMES for v in range(codec._READER.newest[name])}
    assert {parts(path) for path in FILES} == ever
    assert sorted(HISTORY) == sorted(codec.NAMES)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_an_event_is_read_and_what_was_written_of_it_is_written_again(path):
    name, version = parts(path)
    data = path.read_bytes().removesuffix(b"\n")
    event = codec.decode(name, version, data)
    assert type(event) is codec.NAMES[name]
    assert codec.name_of(event) == name
    gained(json.loads(data), json.loads(codec.encode(event)))
    assert codec.decode(name, version, codec.encode(event)) == event


@pytest.mark.parametrize("name", sorted(codec.NAMES))
def test_one_file_of_each_event_is_written_again_byte_for_byte(name):
    files = [path.read_bytes().removesuffix(b"\n") for path in FILES if parts(path)[0] == name]
    assert sum(codec.encode(codec.decode(name, 1, data)) == data for data in files) == 1


@pytest.mark.parametrize("name", sorted(codec.NAMES))
def test_a_golden_event_says_something_in_every_field(name):
    found = [codec.decode(name, 1, path.read_bytes()) for path in FILES if parts(path)[0] == name]
    for field in dataclasses.fields(found[0]):
        said = [getattr(event, field.name) for event in found]
        if field.default is not dataclasses.MISSING:
            assert any(one != field.default for one in said) or name == "gate_published", field
        elif field.default_factory is not dataclasses.MISSING:
            assert any(one != field.default_factory() for one in said), field


def test_the_files_fold_into_one_story_and_each_leaves_its_mark():
    fleet = state.Fleet()
    for position, name in enumerate(HISTORY, start=1):
        before = contents(fleet)
        evolve.evolve(fleet, recorded(position, name))
        assert (contents(fleet) != before) is (name not in NO_MARK), name
    assert set(fleet.events_total.values()) == {1}
    assert fleet.position == len(HISTORY)
    unit = fleet.units["two"]
    assert (unit.released, unit.flag_adopted, unit.adoption) == (True, True, "accepted")
    assert fleet.rollouts["r1"].phase == "completed"
    assert [key.standing for key in fleet.keys.values()] == ["failed", "unknown"]


def test_a_payload_of_its_required_fields_alone_can_be_read():
    for name, kind in codec.NAMES.items():
        needed = {
            field.name
            for field in dataclasses.fields(kind)
            if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
        }
        whole = json.loads(payload(name))
        least = {key: value for key, value in whole.items() if key in needed}
        assert type(codec.decode(name, 1, json.dumps(least).encode())) is kind


def test_a_policy_from_before_a_field_was_there_has_its_default():
    whole = json.loads(payload("policy_published"))
    assert whole["policy"].pop("baseline_proof") == "required"
    assert whole["policy"].pop("change_timeout_s") == 604801
    read = codec.decode("policy_published", 1, json.dumps(whole).encode())
    assert read.policy.baseline_proof == "not_required"
    assert read.policy.change_timeout_s == 7 * 86400


@pytest.mark.parametrize(
    ("name", "version", "data"),
    [
        ("no_such_event", 1, b"{}"),
        ("granted", 2, payload("granted")),
        ("granted", 0, payload("granted")),
        ("granted", 1, b"{}"),
        ("granted", 1, b"not json"),
        ("pin_set", 1, payload("pin_set").replace(b'"on"', b'"sideways"')),
    ],
)
def test_what_this_release_cannot_read_is_named_and_never_skipped(name, version, data):
    with pytest.raises(codec.UnknownEventError, match=name):
        codec.decode(name, version, data)
