"""The command line against a real controller in its own process: two people, one node, one log."""

from __future__ import annotations

import dataclasses
import json
import pathlib
import time
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest
import yaml
from tests import cli_fakes, controller_bench, controller_process

from smgate.cli import exit_codes

GATE = controller_bench.GATE
WAIT_S = 30.0

PLAN = {
    "id": "k3-107-a",
    "gate": GATE,
    "sm": "10.7",
    "waves": [{"count": 1}, {"percent": 100}],
    "bake_s": 60,
}


@dataclasses.dataclass
class Site:
    """A controller and what its people need."""

    url: str
    database_url: str
    folder: pathlib.Path

    def person(self, name: str, role: str) -> cli_fakes.Cli:
        """A person with a token of their own, made as the first one is: in the database."""
        offline = cli_fakes.Cli(None)
        made = offline(
            *("token", "issue", "--role", role, "--name", name, "--database", self.database_url)
        )
        assert made.code == 0, made.err
        file = self.folder / f"{name}.token"
        file.touch(mode=0o600)
        file.write_text(made.out)
        cli = cli_fakes.Cli(self.url)
        cli.environ["SMGATE_TOKEN_FILE"] = str(file)
        return cli

    def write(self, name: str, content: object) -> str:
        file = self.folder / name
        file.write_text(yaml.safe_dump(content))
        return str(file)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    url = f"sqlite:///{folder / 'smgate.db'}"
    with controller_process.serving(url, folder) as controller:
        yield Site(url=controller.url, database_url=url, folder=folder)
        assert controller.stop() == 0


@pytest.fixture(scope="module")
def alice(site: Site) -> cli_fakes.Cli:
    return site.person("alice", "approver")


@pytest.fixture(scope="module")
def bob(site: Site) -> cli_fakes.Cli:
    return site.person("bob", "approver")


def accepted(bob: cli_fakes.Cli, asked: cli_fakes.Result) -> None:
    """Another person accepts what was asked, by the line that said how."""
    assert asked.code == exit_codes.WAITING, asked.err
    command = asked.err.partition("another person: smgate ")[2].split()
    done = bob(*command, "--reason", "looked", "--yes")
    assert done.code == 0, done.err


@pytest.fixture(scope="module")
def unit(site: Site, alice: cli_fakes.Cli) -> str:
    """A node enrols, starts a K3 server and serves it on the target; its unit."""
    join = cli_fakes.Cli(None)("token", "issue", "--join", "--database", site.database_url)
    headers = controller_bench.bearer(join.out.strip())
    with httpx2.Client(base_url=site.url, trust_env=False) as http:
        enrolled = http.post(
            "/v1/agent/enroll",
            headers=headers,
            json={"node": "gpu-1", "machine_id": "m-1", "agent_version": "1"},
        ).json()
        headers = controller_bench.bearer(enrolled["credential"])
        launch = controller_bench.launch("launch-1", node="gpu-1")
        answer = http.post(
            "/v1/agent/launch",
            headers=headers,
            json={"node": "gpu-1", "occurred_at_us": 1, "launch": launch},
        )
        assert answer.status_code == 200, answer.text
    rows = until(alice, lambda row: row["override"] is not None)
    return str(rows[0]["id"])


def until(cli: cli_fakes.Cli, holds: Any) -> list[dict[str, Any]]:
    """The units once the leader has done what is waited for."""
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        rows: list[dict[str, Any]] = json.loads(cli("unit", "ls", "-o", "json").out)["items"]
        if rows and all(holds(row) for row in rows):
            return rows
        time.sleep(0.1)
    raise AssertionError(f"not within {WAIT_S} s: {rows}")


def test_a_database_is_checked_made_and_checked_again(tmp_path: pathlib.Path) -> None:
    cli = cli_fakes.Cli(None)
    cli.environ["SMGATE_DATABASE_URL"] = f"sqlite:///{tmp_path / 'new.db'}"
    before = cli("db", "check")
    assert before.code == 1
    assert "smgate db upgrade" in before.err
    assert cli("db", "upgrade").code == 0
    assert cli("db", "upgrade").code == 0
    after = cli("db", "check", "-o", "json")
    assert (after.code, json.loads(after.out)["items"]) == (0, [])


def test_a_database_url_that_is_none_is_usage_and_hides_its_password() -> None:
    cli = cli_fakes.Cli(None)
    for url in ("mysql://u:secret@h/d", "nonsense"):
        for command in (("db", "check"), ("db", "upgrade"), ("log", "verify"), ("token", "ls")):
            result = cli(*command, "--database", url)
            assert result.code == 2, result.err
            assert "secret" not in result.err


def test_every_list_of_the_real_api_is_printed_in_every_shape(
    alice: cli_fakes.Cli, unit: str
) -> None:
    for command in (
        ("node", "ls"),
        ("unit", "ls"),
        ("build", "ls"),
        ("gate", "show"),
        ("issue", "ls"),
        ("rollout", "ls"),
        ("freeze", "ls"),
        ("alarm", "ls"),
        ("wait", "ls"),
        ("change", "ls"),
        ("log", "tail"),
    ):
        whole = json.loads(alice(*command, "-o", "json").out)
        assert yaml.safe_load(alice(*command, "-o", "yaml").out)["items"] is not None
        for shape in ("table", "wide", "jsonl", "name"):
            result = alice(*command, "-o", shape)
            assert result.code == 0, (command, result.err)
            assert "Traceback" not in result.err
            if whole["items"]:
                assert "-" not in alice(*command, "-o", "name").out.split(), command


def test_single_things_are_shown(alice: cli_fakes.Cli, unit: str) -> None:
    key = alice("build", "ls", "-o", "name").out.split()[0]
    for command in (
        ("node", "show", "gpu-1"),
        ("unit", "show", unit),
        ("build", "show", key),
        ("build", "why", key),
        ("policy", "show"),
        ("breaker", "show"),
        ("version",),
    ):
        assert alice(*command).code == 0, command
        assert isinstance(json.loads(alice(*command, "-o", "json").out), dict)


def test_why_says_code_facts_and_what_is_needed_now_and_then(
    alice: cli_fakes.Cli, unit: str
) -> None:
    now = alice("unit", "why", unit)
    assert now.code == 0
    assert "[observe]" in now.out
    assert "launch launch-1" in now.out
    assert "Left alone" in alice("unit", "why", unit, "--rules").out
    answer = json.loads(alice("unit", "why", unit, "-o", "json").out)
    assert answer["override"]["code"] == "observe"
    position = answer["as_of_position"]
    then = json.loads(alice("unit", "why", unit, "--at", str(position), "-o", "json").out)
    assert then["override"] == answer["override"]
    assert alice("unit", "why", unit, "--at", "1").code == 3
    assert alice("unit", "why", unit, "--at", "yesterday").code == 2
    wrong = alice("unit", "why", "gpu-2")
    assert wrong.code == 3


def test_a_rollout_goes_through_two_people_and_a_position(
    site: Site, alice: cli_fakes.Cli, bob: cli_fakes.Cli, unit: str
) -> None:
    plan = site.write("plan.yaml", PLAN)
    assert alice("rollout", "propose", "-f", plan, "--reason", "evidence").code == 0
    own = alice("rollout", "approve", "k3-107-a", "--reason", "mine")
    assert own.code == 5
    assert "another person" in own.err
    assert bob("rollout", "start", "k3-107-a", "--reason", "r", "--yes").code == 5
    assert bob("rollout", "approve", "k3-107-a", "--reason", "looked").code == 0

    looked = bob("rollout", "start", "k3-107-a", "--reason", "r", "--dry-run", "-o", "json")
    position = json.loads(looked.out)["position"]
    assert alice("freeze", "declare", "f-1", "--reason", "something happens").code == 0
    start = ("rollout", "start", "k3-107-a", "--reason", "r", "--yes", "--at-position")
    moved = bob(*start, str(position))
    assert moved.code == 5
    assert "something happened since" in moved.err
    looked = bob("rollout", "start", "k3-107-a", "--reason", "r", "--dry-run", "-o", "json")
    assert bob(*start, str(json.loads(looked.out)["position"])).code == 0

    why = bob("rollout", "why", "k3-107-a")
    assert "Freeze f-1: something happens" in why.out
    assert bob("rollout", "pause", "k3-107-a", "--reason", "r").code == 0
    accepted(alice, bob("rollout", "resume", "k3-107-a", "--reason", "r", "--yes"))
    assert "rollout k3-107-a | running" in bob("rollout", "get", "k3-107-a").out
    assert bob("rollout", "abort", "k3-107-a", "--reason", "r", "--yes").code == 0
    watched = bob("rollout", "get", "k3-107-a", "--watch")
    assert watched.code == 6
    accepted(alice, bob("freeze", "lift", "f-1", "--reason", "over", "--yes"))


def test_a_change_is_asked_shown_refused_to_who_asked_and_undone(
    site: Site, alice: cli_fakes.Cli, bob: cli_fakes.Cli, unit: str
) -> None:
    pin = ("unit", "pin", unit, "on", "--reason", "measured", "--yes")
    asked = json.loads(alice(*pin, "-o", "json").out)
    change = asked["waits"]["change"]
    assert "Units that would be decided anew:" in alice("change", "show", change).out
    own = alice("change", "accept", change, "--reason", "mine", "--yes")
    assert own.code == 5
    assert "another person" in own.err
    assert alice("change", "withdraw", change, "--reason", "not now").code == 0
    assert bob("change", "accept", change, "--reason", "r", "--yes").code == 5
    alone = alice(*pin, "--break-glass-for", "1h")
    assert alone.code == 0, alone.err
    assert "to keep it, another person: smgate change accept" in alone.err
    assert "break_glass" in alice("change", "ls").out
    [name] = alice("change", "ls", "-o", "name").out.split()
    assert "is unpinned" in alice("change", "show", name).out
    assert bob("change", "withdraw", name, "--reason", "it has been measured").code == 0
    assert until(alice, lambda row: row["pin"] is None)


def test_a_command_that_is_repeated_with_its_key_is_stored_once(
    alice: cli_fakes.Cli, bob: cli_fakes.Cli
) -> None:
    command = ("freeze", "declare", "f-2", "--reason", "r", "--idempotency-key", "k-2")
    first = json.loads(alice(*command, "-o", "json").out)
    again = alice(*command)
    assert again.code == 0
    assert f"at position {first['position']}; nothing was added" in again.err
    accepted(bob, alice("freeze", "lift", "f-2", "--reason", "r", "--yes"))


def test_the_numbers_before_the_question_come_from_the_controller(
    alice: cli_fakes.Cli, bob: cli_fakes.Cli, unit: str
) -> None:
    enforce = ("gate", "mode", GATE, "10.7", "enforce", "--reason", "r")
    asked = alice(*enforce, asked="n\n", terminal=True)
    assert asked.code == 1
    assert "Units that would be decided anew: 1 of 1." in asked.err
    assert "1: hands off (observe) -> marlin (no_rollout)" in asked.err
    assert json.loads(alice("gate", "show", "-o", "json").out)["items"][0]["modes"]["10.7"] == (
        "observe"
    )
    accepted(bob, alice(*enforce, asked="y\n", terminal=True))
    assert until(alice, lambda row: row["override"]["code"] == "no_rollout")
    assert alice("unit", "pin", unit, "off", "--reason", "r").code == 0
    assert until(alice, lambda row: row["override"]["code"] == "pinned_off")
    assert "pinned-off" in alice("unit", "ls").out
    accepted(bob, alice("unit", "unpin", unit, "--reason", "r"))


def test_release_says_what_sglang_would_choose(alice: cli_fakes.Cli, unit: str) -> None:
    asked = alice("unit", "release", unit, "--reason", "r", asked="n\n", terminal=True)
    assert asked.code == 1
    assert "SGLang would choose flashinfer_mxfp4 with a2a none." in asked.err


def test_what_is_shown_can_be_edited_and_published(
    site: Site, alice: cli_fakes.Cli, bob: cli_fakes.Cli, tmp_path: pathlib.Path
) -> None:
    shown = tmp_path / "policy.yaml"
    shown.write_text(alice("policy", "show", "-o", "yaml").out)
    unchanged = alice("policy", "publish", "-f", str(shown), "--reason", "r", "--yes")
    assert "Already so" in unchanged.err
    shown.write_text(shown.read_text().replace("min_gpu_sets: 3", "min_gpu_sets: 4"))
    asked = alice(
        "policy", "publish", "-f", str(shown), "--reason", "r", asked="y\n", terminal=True
    )
    accepted(bob, asked)
    assert "min_gpu_sets: 3 -> 4" in asked.err
    gates = yaml.safe_load(alice("gate", "show", GATE, "-o", "yaml").out)["items"]
    gate = site.write("gate.yaml", gates[0])
    again = alice("gate", "publish", "-f", gate, "--reason", "r", "--yes")
    assert "Already so" in again.err


def test_issues_and_builds_are_published(
    site: Site, alice: cli_fakes.Cli, bob: cli_fakes.Cli
) -> None:
    issue = {"id": "fi-1", "title": "zeros", "match": {"sm": ["10.7"], "flashinfer": ["0.6.17"]}}
    file = site.write("issue.yaml", issue)
    assert alice("issue", "publish", "-f", file, "--reason", "r", "--yes").code == 0
    assert "flashinfer=[0.6.17]" in alice("issue", "ls").out
    accepted(bob, alice("issue", "withdraw", "fi-1", "--reason", "r", "--yes"))
    assert alice("issue", "withdraw", "fi-1", "--reason", "r", "--yes").code == 3
    announce = ("build", "announce", "image-14", "--reason", "r")
    packages = [
        f"--package={name}={version}"
        for name, version in controller_bench.build().items()
        if name != "driver_version"
    ]
    assert alice(*announce, *packages).code == 0
    assert "announced: image-14" in alice("build", "ls").err
    unknown = alice(*announce, *packages, "--package", "numpy=2")
    assert unknown.code in (1, 3)
    assert "numpy" in unknown.err


def test_roles_and_tokens(site: Site, alice: cli_fakes.Cli) -> None:
    viewer = site.person("vera", "viewer")
    assert viewer("unit", "ls").code == 0
    assert viewer("freeze", "declare", "f", "--reason", "r").code == 4
    assert alice("token", "ls").code == 4
    assert cli_fakes.Cli(site.url)("unit", "ls").code == 4

    root = site.person("root", "admin")
    made = root("token", "issue", "--role", "viewer", "--name", "temp", "--ttl", "1h")
    assert made.out.startswith("smgo_")
    [row] = [
        one
        for one in json.loads(root("token", "ls", "-o", "json").out)["items"]
        if one["subject"] == "temp"
    ]
    assert made.out.strip() not in root("token", "ls", "-o", "json").out
    assert row["expires_at"] is not None
    assert root("token", "revoke", row["id"]).code == 0
    assert root("token", "revoke", "0" * 16).code == 3
    offline = cli_fakes.Cli(None)("token", "ls", "--database", site.database_url, "-o", "json")
    assert {one["id"] for one in json.loads(offline.out)["items"]} == {
        one["id"] for one in json.loads(root("token", "ls", "-o", "json").out)["items"]
    }


def test_the_log_verifies_here_there_and_against_a_head_that_was_kept(
    site: Site, alice: cli_fakes.Cli
) -> None:
    there = json.loads(alice("log", "verify", "-o", "json").out)
    assert there["ok"] is True
    kept = f"{there['position']}:{there['chain']}"
    offline = cli_fakes.Cli(None)
    here = offline("log", "verify", "--database", site.database_url, "--kept", kept)
    assert here.code == 0, here.err
    other = offline(
        "log", "verify", "--database", site.database_url, "--kept", f"2:{'00' * 32}", "-o", "json"
    )
    assert other.code == 1
    assert json.loads(other.out)["first_bad"]["kind"] == "rewritten"
    assert offline("log", "verify", "--database", site.database_url, "--kept", "x").code == 2


def test_what_cannot_be_served_is_told_without_a_traceback(
    site: Site, tmp_path: pathlib.Path
) -> None:
    cli = cli_fakes.Cli(None)
    taken = site.url.removeprefix("http://")
    database = f"sqlite:///{tmp_path / 'x.db'}"
    result = cli("serve", "--database", database, "--listen", taken)
    assert result.code == 1
    assert "Cannot listen" in result.err
    assert "Traceback" not in result.err
    for listen in ("8470", "host:", "host:x", "host:70000"):
        assert cli("serve", "--database", database, "--listen", listen).code == 2
    cli.environ["SMGATE_TICK_S"] = "often"
    assert cli("serve", "--database", database).code == 2
