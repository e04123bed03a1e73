"""Owns where the CLI's settings come from: flag, then environment, then context, then default.

Nothing else in the CLI reads the environment. A token is never an argument: arguments are seen by
every process on the machine and kept by shells.
"""

from __future__ import annotations

import dataclasses
import os
import stat
import tomllib
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, TextIO

from smgate import client, config
from smgate.cli import failures

_SERVED: Final = config.Settings()
DEFAULT_URL: Final = f"http://{_SERVED.host}:{_SERVED.port}"
"""Where `smgate serve` listens on this machine unless it is told otherwise."""
DEFAULT_TIMEOUT_S: Final = 30.0
TOKEN_BYTES_MAX: Final = 4096
STANDARD_INPUT: Final = "-"
_CONTEXT_KEYS: Final = ("url", "token_file")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """What flags said; None where nobody said anything."""

    url: str | None = None
    context: str | None = None
    token_file: str | None = None
    request_timeout_s: float | None = None

    def over(self, earlier: Connection) -> Connection:
        """These flags, and where they are silent the earlier ones."""
        return Connection(
            url=earlier.url if self.url is None else self.url,
            context=earlier.context if self.context is None else self.context,
            token_file=earlier.token_file if self.token_file is None else self.token_file,
            request_timeout_s=earlier.request_timeout_s
            if self.request_timeout_s is None
            else self.request_timeout_s,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Which controller, as whom."""

    url: str
    context: str | None
    token: str | None = dataclasses.field(repr=False)
    request_timeout_s: float
    warnings: tuple[str, ...] = ()

    @property
    def where(self) -> str:
        """The controller, as confirmations name it."""
        return self.url if self.context is None else f"{self.url} (context {self.context})"


def environment() -> Mapping[str, str]:
    """The environment of this process."""
    return os.environ  # noqa: TID251  the one place where the CLI reads it


def config_path(environ: Mapping[str, str]) -> Path:
    """Where the contexts are."""
    base = environ.get("XDG_CONFIG_HOME") or str(Path(environ.get("HOME", "~")) / ".config")
    return Path(base).expanduser() / "smgate" / "config.toml"


def resolve(given: Connection, environ: Mapping[str, str], *, asked: TextIO) -> Settings:
    """Settle every setting.

    Raises:
        failures.CliError: a file that is named does not exist or does not fit.
    """
    name, context = _context(given, environ)
    from_context = given.url is None and not environ.get("SMGATE_URL")
    url = given.url or environ.get("SMGATE_URL") or context.get("url") or DEFAULT_URL
    warnings: list[str] = []
    token = _token(given, environ, asked=asked, warnings=warnings)
    # A context's token belongs to the context's controller and is shown to no other.
    if token is None and from_context and "token_file" in context:
        token = _token_from(Path(context["token_file"]).expanduser(), warnings)
    if token is not None and _in_the_clear(url):
        warnings.append(f"The token goes to {url} unencrypted; use https.")
    return Settings(
        url=url,
        context=name if from_context and "url" in context else None,
        token=token,
        request_timeout_s=given.request_timeout_s or DEFAULT_TIMEOUT_S,
        warnings=tuple(warnings),
    )


def _in_the_clear(url: str) -> bool:
    try:
        parsed = urllib.parse.urlsplit(url)
    except ValueError:
        return False  # The client refuses it, and nothing is sent.
    return parsed.scheme == "http" and parsed.hostname not in client.LOOPBACK


def _token(
    given: Connection, environ: Mapping[str, str], *, asked: TextIO, warnings: list[str]
) -> str | None:
    if given.token_file == STANDARD_INPUT:
        return _one_line(asked.read(TOKEN_BYTES_MAX), "standard input")
    if given.token_file is not None:
        return _token_from(Path(given.token_file).expanduser(), warnings)
    if environ.get("SMGATE_TOKEN"):
        return _one_line(environ["SMGATE_TOKEN"], "SMGATE_TOKEN")
    if environ.get("SMGATE_TOKEN_FILE"):
        return _token_from(Path(environ["SMGATE_TOKEN_FILE"]).expanduser(), warnings)
    return None


def _token_from(path: Path, warnings: list[str]) -> str:
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(TOKEN_BYTES_MAX)
            mode = os.fstat(file.fileno()).st_mode
    except (OSError, UnicodeDecodeError) as error:
        raise failures.usage(
            f"The token file {path} cannot be read.", cause=_os_reason(error)
        ) from error
    if mode & (stat.S_IRWXG | stat.S_IRWXO):
        warnings.append(f"Others can read the token file {path}; run: chmod 600 {path}")
    return _one_line(text, str(path))


def _one_line(text: str, where: str) -> str:
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise failures.usage(
            f"{where} does not hold a token.",
            hint="It must be one line, as `smgate token issue` printed it.",
        )
    return token


def _context(given: Connection, environ: Mapping[str, str]) -> tuple[str | None, dict[str, str]]:
    path = config_path(environ)
    wanted = given.context or environ.get("SMGATE_CONTEXT")
    try:
        config = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        config = {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise failures.usage(f"{path} cannot be read.", cause=_os_reason(error)) from error
    contexts = _table(path, config.get("contexts", {}), "contexts")
    name = wanted or config.get("current")
    if name is None:
        return None, {}
    if name not in contexts:
        raise failures.usage(
            f"No context {name!r} in {path}.",
            hint=f"Contexts there: {', '.join(sorted(contexts)) or 'none'}.",
        )
    context = _table(path, contexts[name], f"contexts.{name}")
    for key, value in context.items():
        if key not in _CONTEXT_KEYS or not isinstance(value, str):
            raise failures.usage(
                f"{path}: contexts.{name}.{key} is not a setting.",
                hint="A context has url and token_file, both text.",
            )
    return str(name), context


def _table(path: Path, value: object, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise failures.usage(f"{path}: {where} must be a table.")
    return value


def _os_reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
