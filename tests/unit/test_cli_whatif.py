"""`smgate policy whatif`: the two courses side by side."""

from __future__ import annotations

from pathlib import Path

from tests import cli_fakes
from tests.cli_fakes import Cli

BODY = {
    "apiVersion": "v1",
    "as_of_position": 812,
    "since_position": 70,
    "since": "2027-01-15T03:00:00Z",
    "until": "2027-01-15T04:00:00Z",
    "rulings_passed_over": 1,
    "differing_units": 1,
    "differing": [
        {
            "unit": "k3-prod-07",
            "then": [{"form": "append", "value": "flashinfer_mxfp4", "code": "granted"}],
            "would": [{"form": "append", "value": "marlin", "code": "exposure_limit"}],
        }
    ],
    "exposed_units": [
        {"at": "2027-01-15T03:00:00Z", "then": 0, "would": 0},
        {"at": "2027-01-15T04:00:00Z", "then": 2, "would": 1},
    ],
    "then": {
        "holds": 1,
        "first_hold": "2027-01-15T03:30:00Z",
        "first_hold_by": "RolloutHalted",
        "hold_after_s": 1.5,
        "exposed_unit_hours": 1.25,
    },
    "would": {"holds": 0, "first_hold": None, "first_hold_by": None, "hold_after_s": None},
    "caveat": "Facts are as they happened.",
}


def test_the_two_courses_are_told_side_by_side(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("exposure_limit_units: 1\n")
    with cli_fakes.serving() as api:
        api.routes["POST /v1/policy/whatif"] = (200, BODY)
        told = Cli(api.url)("policy", "whatif", str(path), "--since", "70")
        [sent] = api.requests
    assert told.code == 0
    assert sent.body == {"policy": {"exposure_limit_units": 1}, "since": "70"}
    lines = told.out.splitlines()
    assert lines[1] == "units decided otherwise: 1"
    assert lines[4].split() == ["most", "units", "exposed", "2", "1"]
    assert lines[5].split() == ["unit-hours", "exposed", "1.2", "-"]
    assert lines[6].split()[-2:] == ["RolloutHalted", "-"]
    assert lines[7].split()[-3:] == ["1.5", "s", "-"]
    assert lines[10].split()[1:] == ["flashinfer_mxfp4", "(granted)", "marlin", "(exposure_limit)"]
    assert "1 rulings have no meaning" in told.out
    assert lines[-1] == "Facts are as they happened."
