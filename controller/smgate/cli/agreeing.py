"""Owns asking a person before something is done on a database that cannot be undone."""

from __future__ import annotations

from smgate.cli import failures, session as sessions


def agree(session: sessions.Session, sentence: str, *, hint: str = "Give --yes.") -> None:
    """Say what would be done and go on only with a yes.

    Raises:
        CliError: nobody can be asked, or nobody agreed.
    """
    console = session.console
    if not console.can_ask:
        raise failures.usage(
            "This needs a yes, and there is no terminal to ask on.", code="needs_yes", hint=hint
        )
    console.say(sentence)
    if console.ask("Go on? [y/N]").casefold() not in ("y", "yes"):
        raise failures.CliError("Not done: nobody agreed.", code="declined")
