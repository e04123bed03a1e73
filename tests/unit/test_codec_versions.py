"""An event of an older version is brought up when it is read; a form is written once it is finalized."""

import dataclasses
import json

import pytest
from tests.log_records import record

from smgate.domain import events, redaction
from smgate.log import batch, codec, formats, port


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """An event of this test alone. Version 1 had `where`; 2 split it; 3 counts in metres."""

    rack: str
    chassis: str
    metres: float


def split(plain):
    rack, _, chassis = plain.pop("where").partition("/")
    return plain | {"rack": rack, "chassis": chassis}


def in_metres(plain):
    return plain | {"metres": plain.pop("feet") * 0.3}


ERASED = b""


def at(position, schema_version, data):
    """A stored record of the event."""
    return port.StoredRecord(
        position, "s", position, "moved", schema_version, 20, 30, "node:a", None, data, bytes(32)
    )


READER = codec.Reader({"moved": Moved}, {("moved", 1): split, ("moved", 2): in_metres})
MOVED = Moved(rack="r1", chassis="c2", metres=3.0)


@pytest.mark.parametrize(
    ("version", "stored"),
    [
        (1, {"where": "r1/c2", "feet": 10}),
        (2, {"rack": "r1", "chassis": "c2", "feet": 10}),
        (3, {"rack": "r1", "chassis": "c2", "metres": 3.0}),
    ],
)
def test_every_version_is_read_as_the_newest(version, stored):
    assert READER.newest == {"moved": 3}
    data = json.dumps(stored).encode()
    assert READER.decode("moved", version, data) == MOVED
    assert READER.page([at(1, version, data), at(2, 3, ERASED), at(3, version, data)]) == [
        events.Recorded(1, 30, 20, "s", 1, "node:a", MOVED),
        events.Recorded(2, 30, 20, "s", 2, "node:a", redaction.ERASED),
        events.Recorded(3, 30, 20, "s", 3, "node:a", MOVED),
    ]


@pytest.mark.parametrize(
    ("version", "data"),
    [
        (0, b"{}"),
        (4, b'{"rack":"r1","chassis":"c2","metres":3}'),
        (1, b'{"feet":10}'),
        (1, b'{"where":7,"feet":10}'),
        (1, b'["where"]'),
        (1, b"not json"),
        (2, b'{"rack":"r1","chassis":"c2","feet":"ten"}'),
        (3, b'{"rack":"r1"}'),
    ],
)
def test_what_cannot_be_brought_up_is_named(version, data):
    with pytest.raises(codec.UnknownEventError, match=f"'moved' version {version}"):
        READER.decode("moved", version, data)
    with pytest.raises(codec.UnknownEventError, match=f"'moved' version {version}"):
        READER.page([at(1, version, data)])


@pytest.mark.parametrize("upcasters", [{("moved", 2): in_metres}, {("gone", 1): split}])
def test_a_reader_with_a_hole_in_its_upcasters_is_not_made(upcasters):
    with pytest.raises(AssertionError):
        codec.Reader({"moved": Moved}, upcasters)


def test_every_form_of_this_release_is_of_a_level_it_knows():
    stored = {(name, v + 1) for name in codec.NAMES for v in range(codec._READER.newest[name])}
    assert formats.SINCE.keys() <= stored
    assert set(formats.SINCE.values()) <= set(range(2, formats.LEVEL + 1))
    assert formats.above(formats.LEVEL) == frozenset()
    assert formats.above(1) == formats.SINCE.keys()


def test_a_form_above_the_level_is_refused_with_a_next_step_and_others_pass():
    above = formats.above(1, {("moved", 2): 2, ("moved", 3): 3})
    assert formats.above(2, {("moved", 2): 2, ("moved", 3): 3}) == {("moved", 3)}
    old, new = record(type="moved"), record(type="moved", version=2, schema_version=2)
    assert len(batch.prepare([old], gapless=False, above=above).records) == 1
    with pytest.raises(formats.NotFinalizedError, match="'moved' version 2") as caught:
        batch.prepare([old, new], gapless=False, above=above)
    assert (caught.value.code, caught.value.form) == ("not_finalized", ("moved", 2))
    assert "smgate db finalize" in caught.value.next_step
