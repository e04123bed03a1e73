"""Every message between a node and the controller, as its bytes are in this version of the wire.

`tests/golden/wire` has one file per message and wire version. A file is never changed: agents of
that version are out there. The directive in it was signed with the key that the enrolment pins.
`NAME+WHAT.v1.json` has a field that is sent only where there is something to say.
"""

import json
import pathlib
import typing

import msgspec
import pytest

from smgate.wire import base, directive, facts
from smgate_agent.launch import ed25519, shapes, state

FOLDER = pathlib.Path(__file__).parents[1] / "golden" / "wire"
KINDS = {
    "enroll_request": directive.EnrollRequest,
    "enroll_answer": directive.EnrollAnswer,
    "launch_request": directive.LaunchRequest,
    "launch_answer": directive.LaunchAnswer,
    "directive": directive.Directive,
    "signed_directive": directive.SignedDirective,
    "facts_batch": facts.FactsBatch,
    "directive_drain": directive.Directive,
    "facts_batch_drain": facts.FactsBatch,
    "facts_batch_golden": facts.FactsBatch,
    "facts_batch_restore": facts.FactsBatch,
    "log_restored": directive.LogRestored,
    "acknowledgement": facts.Acknowledgement,
    "error_body": base.ErrorBody,
}
VERSIONED = sorted(set(KINDS) - {"error_body", "signed_directive"})
"""The error has no version: every agent must be able to read why it was refused. A signed directive
carries the version in what is signed."""


VARIANTS = {name: KINDS[name.partition("+")[0]] for name in [*KINDS, "directive+lease"]}


def golden(name):
    return (FOLDER / f"{name}.v1.json").read_bytes().removesuffix(b"\n")


def objects(value, path=()):
    """Every object within a message, with the way to it; keys of a free mapping are no fields."""
    if isinstance(value, dict):
        if path[-1:] not in (("artifact_pins",), ("numbers",), ("modes",), ("instances",)):
            yield path
        for key, inner in value.items():
            yield from objects(inner, (*path, key))
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            yield from objects(inner, (*path, index))


def changed(name, path, change):
    whole = json.loads(golden(name))
    inner = whole
    for key in path:
        inner = inner[key]
    change(inner)
    return json.dumps(whole).encode()


def structs(value):
    """Every message within a message."""
    if isinstance(value, msgspec.Struct):
        yield value
        for field in msgspec.structs.fields(value):
            yield from structs(getattr(value, field.name))
    elif isinstance(value, tuple):
        for one in value:
            yield from structs(one)


def test_every_message_has_its_file_and_every_file_a_message():
    assert {path.name for path in FOLDER.iterdir()} == {f"{name}.v1.json" for name in VARIANTS}
    shown = {type(one) for name, kind in KINDS.items() for one in structs(decoded(name, kind))}
    written = {
        kind
        for module in (base, directive, facts)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, base.Message)
    }
    assert shown == written - {base.Message}


def decoded(name, kind):
    return base.decode(golden(name), kind)


@pytest.mark.parametrize(("name", "kind"), VARIANTS.items())
def test_a_message_is_read_and_written_again_byte_for_byte(name, kind):
    assert base.encode(decoded(name, kind)) == golden(name)


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_golden_message_says_something_in_every_field(name, kind):
    said = {}
    variants = [one for one in VARIANTS if one.partition("+")[0] == name]
    for one in (part for variant in variants for part in structs(decoded(variant, kind))):
        for field in msgspec.structs.fields(one):
            default = field.default
            if field.default_factory is not msgspec.NODEFAULT:
                default = field.default_factory()
            if default not in (msgspec.NODEFAULT, msgspec.UNSET) and field.name != "wire_version":
                place = (type(one).__name__, field.name)
                said[place] = said.get(place, False) or getattr(one, field.name) != default
    assert [place for place, differs in said.items() if not differs] == []


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_an_unknown_field_is_refused_at_every_depth(name, kind):
    places = list(objects(json.loads(golden(name))))
    assert places
    for path in places:
        body = changed(name, path, lambda inner: inner.update(argv="--api-key hunter2"))
        with pytest.raises(base.MalformedError, match="unknown field `argv`"):
            base.decode(body, kind)


@pytest.mark.parametrize("name", VERSIONED)
@pytest.mark.parametrize("version", [0, 2, "1", 1.5, None])
def test_another_version_of_the_wire_is_refused(name, version):
    body = changed(name, (), lambda whole: whole.update(wire_version=version))
    with pytest.raises(base.MalformedError, match=r"wire_version"):
        base.decode(body, KINDS[name])


def test_a_directive_without_an_order_is_what_agents_from_before_orders_read():
    ordered = decoded("directive_drain", directive.Directive)
    assert ordered.drains
    without = msgspec.structs.replace(ordered, drains=msgspec.UNSET)
    assert base.encode(without) == golden("directive")


def test_the_batch_shows_each_kind_of_fact_once():
    batches = [
        decoded(name, facts.FactsBatch)
        for name in (
            "facts_batch",
            "facts_batch_drain",
            "facts_batch_golden",
            "facts_batch_restore",
        )
    ]
    shown = [one for batch in batches for one in batch.facts]
    assert [type(one.payload) for one in shown] == list(typing.get_args(facts.Payload))
    sequences = [one.sequence for one in shown]
    assert sequences == list(range(sequences[0], sequences[0] + len(sequences)))


def test_the_signed_text_is_the_directive_and_the_pinned_key_signed_it():
    enrolled = decoded("enroll_answer", directive.EnrollAnswer)
    signed = decoded("signed_directive", directive.SignedDirective)
    assert signed.signed.encode() == golden("directive")
    assert ed25519.verify_hex(enrolled.public_key, signed.signed.encode(), signed.signature)
    altered = signed.signed.replace("flashinfer_mxfp4", "triton")
    assert not ed25519.verify_hex(enrolled.public_key, altered.encode(), signed.signature)


def test_the_gate_reads_the_same_answer_as_the_contract():
    enrolled = decoded("enroll_answer", directive.EnrollAnswer)
    identity = state.Identity(node=enrolled.node, public_key=enrolled.public_key)
    answer = shapes.launch_answer(golden("launch_answer"))
    assert answer == json.loads(golden("launch_answer"))
    assert state.verified(answer["directive"], identity) == json.loads(golden("directive"))
    leased = golden("directive+lease")
    assert shapes.directive(leased.decode()) == json.loads(leased)


@pytest.mark.parametrize("lease_s", [0, -1, 1.5, "60", True, None, (1 << 53) + 1])
def test_a_lease_is_a_positive_number_of_seconds_or_is_not_sent(lease_s):
    body = changed("directive", ("units", 0), lambda unit: unit.update(lease_s=lease_s))
    with pytest.raises(base.MalformedError):
        base.decode(body, directive.Directive)
    with pytest.raises(shapes.MalformedError):
        shapes.directive(body.decode())


@pytest.mark.parametrize("name", ["launch_answer", "directive", "directive_drain"])
def test_the_gate_refuses_what_the_contract_refuses(name):
    readers = {"launch_answer": shapes.launch_answer}
    readers |= dict.fromkeys(("directive", "directive_drain"), shapes.directive)
    assert readers[name](golden(name)) == json.loads(golden(name))
    for path in objects(json.loads(golden(name))):
        body = changed(name, path, lambda inner: inner.update(argv="--api-key hunter2"))
        with pytest.raises(shapes.MalformedError):
            readers[name](body)
    for version in (0, 2, "1", True):
        body = changed(name, (), lambda whole, v=version: whole.update(wire_version=v))
        with pytest.raises(shapes.MalformedError):
            readers[name](body)
