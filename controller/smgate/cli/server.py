"""`smgate serve`: the controller."""

from __future__ import annotations

from typing import Annotated

import typer

from smgate import config
from smgate.cli import exit_codes, failures, offline, session as sessions, verbs

NewSigningKey = Annotated[
    bool | None,
    typer.Option(
        "--new-signing-key",
        help="Start although the nodes pinned another key; each must enrol again.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the verb that has no noun."""

    @verbs.does(
        app,
        "serve",
        remote=False,
        render=False,
        examples=[
            "smgate serve --database sqlite:////var/lib/smgate/smgate.db",
            "smgate serve --database postgresql://smgate@db/smgate --listen 0.0.0.0:8470 "
            "--signing-key /etc/smgate/signing.key",
        ],
    )
    def serve(
        session: sessions.Session,
        database: Annotated[
            str | None,
            typer.Option("--database", help="sqlite:///PATH or postgresql://... "),
        ] = None,
        listen: Annotated[
            str | None, typer.Option("--listen", help="HOST:PORT; port 0 takes a free one.")
        ] = None,
        signing_key: Annotated[
            str | None,
            typer.Option("--signing-key", help="Ed25519 key of the directives, mode 0600."),
        ] = None,
        new_signing_key: NewSigningKey = None,
    ) -> int:
        """Run a controller until SIGTERM. Prints its address once it answers.

        Every setting may come from the environment: SMGATE_DATABASE_URL, SMGATE_HOST, SMGATE_PORT,
        SMGATE_SIGNING_KEY_FILE and the others of `smgate.config`.
        """
        host, port = (None, None) if listen is None else _address(listen)
        settings = load(
            session,
            database_url=database,
            host=host,
            port=port,
            signing_key_file=signing_key,
            new_signing_key=new_signing_key,
        )
        with offline.told(settings.database_url):
            from smgate import bootstrap

            def ready(url: str) -> None:
                session.console.data(url)
                session.console.flush()

            try:
                bootstrap.serve(settings, on_ready=ready)
            except bootstrap.CannotServeError as error:
                raise failures.CliError(str(error), code="cannot_serve") from error
        return exit_codes.OK


def load(session: sessions.Session, **flags: object) -> config.Settings:
    """The controller's settings, as `smgate.config` reads them."""
    try:
        return config.load(session.environ, **flags)
    except config.BadSettingError as error:
        raise failures.usage(str(error), code="bad_setting") from error


def _address(text: str) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isascii() and port.isdigit()) or int(port) > 65535:  # noqa: PLR2004
        raise failures.usage(
            f"--listen {text!r} is not HOST:PORT.", hint="For example: --listen 127.0.0.1:8470"
        )
    return host.strip("[]"), int(port)
