"""Settings of the controller: read once, frozen, documented under each field.

Flags win over the environment (`SMGATE_` and the field's name in capitals), which wins over the
default.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields

PREFIX = "SMGATE_"

_TRUE = ("1", "true", "yes", "on")
_FALSE = ("0", "false", "no", "off")


class BadSettingError(ValueError):
    """A setting cannot mean anything; the text names it and says what it may be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything the controller can be told from outside."""

    database_url: str = "sqlite:///smgate.db"
    """sqlite:///PATH for one process on one machine, postgresql://... for production."""
    host: str = "127.0.0.1"
    """Address to listen on. TLS is a proxy's work; do not expose this port bare."""
    port: int = 8470
    """Port to listen on; 0 takes a free one, which the log line names."""
    signing_key_file: str | None = None
    """Ed25519 key of the directives, 64 hexadecimal digits, mode 0600. Nodes pin its public half at
    enrolment, so every process of one fleet needs the same. SQLite has a default beside the file."""
    new_signing_key: bool = False
    """Start although the nodes pinned another key: each must enrol again to hear this one."""
    lease_ttl_s: float = 5.0
    """How long a leader that died still blocks the next one."""
    tick_s: float = 0.25
    """How often the log is looked at for what other processes wrote. Facts that come in here wake
    the leader at once, so this bounds only what another process received."""
    contact_flush_s: float = 1.0
    """Heartbeats are kept in memory and written in one go this often."""
    wait_s_max: float = 60.0
    """Longest wait of a long-poll: proxies cut longer ones."""
    requests_per_minute_node: int = 1200
    """Requests of one node's credential per minute; more is answered with 429."""
    requests_per_minute_operator: int = 1200
    """Requests of one operator's token per minute."""
    requests_per_minute_unknown: int = 120
    """Requests without a valid token per minute and address: bounds guessing."""
    upgrade_sqlite: bool = True
    """Bring an SQLite file to the newest revision at start. PostgreSQL is upgraded by hand."""
    archive_dir: str | None = None
    """Where the files of the log's archive are, if not where `smgate log archive` wrote them."""
    log_level: str = "info"
    """debug, info, warning or error."""


def load(environ: Mapping[str, str] | None = None, **flags: object) -> Settings:
    """Settings from flags (None means not given), then the environment, then defaults.

    Raises:
        BadSettingError: a value is of the wrong kind or out of range.
    """
    given = os.environ if environ is None else environ
    known = {item.name for item in fields(Settings)}
    unknown = sorted(set(flags) - known)
    if unknown:
        raise BadSettingError(f"No setting is called {unknown[0]!r}.")
    values: dict[str, object] = {}
    for item in fields(Settings):
        flag = flags.get(item.name)
        text = given.get(PREFIX + item.name.upper())
        if flag is not None:
            values[item.name] = flag
        elif text is not None:
            values[item.name] = _parse(item.name, str(item.type), text)
    made = Settings(**values)  # type: ignore[arg-type]  # parsed by the field's own type
    _check(made)
    return made


def _parse(name: str, kind: str, text: str) -> object:
    try:
        if kind == "int":
            return int(text)
        if kind == "float":
            return float(text)
    except ValueError as error:
        raise BadSettingError(f"{PREFIX}{name.upper()} is {text!r}, not a number.") from error
    if kind == "bool":
        lowered = text.lower()
        if lowered not in _TRUE + _FALSE:
            raise BadSettingError(f"{PREFIX}{name.upper()} is {text!r}; say true or false.")
        return lowered in _TRUE
    return text


def _check(made: Settings) -> None:
    at_least = {
        "port": 0,
        "lease_ttl_s": 1,
        "tick_s": 0.01,
        "contact_flush_s": 0.05,
        "wait_s_max": 0,
        "requests_per_minute_node": 1,
        "requests_per_minute_operator": 1,
        "requests_per_minute_unknown": 1,
    }
    for name, least in at_least.items():
        value = getattr(made, name)
        if not value >= least:  # also refuses NaN
            raise BadSettingError(f"{name} is {value}; it is at least {least}.")
    if made.log_level not in ("debug", "info", "warning", "error"):
        raise BadSettingError(f"log_level is {made.log_level!r}: debug, info, warning or error.")
