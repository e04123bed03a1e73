"""`smgate serve`: the controller."""

from __future__ import annotations

import typer


def register(app: typer.Typer) -> None:
    """Add the verb that has no noun."""
