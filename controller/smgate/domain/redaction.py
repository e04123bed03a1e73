"""A fact whose payload was erased: the order, and what is left of the fact."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Final


@dataclass(frozen=True, slots=True, kw_only=True)
class FactRedacted:
    """The payload of one fact was ordered to be erased; its leaf, and so the chain, stay."""

    position: int
    fact: str
    """Its stored name."""
    digest: str
    """SHA-256 of the payload in hex: with it the other fields are verified against the leaf."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Erased:
    """What is left of such a fact: something happened, and nothing is known of it. Never stored."""

    sentence: ClassVar[str] = "its payload was erased"


ERASED: Final = Erased()
