"""When the controller was heard last, on this node's clocks: a lease is counted from there.

The wall clock may be set back or forward; the clock since boot never is, and runs on while the
machine sleeps. So within one boot that one counts, and a lease ends neither early nor never.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from smgate_agent.launch import shapes

Json = dict[str, Any]

CONTACT_FILE = "contact.json"
BOOT_ID_PATH = Path("/proc/sys/kernel/random/boot_id")


def now() -> Json:
    """This moment: by the wall clock, by the clock since boot, and which boot."""
    try:
        boot_id = BOOT_ID_PATH.read_text(encoding="ascii").strip()
        boot_us = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000
    except (OSError, ValueError, AttributeError):
        boot_id, boot_us = "", 0
    return {"at_us": time.time_ns() // 1_000, "boot_id": boot_id, "boot_us": boot_us}


def unheard_s(last: Json | None, held: Json | None, at: Json) -> float | None:
    """Seconds since the controller was heard; None if nothing tells.

    Args:
        last: what `now` said when it was.
        held: the directive that is held: it was issued by the controller's own clock, which is
            believed only where nothing was noted here.
        at: what `now` says.
    """
    if last is not None and all(shapes.is_count(last.get(name)) for name in ("at_us", "boot_us")):
        clock = "boot_us" if at["boot_id"] and last.get("boot_id") == at["boot_id"] else "at_us"
        return max(0.0, float(at[clock] - last[clock]) / 1e6)
    if held is None:
        return None
    return max(0.0, float(at["at_us"] - held["issued_at_us"]) / 1e6)
