"""Owns what one command runs with: the console, the settings, and a client made when it is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from smgate import client, clock as clocks
from smgate.cli import console as consoles, output, settings as settings_of


@dataclasses.dataclass(slots=True, kw_only=True)
class Edges:
    """What the process gives the command line; flags add to it while they are parsed."""

    environ: Mapping[str, str]
    console: consoles.Console
    clock: clocks.Clock
    connection: settings_of.Connection = dataclasses.field(default_factory=settings_of.Connection)
    debug: bool = False


class Session:
    """One command's run."""

    def __init__(self, edges: Edges, style: output.Style) -> None:
        self.environ: Final = edges.environ
        self.console: Final = edges.console
        self.clock: Final = edges.clock
        self.style: Final = style
        self._connection: Final = edges.connection
        self._settings: settings_of.Settings | None = None
        self._client: client.Client | None = None

    @property
    def settings(self) -> settings_of.Settings:
        """Settled once; warnings are said once."""
        if self._settings is None:
            self._settings = settings_of.resolve(
                self._connection, self.environ, asked=self.console.asked
            )
            for warning in self._settings.warnings:
                self.console.warn(warning)
        return self._settings

    @property
    def client(self) -> client.Client:
        """The connection to the controller."""
        if self._client is None:
            settings = self.settings
            self._client = client.Client(
                url=settings.url,
                token=settings.token,
                timeout_s=settings.request_timeout_s,
                clock=self.clock,
                on_retry=self._retrying,
            )
        return self._client

    def close(self) -> None:
        """End the connection, if there is one."""
        if self._client is not None:
            self._client.close()

    def _retrying(self, why: str, pause_s: float) -> None:
        self.console.note(f"{self.settings.url}: {why}; trying again in {pause_s:g} s")
