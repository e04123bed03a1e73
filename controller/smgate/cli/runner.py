"""Does what a verb described: fetch and print. Changes are in `changes`."""

from __future__ import annotations

import dataclasses

from smgate import client
from smgate.cli import asks, exit_codes, failures, output, session as sessions, suggest, watching


def show_listing(session: sessions.Session, listing: asks.Listing, flags: asks.WatchFlags) -> int:
    """Print a list, once or again and again."""

    def look() -> client.Answer:
        answer = session.client.get(listing.path, listing.parameters)
        if listing.where is not None:
            kept = [row for row in output.items_of(answer.body) if listing.where(row)]
            answer = dataclasses.replace(answer, body={**answer.body, "items": kept})
        return answer if listing.only is None else _only(answer, listing.table, listing.only)

    def draw(answer: client.Answer) -> None:
        output.listing(
            session.console,
            answer.body,
            listing.table,
            session.style,
            footer=output.according_to(answer.body, answer.date),
        )
        if listing.notes is not None and session.style.human:
            for line in listing.notes(answer.body):
                session.console.note(line)

    if flags.watch:
        return watching.watch(
            session, flags, look=look, rows_of=output.items_of, table=listing.table, draw=draw
        )
    draw(look())
    return exit_codes.OK


def show_item(session: sessions.Session, item: asks.Item, flags: asks.WatchFlags) -> int:
    """Print one thing, once or again and again."""

    def look() -> client.Answer:
        try:
            return session.client.get(item.path, item.parameters)
        except client.ApiError as error:
            raise with_suggestion(session, error, kind=item.kind, name=item.name) from error

    wide = session.style.format == "wide" and item.wide_lines is not None

    def draw(answer: client.Answer) -> None:
        output.single(
            session.console,
            answer.body,
            name=item.name,
            style=session.style,
            footer=output.according_to(answer.body, answer.date),
            lines=item.wide_lines if wide else item.lines,
        )

    if flags.watch:
        assert item.table is not None, "a verb that can watch says how one line looks"
        return watching.watch(
            session,
            flags,
            look=look,
            rows_of=lambda body: [body],
            table=item.table,
            draw=draw,
            ended=item.ended,
        )
    draw(look())
    return exit_codes.OK


def _only(answer: client.Answer, table: output.Table, name: str) -> client.Answer:
    rows = output.items_of(answer.body)
    kept = [row for row in rows if table.name_of(row) == name]
    if not kept:
        raise failures.CliError(
            f"There is no {name!r} among the {table.noun}.",
            exit_code=exit_codes.NOT_FOUND,
            code="not_found",
            hint=suggest.near(name, [table.name_of(row) for row in rows]),
        )
    return dataclasses.replace(answer, body={**answer.body, "items": kept})


def with_suggestion(
    session: sessions.Session, error: client.ApiError, *, kind: str | None, name: str
) -> failures.CliError:
    """The refusal; for an unknown name, with what was probably meant."""
    told = failures.refused(error)
    named = told.exit_code == exit_codes.NOT_FOUND and error.code != "unknown_position"
    if named and kind in suggest.LISTS:
        told.hint = suggest.not_found(session.client, error, kind, name)
    return told
