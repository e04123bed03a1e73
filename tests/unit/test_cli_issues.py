"""What a person is told before a known issue is published or withdrawn."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as made:
        yield made


@pytest.fixture
def cli(api: FakeApi) -> Cli:
    return Cli(api.url)


def looked(**changes: Any) -> dict[str, Any]:
    build = {
        "sm": "10.7",
        "sglang": "0.5.23",
        "flashinfer": "0.7.1",
        "driver": "580.95.05",
        "kernel_key": "ab12",
        "matched_units": 7,
        "unit_names": [f"u-{n}" for n in range(7)],
    }
    matched = {
        "id": "fi-9",
        "severity": "block",
        "matched_units": 7,
        "unit_names": build["unit_names"],
        "unknown_units": 1,
        "unknown_unit_names": ["odd"],
        "matched_builds": 1,
        "builds": [build],
        **changes,
    }
    return {
        "position": 812,
        "events": [{"type": "issue_published"}],
        "changed": False,
        "dry_run": True,
        "preview": {"units": 20, "changed_units": 0, "changes": [], "issues": [matched]},
    }


def publish(cli: Cli, folder: Path, *flags: str, severity: str = "block") -> Any:
    file = folder / "issue.yaml"
    file.write_text(
        f"id: fi-9\ntitle: zeros\nseverity: {severity}\nmatch: {{flashinfer: [0.7.1]}}\n"
    )
    return cli(
        "issue", "publish", "-f", str(file), "--reason", "r", *flags, asked="n\n", terminal=True
    )


def test_publishing_says_what_it_matches_now(api: FakeApi, cli: Cli, tmp_path: Path) -> None:
    api.routes["POST /v1/commands"] = (200, looked())
    api.routes["GET /v1/units"] = (200, {"items": []})
    for err in (publish(cli, tmp_path).err, publish(cli, tmp_path, "--dry-run").err):
        assert "Units that fi-9 matches now: 7, of 1 builds." in err
        assert (
            "  7: SM 10.7, SGLang 0.5.23, FlashInfer 0.7.1, driver 580.95.05, key ab12: "
            "u-0, u-1, u-2, u-3, u-4, ..."
        ) in err
        assert "Units that did not report a field it names: 1: odd" in err
        assert "informs" not in err
    assert all(one["dry_run"] for one in api.commands)
    asked = json.loads(publish(cli, tmp_path, "--dry-run", "-o", "json").out)
    assert len(asked["preview"]["issues"][0]["unit_names"]) == 7


def test_an_issue_that_informs_is_not_said_to_stop_anything(
    api: FakeApi, cli: Cli, tmp_path: Path
) -> None:
    api.routes["POST /v1/commands"] = (200, looked(severity="info", unknown_units=0))
    api.routes["GET /v1/units"] = (200, {"items": []})
    err = publish(cli, tmp_path, severity="info").err
    assert "it is listed and stops nothing" in err
    assert "It informs: it stops nothing that it matches." in err
    assert "safe value" not in err
    assert "did not report" not in err


def test_many_builds_are_cut_short(api: FakeApi, cli: Cli, tmp_path: Path) -> None:
    one = looked()["preview"]["issues"][0]["builds"][0]
    many = [{**one, "kernel_key": f"k{n}"} for n in range(12)]
    api.routes["POST /v1/commands"] = (200, looked(matched_builds=12, builds=many))
    err = publish(cli, tmp_path, "--dry-run").err
    assert "key k7:" in err
    assert "key k8:" not in err
    assert "  and 4 more builds" in err
