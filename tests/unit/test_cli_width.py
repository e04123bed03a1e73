"""Lists and answers on a terminal of a given width: nothing is cut, and no name is broken in two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi
from tests.unit import test_cli_reading

REASON = "Odd answers in rack e since the image of Friday; " * 5 + "INC-4411"
WAIT = {
    "code": "suspect",
    "subject": "9ee83c3246549963",
    "owner": "operator",
    "since": "2027-03-01T03:12:00Z",
    "until": None,
    "sentence": "Kernel key 9ee83c3246549963 failed once and waits for confirmation.",
    "next_step": "smgate build why 9ee83c3246549963",
}
RULING = {
    "position": 81,
    "at": "2027-03-01T03:12:00Z",
    "by": "finn",
    "type": "grant_revoked",
    "units": ["k3-prod-07"],
    "reason": REASON,
}
EVENT = {"position": 81, "at": "2027-03-01T03:12:00Z", "type": "granted", "says": REASON}
WAVE = {"wave": 0, "verdict": "running", "pending": [f"rubin-{n}:08406c4c" for n in range(9)]}
WHY = {"rollout": "r-1", "phase": "running", "waits": [WAIT], "members": [], "waves": [WAVE]}
PAGES = {
    "unit ls": "k3-prod-07",
    "wait ls": "9ee83c3246549963",
    "log rulings": "INC-4411",
    "unit history k3-prod-07": "INC-4411",
    "rollout why r-1": "9ee83c3246549963",
}
"""Each with what must be found in one piece."""


@pytest.fixture
def cli() -> Iterator[Cli]:
    with cli_fakes.serving() as api:
        serve(api)
        found = Cli(api.url)
        found.environ |= {"NO_COLOR": "1", "COLUMNS": "80"}
        yield found


def serve(api: FakeApi) -> None:
    api.routes["GET /v1/units"] = cli_fakes.listed(*test_cli_reading.UNITS)
    api.routes["GET /v1/waits"] = cli_fakes.listed(WAIT)
    api.routes["GET /v1/log/rulings"] = cli_fakes.listed(RULING)
    api.routes["GET /v1/units/k3-prod-07/history"] = cli_fakes.listed(EVENT)
    api.routes["GET /v1/rollouts/r-1/why"] = (200, WHY)


@pytest.mark.parametrize("page", PAGES)
def test_what_is_too_long_for_a_terminal_goes_on_indented_and_whole(cli: Cli, page: str) -> None:
    shown = cli(*page.split(), terminal=True)
    piped = cli(*page.split())
    assert max(map(len, piped.out.splitlines())) > 80, "else it shows nothing"
    assert max(map(len, shown.out.splitlines())) <= 80
    assert shown.out.split() == piped.out.split(), "every word, in its order"
    assert PAGES[page] in shown.out


def test_a_program_gets_one_line_a_row_and_so_does_a_terminal_nobody_can_read_on(cli: Cli) -> None:
    rows = len(test_cli_reading.UNITS)
    assert len(cli("unit", "ls").out.splitlines()) == 1 + rows
    cli.environ["COLUMNS"] = "20"
    assert len(cli("unit", "ls", terminal=True).out.splitlines()) == 1 + rows


def test_a_name_that_is_longer_than_the_terminal_stays_whole(cli: Cli) -> None:
    name = "k3-" + "very-" * 20 + "long"
    with cli_fakes.serving() as api:
        api.routes["GET /v1/units"] = cli_fakes.listed({**test_cli_reading.UNITS[0], "id": name})
        cli.environ["SMGATE_URL"] = api.url
        assert name in cli("unit", "ls", terminal=True).out.splitlines()
