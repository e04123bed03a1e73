"""Turns a plain function into a command: shared options, examples, settings, and a session.

`reads` verbs return what to show, `changes` verbs return what to send, `does` verbs do it themselves.
A function that needs the session takes it as its parameter `session`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, Final

import typer

from smgate.cli import (
    asks,
    changes as changing,
    durations,
    exit_codes,
    options,
    output,
    runner,
    session as sessions,
    settings,
)

Function = Callable[..., Any]
Decorator = Callable[[Function], Function]

CHANGES: Final[dict[str, str]] = {}
"""Command of the domain -> "noun verb" of the CLI. Filled while the nouns are imported."""
ALONE: Final[set[str]] = set()
"""Commands that one person may do alone for a time. Filled likewise."""


def noun(name: str, help_text: str) -> typer.Typer:
    """A group of verbs. Without a verb it prints its help, with the exit code of a usage error."""
    group = typer.Typer(name=name, help=help_text, rich_markup_mode=None, add_completion=False)
    group.callback(invoke_without_command=True)(_help_if_alone)
    return group


def reads(
    group: typer.Typer,
    verb: str,
    *,
    examples: Iterable[str],
    watch: bool = False,
) -> Decorator:
    """The function returns a Listing or an Item."""

    def execute(
        function: Function, session: sessions.Session, own: options.Given, shared: options.Given
    ) -> int:
        flags = asks.WatchFlags()
        if watch:
            flags = asks.WatchFlags(
                watch=shared["watch"],
                interval_s=shared["interval"],
                timeout_s=shared["timeout"],
            )
        described = function(**own)
        if isinstance(described, asks.Listing):
            return runner.show_listing(session, described, flags)
        return runner.show_item(session, described, flags)

    def decorate(function: Function) -> Function:
        parameters = (*options.RENDER, *(options.WATCH if watch else ()), *options.CONNECTION)
        _register(group, verb, function, parameters, execute, examples)
        return function

    return decorate


def changes(
    group: typer.Typer,
    verb: str,
    command: str,
    *,
    examples: Iterable[str],
    asks_first: bool = False,
    alone: bool = False,
) -> Decorator:
    """The function returns a Change; `alone`: one person may do it for a time."""

    def execute(
        function: Function, session: sessions.Session, own: options.Given, shared: options.Given
    ) -> int:
        flags = asks.ChangeFlags(
            reason=shared["reason"],
            dry_run=shared["dry_run"],
            yes=shared["yes"],
            at_position=shared["at_position"],
            idempotency_key=shared["idempotency_key"],
            break_glass_s=durations.seconds(shared.get("break_glass_for"), "--break-glass-for"),
        )
        return changing.change(session, command, function(**own), flags, asks_first=asks_first)

    def decorate(function: Function) -> Function:
        assert command not in CHANGES, f"{command} has two verbs"
        CHANGES[command] = f"{group.info.name} {verb}"
        if alone:
            ALONE.add(command)
        parameters = (
            *options.CHANGE,
            *(options.ALONE if alone else ()),
            *options.RENDER,
            *options.CONNECTION,
        )
        _register(group, verb, function, parameters, execute, examples)
        return function

    return decorate


def does(
    group: typer.Typer,
    verb: str,
    *,
    examples: Iterable[str],
    remote: bool = True,
    render: bool = True,
) -> Decorator:
    """The function returns an exit code, or None for 0."""

    def execute(
        function: Function, _session: sessions.Session, own: options.Given, _shared: options.Given
    ) -> int:
        code = function(**own)
        return exit_codes.OK if code is None else int(code)

    def decorate(function: Function) -> Function:
        connection = options.CONNECTION if remote else options.LOCAL
        parameters = (*(options.RENDER if render else ()), *connection)
        _register(group, verb, function, parameters, execute, examples)
        return function

    return decorate


Execute = Callable[[Function, sessions.Session, options.Given, options.Given], int]


def _register(
    group: typer.Typer,
    verb: str,
    function: Function,
    shared: tuple[inspect.Parameter, ...],
    execute: Execute,
    examples: Iterable[str],
) -> None:
    taken = inspect.signature(function, eval_str=True).parameters
    own = [
        one.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, one in taken.items()
        if name != "session"
    ]

    def run(ctx: typer.Context, **given: Any) -> int:  # noqa: ANN401  what typer parsed
        edges = ctx.find_object(sessions.Edges)
        assert edges is not None, "the command line is run by app.run"
        mine: options.Given = {one.name: given.pop(one.name) for one in own}
        apply_flags(edges, given)
        session = sessions.Session(edges, _style(given))
        if "session" in taken:
            mine["session"] = session
        try:
            return execute(function, session, mine, given)
        except BrokenPipeError as error:  # Here, because typer makes it an exit code of its own.
            raise typer.Exit(exit_codes.BROKEN_PIPE) from error
        finally:
            session.close()

    first = inspect.Parameter(
        "ctx", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context
    )
    signature = inspect.Signature([first, *own, *shared])
    run.__signature__ = signature  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in signature.parameters.values()}
    run.__name__ = function.__name__
    run.__doc__ = function.__doc__
    lines = "\n".join(f"  {example}" for example in examples)
    group.command(verb, epilog=f"\b\nExamples:\n{lines}")(run)


def _style(given: options.Given) -> output.Style:
    return output.Style(
        format=given.get("output", "table"), headers=not given.get("no_headers", False)
    )


def apply_flags(edges: sessions.Edges, given: options.Given) -> None:
    """Flags before the noun and behind the verb mean the same; the later ones win."""
    flags = settings.Connection(
        url=given.get("url"),
        context=given.get("context"),
        token_file=given.get("token_file"),
        request_timeout_s=given.get("request_timeout"),
    )
    edges.connection = flags.over(edges.connection)
    edges.debug = edges.debug or bool(given.get("debug"))
    console = edges.console
    console.quiet = console.quiet or bool(given.get("quiet"))
    console.no_color = console.no_color or bool(given.get("no_color"))
    if "output" in given:
        console.json_errors = given["output"] in ("json", "jsonl")


def _help_if_alone(ctx: typer.Context) -> int:
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help())
        raise typer.Exit(exit_codes.USAGE)
    return exit_codes.OK
