"""`smgate help TOPIC` and `smgate version`."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from smgate import client
from smgate.cli import exit_codes, output, session as sessions, verbs

NOUN: Final = verbs.noun("help", "Topics: exit-codes, configuration.")

CONFIGURATION: Final = """\
Configuration of smgate

A flag wins over the environment, which wins over the context, which wins over the default.

  controller   --url, SMGATE_URL, the context's url, this machine
  context      --context, SMGATE_CONTEXT, `current` in the file
  token        --token-file, SMGATE_TOKEN, SMGATE_TOKEN_FILE, the context's token_file

Contexts are in $XDG_CONFIG_HOME/smgate/config.toml (~/.config/smgate/config.toml):

  current = "production"

  [contexts.production]
  url = "https://smgate.example.net"
  token_file = "~/.config/smgate/production.token"

A token is never an argument. A context's token is sent to the context's url and nowhere else.
Colour: only on a terminal; NO_COLOR, FORCE_COLOR and TERM=dumb are honoured.
"""


def version() -> str:
    """The version of this program."""
    import importlib.metadata

    try:
        return importlib.metadata.version("smgate")
    except importlib.metadata.PackageNotFoundError:
        return "unknown (not installed)"


@verbs.does(NOUN, "exit-codes", remote=False, render=False, examples=["smgate help exit-codes"])
def exit_codes_topic(session: sessions.Session) -> None:
    """What the exit status means."""
    session.console.data(exit_codes.HELP.rstrip("\n"))


@verbs.does(
    NOUN, "configuration", remote=False, render=False, examples=["smgate help configuration"]
)
def configuration_topic(session: sessions.Session) -> None:
    """Where settings come from."""
    session.console.data(CONFIGURATION.rstrip("\n"))


def register(app: typer.Typer) -> None:
    """Add the verbs that have no noun."""

    @verbs.does(app, "version", examples=["smgate version", "smgate version --client -o json"])
    def version_of_both(
        session: sessions.Session,
        only_client: Annotated[
            bool, typer.Option("--client", help="Do not ask the controller.")
        ] = False,
    ) -> int:
        """Print the version of this program and of the controller."""
        body: output.Row = {"client": version()}
        if not only_client:
            body["controller"] = session.client.get(client.path("version")).body
        output.single(session.console, body, name=body["client"], style=session.style, footer="")
        return exit_codes.OK
