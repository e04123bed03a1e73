"""Owns lengths of time as people write them."""

from __future__ import annotations

import re
from typing import Final

from smgate.cli import failures

_PART: Final = re.compile(r"([1-9][0-9]{0,5})([dhms])")
_SECONDS: Final = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def seconds(text: str | None, option: str) -> int | None:
    """90d, 24h, 1h30m, 45s in seconds; None stays None.

    Raises:
        failures.CliError: it is no length of time.
    """
    if text is None:
        return None
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise failures.usage(
            f"{option} {text!r} is no length of time.", hint="Write 90d, 24h, 30m."
        )
    return sum(int(number) * _SECONDS[unit] for number, unit in parts)
