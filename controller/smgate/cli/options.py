"""Owns the options that many commands share, so that they are spelled and mean the same everywhere."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Final

import typer

from smgate.cli import output

WATCH_INTERVAL_S: Final = 2.0
At = Annotated[
    str | None,
    typer.Option("--at", help="A log position or an ISO time: what was known then."),
]
Since = Annotated[
    str | None, typer.Option("--since", help="From this log position or ISO time on.")
]
Newest = Annotated[
    int, typer.Option("--limit", min=1, max=1000, help="At most so many, the newest.")
]


def _parameter(name: str, annotation: object, default: object) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
    )


CONNECTION: Final = (
    _parameter(
        "url",
        Annotated[
            str | None,
            typer.Option("--url", help="The controller. Else SMGATE_URL, the context, this host."),
        ],
        None,
    ),
    _parameter(
        "context",
        Annotated[
            str | None,
            typer.Option("--context", help="A context of config.toml. Else SMGATE_CONTEXT."),
        ],
        None,
    ),
    _parameter(
        "token_file",
        Annotated[
            str | None,
            typer.Option(
                "--token-file",
                help="A file that holds the token, - for standard input. "
                "Else SMGATE_TOKEN, SMGATE_TOKEN_FILE, the context's.",
            ),
        ],
        None,
    ),
    _parameter(
        "request_timeout",
        Annotated[
            float | None,
            typer.Option("--request-timeout", min=0.1, help="Seconds for one answer; 30."),
        ],
        None,
    ),
    _parameter(
        "no_color",
        Annotated[bool, typer.Option("--no-color", help="No colour, as NO_COLOR=1.")],
        False,
    ),
    _parameter(
        "quiet",
        Annotated[bool, typer.Option("--quiet", "-q", help="No notes beside the data.")],
        False,
    ),
    _parameter(
        "debug",
        Annotated[bool, typer.Option("--debug", help="Show a traceback on an error.")],
        False,
    ),
)

LOCAL: Final = CONNECTION[-3:]
"""For commands that talk to no controller."""

RENDER: Final = (
    _parameter(
        "output",
        Annotated[output.OutputFormat, typer.Option("--output", "-o", help="Shape of the output.")],
        "table",
    ),
    _parameter(
        "no_headers",
        Annotated[bool, typer.Option("--no-headers", help="No header line in tables.")],
        False,
    ),
)

WATCH: Final = (
    _parameter(
        "watch",
        Annotated[
            bool,
            typer.Option(
                "--watch", "-w", help="Go on: redraw on a terminal, else a line per change."
            ),
        ],
        False,
    ),
    _parameter(
        "interval",
        Annotated[
            float, typer.Option("--interval", min=0.1, help="Seconds between looks of --watch.")
        ],
        WATCH_INTERVAL_S,
    ),
    _parameter(
        "timeout",
        Annotated[
            float | None,
            typer.Option("--timeout", min=0.1, help="Seconds after which --watch gives up (7)."),
        ],
        None,
    ),
)

CHANGE: Final = (
    _parameter(
        "reason",
        Annotated[str, typer.Option("--reason", help="Why. It is kept in the log for good.")],
        inspect.Parameter.empty,
    ),
    _parameter(
        "dry_run",
        Annotated[
            bool, typer.Option("--dry-run", help="Let the controller check it; write nothing.")
        ],
        False,
    ),
    _parameter("yes", Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")], False),
    _parameter(
        "at_position",
        Annotated[
            int | None,
            typer.Option(
                "--at-position", min=0, help="Refuse (5) if the world moved past this position."
            ),
        ],
        None,
    ),
    _parameter(
        "idempotency_key",
        Annotated[
            str | None,
            typer.Option("--idempotency-key", help="Repeat an earlier command: it is stored once."),
        ],
        None,
    ),
)

ALONE: Final = (
    _parameter(
        "break_glass_for",
        Annotated[
            str | None,
            typer.Option(
                "--break-glass-for",
                metavar="DURATION",
                help="Do it alone, at once, for so long (30m, 4h); it is undone if nobody else "
                "accepts it. Needs the role approver.",
            ),
        ],
        None,
    ),
)
"""Of what widens and can be undone."""

Given = dict[str, Any]
