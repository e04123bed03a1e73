"""The files that ship: promtool and amtool read them, every alert has its test and its runbook."""

from __future__ import annotations

import pathlib
import re
import subprocess
from typing import Any

import pytest
import yaml
from tests.prometheus import conftest

RULES = [
    rule
    for group in yaml.safe_load(conftest.RULES.read_text())["groups"]
    for rule in group["rules"]
]
NAMES = [rule["alert"] for rule in RULES]
RUNBOOKS = conftest.ROOT / "ops/runbooks"
SECTIONS = ["What it means", "How bad it is", "What to look at", "What to do", "What not to do"]


@pytest.mark.prometheus
@pytest.mark.parametrize(
    "command",
    [
        "promtool check rules smgate.rules.yml",
        "promtool test rules smgate.rules.test.yml",
        "promtool check config prometheus.example.yml",
        "amtool check-config alertmanager.example.yml",
    ],
)
def test_the_tools_accept_what_ships(programs: pathlib.Path, command: str) -> None:
    program, *arguments = command.split()
    done = subprocess.run(
        [str(programs / program), *arguments],
        cwd=conftest.SHIPPED,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.prometheus
@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_reaches_a_person_by_its_severity(
    programs: pathlib.Path, rule: dict[str, Any]
) -> None:
    labels = [f"{name}={value}" for name, value in rule["labels"].items()]
    routes = ["config", "routes", "test", "--config.file=alertmanager.example.yml"]
    done = subprocess.run(
        [str(programs / "amtool"), *routes, f"alertname={rule['alert']}", *labels],
        cwd=conftest.SHIPPED,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    wanted = "pages" if rule["labels"]["severity"] == "critical" else "tickets"
    assert (done.returncode, done.stdout.strip()) == (0, wanted), done.stderr


def test_the_route_of_a_memory_fallback_waits_for_nothing() -> None:
    config = yaml.safe_load((conftest.SHIPPED / "alertmanager.example.yml").read_text())
    [first, *_] = config["route"]["routes"]
    [matcher] = first["matchers"]
    pattern = re.fullmatch(r'alertname=~"(.+)"', matcher)
    assert pattern is not None
    fallbacks = [name for name in NAMES if "Fallback" in name]
    assert sorted(pattern[1].split("|")) == sorted(fallbacks)
    assert first["group_wait"] == "0s"


@pytest.mark.prometheus
def test_promtool_would_say_so_if_a_rule_did_not_fire(
    programs: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    """The histories in the rule test are able to fail."""
    rules = conftest.RULES.read_text()
    broken = rules.replace("smgate_breaker_open) > 0", "smgate_breaker_open) > 1")
    assert broken != rules
    (tmp_path / "smgate.rules.yml").write_text(broken)
    tests = "smgate.rules.test.yml"
    (tmp_path / tests).write_text((conftest.SHIPPED / tests).read_text())
    done = subprocess.run(
        [str(programs / "promtool"), "test", "rules", tests],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode != 0
    assert "SmgateBreakerOpen" in done.stdout + done.stderr


@pytest.mark.parametrize("rule", RULES, ids=NAMES)
def test_an_alert_says_what_it_is_how_bad_and_where_to_read_on(rule: dict[str, Any]) -> None:
    assert rule["labels"]["severity"] in ("critical", "warning")
    assert rule["labels"]["component"] in ("smgate", "smgate-agent")
    summary = rule["annotations"]["summary"]
    assert re.fullmatch(r"[A-Zs][^{}]*\.", summary), "one sentence, the same for a whole group"
    assert rule["annotations"]["description"].strip()
    assert rule["annotations"]["runbook_url"] == f"ops/runbooks/{rule['alert']}.md"


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_history_in_which_it_fires_and_one_in_which_it_does_not(name: str) -> None:
    document = yaml.safe_load((conftest.SHIPPED / "smgate.rules.test.yml").read_text())
    expected = [
        bool(check["exp_alerts"])
        for test in document["tests"]
        for check in test.get("alert_rule_test", ())
        if check["alertname"] == name
    ]
    assert set(expected) == {True, False}, expected


@pytest.mark.parametrize("name", NAMES)
def test_an_alert_has_a_runbook_with_every_section(name: str) -> None:
    page = (RUNBOOKS / f"{name}.md").read_text()
    assert page.startswith(f"# {name}\n")
    assert re.findall(r"^## (.+)$", page, re.MULTILINE) == SECTIONS
    assert "`smgate" in page, "a runbook names the commands to run"


def test_every_runbook_belongs_to_an_alert() -> None:
    pages = {path.stem for path in RUNBOOKS.glob("*.md")} - {"README"}
    assert pages == set(NAMES)
