"""Closed lists are closed: events, commands and facts have one name, one handler, one shape each."""

import dataclasses
import types
import typing

import msgspec
import pytest

from smgate.domain import commands, decider, events, evolve, facts, redaction, values
from smgate.log import codec
from smgate.service import credentials
from smgate.wire import facts as wire

PAYLOADS = {kind.__name__: kind for kind in typing.get_args(wire.Payload)}
FACTS = {kind.__name__: kind for kind in typing.get_args(facts.Fact)}
NESTED = ("Gpu", "Build", "Layout", "Model", "Pair")


def members(union):
    return set(typing.get_args(union))


def test_every_event_has_one_stored_name():
    assert set(codec.NAMES.values()) == members(events.Event) - {redaction.Erased}
    assert len(set(codec.NAMES.values())) == len(codec.NAMES)


def test_every_event_has_one_fold_handler():
    assert set(evolve._HANDLERS) == members(events.Event)


def test_every_command_has_one_name_one_handler_and_a_direction():
    assert set(commands.NAMES.values()) == members(commands.Command)
    assert len(set(commands.NAMES.values())) == len(commands.NAMES)
    assert set(decider._HANDLERS) == members(commands.Command)
    for kind in members(commands.Command):
        assert kind.DIRECTION in typing.get_args(values.Direction)
        assert "reason" in {field.name for field in dataclasses.fields(kind)}


def test_who_may_agree_may_also_narrow():
    assert set(decider.AGREES) < set(decider.ONE) < set(credentials.ROLES)
    for kind in commands.NAMES.values():
        assert kind.DIRECTION in typing.get_args(values.Direction)


def test_the_wire_and_the_domain_have_the_same_facts():
    assert set(PAYLOADS) == set(FACTS)


@pytest.mark.parametrize("name", sorted(FACTS))
def test_a_fact_is_stored_under_the_name_it_is_sent_with(name):
    assert codec.NAMES[PAYLOADS[name].__struct_config__.tag] is FACTS[name]


def plain(hint):
    """A type without its constraints, and with the wire's structs named like the domain's."""
    origin = typing.get_origin(hint)
    if origin is typing.Annotated:
        return plain(typing.get_args(hint)[0])
    if origin is typing.Literal:
        return ("one of", *sorted(map(str, typing.get_args(hint))))
    if msgspec.UnsetType in typing.get_args(hint):  # left out by agents from before it was there
        (left,) = (part for part in typing.get_args(hint) if part is not msgspec.UnsetType)
        return plain(left)
    if origin in (typing.Union, types.UnionType):
        return ("any of", *sorted(str(plain(part)) for part in typing.get_args(hint)))
    if origin is not None:
        return (str(origin), *sorted(str(plain(part)) for part in typing.get_args(hint)))
    return getattr(hint, "__name__", str(hint))


def wire_shape(kind):
    hints = typing.get_type_hints(kind, include_extras=True)
    shape = {}
    for field in msgspec.structs.fields(kind):
        if field.default_factory is not msgspec.NODEFAULT:
            default = field.default_factory()
        else:
            default = field.default
        if isinstance(default, msgspec.Struct):
            zeros = {n: 0 for n, v in msgspec.structs.asdict(default).items() if v is msgspec.UNSET}
            default = {**msgspec.to_builtins(default), **zeros}
        default = 0 if default is msgspec.UNSET else default
        missing = default is msgspec.NODEFAULT
        shape[field.name] = (plain(hints[field.name]), "required" if missing else default)
    return shape


def domain_shape(kind):
    hints = typing.get_type_hints(kind)
    shape = {}
    for field in dataclasses.fields(kind):
        if field.default_factory is not dataclasses.MISSING:
            default = field.default_factory()
        else:
            default = field.default
        if dataclasses.is_dataclass(default):
            default = msgspec.to_builtins(default)
        missing = default is dataclasses.MISSING
        shape[field.name] = (plain(hints[field.name]), "required" if missing else default)
    return shape


@pytest.mark.parametrize("name", sorted([*FACTS, *NESTED]))
def test_the_wire_and_the_domain_agree_field_for_field(name):
    of_the_domain = FACTS.get(name) or getattr(values, name)
    of_the_wire = PAYLOADS.get(name) or getattr(wire, name)
    assert wire_shape(of_the_wire) == domain_shape(of_the_domain)


def test_the_comparison_of_shapes_can_fail():
    class Other(msgspec.Struct, kw_only=True):
        sm: str
        uuid: str | None = None

    assert wire_shape(Other) != domain_shape(values.Pair)
    assert plain(int | None) != plain(int)
    assert plain(typing.Literal["a"]) != plain(typing.Literal["b"])
