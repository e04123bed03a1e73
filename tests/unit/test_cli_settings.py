"""Where settings come from, what is sent to whom, and how output is coloured."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests import cli_fakes
from tests.cli_fakes import Cli, FakeApi

from smgate.cli import console as consoles, failures, settings

Given = settings.Connection


def resolve(given: Given, environ: dict[str, str], asked: str = "") -> settings.Settings:
    return settings.resolve(given, environ, asked=io.StringIO(asked))


@pytest.fixture
def home(tmp_path: Path) -> dict[str, str]:
    folder = tmp_path / "smgate"
    folder.mkdir()
    for name in ("production", "staging"):
        file = folder / f"{name}.token"
        file.write_text(f"smgo_{name}\n")
        file.chmod(0o600)
    (folder / "config.toml").write_text(
        f"""
        current = "production"
        [contexts.production]
        url = "https://production.example"
        token_file = "{folder}/production.token"
        [contexts.staging]
        url = "https://staging.example"
        token_file = "{folder}/staging.token"
        """
    )
    return {"XDG_CONFIG_HOME": str(tmp_path)}


def test_flag_wins_over_environment_over_context_over_default(home: dict[str, str]) -> None:
    assert resolve(Given(), {"HOME": "/nonexistent"}).url == settings.DEFAULT_URL
    assert resolve(Given(), home).url == "https://production.example"
    assert resolve(Given(), home).where == "https://production.example (context production)"
    assert resolve(Given(), home | {"SMGATE_CONTEXT": "staging"}).context == "staging"
    both = home | {"SMGATE_URL": "https://environment.example"}
    assert resolve(Given(), both).url == "https://environment.example"
    assert resolve(Given(url="https://flag.example"), both).url == "https://flag.example"


def test_a_token_comes_by_file_environment_or_context(home: dict[str, str], tmp_path: Path) -> None:
    assert resolve(Given(), home).token == "smgo_production"
    assert resolve(Given(context="staging"), home).token == "smgo_staging"
    environ = home | {"SMGATE_TOKEN_FILE": str(tmp_path / "smgate/staging.token")}
    assert resolve(Given(), environ).token == "smgo_staging"
    assert resolve(Given(), environ | {"SMGATE_TOKEN": "smgo_e"}).token == "smgo_e"
    assert resolve(Given(token_file="-"), environ, asked="smgo_in\n").token == "smgo_in"


def test_a_contexts_token_goes_to_its_own_controller_only(home: dict[str, str]) -> None:
    assert resolve(Given(url="https://elsewhere.example"), home).token is None
    assert resolve(Given(), home | {"SMGATE_URL": "https://elsewhere.example"}).token is None


def test_a_token_that_others_can_read_or_that_is_sent_in_the_clear_is_warned_of(
    home: dict[str, str], tmp_path: Path
) -> None:
    assert resolve(Given(), home).warnings == ()
    (tmp_path / "smgate/production.token").chmod(0o644)
    assert "chmod 600" in resolve(Given(), home).warnings[0]
    clear = {"SMGATE_TOKEN": "t", "SMGATE_URL": "http://far.example", "HOME": "/nonexistent"}
    assert "unencrypted" in resolve(Given(), clear).warnings[0]
    near = clear | {"SMGATE_URL": "http://127.0.0.1:1"}
    assert resolve(Given(), near).warnings == ()


def test_the_token_is_in_no_printed_form_of_the_settings(home: dict[str, str]) -> None:
    assert "smgo_production" not in repr(resolve(Given(), home))


@pytest.mark.parametrize(
    "text",
    [
        "current = [",
        'current = "nowhere"',
        '[contexts.production]\ntoken = "smgo_inline"',
        "contexts = 3",
    ],
)
def test_a_config_that_does_not_fit_is_usage(tmp_path: Path, text: str) -> None:
    (tmp_path / "smgate").mkdir()
    (tmp_path / "smgate/config.toml").write_text(text)
    environ = {"XDG_CONFIG_HOME": str(tmp_path), "SMGATE_CONTEXT": "production"}
    with pytest.raises(failures.CliError) as caught:
        resolve(Given(), environ)
    assert caught.value.exit_code == 2
    assert "smgo_inline" not in caught.value.what


def test_a_token_file_without_a_token_is_usage(tmp_path: Path) -> None:
    file = tmp_path / "token"
    for text in ("", "two words", "two\nlines"):
        file.write_text(text)
        with pytest.raises(failures.CliError):
            resolve(Given(token_file=str(file)), {"HOME": "/nonexistent"})
    with pytest.raises(failures.CliError):
        resolve(Given(token_file=str(tmp_path / "none")), {"HOME": "/nonexistent"})


@pytest.fixture
def api() -> Iterator[FakeApi]:
    with cli_fakes.serving() as served:
        served.routes["GET /v1/alarms"] = cli_fakes.listed()
        yield served


def test_the_token_is_sent_and_never_printed(api: FakeApi) -> None:
    cli = Cli(api.url)
    cli.environ["SMGATE_TOKEN"] = "smgo_secret"
    result = cli("alarm", "ls")
    assert api.requests[0].headers["authorization"] == "Bearer smgo_secret"
    api.routes["GET /v1/alarms"] = cli_fakes.refusal(401, "token_unknown", "Nobody has it.")
    refused = cli("alarm", "ls", "--debug")
    assert "Traceback" in refused.err
    assert "smgo_secret" not in result.out + result.err + refused.out + refused.err


def test_flags_mean_the_same_before_the_noun_and_behind_the_verb(api: FakeApi) -> None:
    cli = Cli("http://127.0.0.1:9")
    assert cli("--url", api.url, "alarm", "ls").code == 0
    assert cli("alarm", "ls", "--url", api.url).code == 0
    assert cli("--url", "http://127.0.0.1:9", "alarm", "ls", "--url", api.url).code == 0


@pytest.mark.parametrize("url", ["ftp://a", "nonsense", "http://", "http://[::1"])
def test_an_address_that_is_none_is_told(url: str) -> None:
    result = Cli(url)("alarm", "ls")
    assert result.code == 7
    assert "Traceback" not in result.err


@pytest.mark.parametrize(
    ("environ", "terminal", "colored"),
    [
        ({}, False, False),
        ({"TERM": "xterm"}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"TERM": "xterm", "NO_COLOR": "1"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, False, False),
        ({"CLICOLOR_FORCE": "0"}, False, False),
    ],
)
def test_colour_follows_the_terminal_and_the_conventions(
    environ: dict[str, str], terminal: bool, colored: bool
) -> None:
    stream = io.StringIO()
    console = consoles.Console(environ, out=stream, err=stream, asked=stream, terminal=terminal)
    assert ("\x1b" in console.styled("x", consoles.RED, stream=stream)) is colored
    console.no_color = True
    assert console.styled("x", consoles.RED, stream=stream) == "x"
