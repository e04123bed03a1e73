"""Owns `log verify` on a database itself: worker processes, the progress file, heads that were kept."""

from __future__ import annotations

import pathlib
import sys
from typing import TYPE_CHECKING, Any

from smgate.cli import failures, offline

if TYPE_CHECKING:
    from smgate.log import verify as verifying, walk


def verify(
    url: str,
    *,
    kept: str | None = None,
    against: str | None = None,
    workers: int | None = None,
    progress: pathlib.Path | None = None,
    archive: pathlib.Path | None = None,
) -> dict[str, Any]:
    """The report of `log verify`, as the API gives it; with `against`, line by line what agrees."""
    with offline.told(url):
        from smgate.log import archived, open as log_open, verify as verifying, verify_workers

        heads = [_head(kept)] if kept is not None else []
        from_file, without = ([], 0) if against is None else _read(against)
        heads += from_file
        store = log_open.open_store(url, clock_us=lambda: 0, read_only=True)
        try:
            past = archived.ArchivedLog(store, folder=archive, highest={})
            resumed = None if progress is None else _resume(past, progress, heads)
            watched = frozenset(one.position for one in heads)
            walker = verify_workers.walker(url, store, workers=workers or verify_workers.cores())
            report = verifying.verified(
                store,
                lambda: archived.walked(store, past, watched, resumed),
                kept=heads,
                stretch=verify_workers.STRETCH,
                walker=walker,
                reached=lambda walked: _save(progress, walked),
            )
        finally:
            store.close()
    if progress is not None and report.ok:
        progress.unlink(missing_ok=True)
    told = {"apiVersion": "v1"} | verifying.row(report)
    if resumed is not None:
        told["resumed_from"] = resumed.place.position
    if against is not None:
        told["against"] = [_compared(one) for one in report.against if one.kept.line is not None]
        told["lines_without_a_head"] = without
    return told


def _resume(
    store: walk.Rows, path: pathlib.Path, heads: list[verifying.Kept]
) -> walk.Walked | None:
    from smgate.log import verify_progress

    try:
        place = verify_progress.load(path)
    except verify_progress.UnreadableError as error:
        raise failures.usage(
            f"{path} is no file of a verification that was stopped.",
            cause=str(error),
            hint="Name another file, or remove it to begin anew.",
        ) from error
    if place is None:
        return None
    watched = frozenset(one.position for one in heads)
    begun = verify_progress.resume(store, place, watched)
    if begun is None:
        heads.append(verify_progress.kept(place))
    return begun


def _save(path: pathlib.Path | None, walked: walk.Walked) -> None:
    from smgate.log import verify_progress

    if path is None:
        return
    try:
        verify_progress.save(path, walked)
    except OSError as error:
        raise failures.CliError(
            f"Cannot write {path}.", code="io", cause=str(error), hint="Name another --progress."
        ) from error


def _head(text: str) -> verifying.Kept:
    from smgate.log import kept

    found, _ = kept.read([text])
    if len(found) != 1:
        raise failures.usage(
            f"--kept {text!r} is not POSITION:CHAIN.", hint="As `smgate log verify` printed it."
        )
    return kept.Kept(position=found[0].position, chain=found[0].chain)


def _read(name: str) -> tuple[list[verifying.Kept], int]:
    from smgate.log import kept

    try:
        lines = sys.stdin if name == "-" else pathlib.Path(name).read_text("utf-8").splitlines()
        found, without = kept.read(lines)
    except (OSError, UnicodeDecodeError) as error:
        raise failures.usage(f"Cannot read {name}.", cause=str(error)) from error
    if not found:
        raise failures.usage(
            f"No line of {name} holds a head of the log.",
            hint='Lines like POSITION:CHAIN, or JSON with "position" and "chain".',
        )
    return found, without


def _compared(one: verifying.Compared) -> dict[str, Any]:
    return {
        "line": one.kept.line,
        "position": one.kept.position,
        "agrees": one.agrees,
        "kind": None if one.kind is None else str(one.kind),
        "sentence": one.sentence,
    }
