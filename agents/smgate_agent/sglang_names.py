"""SGLang's own names for runners and a2a backends, and what the agent may say about a server.

A name outside the launch gate's lists is reported as `other`: nothing a server prints travels as free text.
"""

from __future__ import annotations

from typing import Final

from smgate_agent.launch import flags

OTHER: Final = "other"

UPCAST_RUNNERS: Final = frozenset({"auto", "triton"})
"""Resolved values that end in the BF16 branch after a packed MXFP4 load."""

MEGAMOE_A2A: Final = frozenset({"megamoe", "flashinfer_megamoe"})
"""Under these the experts run elsewhere, whatever the runner's value says."""


def runner(value: object) -> str | None:
    """The runner's wire name; None if there is no value at all."""
    return _known(value, flags.RUNNERS)


def a2a(value: object) -> str | None:
    """The a2a backend's wire name; None if there is no value at all."""
    return _known(value, flags.A2A_BACKENDS)


def _known(value: object, names: frozenset[str]) -> str | None:
    if not isinstance(value, str) or not value:
        return None
    return value if value in names else OTHER
