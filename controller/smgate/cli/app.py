"""Owns the command line as a whole: the root, the nouns, and how a run ends.

Nouns are modules; importing one costs little, because what is heavy is imported where it is used.
"""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from smgate import client, clock as clocks
from smgate.cli import (
    alarms,
    breaker,
    builds,
    change,
    console as consoles,
    database,
    drains,
    exit_codes,
    failures,
    fleet,
    freezes,
    gates,
    issues,
    log,
    log_archive,
    memory,
    nodes,
    policy,
    rollouts,
    server,
    session as sessions,
    settings,
    simulate,
    tokens,
    topics,
    units,
    verbs,
    waits,
)

app = typer.Typer(
    name="smgate",
    help="Enable a GPU kernel backend on a fleet, unit by unit, on evidence; and say why.",
    epilog="See also: smgate help exit-codes",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _module in (
    nodes,
    fleet,
    units,
    builds,
    gates,
    policy,
    issues,
    rollouts,
    freezes,
    breaker,
    alarms,
    waits,
    drains,
    change,
    log,
    tokens,
    database,
    memory,
    simulate,
    topics,
):
    app.add_typer(_module.NOUN)
log_archive.register(log.NOUN)
server.register(app)
topics.register(app)


@app.callback(invoke_without_command=True)
def _root(
    ctx: typer.Context,
    *,
    version: Annotated[
        bool, typer.Option("--version", help="Print the version of this program.")
    ] = False,
    url: Annotated[
        str | None, typer.Option("--url", help="The controller. Every command takes it too.")
    ] = None,
    context: Annotated[
        str | None, typer.Option("--context", help="A context of config.toml.")
    ] = None,
    token_file: Annotated[
        str | None, typer.Option("--token-file", help="A file that holds the token.")
    ] = None,
    no_color: Annotated[bool, typer.Option("--no-color", help="No colour.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No notes beside the data.")] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show a traceback on an error.")] = False,
) -> int:
    edges = ctx.find_object(sessions.Edges)
    assert edges is not None, "the command line is run by run()"
    if version:
        edges.console.data(f"smgate {topics.version()}")
        raise typer.Exit(exit_codes.OK)
    given = {
        "url": url,
        "context": context,
        "token_file": token_file,
        "no_color": no_color,
        "quiet": quiet,
        "debug": debug,
    }
    verbs.apply_flags(edges, given)
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(exit_codes.USAGE)
    return exit_codes.OK


def run(
    arguments: Sequence[str],
    *,
    environ: Mapping[str, str],
    console: consoles.Console,
    clock: clocks.Clock,
) -> int:
    """Run one command line and return its exit code. Every failure is told, none escapes."""
    edges = sessions.Edges(environ=environ, console=console, clock=clock)
    console.json_errors = _wants_json(arguments)
    try:
        try:
            _check_text(arguments)
            if list(arguments) == ["--version"]:  # Asked by scripts all the time; needs no parser.
                console.data(f"smgate {topics.version()}")
                return exit_codes.OK
            code = typer.main.get_command(app).main(
                args=list(arguments), prog_name="smgate", standalone_mode=False, obj=edges
            )
            console.flush()
            return code if isinstance(code, int) else exit_codes.OK
        except Exception as error:  # noqa: BLE001  the last edge: a bug is told, not thrown
            if edges.debug:
                import traceback

                traceback.print_exc(file=console.err)
            return _tell(console, error)
    except BrokenPipeError:
        return exit_codes.BROKEN_PIPE
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _check_text(arguments: Sequence[str]) -> None:
    """Refuse what is no text: it could be neither sent nor stored."""
    for number, one in enumerate(arguments, start=1):
        try:
            one.encode()
        except UnicodeEncodeError as error:
            raise failures.usage(
                f"Argument {number} is no text in UTF-8.", hint="Type it again; look at the locale."
            ) from error


def _tell(console: consoles.Console, error: Exception) -> int:
    match error:
        case BrokenPipeError():
            raise error
        case failures.CliError():
            told = error
        case client.ApiError():
            told = failures.refused(error)
        case client.UnreachableError():
            told = failures.unreachable(error)
        case typer.TyperException():
            told = _usage(error)
        case typer.Abort():
            return exit_codes.INTERRUPTED
        case _:
            told = failures.CliError(
                f"smgate met a bug: {type(error).__name__}: {error}",
                code="bug",
                hint="Run it again with --debug and report what it prints.",
            )
    console.fail(told)
    return told.exit_code


def _usage(error: typer.TyperException) -> failures.CliError:
    command = getattr(getattr(error, "ctx", None), "command_path", "smgate")
    return failures.CliError(
        error.format_message(),
        exit_code=error.exit_code,
        code="usage",
        hint=f"{command} --help",
    )


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether errors of parsing itself go to a program."""
    shapes = ("json", "jsonl")
    for flag, value in itertools.pairwise([*arguments, ""]):
        if flag in ("-o", "--output") and value in shapes:
            return True
        if flag in {f"{name}{shape}" for name in ("-o", "--output=") for shape in shapes}:
            return True
    return False


def main() -> None:
    """Entry point of the `smgate` command."""
    environ = settings.environment()
    console = consoles.Console(environ)
    code = run(sys.argv[1:], environ=environ, console=console, clock=clocks.SystemClock())
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        code = exit_codes.BROKEN_PIPE
    if code == exit_codes.BROKEN_PIPE:
        # The interpreter flushes once more at its end; there must be something to flush to.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    sys.exit(code)
