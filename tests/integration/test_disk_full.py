"""A database that cannot grow: said with its cause, read on, and over when there is room again.

The limit is SQLite's own (`max_page_count`), so what is met is its real error for a full disk.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from tests import controller_bench as cb

from smgate import repeats


def limit_pages(bench: cb.Bench, pages: int | None) -> None:
    """Let the file grow no further than this many pages; None: as it likes."""
    with bench.service.store.database.writing() as connection:
        connection.exec_driver_sql(f"PRAGMA max_page_count = {pages or 1_073_741_823}")


def fill(bench: cb.Bench, token: str) -> int:
    """Freezes with long reasons until one is refused; how many were taken."""
    limit_pages(bench, 1)
    for number in range(200):
        answer = bench.http.post(
            "/v1/commands",
            headers=cb.bearer(token),
            json={"type": "freeze_declare", "id": f"f{number}", "reason": "x" * 900},
        )
        if answer.status_code != 200:
            assert answer.json()["error"]["code"] == "log_unavailable"
            assert "(disk_full)" in answer.json()["error"]["message"]
            assert answer.json()["error"]["next_step"].startswith("Make room")
            return number
    pytest.fail("the limit was never met")


def test_people_read_on_and_readiness_names_the_cause_until_there_is_room(
    embedded: cb.Bench,
) -> None:
    operator = embedded.token("operator")
    taken = fill(embedded, operator)
    assert taken > 0
    listed = embedded.get(operator, "freezes")
    assert len(listed["items"]) == taken
    assert embedded.get(operator, "policy")

    for _ in range(200):  # Each term writes one small event, until the last page is full.
        embedded.service.leader.hand_over()
        embedded.service.leader.step()
        if embedded.service.leader.status.trouble is not None:
            break
    problems = embedded.http.get("/readyz").json()["problems"]
    assert "disk_full" in problems[0]["sentence"]
    assert "Make room" in problems[0]["sentence"]

    limit_pages(embedded, None)
    embedded.service.leader.step()
    assert embedded.http.get("/readyz").json() == {"status": "ready", "problems": []}
    embedded.command(operator, "freeze_declare", id="after")
    assert len(embedded.get(operator, "freezes")["items"]) == taken + 1


@pytest.fixture
def repeated() -> Callable[[str, float], str | None]:
    """Says something at a time; what the log would show."""
    said = repeats.Repeats(again_s=60)

    def say(text: str, at_s: float, level: int = logging.ERROR) -> str | None:
        record = logging.LogRecord("smgate.x", level, "", 0, text, None, None)
        record.created = at_s
        return record.getMessage() if said.filter(record) else None

    return say


def test_the_same_complaint_is_logged_once_a_minute_with_its_count(
    repeated: Callable[[str, float], str | None],
) -> None:
    assert repeated("full", 0) == "full"
    assert [repeated("full", second) for second in range(1, 60)] == [None] * 59
    assert repeated("full", 60) == "full (59 more times since)"
    assert repeated("full", 61) is None


def test_another_complaint_is_logged_at_once(
    repeated: Callable[[str, float], str | None],
) -> None:
    assert repeated("full", 0) == "full"
    assert repeated("locked", 0) == "locked"


def test_the_memory_of_complaints_is_bounded() -> None:
    said = repeats.Repeats()
    for number in range(3 * repeats.KEPT_MAX):
        record = logging.LogRecord("x", logging.ERROR, "", 0, f"{number}", None, None)
        assert said.filter(record)
    assert len(said._said) <= repeats.KEPT_MAX
