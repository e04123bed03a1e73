"""What a scenario says of another release that led before."""

from __future__ import annotations

import msgspec

from smgate.wire.base import Code, Name, Runner, Version


class ToldBefore(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """What other rules had told a unit: the runner to append, null for nothing, and their code."""

    unit: Name
    value: Runner | None
    code: Code


class RulesBefore(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Rules of another release, and what they had told."""

    version: Version
    told: tuple[ToldBefore, ...] = ()
