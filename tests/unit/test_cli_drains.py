"""`smgate drain ls`: what each restart waits for, and the three numbers beside it."""

from __future__ import annotations

import json

import pytest
from tests import cli_fakes

ROW = {
    "unit": "k3-prod-07",
    "sm": "10.7",
    "code": "pinned_off",
    "position": 81,
    "since": "2027-03-01T03:12:00Z",
    "decided": True,
    "told": True,
    "safe": False,
    "restart": "waits: budget",
    "order": None,
    "owner": "operator",
    "next_step": "Wait for them, or bring them back: smgate drain ls.",
}
SMS = {"10.7": {"decided": 12, "told": 11, "safe": 4}, "10.0": {"decided": 1, "told": 1, "safe": 1}}


@pytest.fixture
def cli():
    with cli_fakes.serving() as api:
        status, body = cli_fakes.listed(ROW)
        api.routes["GET /v1/drains"] = (status, body | {"sms": SMS})
        yield cli_fakes.Cli(api.url)


def test_each_server_says_what_its_restart_waits_for_and_the_numbers_stand_apart(cli):
    ran = cli("drain", "ls")
    assert ran.code == 0
    assert "k3-prod-07" in ran.out
    assert "waits: budget" in ran.out
    assert "SM 10.7: decided 12, told 11, safe 4." in ran.err
    assert "SM 10.0: decided 1, told 1, safe 1." in ran.err


def test_json_has_the_numbers_too(cli):
    assert json.loads(cli("drain", "ls", "-o", "json").out)["sms"] == SMS
