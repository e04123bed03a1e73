"""Owns what a person can do about a database that cannot be used, by the reason."""

from __future__ import annotations

from typing import Final

NEXT_STEPS: Final = {
    "connection": "Check the URL (--database, SMGATE_DATABASE_URL), the server and how many connections "
    "it allows; for a new SQLite file, run `smgate db upgrade`.",
    "timeout": "Try again; if it stays so, look for long transactions in the database.",
    "busy": "Try again; if it stays so, look for another process that holds the database.",
    "disk_full": "Make room where the database lies; what was acknowledged is safe.",
    "read_only": "Make the file and its folder writable for this user, or use the primary server.",
    "io": "Check the path, its folder and the disk.",
    "corrupt": "Check the path; if it is right, restore the database from a backup.",
    "forbidden": "Connect as the user that owns the database; or have its owner give: "
    "GRANT CREATE, USAGE ON SCHEMA public TO that user.",
    "encoding": "Create the database anew with ENCODING 'UTF8'.",
    "server_too_old": "Use a newer server.",
    "no_schema": "Create the schema that the user's search_path names, or name one that is there.",
    "occupied": "Give smgate a database of its own, or a schema of its own that comes first in the "
    "user's search_path.",
}


def of(reason: str) -> str:
    """The next step."""
    return NEXT_STEPS.get(reason, "Check the URL and the server.")
