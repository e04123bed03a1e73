"""Every command that a page tells people to run exists."""

from __future__ import annotations

import pathlib
import re

import pytest
import typer.main
from tests.tidy import checks
from typer import core

from smgate.cli import app
from smgate_agent import cli as agent_cli

SPANS = re.compile(r"```.*?```|`[^`\n]+`", re.DOTALL)
COMMAND = re.compile(r"\bsmgate ([a-z]+)(?: ([a-z][a-z-]*))?")
AGENT_COMMAND = re.compile(r"\bsmgate-agent ([a-z]+)")


def unknown_commands(text: str) -> list[str]:
    """What a page names in code and neither command line knows."""
    root = typer.main.get_command(app.app)
    assert isinstance(root, core.TyperGroup)
    agent = agent_cli._parser().format_help()
    found = []
    for span in SPANS.findall(text):
        for noun, verb in COMMAND.findall(span):
            group = root.commands.get(noun)
            if group is None:
                found.append(f"smgate {noun}")
            elif isinstance(group, core.TyperGroup) and verb not in group.commands:
                found.append(f"smgate {noun} {verb}".rstrip())
        found += [
            f"smgate-agent {verb}"
            for verb in AGENT_COMMAND.findall(span)
            if not re.search(rf"^\s+{verb}\s", agent, re.MULTILINE)
        ]
    return found


@pytest.mark.parametrize("path", checks.files(".md"), ids=str)
def test_every_command_that_a_page_names_exists(path: pathlib.Path) -> None:
    assert unknown_commands((checks.ROOT / path).read_text()) == []


def test_a_command_that_does_not_exist_is_found() -> None:
    page = "`smgate unit why U`, `smgate unit wy U`, smgate nothing, `smgate nothing`,\n"
    page += "```\nsmgate-agent status\nsmgate-agent stats\n```\n"
    assert unknown_commands(page) == ["smgate unit wy", "smgate nothing", "smgate-agent stats"]
