"""Owns `log archive` on a database itself."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

from smgate import clock as clocks
from smgate.cli import failures, offline


def archive(
    url: str,
    *,
    clock: clocks.Clock,
    to: pathlib.Path,
    keep_days: float,
    before: int | None,
    dry_run: bool,
) -> dict[str, Any]:
    """What went to the archive, or would."""
    if not to.is_dir():
        raise failures.usage(f"{to} is no folder.", hint="Make it; it stays as long as the log.")
    with offline.told(url):
        from smgate.log import archive as files, open as log_open
        from smgate.service import cut

        offline.check_fit(url)
        store = log_open.open_sql_store(url, clock_us=clock.now_us)
        try:
            through = cut.limit(store, before=before, keep_days=keep_days, now_us=clock.now_us())
            head = store.head()
            made = cut.Cut(
                floor_before=head.floor_position,
                floor=max(head.floor_position, through),
                head=head.position,
                files=(),
            )
            if not dry_run:
                made = cut.cut(store, to, through=through)
            unlisted = files.unlisted(to, store.segments())
        except OSError as error:
            raise failures.CliError(
                "A file of the archive cannot be written.",
                code="io",
                cause=str(error),
                hint="Nothing was deleted. Make room, or name another folder, and try again.",
            ) from error
        finally:
            store.close()
    told = {"apiVersion": "v1", **dataclasses.asdict(made), "dry_run": dry_run}
    return told | {"unlisted": list(unlisted)}
