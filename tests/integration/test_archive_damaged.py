"""What is asked about the time before the floor, when the files are whole, gone or not what they were."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Iterator

import pytest
from tests import controller_bench as cb
from tests.integration import test_api_history as histories

from smgate.service import cut

POLICY: cb.Json = {"min_gpu_sets": 1}
Damage = Callable[[pathlib.Path], object]


class Asked:
    """A controller whose log was cut twice, and what was asked of it before."""

    def __init__(self, bench: cb.Bench, folder: pathlib.Path) -> None:
        self.bench = bench
        self.folder = folder
        self.viewer = bench.token("viewer")
        histories.two_servers(bench)
        first = bench.service.store.head().position
        bench.enrol("n3").launch("n3-1")
        bench.lead()
        self.old, self.older = bench.service.store.head().position - 1, first - 1
        before = [self.answer(at) for at in (self.older, self.old)]
        self.names = [
            *cut.cut(bench.service.store, folder, through=first).files,
            *cut.cut(bench.service.store, folder, through=first + 3).files,
        ]
        self.floor = bench.service.store.head().floor_position
        assert self.older < first <= self.floor <= self.old
        assert [self.answer(at) for at in (self.older, self.old)] == before
        bench.service.queries._past._last = None  # as a process that has read no file yet

    def answer(self, at: int) -> list[object]:
        """`why --at` and `policy whatif --since`, without what counts the longer log."""
        why = self.why(at)
        assert why[0] == 200, why
        whatif = self.whatif(at)
        assert whatif[0] == 200, whatif
        del why[1]["arrived_later_looked_through"]
        told = {name: whatif[1][name] for name in ("since", "differing", "first_bad_sign", "then")}
        return [why[1], told, whatif[1]["would"], whatif[1]["exposed_units"][0]]

    def why(self, at: int) -> tuple[int, cb.Json]:
        answer = self.bench.http.get(f"/v1/units/n1/why?at={at}", headers=cb.bearer(self.viewer))
        return answer.status_code, answer.json()

    def whatif(self, since: int) -> tuple[int, cb.Json]:
        answer = self.bench.http.post(
            "/v1/policy/whatif",
            headers=cb.bearer(self.viewer),
            json={"policy": POLICY, "since": str(since)},
        )
        return answer.status_code, answer.json()


@pytest.fixture
def asked(embedded: cb.Bench, tmp_path: pathlib.Path) -> Iterator[Asked]:
    folder = tmp_path / "archive"
    folder.mkdir()
    return Asked(embedded, folder)


def without_the_folder(file: pathlib.Path) -> None:
    file.parent.rename(file.parent.with_name("elsewhere"))


def not_readable(file: pathlib.Path) -> None:
    file.unlink()
    file.mkdir()  # The tests may run as root, who may read everything that is a file.


def truncated(file: pathlib.Path) -> None:
    file.write_bytes(file.read_bytes()[:-20])


def garbled(file: pathlib.Path) -> None:
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


@pytest.mark.parametrize(
    ("damage", "code", "says"),
    [
        (without_the_folder, "archive_missing", "cannot be read"),
        (pathlib.Path.unlink, "archive_missing", "cannot be read"),
        (not_readable, "archive_missing", "cannot be read"),
        (truncated, "archive_bad", "is not the file that was written"),
        (garbled, "archive_bad", "is not the file that was written"),
    ],
)
def test_a_damaged_file_refuses_what_needs_it_and_nothing_else(
    asked: Asked, damage: Damage, code: str, says: str
) -> None:
    file = asked.folder / asked.names[1]
    damage(file)
    needs_it = (
        asked.why(asked.floor - 1),
        asked.whatif(asked.floor - 1),
        asked.whatif(asked.older),
    )
    for status, body in needs_it:
        error = body["error"]
        assert (status, error["code"]) == (409, code)
        first_read = file.name if asked.folder.exists() else asked.names[0]
        assert (says in error["message"], first_read in error["message"]) == (True, True)
        assert error["next_step"]
    assert (asked.why(asked.floor + 1)[0], asked.whatif(asked.floor)[0]) == (200, 200)
    assert asked.bench.http.get("/readyz").status_code == 200
    assert asked.bench.get(asked.viewer, "units/n1/why")["unit"]


def test_a_file_of_another_log_is_not_taken_for_this_ones(
    asked: Asked, tmp_path: pathlib.Path
) -> None:
    """Somebody gave it the name of this one's."""
    other = tmp_path / "other"
    (other / "archive").mkdir(parents=True)
    with cb.running(cb.settings(f"sqlite:///{other / 'log.db'}", other)) as bench:
        theirs = Asked(bench, other / "archive")
    assert set(theirs.names).isdisjoint(asked.names)
    for their, name in zip(theirs.names, asked.names, strict=True):
        shutil.copy(other / "archive" / their, asked.folder / name)
    for status, body in (asked.why(asked.older), asked.whatif(asked.older)):
        assert (status, body["error"]["code"]) == (409, "archive_bad")
        assert asked.names[0] in body["error"]["message"]
    assert asked.why(asked.floor + 1)[0] == 200


def test_what_was_known_at_the_floor_itself_needs_no_file(
    bench: cb.Bench, tmp_path: pathlib.Path
) -> None:
    asked = Asked(bench, tmp_path)
    with_files = asked.why(asked.floor)
    for name in asked.names:
        (tmp_path / name).unlink()
    bench.service.queries._past._last = None
    without = asked.why(asked.floor)
    assert (with_files[0], without[0]) == (200, 200), without
    for name in ("form", "value", "code", "as_of_position", "arrived_later"):
        assert with_files[1].get(name) == without[1].get(name)
